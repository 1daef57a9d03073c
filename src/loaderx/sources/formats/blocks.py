"""Files that must be decoded in blocks: copied once into the native layout, or read in order.

A block (a row group, a compressed batch) must be decoded whole, so records in random order cost a
thousand times what they should.  One pass over all blocks costs less than an epoch of any other way
to read them, so that is done first: the columns are decoded into the cache folder, and read from
there from then on.  With ``cache=False`` nothing is copied, and a global shuffle is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError
from loaderx.memory import Lend
from loaderx.sources.adapt.chunked import chunk_counts
from loaderx.sources.adapt.kept_chunks import KeptChunks
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import CopyOf
from loaderx.sources.cache.unpack import check_room
from loaderx.sources.columns.build import DataArrays
from loaderx.sources.columns.categories import Categories
from loaderx.sources.columns.data import ColumnData
from loaderx.sources.columns.elements import PartElements
from loaderx.sources.columns.gaps import table_columns
from loaderx.sources.columns.run_columns import Offsets, TextColumn
from loaderx.sources.columns.table import TableSource
from loaderx.sources.columns.text import FEW, bulk_values
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.format import OpenOptions, check_named
from loaderx.sources.native.copies import CopiedFiles, opened_copy, write_copy
from loaderx.sources.native.reader import open_native
from loaderx.tree import Array, Tree

_VERSION = 1


class BlockFiles(CopiedFiles, Protocol):
    """The shards of a dataset, whose records are decoded in blocks."""

    group_rows: npt.NDArray[np.int64]  # records of each block
    shards: list[str]  # the names of files, or of what counts as such
    in_pieces: bool = False  # True if blocks are fetched when they are read

    def block(self, number: int) -> Mapping[str, ColumnData]:
        """The columns of a block."""
        ...

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        return map(self.block, range(len(self.group_rows)))

    def fetch(self, numbers: Sequence[int]) -> int:
        """Fetches blocks; returns the number of bytes that were fetched."""
        return 0


OpenBlocks: TypeAlias = Callable[[], BlockFiles]


def open_blocks(
    open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str
) -> TableSource:
    """The records of files that are decoded in blocks; ``label`` is the name of the format.

    A copy belongs to ``files``: it is made again if one of them has changed.
    """
    if not options.cache.makes_copies:
        if options.needs_all:
            raise ArgumentError(
                f"{files[0]}: categories, and which columns have missing values, are not known "
                "without a copy, and cache=False makes none. Name the columns, missing={'age': "
                "'nan'}, or leave `cache` out."
            )
        return BlockSource(open_files(), options, label)
    found = opened_copy(
        lambda: _copied(open_files, files, options, label),
        lambda folder: open_native(folder, options, label),
    )
    assert found is not None
    return found


# With a copy ------------------------------------------------------------------------------------


def _copied(open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str) -> str:
    """The folder that has the columns in the native layout; it is made if it does not exist."""

    def make(folder: str) -> None:
        found, cache = open_files(), options.cache.folder or folder
        others = f" and {len(found.shards) - 1} more" if len(found.shards) > 1 else ""
        if options.columns is None:  # else `nbytes` may be more than is copied
            check_room(f"a copy of {found.shards[0]}{others}", cache, found.nbytes)
        write_copy(
            found,
            found.shards,
            folder,
            label=label.capitalize(),
            cache=cache,
            coder=Categories(options.categories, found.kinds),
        )

    return options.cache.copy(CopyOf("copied", _VERSION, files, make, [label, *options.copied()]))


# Without one ------------------------------------------------------------------------------------


class BlockSource(TableSource):
    """Records straight from blocks; the blocks that were decoded last are kept."""

    is_mapped = False

    def __init__(self, found: BlockFiles, options: OpenOptions, label: str) -> None:
        self._parts = parts = Parts(found.group_rows)
        self.record_nbytes = found.nbytes // max(1, len(parts))
        self._blocks = found
        self.kept_chunks = kept = KeptChunks(DecodeBlock(found), parts.counts)
        if options.columns is None:
            check_named("decode", options.decode.leaves, list(found.kinds), found.shards[0])

        def arrays_of(name: str) -> DataArrays:
            return DataArrays(_ColumnOf(kept, name))

        texts = {
            name: BlockTexts(parts, arrays_of(name), kept, name)
            for name, kind in found.kinds.items()
            if kind.kind == "text"
        }
        where = found.shards[0]
        super().__init__(
            table_columns(found.kinds, parts, arrays_of, options, where, given=texts),
            len(parts),
            label=options.label(label),
            classes=found.classes,
            shard_counts=found.counts,
            shard_names=found.shards,
        )

    @property
    def random_access(self) -> bool:
        return False

    def chunks(self) -> Indices:
        return np.append(self._parts.starts, len(self))

    @property
    def fetches(self) -> bool:
        return self._blocks.in_pieces

    def fetch(self, indices: Indices) -> int:
        if not self.fetches:
            return 0
        return self._blocks.fetch(list(chunk_counts(self._parts, indices)))

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        with self.kept_chunks.together(chunk_counts(self._parts, indices)):
            return super().gather(indices, lend)

    def records(self, indices: Indices) -> list[Tree]:
        with self.kept_chunks.together(chunk_counts(self._parts, indices)):
            return super().records(indices)


class Block:
    """The decoded columns of a block."""

    def __init__(self, columns: Mapping[str, ColumnData], text_names: Sequence[str]) -> None:
        self.columns = columns
        texts = sum(columns[name].nbytes for name in text_names)  # the same texts as Python objects
        self.nbytes = texts + sum(column.nbytes for column in columns.values())
        self._texts: dict[str, Array | None] = {}

    def texts(self, name: str) -> Array | None:
        """The texts of a column; None if they cannot all be read."""
        if name not in self._texts:
            self._texts[name] = _all_texts(self.columns[name])
        return self._texts[name]


def _all_texts(data: ColumnData) -> Array | None:
    """All texts in one call of pyarrow: a third of the time of one by one."""
    values, offsets = data.values, data.offsets
    assert values is not None
    assert offsets is not None
    ends = offsets[[0, -1]]
    if ends[0] < 0 or ends[1] > len(values) or (np.diff(offsets) < 0).any():
        return None
    found = np.empty(data.length, object)
    try:
        found[:] = bulk_values(values, offsets, is_text=True)
    except UnicodeDecodeError:  # perhaps only some of them are damaged
        return None
    return found


class BlockTexts(TextColumn):
    """Text; a block that is read in another order becomes Python objects as a whole."""

    def __init__(
        self, parts: Parts, arrays: DataArrays, blocks: KeptChunks[Block], name: str
    ) -> None:
        offsets = Offsets(PartElements(parts, arrays((), "offsets"), parts.counts + 1))
        super().__init__(parts, offsets, PartElements(parts, arrays((), "values")))
        self._blocks, self._name = blocks, name

    def values(self, at: Located) -> Sequence[object]:
        if len(at) < FEW or at.runs is not None:
            return super().values(at)
        found = np.empty(len(at), object)
        for part, places in at.groups():
            texts = self._blocks.get(part).texts(self._name)
            if texts is None:
                return super().values(at)
            found[places] = texts[at.rows[places]]
        values: list[object] = found.tolist()
        return values


class DecodeBlock:
    """Decodes a block by its number."""

    def __init__(self, files: BlockFiles) -> None:
        self.files = files
        self._texts = [name for name, kind in files.kinds.items() if kind.kind == "text"]

    def __call__(self, number: int) -> Block:
        columns = self.files.block(number)
        for column in columns.values():
            _protect(column)  # because views of it are handed out
        return Block(columns, self._texts)


def _protect(data: ColumnData) -> None:
    """Makes the arrays read-only."""
    for array in (data.values, data.offsets, data.valid):
        if array is not None:
            array.flags.writeable = False
    for field in data.fields.values():
        _protect(field)


class _ColumnOf:
    def __init__(self, blocks: KeptChunks[Block], name: str) -> None:
        self._blocks, self._name = blocks, name

    def __call__(self, number: int) -> ColumnData:
        return self._blocks.get(number).columns[self._name]
