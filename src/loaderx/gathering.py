"""Rows of an array, copied into a buffer, for the price of those rows.

`ndarray.take` is the fastest way, but it copies the whole array first, in every call, unless the
array is C-contiguous and aligned.  Views are often neither: images whose channels were moved to the
end, a table without its last column, a pandas frame, members of a zip, windows of a series.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from loaderx.tree import Array

Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

Take: TypeAlias = Callable[[Rows, int, Array, Literal["clip"]], object]
"""Called as `ndarray.take` is, ``take(rows, 0, out, "clip")``: the usual case costs no other call.

The mode "raise" would buffer the output; rows are known to exist.
"""

_FEW = 16  # values of the last axis, one after the other


def taker(array: Array) -> Take:
    """How rows of this array are written into a buffer of its dtype."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array.take
    if flags.c_contiguous and array.size and not array.dtype.hasobject:
        return partial(_take_bytes, _as_bytes(array))
    return partial(_take_strided, array)


def take_rows(array: Array, rows: Rows, out: Array) -> None:
    """Writes rows of an array into a buffer of its dtype."""
    taker(array)(rows, 0, out, "clip")


def taken(array: Array, rows: Rows) -> Array:
    """Rows of an array, in C order."""
    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    take_rows(array, rows, out)
    return out


def _as_bytes(array: Array) -> Array:
    """The rows of a C-contiguous array as bytes, which are aligned wherever they lie."""
    return array.reshape(-1).view(np.uint8).reshape(len(array), -1)


def _take_bytes(data: Array, rows: Rows, axis: int, out: Array, mode: Literal["clip"]) -> None:
    data.take(rows, 0, out.reshape(-1).view(np.uint8).reshape(len(rows), data.shape[1]), "clip")


def _take_strided(array: Array, rows: Rows, axis: int, out: Array, mode: Literal["clip"]) -> None:
    found = array[rows]
    if found.flags.c_contiguous or found.shape[-1] > _FEW:
        out[...] = found
        return
    # NumPy's copy would run along the last axis: for three channels, three values at a time.
    for last in range(found.shape[-1]):
        out[..., last] = found[..., last]
