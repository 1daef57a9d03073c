"""Files that must be decoded in blocks: copied once into the native layout, or read in order.

A block (a row group, a compressed batch) must be decoded whole, so records in random order cost a
thousand times what they should.  One pass over all blocks costs less than an epoch of any other way
to read them, so that is done first: the columns are decoded into the cache folder, and read from
there ever after.  With ``cache=False`` nothing is copied, and a global shuffle is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.memory import Lend
from loaderx.sources.base import Indices
from loaderx.sources.chunked import chunk_counts
from loaderx.sources.column_data import ColumnData, DataArrays, build_column
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.native import open_native
from loaderx.sources.kept_chunks import KeptChunks
from loaderx.sources.native_copies import CopiedFiles, write_copy
from loaderx.sources.ondisk.cache import Json
from loaderx.sources.parts import Parts
from loaderx.sources.table import ColumnTree, TableSource
from loaderx.tree import Tree

_VERSION = 1


class BlockFiles(CopiedFiles, Protocol):
    """The shards of a dataset, whose records are decoded in blocks."""

    group_rows: npt.NDArray[np.int64]  # records of each block

    def block(self, number: int) -> Mapping[str, ColumnData]:
        """The columns of a block."""
        ...


OpenBlocks: TypeAlias = Callable[[], BlockFiles]


def open_blocks(
    open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str
) -> TableSource:
    """The records of files that are decoded in blocks; ``label`` is the name of the format."""
    if not options.cache.makes_copies:
        return BlockSource(open_files(), files, options, label)
    folder = _copied(open_files, files, options, label)
    try:
        return open_native(folder, options, label)
    except FileError:  # the copy is damaged: it is made again
        shutil.rmtree(folder, ignore_errors=True)
        return open_native(_copied(open_files, files, options, label), options, label)


# With a copy ------------------------------------------------------------------------------------


def _copied(open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str) -> str:
    """The folder that has the columns in the native layout; it is made if it is not there."""
    columns: Json = None if options.columns is None else list(options.columns)
    fill: Json = {name: repr(value) for name, value in sorted(options.fill.items())}

    def make(folder: str) -> None:
        write_copy(
            open_files(), files, folder, label=label.capitalize(), cache=options.cache.folder
        )

    return options.cache.copy("copied", _VERSION, files, make, [label, columns, fill])


# Without one ------------------------------------------------------------------------------------


class BlockSource(TableSource):
    """Records straight from blocks: those that were decoded last are kept."""

    is_mapped = False

    def __init__(
        self, found: BlockFiles, files: list[str], options: OpenOptions, label: str
    ) -> None:
        self._parts = parts = Parts(found.group_rows)
        self.kept_chunks = kept = KeptChunks(DecodeBlock(found), parts.counts)
        columns: ColumnTree = {
            name: build_column(
                kind, parts, DataArrays(_ColumnOf(kept, name)), decode=options.decode
            )
            for name, kind in found.kinds.items()
        }
        super().__init__(
            columns,
            len(parts),
            label=label,
            classes=found.classes,
            shard_counts=found.counts,
            shard_names=files,
        )

    @property
    def random_access(self) -> bool:
        return False

    def chunks(self) -> Indices:
        return np.append(self._parts.starts, len(self))

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        with self.kept_chunks.together(chunk_counts(self._parts, indices)):
            return super().gather(indices, lend)

    def records(self, indices: Indices) -> list[Tree]:
        with self.kept_chunks.together(chunk_counts(self._parts, indices)):
            return super().records(indices)


class Block(NamedTuple):
    """The decoded columns of a block."""

    columns: Mapping[str, ColumnData]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


class DecodeBlock:
    """Decodes a block by its number."""

    def __init__(self, files: BlockFiles) -> None:
        self.files = files

    def __call__(self, number: int) -> Block:
        columns = self.files.block(number)
        for column in columns.values():
            _protect(column)  # views of it are handed out
        return Block(columns)


def _protect(data: ColumnData) -> None:
    """Makes the arrays read-only."""
    for array in (data.values, data.offsets):
        if array is not None:
            array.flags.writeable = False
    for field in data.fields.values():
        _protect(field)


class _ColumnOf:
    def __init__(self, blocks: KeptChunks[Block], name: str) -> None:
        self._blocks, self._name = blocks, name

    def __call__(self, number: int) -> ColumnData:
        return self._blocks.get(number).columns[self._name]
