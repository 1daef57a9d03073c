"""Rows as columns of a type that can be stored, and back."""

from __future__ import annotations

import numpy as np

from loaderx.errors import StackError
from loaderx.memory import Layout, Lend
from loaderx.reading.rows import Positions, Rows
from loaderx.sources.columns.build import DataArrays, build_column
from loaderx.sources.columns.column import records_of
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.record_columns import CannotStoreError, Encoded, encode, encode_columns
from loaderx.sources.files.parts import Located, Parts
from loaderx.tree import Tree, flatten


def encoded_rows(rows: Rows, positions: Positions) -> Encoded:
    """Rows as columns; ``positions`` are those of the records in the dataset, for messages."""
    try:
        if rows.is_stacked:
            return encode_columns(rows.tree, rows.count)
        return encode(rows.records())
    except CannotStoreError as error:
        where = f'leaf "{".".join(error.path)}" of record' if error.path else "record"
        number = positions[error.record]
        raise StackError(f"cannot save: {where} {number} {error.reason}") from None


def decoded_rows(found: Encoded, lend: Lend) -> Rows:
    """The rows of columns, as a folder in the native layout gives them."""
    kind, data = found
    if is_plain(kind):
        leaves, structure = flatten(_values(kind, data))
        out = lend(Layout.of(*[(leaf.shape, leaf.dtype) for leaf in leaves]))
        for leaf, target in zip(leaves, out, strict=True):
            target[...] = leaf
        return Rows.of_columns(structure.build(out), data.length)
    made = build_column(kind, Parts([data.length]), DataArrays(lambda _: data), optional=True)
    columns, structure = flatten(made)
    at = Located(None, np.arange(data.length))
    return Rows.of_records(records_of(structure, [column.values(at) for column in columns]))


def is_plain(kind: ColumnType) -> bool:
    """Whether it is nothing but arrays of one shape each."""
    if kind.is_branch:
        return kind.nulls is None and all(map(is_plain, kind.fields.values()))
    return kind.kind == "fixed" and kind.nulls is None


def _values(kind: ColumnType, data: ColumnData) -> Tree:
    if not kind.is_branch:
        return data.values
    fields = {name: _values(field, data.fields[name]) for name, field in kind.fields.items()}
    return fields if kind.kind == "struct" else tuple(fields.values())
