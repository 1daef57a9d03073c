"""Types of columns that differ between records: the type that holds both, and data made to fit it.

Arrays of one shape (fixed) become arrays of various lengths (ragged) where others are longer; lists
of which nothing is known because all are empty become what the others are.
"""

from __future__ import annotations

import numpy as np

from loaderx.sources.column_data import ColumnData, ColumnType
from loaderx.sources.record_columns import UNKNOWN, Path, same_dtype


class MisfitError(Exception):
    """Two types that no column can hold together."""

    def __init__(self, one: ColumnType, two: ColumnType, path: Path) -> None:
        super().__init__(one, two, path)
        self.one, self.two, self.path = one, two, path


def merged(one: ColumnType, two: ColumnType, path: Path = ()) -> ColumnType:
    """The narrowest type that holds the values of both."""
    if one == two:
        return one
    if two == UNKNOWN:
        one, two = two, one
    if one == UNKNOWN and two.kind == "list":
        return two
    has_fields = one.is_branch or one.kind == "list"
    if has_fields and one.kind == two.kind and one.fields.keys() == two.fields.keys():
        fields = {
            name: merged(field, two.fields[name], (*path, name))
            for name, field in one.fields.items()
        }
        return one.replace(fields=fields)
    found = _merged_arrays(one, two)
    if found is None:
        raise MisfitError(one, two, path)
    return found


def _merged_arrays(one: ColumnType, two: ColumnType) -> ColumnType | None:
    """The type of arrays of both; None if they are no arrays, or do not fit."""
    if one.kind != two.kind or one.shape != two.shape:
        one, two = _as_ragged(one), _as_ragged(two)
        if one == UNKNOWN and two.kind == "ragged":
            return two
    is_alike = one.kind == two.kind and one.shape == two.shape
    if not is_alike or one.dtype is None or two.dtype is None:
        return None
    if one == UNKNOWN:
        return two
    if not same_dtype(one.dtype, two.dtype):
        return None
    return one.replace(dtype=max(one.dtype, two.dtype, key=lambda dtype: dtype.itemsize))


def _as_ragged(kind: ColumnType) -> ColumnType:
    """Arrays of one length as arrays of any length."""
    if kind.kind != "fixed" or not kind.shape:
        return kind
    return ColumnType("ragged", kind.dtype, kind.shape[1:])


def settled(kind: ColumnType) -> ColumnType:
    """The type with float32 for lists that are all empty: so they are in batches."""
    if kind == UNKNOWN:
        return kind.replace(dtype=np.dtype(np.float32))
    if not kind.fields:
        return kind
    return kind.replace(fields={name: settled(field) for name, field in kind.fields.items()})


def widened(data: ColumnData, have: ColumnType, want: ColumnType) -> ColumnData:
    """Data of one type as data of a wider one."""
    if have == want:
        return data
    if have == UNKNOWN:
        return _empty(want, data.length)
    if want.kind in ("fixed", "ragged"):
        assert data.values is not None
        values, offsets = data.values, data.offsets
        if want.kind == "ragged" and offsets is None:  # rows of one length
            offsets = np.arange(data.length + 1, dtype=np.int64) * have.shape[0]
            values = values.reshape(data.length * have.shape[0], *want.shape)
        return ColumnData(data.length, values.astype(want.dtype, copy=False), offsets)
    fields = {
        name: widened(field, have.fields[name], want.fields[name])
        for name, field in data.fields.items()
    }
    return data._replace(fields=fields)


def _empty(kind: ColumnType, lists: int = 0) -> ColumnData:
    """No values; of lists, as many as are asked for, all empty."""
    fields = {name: _empty(field) for name, field in kind.fields.items()}
    if kind.is_branch:
        return ColumnData(0, fields=fields)
    values = None if kind.kind == "list" else np.empty((0, *kind.shape), kind.dtype or np.uint8)
    if kind.kind == "fixed":
        return ColumnData(0, values)
    return ColumnData(lists, values, np.zeros(lists + 1, np.int64), fields)
