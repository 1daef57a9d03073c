"""Consecutive records of a table as columns, without making the records.

The columns are views of the table's own data, where that is in one piece: of a mapped file, or of a
block that was decoded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.columns.column import Column, FixedColumn
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.record_columns import Encoded, branch
from loaderx.sources.columns.run_columns import BytesColumn, ListColumn, RunColumn, TextColumn
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Located, Run
from loaderx.tree import LEAF, Structure


def table_columns(source: TableSource, indices: Indices) -> list[Encoded] | None:
    """The records at ``indices``, one piece for each part of the table that has some of them.

    None if they are not consecutive, or must be looked at one by one.
    """
    columns, structure = source.columns
    plain = [column for column in columns if isinstance(column, (FixedColumn, RunColumn))]
    if len(plain) < len(columns) or not all(map(_is_plain, columns)) or not _is_tree(structure):
        return None
    found = []
    for run in plain[0].parts.at(indices).runs or ():
        encoded = [_encoded(column, run) for column in plain]
        whole = [one for one in encoded if one is not None]
        if len(whole) < len(encoded):
            return None
        found.append(_tree(structure, iter(whole), run.stop - run.start))
    return found or None


def _is_plain(column: Column) -> bool:
    # Kinds of text differ in how they are read, not in what they are.
    is_text = isinstance(column, TextColumn)
    if isinstance(column, ListColumn) and column.items != column.elements.spec:
        return False  # several numbers for an element of a list
    return is_text or type(column) in (FixedColumn, ListColumn, BytesColumn)


def _is_tree(structure: Structure) -> bool:
    """True if it is made of dicts and tuples."""
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


def _encoded(column: FixedColumn | RunColumn, run: Run) -> Encoded | None:
    """The values of a run as a column; None if they do not lie one after the other."""
    if isinstance(column, FixedColumn):
        rows = column.elements.part(run.part, run.start, run.stop)
        if rows is None:
            return None
        return Encoded(ColumnType("fixed", rows.dtype, rows.shape[1:]), ColumnData(len(rows), rows))
    numbers = np.arange(run.start, run.stop)
    ((_, data, starts, stops),) = column.runs(Located(np.full(len(numbers), run.part), numbers))
    if (starts[1:] != stops[:-1]).any():
        return None
    if isinstance(column, BytesColumn):
        kind = ColumnType("text" if column.is_text else "bytes")
    else:
        kind = ColumnType("ragged", data.dtype, data.shape[1:])
    first, last = int(starts[0]), int(stops[-1])
    offsets = np.concatenate([starts, stops[-1:]], dtype=np.int64) - first
    return Encoded(kind, ColumnData(len(starts), data[first:last], offsets))
