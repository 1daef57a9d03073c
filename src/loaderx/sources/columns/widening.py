"""Types of columns that differ between records: the type that holds both, and data made to fit it.

Arrays of one shape (fixed) become arrays of various lengths (ragged) where others are longer; lists
of which nothing is known because all are empty become what the others are, and so do values that
are all None.  If one of two types has nulls, so has the type that holds both.
"""

from __future__ import annotations

import numpy as np

from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.linear import expanded_data
from loaderx.sources.columns.record_columns import NOTHING, UNKNOWN, Path, same_dtype
from loaderx.tree import Array


class MisfitError(Exception):
    """Raised for two types that no column can hold together."""

    def __init__(self, one: ColumnType, two: ColumnType, path: Path) -> None:
        super().__init__(one, two, path)
        self.one, self.two, self.path = one, two, path


def merged(one: ColumnType, two: ColumnType, path: Path = ()) -> ColumnType:
    """The narrowest type that holds the values of both."""
    if one == two:
        return one
    one, two = _as_fixed(one), _as_fixed(two)
    if one.nulls is not None or two.nulls is not None:
        return merged(one.replace(nulls=None), two.replace(nulls=None), path).replace(nulls=0)
    if NOTHING in (one, two):
        return two if one == NOTHING else one
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
    """The type of arrays of both; None if they are not arrays, or do not fit."""
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


def _as_fixed(kind: ColumnType) -> ColumnType:
    """Rows that are stored as lines as rows."""
    return kind.replace(kind="fixed") if kind.kind == "linear" else kind


def _as_ragged(kind: ColumnType) -> ColumnType:
    """Arrays of one length as arrays of any length."""
    if kind.kind != "fixed" or not kind.shape:
        return kind
    return ColumnType("ragged", kind.dtype, kind.shape[1:])


def settled(kind: ColumnType) -> ColumnType:
    """The type with float32 for lists that are all empty, as in batches.

    The same for values that are all None, which have no type of their own.
    """
    if kind.replace(nulls=None) == NOTHING:
        return ColumnType("fixed", np.dtype(np.float32), nulls=0)
    if kind.replace(nulls=None) == UNKNOWN:
        return kind.replace(dtype=np.dtype(np.float32))
    if not kind.fields:
        return kind
    return kind.replace(fields={name: settled(field) for name, field in kind.fields.items()})


def widened(
    data: ColumnData, have: ColumnType, want: ColumnType, present: Array | None = None
) -> ColumnData:
    """Data of one type as data of a wider one.

    It is the same whatever types were between the two.  So rows of one length in whose place there
    is no value become empty if rows of any length do: ``present`` says where what they are part of
    has a value.
    """
    if have == want:
        return data
    if want.nulls is not None:
        valid = np.ones(data.length, np.bool_) if data.valid is None else data.valid
        present = valid if present is None else valid & present
        plain = [kind.replace(nulls=None) for kind in (have, want)]
        made = widened(data._replace(valid=None), plain[0], plain[1], present)
        return made._replace(valid=valid)
    if have in (NOTHING, UNKNOWN):
        return _blank(want, data.length)
    if have.kind == "linear":
        return widened(expanded_data(have, data), _as_fixed(have), want)
    if want.kind in ("fixed", "ragged"):
        assert data.values is not None
        values, offsets = data.values, data.offsets
        if want.kind == "ragged" and offsets is None:  # rows of one length
            counts = np.full(data.length, have.shape[0])
            if present is not None:
                values, counts = values[present], counts * present
            offsets = np.zeros(data.length + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            values = values.reshape(int(offsets[-1]), *want.shape)
        return ColumnData(data.length, values.astype(want.dtype, copy=False), offsets)
    inside = present if have.is_branch else None
    fields = {
        name: widened(field, have.fields[name], want.fields[name], inside)
        for name, field in data.fields.items()
    }
    return data._replace(fields=fields)


def _blank(kind: ColumnType, count: int) -> ColumnData:
    """``count`` values that are zeros, or empty."""
    inside = count if kind.is_branch else 0
    fields = {name: _blank(field, inside) for name, field in kind.fields.items()}
    valid = None if kind.nulls is None else np.ones(count, np.bool_)
    if kind.is_branch:
        return ColumnData(count, fields=fields, valid=valid)
    rows = count if kind.kind == "fixed" else 0
    values = (
        None
        if kind.kind == "list"
        else np.zeros((rows, *kind.stored_shape), kind.dtype or np.uint8)
    )
    offsets = None if kind.kind == "fixed" else np.zeros(count + 1, np.int64)
    return ColumnData(count, values, offsets, fields, valid)
