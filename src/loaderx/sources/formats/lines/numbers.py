"""Numbers of text formats: their dtypes, and columns of them as arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.format import check_types, is_category
from loaderx.tree import Array

Number: TypeAlias = bool | int | float
DType: TypeAlias = "np.dtype[np.generic]"
Types: TypeAlias = Mapping[str, object]
"""The argument ``types``: dtypes by column, as users write them."""

_KINDS: dict[str, set[type]] = {"i": {int}, "u": {int}, "f": {int, float}, "b": {bool}}
WORDS = {
    "i": "an integer", "u": "an integer", "f": "a number", "b": "true or false",
    "M": "a date or a time such as 2024-12-31 or 2024-12-31T23:59",
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?|NaT")
_UNITS = [(unit, 1) for unit in ("D", "s", "ms", "us", "ns")]


def checked_types(types: Types | None, *, others: str) -> dict[str, DType]:
    """Dtypes by column: numbers and bools, or object, which ``others`` describes in messages."""
    found = {}
    for name, given in check_types(types).items():
        if is_category(given):
            given = object  # text, of which codes are made
        try:
            dtype = np.dtype(given)  # type: ignore[call-overload]
        except TypeError as error:
            raise ArgumentTypeError(
                f"`types` says {given!r} for {name!r}, which is not a dtype."
            ) from error
        if dtype.kind == "U":
            dtype = np.dtype(object)
        is_time = dtype.kind == "M" and np.datetime_data(dtype) in _UNITS
        if dtype.kind not in "iufbO" and not is_time:
            raise ArgumentError(
                f"`types` says {given!r} for {name!r}; it must be a dtype of integers, floats or "
                f"bools, 'datetime64[D]' (or s, ms, us, ns), 'category', or {others}."
            )
        found[str(name)] = dtype.newbyteorder("=")
    return found


def array_of(values: Sequence[Any], dtype: DType) -> Array:
    """Numbers as an array of this dtype, or a ValueError that shows one that does not fit."""
    if dtype.kind == "M":
        return _times(values, dtype)
    kinds = set(map(type, values))
    if not kinds <= _KINDS[dtype.kind]:
        wrong = next(one for one in values if type(one) not in _KINDS[dtype.kind])
        raise ValueError(f"{shown(wrong)} is not {WORDS[dtype.kind]}")
    wide = np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}[dtype.kind])
    try:
        if dtype.kind == "u" and len(values) and min(values) < 0:
            raise OverflowError
        array = np.array(values, wide)
    except OverflowError:
        array = None
    if array is None:
        raise ValueError(f"{shown(max(values, key=abs))} does not fit into {dtype}")
    return fitted(array, dtype)


def _times(values: Sequence[Any], dtype: DType) -> Array:
    """Times that are written as in ISO 8601, without a zone."""
    for value in values:
        if not isinstance(value, str) or not TIME.fullmatch(value):
            raise ValueError(f"{shown(value)} is not {WORDS['M']}")
    found, exact = np.array(values, dtype), np.array(values, "M8[us]")
    is_fine = dtype == "M8[ns]"
    fits = (found.astype("M8[us]") if is_fine else found) == exact  # NumPy cuts off, and wraps
    fits &= is_fine | (np.char.str_len(np.array(values, str)) <= len("2024-12-31T23:59:59.000000"))
    fits |= np.isnat(found)
    if not fits.all():
        raise ValueError(f"{shown(values[int(np.argmin(fits))])} does not fit into {dtype}")
    return found


def fitted(array: Array, dtype: DType) -> Array:
    """The array in a narrower dtype, or a ValueError that shows a number that does not fit."""
    if not _fits(array, dtype):
        widest = array[np.argmax(np.abs(np.nan_to_num(array, posinf=0, neginf=0)))]
        raise ValueError(f"{shown(widest.item())} does not fit into {dtype}")
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def _fits(array: Array, dtype: DType) -> bool:
    if array.dtype == dtype or not array.size:
        return True
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array_equal(np.isfinite(array.astype(dtype)), np.isfinite(array))
    return bool((array.astype(dtype) == array).all())


def shown(value: object, most: int = 60) -> str:
    """A value for messages, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
