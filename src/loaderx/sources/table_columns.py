"""Records of a table that follow each other, as columns: no record is made for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.column_data import ColumnData, ColumnType, joined
from loaderx.sources.columns import (
    BytesColumn,
    Column,
    FixedColumn,
    ListColumn,
    RunColumn,
    TextColumn,
)
from loaderx.sources.parts import is_run
from loaderx.sources.record_columns import Encoded, branch
from loaderx.sources.table import TableSource
from loaderx.tree import LEAF, Structure

_RUNS: dict[type[RunColumn], ColumnType] = {
    TextColumn: ColumnType("text"),
    BytesColumn: ColumnType("bytes"),
}


def table_columns(source: TableSource, indices: Indices) -> Encoded | None:
    """The records at ``indices``; None if they do not follow each other, or must be looked at."""
    columns, structure = source.columns
    if not is_run(indices) or not all(_is_plain(column) for column in columns):
        return None
    made = iter([_encoded(column, indices) for column in columns])
    return _tree(structure, made, len(indices))


def _is_plain(column: Column) -> bool:
    return type(column) in (FixedColumn, ListColumn, TextColumn, BytesColumn)


def _tree(structure: Structure, columns: Iterator[Encoded], count: int) -> Encoded | None:
    if structure is LEAF:
        return next(columns)
    fields = {}
    for key, child in zip(structure.keys, structure.children, strict=True):
        found = _tree(child, columns, count)
        if found is None:
            return None
        fields[str(key)] = found
    if structure.kind not in ("dict", "tuple") or not fields:
        return None
    return branch("struct" if structure.kind == "dict" else "tuple", fields, count)


def _encoded(column: Column, indices: Indices) -> Encoded:
    if isinstance(column, FixedColumn):
        spec = column.spec
        shape = tuple(axis for axis in spec.shape if axis is not None)
        rows = np.empty((len(indices), *shape), spec.dtype)
        column.take(indices, rows)
        return Encoded(ColumnType("fixed", rows.dtype, shape), ColumnData(len(rows), rows))
    assert isinstance(column, RunColumn)
    kind = _RUNS.get(type(column))
    if kind is None:
        assert isinstance(column, ListColumn)
        kind = ColumnType("ragged", column.items.dtype, tuple(n or 0 for n in column.items.shape))
    pieces = []
    for _, data, starts, stops in column.runs(indices):
        first, last = int(starts[0]), int(stops[-1])
        offsets = np.concatenate([starts - first, [last - first]], dtype=np.int64)
        pieces.append(ColumnData(len(starts), data[first:last], offsets))
    return Encoded(kind, joined(kind, pieces))
