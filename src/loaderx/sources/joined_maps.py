"""Arrays in several mapped files, mapped once more, as one array.

NumPy takes rows of one array only.  Of several, each would be indexed by itself, and the rows put
into their places by a second copy: twice the time.  So the pages of all files are mapped again into
one region of memory, at distances of whole rows.  That region is one array; between the files it
has rows that stand for nothing.

Linux maps pages that are mapped already a second time, without a descriptor (``mremap`` of nothing
to a given address).  Elsewhere the arrays stay as they are.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.mapping import mapped_base
from loaderx.tree import Array, DType

_PAGE = mmap.PAGESIZE
_LARGE_PAGE = 2 << 20  # a file that begins at a multiple of it can be mapped in large pages
_MOST_MAPS = 16_384  # of the 65,530 that a process may have
_MOST_BYTES = 1 << 46  # of addresses: half of what a process has
_MAY_MOVE, _TO_ADDRESS = 1, 2  # of mremap

_Remap: TypeAlias = Callable[[int, int, int, int, int], int]


class JoinedMaps(NamedTuple):
    """Columns whose parts are one array."""

    arrays: list[Array]  # one for each column
    starts: npt.NDArray[np.int64]  # the row at which each part begins, in all of them


class _Rows(NamedTuple):
    """What all parts of a column must have in common, so that they can be joined."""

    dtype: DType
    shape: tuple[int, ...]  # of a row
    inside: int  # bytes of the first page before the first row

    @staticmethod
    def of(array: Array) -> _Rows | None:
        """None if it is not mapped."""
        is_mapped = array.flags.c_contiguous and mapped_base(array) is not None
        inside = _address(array) % _PAGE
        return _Rows(array.dtype, array.shape[1:], inside) if is_mapped else None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def joined_maps(
    columns: Sequence[Callable[[int], Array]], counts: npt.NDArray[np.int64]
) -> JoinedMaps | None:
    """The parts of each column as one; None if they are not mapped, or the system cannot do it.

    A part of a column is asked for by its number, and not kept: it may take a descriptor.
    """
    full = np.flatnonzero(counts)
    remap = _mremap() if 1 < len(full) <= _MOST_MAPS // len(columns) else None
    if remap is None:
        return None
    rows = [_Rows.of(column(int(full[0]))) for column in columns]
    kinds = [one for one in rows if one is not None and one.nbytes]
    if len(kinds) < len(columns):
        return None
    starts, arrays = _starts(counts, [kind.nbytes for kind in kinds]), list[Array]()
    for column, kind in zip(columns, kinds, strict=True):
        pieces = [_Piece(part, int(starts[part]), int(counts[part])) for part in full.tolist()]
        found = _joined(column, pieces, kind, remap)
        if found is None:
            return None
        arrays.append(found)
    return JoinedMaps(arrays, starts)


def _starts(counts: npt.NDArray[np.int64], widths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where each part begins: at rows that are whole pages in all columns, and apart from others.

    In the widest column these are large pages, unless that takes more addresses than the rows do.
    """
    step = max(_PAGE // math.gcd(_PAGE, width) for width in widths)
    large = _LARGE_PAGE // math.gcd(_LARGE_PAGE, max(widths))
    if large <= counts.max():
        step = max(step, large)
    # One more: the last page of a part is mapped whole.
    taken = (-(-counts // step) + 1) * step
    return np.cumsum(taken) - taken


class _Piece(NamedTuple):
    part: int
    start: int  # in the joined array
    rows: int


def _joined(
    column: Callable[[int], Array], pieces: Sequence[_Piece], kind: _Rows, remap: _Remap
) -> Array | None:
    """The parts of a column, each mapped at its row."""
    rows = pieces[-1].start + pieces[-1].rows
    nbytes = kind.inside + rows * kind.nbytes
    region = _addresses(nbytes)
    if region is None:
        return None
    for part, start, count in pieces:
        array = column(part)
        if _Rows.of(array) != kind or len(array) != count:
            return None
        first, target = _address(array) - kind.inside, _address(region) + start * kind.nbytes
        length = -(-(kind.inside + array.nbytes) // _PAGE) * _PAGE
        if remap(first, 0, length, _MAY_MOVE | _TO_ADDRESS, target) != target:
            return None
    return region[kind.inside : nbytes].view(kind.dtype).reshape(rows, *kind.shape)


def _addresses(nbytes: int) -> npt.NDArray[np.uint8] | None:
    """A region without memory behind it, that begins at a large page."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        if nbytes > _MOST_BYTES:
            return None
        region = mmap.mmap(-1, nbytes + 2 * _LARGE_PAGE, flags=flags, prot=mmap.PROT_READ)
    except OSError:  # a limit of addresses
        return None
    found = np.frombuffer(region, np.uint8)
    return found[-_address(found) % _LARGE_PAGE :]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def _mremap() -> _Remap | None:
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
