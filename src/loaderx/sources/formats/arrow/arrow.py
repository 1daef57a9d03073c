"""Arrow IPC: files, streams and Feather.

Uncompressed files are mapped, and records are gathered by address from all record batches at once.
Others are copied once into the native layout, like Parquet (`blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import CacheFolder
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.format import OpenOptions, check_named
from loaderx.sources.formats.arrow.addresses import Node, node_of
from loaderx.sources.formats.arrow.blocks import ArrowBlocks
from loaderx.sources.formats.arrow.columns import filler
from loaderx.sources.formats.arrow.elements import RecordBatches, Slots
from loaderx.sources.formats.arrow.files import (
    ArrowFile,
    ArrowIndex,
)
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.arrow.table import (
    Leaf,
    build_columns,
    index_column,
    leaves_of,
    words_of,
)
from loaderx.sources.formats.arrow.types import Features, type_at
from loaderx.sources.formats.blocks import open_blocks
from loaderx.sources.remote.urls import is_url


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return open_arrow(files, options)


def open_arrow(
    files: list[str],
    options: OpenOptions,
    *,
    features: Features | None = None,
    indices: list[str] | None = None,
    label: str = "arrow",
) -> Source:
    """The records of Arrow files.

    Args:
        files: shards, in order.
        options: those of `Dataset.open`.
        features: Hugging Face's description of the columns, where the files have none.
        indices: files with the row of each record, where records are a choice of rows.
        label: the name of the format.
    """
    file_set = FileSet(files, files=options.cache.files)
    index = ArrowIndex(file_set, options.cache)
    mapped = _Mapped(file_set, index, options, features)
    chosen = None if indices is None else open_indices(indices, options.cache)
    if not mapped.is_mapped:
        if chosen is not None:
            raise FileError(
                f"{files[0]} is compressed, and records are a choice of its rows: save the dataset "
                "again with flatten_indices()."
            )

        def open_arrow() -> ArrowBlocks:
            return ArrowBlocks(file_set, options, features)

        return open_blocks(open_arrow, files, options, label)
    return mapped.source(chosen, label)


def open_indices(files: list[str], cache: CacheFolder) -> tuple[Column, int]:
    """The column of row numbers in files, and its length."""
    file_set = FileSet(files, files=cache.files)
    index = ArrowIndex(file_set, cache)
    slots = []
    for path, file in zip(files, index.files(), strict=True):
        name = file.schema.names[0] if len(file.schema.names) == 1 else ""
        if not file.is_mapped or str(file.schema.field(0).type) != "uint64":
            kinds = ", ".join(f"{one.name} ({one.type})" for one in file.schema)
            raise FileError(f"{path} has no row numbers (uint64), as datasets writes: {kinds}.")
        slots.append(_column_slots(file, name))
    batches = RecordBatches(file_set, index.batches, index.rows)
    return index_column(batches, Node("numbers", 8), np.concatenate(slots, axis=1)), len(batches)


def _column_slots(file: ArrowFile, name: str) -> npt.NDArray[np.int64]:
    """The slots of a column: [slot, batch]."""
    where = file.columns[name]
    return file.slots[:, where.start : where.stop].T


class _Mapped:
    """Files whose records are read in place, if that is possible."""

    def __init__(
        self, files: FileSet, index: ArrowIndex, options: OpenOptions, features: Features | None
    ) -> None:
        self._files, self._index, self._options = files, index, options
        self._types: ShardTypes | None = None
        self.is_mapped = not options.categories  # the codes of these are in a copy
        slots: dict[str, list[Slots]] = {}
        for path, file in zip(files.paths, index.files(), strict=True):
            if self._types is None:
                options.check_names(file.schema.names, path)
                check_named("decode", options.decode.leaves, file.schema.names, path)
                self._types = ShardTypes(file.schema, path, options.columns, features)
                slots = {name: [] for name in self._types.names}
            elif not self._types.add(file.schema, path):
                self.is_mapped = False
            has_all = all(name in file.columns for name in slots)
            self.is_mapped = self.is_mapped and file.is_mapped and has_all
            if self.is_mapped:
                for name, found in slots.items():
                    found.append(_column_slots(file, name))
        if not self.is_mapped:
            return
        if not index.rows.sum():
            others = f" and {len(files) - 1} more" if len(files) > 1 else ""
            raise FileError(f"{files.paths[0]}{others}: there are no records.")
        joined = {name: np.concatenate(found, axis=1) for name, found in slots.items()}
        self._leaves = [leaf for name in joined for leaf in self._leaves_of(name, joined[name])]
        self._check_nulls()

    @property
    def _known(self) -> ShardTypes:
        assert self._types is not None
        return self._types

    def _leaves_of(self, name: str, slots: Slots) -> Sequence[Leaf]:
        node = node_of(self._known.first.field(name).type)
        assert node is not None
        return list(leaves_of(self._known.kinds[name], node, slots, (name,)))

    # Nulls ------------------------------------------------------------------------------------

    def _check_nulls(self) -> None:
        where = self._files.paths[0] + (" and others" if len(self._files) > 1 else "")
        self._words = words_of(self._leaves, self._batches(), self._options, where)
        # Items of lists cannot be filled as they are read.  Behind a null, lists of one length have
        # nulls: they are left out when it is decoded.
        self.is_mapped = not any(leaf.has_inner_nulls for leaf in self._leaves)

    def _batches(self, chosen: Column | None = None) -> RecordBatches:
        return RecordBatches(self._files, self._index.batches, self._index.rows, chosen)

    def _fillers(self) -> dict[str, object]:
        found = {}
        for leaf in self._leaves:
            if leaf.has_nulls and leaf.name in self._options.fill:
                kind = type_at(self._known.first, leaf.path)
                value = self._options.fill[leaf.name]
                found[leaf.name] = filler(leaf.kind, kind, value, leaf.name)
        return found

    # The source -------------------------------------------------------------------------------

    def source(self, chosen: tuple[Column, int] | None, label: str) -> Source:
        index, types = self._index, self._known
        column, length = (None, int(index.rows.sum())) if chosen is None else chosen
        batches = self._batches(column)
        fillers = self._fillers()
        is_own = not any(map(is_url, self._files.paths))
        tree = build_columns(
            batches,
            self._leaves,
            fillers,
            self._options.decode,
            names_files=is_own,
            words=self._words,
        )
        counts = None
        if chosen is None:
            ends = np.concatenate([[0], np.cumsum(index.rows)])
            borders = ends[np.concatenate([[0], np.cumsum(index.batches)])]
            counts = np.diff(borders).tolist()
        return TableSource(
            tree,
            length,
            label=self._options.label(label),
            classes=types.classes,
            shard_counts=counts,
            shard_names=None if counts is None else self._files.paths,
        )
