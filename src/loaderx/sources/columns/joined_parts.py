"""Values in several files, read as if they were in one (`joined_maps`)."""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError
from loaderx.gathering import take_rows
from loaderx.sources.base import Indices
from loaderx.sources.files.parts import Parts, lie_outside
from loaderx.sources.mapping import mapped_base
from loaderx.tree import Array, DType

if TYPE_CHECKING:
    from loaderx.sources.files.file_set import FileSet

# Arrays in several mapped files, mapped once more, as one array.
#
# NumPy takes rows of one array only.  Of several, each would be indexed by itself, and the rows put
# into their places by a second copy: twice the time.  So the pages of all files are mapped again
# into one region of memory, at distances of whole rows.  That region is one array; between the
# files it has rows that stand for nothing.
#
# Linux maps pages that are mapped already a second time, without a descriptor (``mremap`` of
# nothing to a given address).  Elsewhere the arrays stay as they are.

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
    """What parts must have in common, so that they can be joined."""

    dtype: DType
    shape: tuple[int, ...]  # of a row
    inside: int  # bytes of the first page before the first row

    @staticmethod
    def of(array: Array) -> _Kind | None:
        """None if it is not mapped."""
        is_mapped = array.flags.c_contiguous and mapped_base(array) is not None
        inside = _address(array) % _PAGE
        return _Kind(array.dtype, array.shape[1:], inside) if is_mapped else None

    @property
    def width(self) -> int:
        """The bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)


def joined_maps(array_of: ArrayOf, counts: npt.NDArray[np.int64]) -> JoinedMaps | None:
    """The arrays of parts as one; None if they are not mapped, or the system cannot do it.

    ``counts`` are their rows.  A part is asked for by its number, and not kept: it may take a
    descriptor.
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
    """A region without memory behind it, that begins at a large page, for so many maps."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        if nbytes > MOST_BYTES:
            return None
        region = mmap.mmap(-1, nbytes + 2 * _LARGE_PAGE, flags=flags, prot=mmap.PROT_READ)
    except OSError:  # a limit of addresses
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


_Counts = npt.NDArray[np.int64]


class JoinedParts:
    """The base: arrays of parts are joined when values of several are first read out of order.

    In the order of the files, a batch lies in one part, or two; then nothing is joined.
    """

    def __init__(self, parts: Parts, *arrays: ArrayOf) -> None:
        """Of the last array, the rows of a part are as its values: their numbers lead to them."""
        self._parts, self._arrays = parts, arrays
        self._begin()

    def _begin(self) -> None:
        is_mapped = all(getattr(one, "is_mapped", False) for one in self._arrays)
        self._is_open = is_mapped and len(self._parts.counts) > 1  # may they yet be joined?
        self._joined: list[JoinedMaps] | None = None
        self._shifts = self._parts.starts  # from the numbers of values to those of rows, by part

    @property
    def is_joined(self) -> bool:
        return self._joined is not None

    def _counts(self) -> list[_Counts]:
        """The rows of the parts of each array."""
        raise NotImplementedError

    def _numbers(self, indices: Indices) -> Indices | None:
        """The part of each value; None if they are not joined."""
        if not self._is_open and self._joined is None:
            return None
        numbers = self._parts.ends.searchsorted(indices, "right")
        if self._joined is None and (numbers[1:] < numbers[:-1]).any():
            joined = self._join()
            if joined is not None:
                self._shifts = joined[-1].starts - self._parts.starts
                self._joined = joined
            self._is_open = False
        return None if self._joined is None else numbers

    def _join(self) -> list[JoinedMaps] | None:
        found: list[JoinedMaps] = []
        try:
            for array_of, counts in zip(self._arrays, self._counts(), strict=True):
                joined = joined_maps(array_of, counts)
                if joined is None:
                    return None
                found.append(joined)
        except LoaderxError:  # it is said when that part is read
            return None
        return found

    def __getstate__(self) -> dict[str, object]:
        return {"_parts": self._parts, "_arrays": self._arrays}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


class JoinedRows(JoinedParts):
    """Values that are rows."""

    def __init__(self, parts: Parts, array_of: ArrayOf) -> None:
        super().__init__(parts, array_of)

    def _counts(self) -> list[_Counts]:
        return [self._parts.counts]

    def take(self, indices: Indices, out: Array) -> bool:
        """Writes the values at ``indices`` into the rows of ``out``, if they are joined."""
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return False
        rows = self._joined[0].rows
        if rows.dtype != out.dtype:  # JAX takes numbers in the byte order of the machine
            return False
        take_rows(rows, indices + self._shifts[numbers], out)
        return True


class FileBytes:
    """The bytes of each file of a set; an `ArrayOf`."""

    def __init__(self, files: FileSet) -> None:
        self.files, self.is_mapped = files, not files.is_remote

    def __call__(self, number: int) -> Array:
        return self.files.data(number)


class JoinedBytes(JoinedParts):
    """Values that are runs of bytes of files; whoever reads them knows where they lie in theirs."""

    def __init__(self, parts: Parts, files: FileSet) -> None:
        """Each part is a file of the set, with the same number."""
        self._files = files
        super().__init__(parts, FileBytes(files))

    def _counts(self) -> list[_Counts]:
        return [np.array(self._files.sizes)]

    def find(self, indices: Indices) -> tuple[Array, Indices, Indices] | None:
        """All bytes; of each value, the number of its file, and where that begins in them.

        None if they are not joined.
        """
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return None
        data, begins = self._joined[0]
        return data, numbers, begins[numbers]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_files": self._files}


class JoinedRuns(JoinedParts):
    """Values that are runs of elements, from offset to offset."""

    def __init__(self, parts: Parts, data_of: ArrayOf, offsets_of: ArrayOf) -> None:
        super().__init__(parts, data_of, offsets_of)

    def _begin(self) -> None:
        super()._begin()
        self._lengths = np.zeros(0, np.int64)  # the elements of each part

    def _counts(self) -> list[_Counts]:
        counts = self._parts.counts
        self._lengths = np.array([len(self._arrays[0](part)) for part in range(len(counts))])
        return [self._lengths, counts + 1]

    def find(self, indices: Indices) -> tuple[Array, Indices, Indices] | None:
        """The elements, and where the values at ``indices`` begin and end in them.

        None if they are not joined, or their offsets are damaged.
        """
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return None
        (data, begins), (offsets, _) = self._joined
        rows = indices + self._shifts[numbers]
        first, last = offsets[rows], offsets[rows + 1]
        if lie_outside(first, last, self._lengths[numbers]):
            return None
        begin = begins[numbers]
        return data, first + begin, last + begin
