"""Whether shards with other types can be read as one column."""

from __future__ import annotations

import numpy as np

from loaderx.sources.columns.data import ColumnType


def merged_types(one: ColumnType, other: ColumnType) -> ColumnType | None:
    """The type that holds the values of both without loss; None if there is none.

    Integers may be wider or narrower, and so may floats; all else must be the same.
    """
    if one == other:
        return one
    if one.kind != other.kind or one.shape != other.shape or set(one.fields) != set(other.fields):
        return None
    fields = {}
    for name, field in one.fields.items():
        merged = merged_types(field, other.fields[name])
        if merged is None:
            return None
        fields[name] = merged
    dtype = _wider(one.dtype, other.dtype)
    if dtype is None and one.dtype is not None:
        return None
    return one.replace(dtype=dtype, fields=fields)


def _wider(
    one: np.dtype[np.generic] | None, other: np.dtype[np.generic] | None
) -> np.dtype[np.generic] | None:
    if one is None or other is None or one == other:
        return one
    if one.kind != other.kind or one.kind not in "iuf":
        return None
    return max(one, other, key=lambda dtype: dtype.itemsize)
