"""Maps of files that keep no descriptor.

A process may have a thousand descriptors by default, but 65,530 maps on Linux.  Python's maps keep
a descriptor of their file each; from Python 3.13 on they need not.  Before that, pages without
memory behind them are mapped by Python, and the file is put into their place.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, TypeAlias

import numpy as np

_FIXED = 0x10  # MAP_FIXED of Linux, which `mmap` does not name
_UNTRACKED: dict[str, bool] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

_Map: TypeAlias = Callable[[int, int, int, int, int, int], int]


def map_pages(file: BinaryIO, start: int, nbytes: int) -> mmap.mmap:
    """Maps a range of a file, read-only; it begins at a page, and the file has all of it."""
    number = file.fileno()
    if _UNTRACKED:
        return mmap.mmap(number, nbytes, access=mmap.ACCESS_READ, offset=start, **_UNTRACKED)
    put, pages = _find_mmap(), _empty_pages(nbytes)
    if put is None or pages is None:
        return mmap.mmap(number, nbytes, access=mmap.ACCESS_READ, offset=start)
    address: int = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    flags = mmap.MAP_SHARED | _FIXED
    if put(address, nbytes, mmap.PROT_READ, flags, number, start) != address:
        raise OSError(f"{nbytes} bytes of {file.name} cannot be mapped")
    return pages


def _empty_pages(nbytes: int) -> mmap.mmap | None:
    """None if that would be more than the machine has, though no page is ever used."""
    try:
        return mmap.mmap(-1, nbytes, access=mmap.ACCESS_READ)
    except OSError:
        return None


def keeps_descriptors() -> bool:
    """Does each map keep a descriptor after all?"""
    return sys.platform == "win32" if _UNTRACKED else _find_mmap() is None


@cache
def _find_mmap() -> _Map | None:
    if sys.platform != "linux":
        return None
    import ctypes  # late: NumPy has imported it, but need not have

    try:
        found = ctypes.CDLL(None).mmap
    except (OSError, AttributeError):
        return None
    size, number = ctypes.c_size_t, ctypes.c_int
    found.restype = ctypes.c_void_p
    found.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    put: _Map = found
    return put
