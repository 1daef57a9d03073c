"""Record batches as a table: which batch a record lies in, and columns that read it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.columns.columns import Column, FilledColumn
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.table import NamedColumns
from loaderx.sources.files.parts import ALL, Located, Parts, Places
from loaderx.sources.formats.arrow.addresses import Node
from loaderx.sources.formats.arrow.readers import ColumnBuilder, NullBits, Slots, Style, fields_of
from loaderx.tree import Array

_INDEX = ColumnType("fixed", np.dtype(np.uint64))


class Memory(Protocol):
    """Where batches lie: the bytes of a file, by its number."""

    def data(self, number: int, /) -> Array: ...


class RecordBatches:
    """Finds the batch and the row of each record; a `Batches`."""

    def __init__(
        self,
        memory: Memory,
        batches: Sequence[int] | npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        chosen: Column | None = None,
    ) -> None:
        """
        Args:
            memory: the files.
            batches: how many of the batches each file has.
            rows: how many records each batch has.
            chosen: the row of each record, where records are a choice of rows in another order.
        """
        self._memory, self._rows, self._chosen = memory, Parts(rows), chosen
        self._file_of = np.repeat(np.arange(len(batches)), batches)
        self._is_one = len(batches) == 1

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, indices: Indices) -> Located:
        if self._chosen is None:
            return self._rows.at(indices)
        found = np.empty(len(indices), np.uint64)
        self._chosen.take(self._chosen.parts.at(indices), found)
        if len(found) and int(found.max()) >= len(self._rows):
            raise FileError(
                f"the indices are damaged: row {int(found.max())} of {len(self._rows)} is asked "
                "for."
            )
        return self._rows.at(found.astype(np.int64))

    def memory(self, at: Located) -> Iterator[tuple[Places, Array]]:
        if self._is_one:
            yield ALL, self._memory.data(0)
            return
        for file, places in at.groups(self._file_of):
            yield places, self._memory.data(file)

    def bytes_of(self, batch: int) -> Array:
        return self._memory.data(int(self._file_of[batch]))

    def count_nulls(self, leaf: Leaf) -> int:
        """How many records have a null in this leaf."""
        nulls = NullBits(self, leaf.valid)
        found = 0
        for batch, count in enumerate(self._rows.counts.tolist()):
            is_null = nulls.missing(Located(np.full(count, batch), np.arange(count)))
            found += 0 if is_null is None else int(is_null.sum())
        return found


def index_column(batches: RecordBatches, node: Node, slots: Slots) -> Column:
    """The column of row numbers by which Hugging Face keeps a choice of rows."""
    return ColumnBuilder(batches, "encoded").numbers(_INDEX, node, slots)


# Leaves -----------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A leaf of the records: a column, or a field of a struct."""

    path: tuple[str, ...]
    kind: ColumnType
    node: Node
    slots: Slots
    valid: list[npt.NDArray[np.int64]]  # the slots that say which records are null
    inner: list[npt.NDArray[np.int64]]  # the same of items of lists

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_nulls(self) -> bool:
        return any((slot >= 0).any() for slot in self.valid)

    @property
    def has_nulls_above(self) -> bool:
        """Are structs around it null?"""
        return any((slot >= 0).any() for slot in self.valid[:-1])

    @property
    def has_inner_nulls(self) -> bool:
        return any((slot >= 0).any() for slot in self.inner)


def leaves_of(
    kind: ColumnType,
    node: Node,
    slots: Slots,
    path: tuple[str, ...],
    above: Sequence[npt.NDArray[np.int64]] = (),
) -> Iterator[Leaf]:
    """The leaves of a column."""
    if kind.kind != "struct":
        inner = list(_inner_nulls(kind, node, slots))
        yield Leaf(path, kind, node, slots, [*above, slots[0]], inner)
        return
    fields = fields_of(node, slots)
    for name, field in kind.fields.items():
        yield from leaves_of(field, *fields[name], (*path, name), [*above, slots[0]])


def _inner_nulls(
    kind: ColumnType, node: Node, slots: Slots, *, is_item: bool = False
) -> Iterator[npt.NDArray[np.int64]]:
    """The slots that say which items of lists are null, and which fields of these."""
    if is_item:
        yield slots[0]
    if node.kind in ("list", "fixed_list"):
        items = kind.fields[ITEMS] if kind.kind == "list" else kind
        yield from _inner_nulls(items, node.children[0], slots[node.own_slots :], is_item=True)
    elif kind.kind == "struct":
        fields = fields_of(node, slots)
        for name, field in kind.fields.items():
            yield from _inner_nulls(field, *fields[name], is_item=True)


def build_columns(
    batches: RecordBatches,
    leaves: Sequence[Leaf],
    fillers: Mapping[str, object],
    style: Style,
    *,
    names_files: bool = True,
) -> NamedColumns:
    """Columns by name; ``fillers`` are the values in place of nulls."""
    builder = ColumnBuilder(batches, style, names_files=names_files)
    tree: dict[str, object] = {}
    for leaf in leaves:
        column = builder.column(leaf.kind, leaf.node, leaf.slots)
        assert isinstance(column, Column)
        if leaf.name in fillers:
            column = FilledColumn(column, NullBits(batches, leaf.valid), fillers[leaf.name])
        inside = tree
        for name in leaf.path[:-1]:
            inside = inside.setdefault(name, {})  # type: ignore[assignment]
        inside[leaf.path[-1]] = column
    return tree  # type: ignore[return-value]
