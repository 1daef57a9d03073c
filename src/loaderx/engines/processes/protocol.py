"""How consumer and workers communicate.

They use two pipes and a shared file.  *Tasks* go through one pipe that all workers read, so a free
worker takes the next one; *reports* come back through one pipe that all workers write.  Both are
small records of fixed size, which the kernel writes in one piece.  Everything else lies in the
shared file: the elements in slots, and at its beginning the `ClaimTable`.

The claim table says which task each worker holds.  A worker takes a task and writes its claim under
a file lock, which the kernel releases when its owner dies.  So the holder of the lock knows for
each task whether it is still in the pipe, with a living worker, or lost; no death falls in between.
The lock is on a separate file: closing any descriptor of a file, as unmapping it may do, releases
the process's locks on it.
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
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from loaderx.engines.base import Task
from loaderx.engines.processes.ulimits import above_standard, explained

_HEAD = struct.Struct("<QII")  # job number, slot number, how many numbers follow
_WORDS = struct.Struct("<5Q")  # the task's numbers, after its loader's if workers are shared
TASK_BYTES = _HEAD.size + _WORDS.size

LAYOUTS_KEPT = 64
"""How many element layouts both sides remember: the newest ones."""

# Kinds of report.  NOT_STARTED: the worker could not build the work.
DONE, FAILED, READY, NOT_STARTED = range(4)
# Flags: bytes follow the leaves; a function in the worker holds an array of the slot; the user's
# `init` failed.
TAIL, KEPT, INIT = 1, 2, 4

_CLAIM = struct.Struct("<QQ")  # job number, when it was taken (ns)
_ERRORS_AT = 1 << 16
ERROR_BYTES = (1 << 16) - 8
SLOTS_AT = 1 << 32
SLOT_BYTES = 1 << 34
"""Slots begin 16 GB apart in a sparse file: each can grow, and unused bytes cost nothing."""


def slot_start(number: int) -> int:
    """Where a slot begins in the shared file."""
    return SLOTS_AT + number * SLOT_BYTES


pack_head = _HEAD.pack


def pack_words(task: Task) -> bytes:
    """The numbers of a task, which follow its head."""
    return _WORDS.pack(*task, *(0,) * (5 - len(task)))


class TakenTask(NamedTuple):
    """A task that a worker has taken from the pipe."""

    job: int
    slot: int
    task: Task


def unpack_task(data: bytes) -> TakenTask:
    job, slot, count = _HEAD.unpack_from(data)
    return TakenTask(job, slot, _WORDS.unpack_from(data, _HEAD.size)[:count])


def unpack_jobs(data: bytes) -> list[int]:
    """The numbers of the jobs in a row of tasks."""
    return [_HEAD.unpack_from(data, at)[0] for at in range(0, len(data), TASK_BYTES)]


class Report(NamedTuple):
    """A worker's report on a job, or with number 0 on the worker itself."""

    job: int
    worker: int
    kind: int
    layout: int = 0  # the number of the element's layout
    flags: int = 0
    tail_start: int = 0
    tail_bytes: int = 0
    began_ns: int = 0  # `time.perf_counter_ns`, which all processes share
    took_ns: int = 0

    def pack(self) -> bytes:
        return _REPORT.pack(*self)


_REPORT = struct.Struct("<QIIIIQQQQ")
REPORT_BYTES = _REPORT.size


def read_reports(descriptor: int) -> list[Report]:
    """All reports that are in the pipe."""
    found: list[Report] = []
    while True:
        try:
            data = os.read(descriptor, 64 * REPORT_BYTES)
        except BlockingIOError:
            return found
        found += map(Report._make, _REPORT.iter_unpack(data))
        if len(data) < 64 * REPORT_BYTES:
            return found


def shared_file(name: str) -> int:
    """A descriptor of unnamed memory, or of an unnamed temporary file."""
    with above_standard():
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name)
        with tempfile.TemporaryFile() as file:  # not on Linux
            return os.dup(file.fileno())


_mmap: Callable[..., mmap.mmap] = mmap.mmap
if sys.version_info >= (3, 13):
    _mmap = partial(mmap.mmap, trackfd=False)


def map_file(descriptor: int, size: int, **how: int) -> mmap.mmap:
    """A mapping of a shared file, without a descriptor of its own where Python can do that."""
    with explained(f"{size} bytes of shared memory cannot be mapped"), above_standard():
        return _mmap(descriptor, size, **how)


def pipe_capacity(descriptor: int, size: int) -> int:
    """How many records of a size a pipe holds."""
    if hasattr(fcntl, "F_GETPIPE_SZ"):
        return int(fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)) // size
    return 4096 // size  # the smallest capacity of any system


class ClaimTable:
    """Which job each worker holds, and the errors of workers that could not start.

    It occupies the first pages of the shared file.
    """

    def __init__(self, descriptor: int, lock: int, workers: int) -> None:
        self._lock = lock
        self._map = map_file(descriptor, _ERRORS_AT + workers * (ERROR_BYTES + 8))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from taking tasks."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1)

    def try_lock(self, patience_s: float) -> bool:
        """The same with a time limit: a stopped process may hold the lock."""
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

    def claim(self, worker: int, job: int) -> None:
        """Records that a worker holds a job; 0: none."""
        _CLAIM.pack_into(self._map, worker * _CLAIM.size, job, time.monotonic_ns())

    def claimed(self, worker: int) -> tuple[int, float]:
        """The job that a worker took last, and how many seconds ago."""
        claim = _CLAIM.unpack_from(self._map, worker * _CLAIM.size)
        while claim != (again := _CLAIM.unpack_from(self._map, worker * _CLAIM.size)):
            claim = again  # read while it was being written
        job, since = claim
        return job, (time.monotonic_ns() - since) / 1e9

    def write_error(self, worker: int, data: bytes) -> None:
        """Stores the error of a worker that could not start, for the consumer."""
        assert len(data) <= ERROR_BYTES
        start = _ERRORS_AT + worker * (ERROR_BYTES + 8)
        struct.pack_into("<Q", self._map, start, len(data))
        self._map[start + 8 : start + 8 + len(data)] = data

    def read_error(self, worker: int) -> bytes:
        start = _ERRORS_AT + worker * (ERROR_BYTES + 8)
        (length,) = struct.unpack_from("<Q", self._map, start)
        return bytes(self._map[start + 8 : start + 8 + length])

    def close(self) -> None:
        self._map.close()
