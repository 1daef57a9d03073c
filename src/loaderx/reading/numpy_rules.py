"""Stacking as ``np.stack`` does it, for pipelines that come from loaders that use it.

Python integers become int64, floats float64, text ``<U``; leaves of several dtypes become one that
holds them all.  Lists are structure, and so are the classes that jax has been told about
(`flatten_all`).  Everything else is as in `stacking`: recycled, aligned buffers, one call for each
leaf, errors that name the record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderx.errors import StackError, one_line
from loaderx.reading.stacking import Column, Name, leaf_name, misfit
from loaderx.tree import Array, DType, flatten_all

_NUMBERS: dict[type, DType] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
_TEXT = (str, bytes)


class NumpyRules:
    """The rules of ``np.stack``.

    Args:
        is_exact: stack only what looks alike, with no change of dtype.  Rows of a unit are stacked
            before it is known which of them make a batch: there a change would depend on rows that
            end up in other batches.
    """

    flatten = staticmethod(flatten_all)

    def __init__(self, *, is_exact: bool = False) -> None:
        self._is_exact = is_exact

    def column(self, values: list[Any], path: str, name: Name, pad_to: int | None) -> Column:
        """One leaf of all records."""
        if pad_to is None:
            at_once = self._at_once(values)
            if at_once is not None:
                return Column(at_once, (), at_once.dtype)
        arrays = [_as_array(value, path, name, number) for number, value in enumerate(values)]
        if pad_to is not None:
            return Column.padded(arrays, path, name, pad_to)
        if len({array.shape for array in arrays}) > 1:
            raise misfit(arrays, path, name)
        dtypes = {array.dtype for array in arrays}
        if self._is_exact and len(dtypes) > 1:
            raise misfit(arrays, path, name)
        dtype = _common(dtypes, path)
        same = [array.astype(dtype, copy=False) for array in arrays]
        return Column(same, arrays[0].shape, dtype)

    def _at_once(self, values: list[Any]) -> Array | None:
        """The column of scalars of one type; None for all else."""
        kinds = set(map(type, values))
        if len(kinds) > 1:
            return None
        (kind,) = kinds
        if kind in _NUMBERS:
            numbers = np.array(values)
            return numbers if numbers.dtype == _NUMBERS[kind] else None  # 2**63 is no int64
        if kind in _TEXT:
            is_even = not self._is_exact or len(set(map(len, values))) == 1
            return np.array(values) if is_even else None
        return np.array(values) if issubclass(kind, (np.number, np.bool_)) else None


def _as_array(value: Any, path: str, name: Name, number: int) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise StackError(
            f"cannot stack {leaf_name(path)}: {name(number)} has a {type(value).__name__} that "
            f"cannot be made an array ({one_line(error)})."
        ) from error


def _common(dtypes: set[DType], path: str) -> DType:
    """The dtype that holds them all, in the byte order of this machine."""
    ordered = sorted(dtypes, key=str)  # a set has no order
    try:
        return np.result_type(*ordered)
    except TypeError as error:
        raise StackError(
            f"cannot stack {leaf_name(path)}: its dtypes {', '.join(map(str, ordered))} have none "
            f"in common ({one_line(error)}). Cast it in .map()."
        ) from error
