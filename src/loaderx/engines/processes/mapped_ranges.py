"""Parts of a shared file in the memory of a process, in huge pages where the system has them.

Copying 8 MB between small pages takes up to twice as long as between huge ones: every 4 KB need an
entry of the page table, and the processor does not keep as many entries as batches and data take.
Linux gives small pages to shared memory unless an administrator has said otherwise, but puts those
together that a program names (`MADV_COLLAPSE`, Linux 6.1).  It does so only where the address and
the place in the file are equally far into a huge page.  It chooses the address itself, so a mapping
begins at a place in the file that suits its address, before the part that is wanted.

Where something of this is not to be had, all is the same, only slower.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from time import perf_counter

import numpy as np

from loaderx.engines.processes.protocol import map_file
from loaderx.tree import Array

HUGE_PAGE = 1 << 21
"""Bytes of a huge page.  A file has so many more before and after a part that can have them."""
_TRIES = 3  # another thread may take the address meanwhile
_COLLAPSE = 25  # MADV_COLLAPSE, which Python does not name
_HAS_HUGE_PAGES = sys.platform == "linux"
# The system may have to move other memory out of the way, which can take seconds for a GB.
_PATIENCE_S = 0.2
_BYTES_PER_S = 2e9  # what it is allowed to take beyond that
_PIECE = 1 << 25


class MappedRange:
    """A part of a shared file.  Its bytes are ``root``; who looks at some of them refers to it."""

    __slots__ = ("_inside", "_map", "_patience_s", "address", "root", "size")

    def __init__(self, descriptor: int, start: int, size: int, **how: int) -> None:
        self._map, self._inside = _map_suitably(descriptor, start, size, how)
        self._patience_s = _PATIENCE_S
        self.size = size
        self.root = np.frombuffer(self._map, np.uint8, size, self._inside)
        self.address = _address(self.root)

    def read(self, start: int, length: int) -> bytes:
        first = self._inside + start
        return self._map[first : first + length]

    def write(self, start: int, data: bytes) -> None:
        first = self._inside + start
        self._map[first : first + len(data)] = data

    def view(self, start: int, length: int) -> memoryview:
        first = self._inside + start
        return memoryview(self._map)[first : first + length]

    def use_huge_pages(self, start: int, nbytes: int) -> None:
        """Puts the pages of some bytes together, as far as they fill huge ones.

        Each huge page needs a byte that has been written.  ``start`` is a multiple of its size.
        """
        stop = start + nbytes // HUGE_PAGE * HUGE_PAGE
        while start < stop and self._patience_s > 0 and _HAS_HUGE_PAGES:
            size = min(_PIECE, stop - start)
            begun = perf_counter()
            try:
                self._map.madvise(_COLLAPSE, self._inside + start, size)
            except BlockingIOError:
                pass  # a page was in use at this moment; the others are done
            except OSError:  # an older system, or no memory in one piece
                self._patience_s = 0
            self._patience_s -= perf_counter() - begun - size / _BYTES_PER_S
            start += size

    def free_memory(self) -> None:
        """Returns the memory to the system, where that is possible."""
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, self._inside, self.size)


def _map_suitably(
    descriptor: int, start: int, size: int, how: dict[str, int]
) -> tuple[mmap.mmap, int]:
    """A mapping that huge pages fit into, and where in it the range begins."""
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
