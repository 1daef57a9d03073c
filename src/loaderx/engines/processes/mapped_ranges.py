"""Parts of a shared file in the memory of a process, in huge pages where the system has them.

Copying 8 MB between small pages takes up to twice as long as between huge ones: every 4 KB need an
entry of the page table, and the entries of a batch and its data do not fit into the processor.
Linux gives small pages to shared memory unless an administrator has said otherwise, but puts pages
together that a program names (`MADV_COLLAPSE`, Linux 6.1).  It does so only where address and place
in the file are equally far into a huge page.  It chooses the address itself, so the mapping begins
at a place in the file that fits the address.

Whatever of this is not to be had changes nothing but the speed.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np

from loaderx.engines.processes.protocol import map_file
from loaderx.tree import Array

HUGE_PAGE = 1 << 21
"""Bytes of a huge page; before the start of a large range, and after its end, the file needs as
many more."""
_TRIES = 3  # another thread may take the address meanwhile
_COLLAPSE = 25  # MADV_COLLAPSE, which Python does not name
_HAS_HUGE_PAGES = sys.platform == "linux"


class MappedRange:
    """A part of a shared file.  Its bytes are ``root``, which is held by whoever looks at them."""

    __slots__ = ("_huge", "_inside", "_map", "address", "root", "size")

    def __init__(self, descriptor: int, start: int, size: int, **how: int) -> None:
        self._map, self._inside = _map_fitting(descriptor, start, size, how)
        self.size = size
        self.root = np.frombuffer(self._map, np.uint8, size, self._inside)
        self.address = _address(self.root)
        self._huge = 0  # bytes from the start that were to be put into huge pages

    def read(self, start: int, length: int) -> bytes:
        first = self._inside + start
        return self._map[first : first + length]

    def write(self, start: int, data: bytes) -> None:
        first = self._inside + start
        self._map[first : first + len(data)] = data

    def view(self, start: int, length: int) -> memoryview:
        return memoryview(self._map)[self._inside + start : self._inside + start + length]

    def use_huge_pages(self, nbytes: int) -> None:
        """Puts so many bytes into huge pages.  The last ones stay where they fill none."""
        nbytes = nbytes // HUGE_PAGE * HUGE_PAGE
        if nbytes > self._huge and _HAS_HUGE_PAGES:
            self._huge = nbytes
            with contextlib.suppress(OSError):  # an old system, or no memory in one piece
                self._map.madvise(_COLLAPSE, self._inside, nbytes)

    def use_huge_pages_at(self, start: int, nbytes: int) -> None:
        nbytes = nbytes // HUGE_PAGE * HUGE_PAGE
        if nbytes and _HAS_HUGE_PAGES:
            self.root[start : start + nbytes : HUGE_PAGE] = 0
            with contextlib.suppress(OSError):
                self._map.madvise(_COLLAPSE, self._inside + start, nbytes)

    def free_memory(self) -> None:
        """Returns the memory to the system, where that is possible: the bytes are zeros then."""
        self._huge = 0
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, self._inside, self.size)


def _map_fitting(
    descriptor: int, start: int, size: int, how: dict[str, int]
) -> tuple[mmap.mmap, int]:
    """A mapping that has the range in it, and where the range begins there."""
    if size >= HUGE_PAGE and _HAS_HUGE_PAGES:
        inside = 0
        for _ in range(_TRIES):
            found = map_file(descriptor, size + HUGE_PAGE, offset=start - inside, **how)
            address = _address(np.frombuffer(found, np.uint8))
            if (address + inside - start) % HUGE_PAGE == 0:
                return found, inside
            inside = (start - address) % HUGE_PAGE
            found.close()
    return map_file(descriptor, size, offset=start, **how), 0


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
