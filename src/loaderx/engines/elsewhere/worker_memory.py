"""Reads the memory of a worker on the same machine: one copy, which the worker need not help with.

Linux lets a process read the memory of another (`process_vm_readv`) where it might also debug it:
the same user, no container between them, and no stricter rule of the kernel.  Whether that is so is
tried with a *mark*: random bytes at an address of the worker's.  They are read again behind every
element, since the worker erases them before it uses the memory for anything else.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from loaderx.tree import Array

Piece: TypeAlias = tuple[int, int]
"""An address and a number of bytes."""

MOST_PIECES, MOST_BYTES = 512, 1 << 30  # of one call; Linux moves no more than 2 GiB
_PR_SET_PTRACER = 0x59616D61


class _Segment(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _function(name: str) -> Any:
    """A function of the C library; None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):  # macOS, Windows
        return None


readv, _prctl = _function("process_vm_readv"), _function("prctl")
if readv is not None:
    readv.restype = ctypes.c_ssize_t


def address_of(array: Array) -> int:
    """Where the bytes of an array begin."""
    address: int = array.__array_interface__["data"][0]
    return address


def permit(pid: int) -> None:
    """Lets a process read this one's memory, where the kernel wants to be told (Yama)."""
    if readv is not None and _prctl is not None:
        _prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # fails where nothing forbids it


def read(pid: int, pieces: Sequence[Piece], into: Sequence[Piece]) -> None:
    """Copies pieces of another process's memory into pieces of this one's, of the same lengths."""
    most = MOST_PIECES
    if sum(length for _, length in pieces) > MOST_BYTES:
        pieces, into, most = _cut(pieces), _cut(into), 1
    for first in range(0, len(pieces), most):
        theirs, own = _segments(pieces[first:][:most]), _segments(into[first:][:most])
        count = readv(pid, own, ctypes.c_ulong(len(own)), theirs, ctypes.c_ulong(len(theirs)), 0)
        if count != sum(one.length for one in theirs):
            raise OSError(ctypes.get_errno(), f"cannot read the memory of process {pid}")


def _cut(pieces: Sequence[Piece]) -> list[Piece]:
    """The same bytes in pieces that a call can move."""
    return [
        (address + start, min(MOST_BYTES, length - start))
        for address, length in pieces
        for start in range(0, length, MOST_BYTES)
    ]


def _segments(pieces: Sequence[Piece]) -> Any:
    return (_Segment * len(pieces))(*(_Segment(*piece) for piece in pieces))


class Mark:
    """What shows a worker's memory to be that of one connection, from its beginning to its end."""

    def __init__(self, content: bytes) -> None:
        self._bytes = np.frombuffer(content, np.uint8).copy()
        self.place = os.getpid(), address_of(self._bytes)

    def erase(self) -> None:
        self._bytes[:] = 0


class MarkedMemory:
    """The memory of a worker, as its consumer sees it."""

    def __init__(self, content: bytes, place: tuple[int, int]) -> None:
        self._content, (self._pid, address) = content, place
        self._mark = address, len(content)
        self._seen = np.zeros(len(content), np.uint8)

    def is_readable(self) -> bool:
        """True if the mark can be read, and is this connection's."""
        if readv is None:
            return False
        try:
            self.read([], [])
        except (OSError, OverflowError):
            return False
        return True

    def read(self, pieces: Sequence[Piece], into: Sequence[Piece]) -> None:
        """Copies pieces; `OSError` unless all of them were still the connection's afterwards."""
        seen = address_of(self._seen), self._seen.nbytes
        read(self._pid, [*pieces, self._mark], [*into, seen])
        if self._seen.tobytes() != self._content:
            raise OSError("the worker has erased its mark")
