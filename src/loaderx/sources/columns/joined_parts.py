"""Arrays in several mapped files, mapped once more, as one array.

NumPy takes rows of one array only.  Of several, each would be indexed by itself, and the rows put
into their places by a second copy: twice the time.  So the pages of all files are mapped again
into one region of memory, at distances of whole rows.  That region is one array; between the
files it has rows that stand for nothing.

Linux maps pages that are mapped already a second time, without a descriptor (``mremap`` of
nothing to a given address).  Elsewhere the arrays stay as they are.
"""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.mapping import mapped_base
from loaderx.tree import Array, DType

_PAGE = mmap.PAGESIZE
_LARGE_PAGE = 2 << 20  # a file that begins at a multiple of it can be mapped in large pages
MOST_MAPS = 16_384  # of the 65,530 that a process may have
MOST_BYTES = 1 << 46  # of addresses: half of what a process has
_MAY_MOVE, _TO_ADDRESS = 1, 2  # of mremap

ArrayOf: TypeAlias = Callable[[int], Array]
"""The array of a part, by its number."""

_Remap: TypeAlias = Callable[[int, int, int, int, int], int]


class JoinedMaps(NamedTuple):
    """The rows of all parts."""

    rows: Array
    starts: npt.NDArray[np.int64]  # the row at which each part begins


class _Kind(NamedTuple):
    """The properties that parts must share to be joined."""

    dtype: DType
    shape: tuple[int, ...]  # of a row
    inside: int  # bytes of the first page before the first row

    @staticmethod
    def of(array: Array) -> _Kind | None:
        """The kind of an array; None if it is not mapped."""
        is_mapped = array.flags.c_contiguous and mapped_base(array) is not None
        inside = _address(array) % _PAGE
        return _Kind(array.dtype, array.shape[1:], inside) if is_mapped else None

    @property
    def width(self) -> int:
        """The bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)


def joined_maps(array_of: ArrayOf, counts: npt.NDArray[np.int64]) -> JoinedMaps | None:
    """The arrays of parts as one; None if they are not mapped, or the system cannot join them.

    ``counts`` are the rows of each.  The array of a part is not kept: it may take a descriptor.
    """
    full = np.flatnonzero(counts)
    remap = find_mremap() if 1 < len(full) <= MOST_MAPS - sum(maps_taken) else None
    kind = None if remap is None else _Kind.of(array_of(int(full[0])))
    if remap is None or kind is None or not kind.width:
        return None
    starts = _starts(counts, kind.width)
    rows = int(starts[full[-1]] + counts[full[-1]])
    nbytes = kind.inside + rows * kind.width
    region = _addresses(nbytes, len(full))
    if region is None:
        return None
    for part in full.tolist():
        array = array_of(part)
        if _Kind.of(array) != kind or len(array) != counts[part]:
            return None
        first = _address(array) - kind.inside
        target = _address(region) + int(starts[part]) * kind.width
        length = -(-(kind.inside + array.nbytes) // _PAGE) * _PAGE
        if remap(first, 0, length, _MAY_MOVE | _TO_ADDRESS, target) != target:
            return None
    flat = region[kind.inside : nbytes].view(kind.dtype)
    return JoinedMaps(flat.reshape(rows, *kind.shape), starts)


def _starts(counts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Where each part begins: at rows that are whole pages, and apart from others.

    These are large pages, unless they would take more addresses than the rows do.
    """
    step = _LARGE_PAGE // math.gcd(_LARGE_PAGE, width)
    if step > counts.max():
        step = _PAGE // math.gcd(_PAGE, width)
    # One more: the last page of a part is mapped whole.
    taken = (-(-counts // step) + 1) * step
    return np.cumsum(taken) - taken


maps_taken: list[int] = []  # the maps in each region that is in use


def _addresses(nbytes: int, maps: int) -> npt.NDArray[np.uint8] | None:
    """A region of addresses without memory, from a large page on, for this number of maps."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        if nbytes > MOST_BYTES:
            return None
        region = mmap.mmap(-1, nbytes + 2 * _LARGE_PAGE, flags=flags, prot=mmap.PROT_READ)
    except OSError:  # a limit on address space
        return None
    maps_taken.append(maps)
    weakref.finalize(region, maps_taken.remove, maps)
    found = np.frombuffer(region, np.uint8)
    return found[-_address(found) % _LARGE_PAGE :]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def find_mremap() -> _Remap | None:
    if sys.platform != "linux":
        return None
    import ctypes  # late: few datasets need it

    try:
        found = ctypes.CDLL(None).mremap
    except (OSError, AttributeError):
        return None
    address, size = ctypes.c_void_p, ctypes.c_size_t
    found.restype, found.argtypes = address, [address, size, size, ctypes.c_int, address]
    remap: _Remap = found
    return remap
