"""Maps parts of a shared file into memory, in large pages where the system has them.

Copying 8 MB between small pages (4 KB) takes up to twice as long as between large ones (2 MB): each
page needs an entry in a table, of which the processor caches few.  By default Linux gives shared
memory small pages, but merges them on request (`MADV_COLLAPSE`, since Linux 6.1).  For that, the
address and the file offset must be equally far into a large page.  The system chooses the address,
so the mapping begins at a matching file offset, a little before the part that is wanted.

If the system refuses, pages stay small and everything works as before.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from time import perf_counter

import numpy as np

from loaderx.engines.processes.protocol import map_file
from loaderx.tree import Array

LARGE_PAGE = 1 << 21
"""Bytes of a large page.  A file needs this many extra before and after each mapped part."""
TRIES = 3  # another thread may take the address meanwhile
_COLLAPSE = 25  # MADV_COLLAPSE, which Python does not name
_HAS_LARGE_PAGES = sys.platform == "linux"
# The system may have to move other memory, or a virtual machine to get memory from its host, which
# can take seconds for 1 GB.
_PATIENCE_S = 0.5
_BYTES_PER_S = 2e9  # additional time allowed
PIECE = 1 << 25


class MappedRange:
    """A part of a shared file; ``root`` is an array of its bytes."""

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

    def use_large_pages(self, start: int, nbytes: int) -> None:
        """Merges the small pages of a range into large ones, but for an incomplete one at the end.

        ``start`` is a multiple of a large page.  Each page must have been written to.
        """
        stop = start + nbytes // LARGE_PAGE * LARGE_PAGE
        while start < stop and self._patience_s > 0 and _HAS_LARGE_PAGES:
            size = min(PIECE, stop - start)
            begun = perf_counter()
            try:
                self._map.madvise(_COLLAPSE, self._inside + start, size)
            except BlockingIOError:
                pass  # a page was in use at this moment; the others are done
            except OSError:  # an older system, or no memory in one piece
                self._patience_s = 0
                return
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
    """A mapping that can have large pages, and the offset of the range in it."""
    if size >= LARGE_PAGE and _HAS_LARGE_PAGES:
        inside = 0
        for _ in range(TRIES):
            found = map_file(descriptor, size + LARGE_PAGE, offset=start - inside, **how)
            address = _address(np.frombuffer(found, np.uint8))
            if (address + inside - start) % LARGE_PAGE == 0:
                return found, inside
            inside = (start - address) % LARGE_PAGE
            found.close()
    return map_file(descriptor, size, offset=start, **how), 0


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
