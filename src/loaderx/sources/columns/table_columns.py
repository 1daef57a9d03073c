"""Records of a table that follow each other, as columns: no record is made for it.

The columns are views of the table's own data, where that is in one piece: of a mapped file, or of a
block that was decoded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.columns.columns import (
    BytesColumn,
    Column,
    FixedColumn,
    ListColumn,
    RunColumn,
    TextColumn,
    rows_of,
)
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.record_columns import Encoded, branch
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Run, is_run
from loaderx.tree import LEAF, Structure


def table_columns(source: TableSource, indices: Indices) -> list[Encoded] | None:
    """The records at ``indices``, a piece for each part of the table that has some of them.

    None if they do not follow each other, or must be looked at one by one.
    """
    columns, structure = source.columns
    if not is_run(indices) or not _is_tree(structure):
        return None
    plain = [column for column in columns if isinstance(column, (FixedColumn, RunColumn))]
    if len(plain) < len(columns) or not all(map(_is_plain, columns)):
        return None
    return [
        _tree(structure, iter([_encoded(column, run) for column in plain]), run.stop - run.start)
        for run in plain[0].parts.runs(int(indices[0]), len(indices))
    ]


def _is_plain(column: Column) -> bool:
    # Kinds of text differ in how they are read, not in what they are.
    is_text = isinstance(column, TextColumn)
    return is_text or type(column) in (FixedColumn, ListColumn, BytesColumn)


def _is_tree(structure: Structure) -> bool:
    """Is it made of dicts and tuples?"""
    if structure is LEAF:
        return True
    is_branch = structure.kind in ("dict", "tuple") and bool(structure.children)
    return is_branch and all(map(_is_tree, structure.children))


def _tree(structure: Structure, columns: Iterator[Encoded], count: int) -> Encoded:
    if structure is LEAF:
        return next(columns)
    pairs = zip(structure.keys, structure.children, strict=True)
    fields = {str(key): _tree(child, columns, count) for key, child in pairs}
    return branch("struct" if structure.kind == "dict" else "tuple", fields, count)


def _encoded(column: FixedColumn | RunColumn, run: Run) -> Encoded:
    if isinstance(column, FixedColumn):
        array = rows_of(column.part, run.part, np.array([run.start]), run.stop - run.start)
        rows = array[run.start : run.stop]
        return Encoded(ColumnType("fixed", rows.dtype, rows.shape[1:]), ColumnData(len(rows), rows))
    numbers = np.arange(run.start, run.stop) + int(column.parts.starts[run.part])
    ((_, data, starts, stops, _, _),) = column.runs(numbers)
    if isinstance(column, BytesColumn):
        kind = ColumnType("text" if isinstance(column, TextColumn) else "bytes")
    else:
        kind = ColumnType("ragged", data.dtype, data.shape[1:])
    first, last = int(starts[0]), int(stops[-1])
    offsets = np.concatenate([starts, stops[-1:]], dtype=np.int64) - first
    return Encoded(kind, ColumnData(len(starts), data[first:last], offsets))
