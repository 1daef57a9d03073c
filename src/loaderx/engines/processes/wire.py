"""What consumer and workers say to each other.

Two pipes and a shared file.  *Tasks* go through one pipe that all workers read, so whoever is free
takes the next one; *reports* come back through one pipe that all workers write.  Both are small
records of fixed size, which the kernel writes in one piece.  All else lies in the shared file: the
batches in slots, and at its beginning the *board*.

The board says which task each worker holds.  A worker takes a task and writes it on the board under
a file lock, which the kernel opens when its owner dies.  So whoever holds the lock knows of each
task whether it is still in the pipe, with a living worker, or lost; no death falls in between.  The
lock is on a file of its own: closing any descriptor of a file, as unmapping it may do, opens the
process's locks on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator

from loaderx.engines.processes.limits import above_standard, explained

TASK = struct.Struct("<QqQ")  # task, step, where its slot begins
REPORT = struct.Struct("<QIIIIQQ")  # task, worker, kind, form, flags, tail start, tail length

DONE, FAILED, READY, UNFIT = range(4)  # kinds of report; UNFIT: the worker could not start
TAIL, KEPT = 1, 2  # flags: something lies behind the leaves; somebody kept an array of the slot

_CLAIM = struct.Struct("<QQ")  # task, when it was taken (ns)
_NOTES_AT = 1 << 16
_NOTE_BYTES = 1 << 16
SLOTS_AT = 1 << 32
STRIDE = 1 << 34
"""Slots begin 16 GB apart in a sparse file: each can grow, and no byte is used before it is."""

FORMS_KEPT = 64
"""Forms that both sides remember: the newest ones."""


def shared_file(name: str) -> int:
    """A descriptor of memory without a name, or of a temporary file without one."""
    with above_standard():
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name)
        with tempfile.TemporaryFile() as file:  # not on Linux
            return os.dup(file.fileno())


def map_file(descriptor: int, size: int, **how: int) -> mmap.mmap:
    """A mapping of a shared file, without a descriptor of its own where Python can do that."""
    with explained(f"{size} bytes of shared memory cannot be mapped"):
        if sys.version_info >= (3, 13):
            return mmap.mmap(descriptor, size, trackfd=False, **how)
        with above_standard():
            return mmap.mmap(descriptor, size, **how)


def pipe_holds(descriptor: int, size: int) -> int:
    """How many records of a size a pipe holds."""
    if hasattr(fcntl, "F_GETPIPE_SZ"):
        return int(fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)) // size
    return 4096 // size  # the least that any system gives


class Board:
    """The first pages of the shared file."""

    def __init__(self, descriptor: int, lock: int, workers: int) -> None:
        self._lock = lock
        self._map = map_file(descriptor, _NOTES_AT + workers * _NOTE_BYTES)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody takes a task meanwhile."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1)

    def try_lock(self, patience_s: float) -> bool:
        """The same without waiting for ever: a stopped process may hold the lock."""
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            except (BlockingIOError, PermissionError):
                if time.monotonic() > until:
                    return False
                time.sleep(0.001)
            else:
                return True

    def unlock(self) -> None:
        fcntl.lockf(self._lock, fcntl.LOCK_UN, 1)

    def claim(self, worker: int, task: int) -> None:
        """Says that a worker holds a task; 0 is none."""
        _CLAIM.pack_into(self._map, worker * _CLAIM.size, task, time.monotonic_ns())

    def claimed(self, worker: int) -> tuple[int, float]:
        """The task that a worker took last, and how many seconds ago."""
        claim = _CLAIM.unpack_from(self._map, worker * _CLAIM.size)
        while claim != (again := _CLAIM.unpack_from(self._map, worker * _CLAIM.size)):
            claim = again  # it was being written
        task, since = claim
        return task, (time.monotonic_ns() - since) / 1e9

    def write_note(self, worker: int, text: str) -> None:
        note = text.encode(errors="replace")[: _NOTE_BYTES - 8]
        start = _NOTES_AT + worker * _NOTE_BYTES
        struct.pack_into("<Q", self._map, start, len(note))
        self._map[start + 8 : start + 8 + len(note)] = note

    def read_note(self, worker: int) -> str:
        start = _NOTES_AT + worker * _NOTE_BYTES
        (length,) = struct.unpack_from("<Q", self._map, start)
        return bytes(self._map[start + 8 : start + 8 + length]).decode(errors="replace")

    def close(self) -> None:
        self._map.close()
