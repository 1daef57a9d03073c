"""Arrays of one shape in several mapped files, mapped once more, as one array.

NumPy takes rows of one array only.  Of several, each would be indexed by itself, and the rows put
into their places by a second copy: twice the time.  So the pages of all files are mapped again into
one region of memory, where the distances between the files are whole rows.  That region is one
array; between the files it has rows that stand for nothing.

Linux maps pages that are mapped already a second time, without a descriptor (``mremap`` of nothing
at a given address).  Where that is not to be had, the arrays stay as they are.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from functools import cache
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.sources.mapping import mapped_base
from loaderx.tree import Array

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE = mmap.PAGESIZE
_MOVE_TO = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_MOST_BYTES = 1 << 46  # of addresses: half of what a process has


class JoinedRows(NamedTuple):
    """The rows of several arrays."""

    array: Array
    starts: npt.NDArray[np.int64]  # the row at which each of them begins


def joined_rows(arrays: Sequence[Array]) -> JoinedRows | None:
    """The arrays as one; None if they are not mapped, or the system cannot do it."""
    remap = _mremap()
    first = arrays[0]
    kinds = {(array.dtype, array.shape[1:]) for array in arrays}
    if remap is None or len(kinds) != 1 or not all(map(_is_mapped, arrays)):
        return None
    width = first.nbytes // len(first)
    pieces = [_pages(array) for array in arrays]
    insides = {_address(array) % _PAGE for array in arrays}
    if len(insides) != 1:  # headers of different lengths
        return None
    places, end, step = [], 0, lcm(_PAGE, width)
    for _, size in pieces:
        places.append(-(-end // step) * step)
        end = places[-1] + size
    if end > _MOST_BYTES:
        return None
    inside = insides.pop()
    rows = places[-1] // width + len(arrays[-1])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        region = mmap.mmap(-1, inside + rows * width, flags=flags, prot=mmap.PROT_READ)
    except (OSError, OverflowError, ValueError):  # no room for so many addresses
        return None
    base = _address(np.frombuffer(region, np.uint8))
    for place, (address, size) in zip(places, pieces, strict=True):
        if remap(address, 0, size, _MOVE_TO, base + place) != base + place:
            return None
    flat = np.frombuffer(region, first.dtype, rows * (width // first.itemsize), inside)
    starts = np.array(places, np.int64) // width
    return JoinedRows(flat.reshape(rows, *first.shape[1:]), starts)


def _is_mapped(array: Array) -> bool:
    return bool(array.nbytes) and array.flags.c_contiguous and mapped_base(array) is not None


def _pages(array: Array) -> tuple[int, int]:
    """The address of the first page of an array, and the bytes of all."""
    address = _address(array)
    first = address - address % _PAGE
    return first, -(-(address + array.nbytes - first) // _PAGE) * _PAGE


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def _mremap() -> Callable[[int, int, int, int, int], Any] | None:
    if sys.platform != "linux":
        return None
    import ctypes  # late: few datasets need it

    try:
        found = ctypes.CDLL(None).mremap
    except (OSError, AttributeError):
        return None
    found.restype = ctypes.c_void_p
    found.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
    ]  # fmt: skip
    remap: Callable[[int, int, int, int, int], Any] = found
    return remap
