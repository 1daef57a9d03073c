"""The leaves of record batches, and columns that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.sources.columns.column import Column
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.derived_columns import FilledColumn
from loaderx.sources.columns.gaps import add_columns, check_gaps, gap_columns
from loaderx.sources.columns.table import NamedColumns
from loaderx.sources.decoding import ENCODED, Decoding
from loaderx.sources.format import MissingWord, OpenOptions
from loaderx.sources.formats.arrow.addresses import Node
from loaderx.sources.formats.arrow.elements import NullBits, RecordBatches, Slots
from loaderx.sources.formats.arrow.readers import ColumnBuilder, fields_of

_INDEX = ColumnType("fixed", np.dtype(np.uint64))


def index_column(batches: RecordBatches, node: Node, slots: Slots) -> Column:
    """The column of row numbers in which Hugging Face keeps a choice of rows."""
    return ColumnBuilder(batches).numbers(_INDEX, node, slots)


# Leaves -----------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A leaf of the records: a column, or a field of a struct."""

    path: tuple[str, ...]
    kind: ColumnType
    node: Node
    slots: Slots
    valid: list[npt.NDArray[np.int64]]  # the slots that say which records are null
    inner: list[npt.NDArray[np.int64]]  # the same for items of lists

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_nulls(self) -> bool:
        return any((slot >= 0).any() for slot in self.valid)

    @property
    def has_nulls_above(self) -> bool:
        """True if structs around it may be null."""
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


def words_of(
    leaves: Sequence[Leaf], batches: RecordBatches, options: OpenOptions, where: str
) -> dict[str, MissingWord]:
    """What becomes of the nulls of leaves that are not filled; an error for those refused."""
    kinds = {leaf.name: leaf.kind for leaf in leaves if leaf.name not in options.fill}
    have = {leaf.name: leaf for leaf in leaves if leaf.has_nulls or leaf.has_inner_nulls}

    def count(name: str) -> int | None:
        leaf = have[name]
        return None if leaf.has_inner_nulls else batches.count_nulls(leaf.valid)

    return check_gaps(options.missing, kinds, have, count, where)


def build_columns(
    batches: RecordBatches,
    leaves: Sequence[Leaf],
    fillers: Mapping[str, object],
    decode: Decoding = ENCODED,
    *,
    is_plain: bool = False,
    names_files: bool = True,
    words: Mapping[str, MissingWord] = {},
) -> NamedColumns:
    """Columns by name; ``fillers`` are the values in place of nulls, ``words`` from `words_of`."""
    builder = ColumnBuilder(batches, is_plain=is_plain, names_files=names_files)
    tree: dict[str, object] = {}
    for leaf in leaves:
        way = reduce(Decoding.below, leaf.path, decode)
        column = builder.column(leaf.kind, leaf.node, leaf.slots, way)
        assert isinstance(column, Column)
        nulls, made = NullBits(batches, leaf.valid), {leaf.path[-1]: column}
        if leaf.name in fillers:
            made = {leaf.path[-1]: FilledColumn(column, nulls, fillers[leaf.name])}
        elif leaf.name in words:
            word = words[leaf.name]
            made = gap_columns(leaf.path[-1], column, leaf.kind, nulls, word, decode=bool(way))
        inside = tree
        for name in leaf.path[:-1]:
            inside = inside.setdefault(name, {})  # type: ignore[assignment]
        add_columns(inside, made)
    return tree  # type: ignore[return-value]
