"""Which pieces of a file are here, and which process fetches which.

``.ranges`` has a mark of four bytes for each piece of a file, set once the piece is in ``.part``.
There are two marks: a lasting one for pieces that are on disk, and one that is valid until the next
boot, since waiting for the disk at each piece would be slow, and the writes of a killed process are
not lost.  No other bytes are a mark, so pieces of a damaged map are fetched again.

A process that fetches a piece holds its record lock in ``.ranges``, which ends with the process.
Record locks belong to a process, and are released when it closes any descriptor of the file: so a
process has one descriptor of each map, and its threads share a set of the pieces that they fetch.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices
from loaderx.sources.remote.private_files import open_own, try_lock_range, unlock_range
from loaderx.sources.remote.room import RANGES

PIECE_BYTES = 1 << 18
REQUEST_BYTES = 8 << 20  # limit of a request for consecutive pieces
_MARK = np.dtype("<u4")
_SPREAD = np.uint32(2654435761)  # odd, so that each number has its own mark
_POLL_S, _LONG_POLL_S = 0.01, 0.1  # between checks of other processes, and of a stop

Marks: TypeAlias = npt.NDArray[np.uint32]
MapKey: TypeAlias = tuple[int, int]
"""Device and inode."""

Run: TypeAlias = tuple[int, int]
"""Consecutive pieces: the first, and the one after the last."""


def runs_of(numbers: Sequence[int] | Indices) -> list[Run]:
    """Ascending numbers as runs.

    >>> runs_of([0, 1, 2, 5, 6])
    [(0, 3), (5, 7)]
    """
    found = np.asarray(numbers, np.int64)
    if not len(found):
        return []
    borders = [0, *(np.flatnonzero(np.diff(found) != 1) + 1).tolist(), len(found)]
    return [(int(found[a]), int(found[b - 1]) + 1) for a, b in itertools.pairwise(borders)]


def covered(first: Indices, last: Indices) -> Indices:
    """All numbers from each first to its last, ascending, each once.

    >>> covered(np.array([3, 0]), np.array([5, 3])).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    if not len(first):
        return first
    if (last - first).max() <= 1:
        return np.unique(np.concatenate([first, last]))
    begin = int(first.min())
    steps = np.zeros(int(last.max()) - begin + 2, np.int64)
    np.add.at(steps, first - begin, 1)
    np.add.at(steps, last - begin + 1, -1)
    return np.flatnonzero(np.cumsum(steps[:-1])) + begin


class PieceMarks:
    """The marks of one file."""

    def __init__(self, key: str, size: int) -> None:
        self.piece_bytes, self._size = PIECE_BYTES, size
        self.count = -(-size // self.piece_bytes)
        key = f"{key} {self.piece_bytes}"
        self._lasting = zlib.crc32(key.encode())
        boot = boot_id()
        self._until_boot = zlib.crc32(f"{key} {boot}".encode()) if boot else None
        self.must_sync = self._until_boot is None

    @property
    def nbytes(self) -> int:
        """The size of the map."""
        return self.count * _MARK.itemsize

    def range_of(self, run: Run) -> tuple[int, int]:
        """The byte range of some pieces."""
        return run[0] * self.piece_bytes, min(run[1] * self.piece_bytes, self._size)

    def requests(self, missing: Indices) -> list[Run]:
        """These pieces as requests: runs of consecutive ones, up to the size limit."""
        most = max(1, REQUEST_BYTES // self.piece_bytes)
        return [
            (at, min(at + most, stop))
            for first, stop in runs_of(missing)
            for at in range(first, stop, most)
        ]

    def read(self, opened: int, first: int = 0, stop: int | None = None) -> npt.NDArray[np.bool_]:
        """Which pieces are here."""
        stop = self.count if stop is None else stop
        told = os.pread(opened, (stop - first) * _MARK.itemsize, first * _MARK.itemsize)
        found = np.zeros(stop - first, _MARK)
        found[: len(told) // _MARK.itemsize] = np.frombuffer(
            told, _MARK, len(told) // _MARK.itemsize
        )
        is_here: npt.NDArray[np.bool_] = found == self._marks(first, stop, self._lasting)
        if self._until_boot is not None:
            is_here |= found == self._marks(first, stop, self._until_boot)
        return is_here

    def write(self, opened: int, first: int, stop: int, *, lasting: bool) -> None:
        """Marks pieces as here."""
        salt = self._lasting if lasting or self._until_boot is None else self._until_boot
        os.pwrite(opened, self._marks(first, stop, salt).tobytes(), first * _MARK.itemsize)

    def _marks(self, first: int, stop: int, salt: int) -> Marks:
        numbers = np.arange(first, stop, dtype=np.uint32) * _SPREAD
        return ((numbers ^ np.uint32(salt)) | np.uint32(1)).astype(_MARK)


@functools.cache
def boot_id() -> str:
    """The boot id; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


# Claims -----------------------------------------------------------------------------------------


class PieceMap:
    """The open map of one file, shared by the threads of a process."""

    def __init__(self, opened: int, key: MapKey) -> None:
        self.opened, self.key = opened, key
        self.users = 0
        self._spare: list[int] = []
        self._busy: set[int] = set()  # pieces that threads of this process are fetching

    def claim(self, marks: PieceMarks, first: int, stop: int) -> list[Run]:
        """Claims those of these pieces that are missing and that nobody is fetching."""
        with _state.changed:
            free = [number for number in range(first, stop) if number not in self._busy]
            locked = [number for run in runs_of(free) for number in self._lock(*run)]
            is_here = marks.read(self.opened, first, stop)
            for number in locked:
                if is_here[number - first]:
                    unlock_range(self.opened, number, number + 1)
            found = runs_of([number for number in locked if not is_here[number - first]])
            for run in found:
                self._busy.update(range(*run))
        return found

    def _lock(self, first: int, stop: int) -> Sequence[int]:
        if try_lock_range(self.opened, first, stop):
            return range(first, stop)
        return [one for one in range(first, stop) if try_lock_range(self.opened, one, one + 1)]

    def check_locks(self, marks: PieceMarks) -> None:
        """Raises `OSError` if the file system has no record locks; tests one after the pieces."""
        with _state.changed:
            if try_lock_range(self.opened, marks.count, marks.count + 1):
                unlock_range(self.opened, marks.count, marks.count + 1)

    def keep(self, opened: int) -> None:
        """Keeps another descriptor of the same file open: closing it would release all locks."""
        self._spare.append(opened)

    def close(self) -> None:
        """Called once for each `open_map`."""
        with _state.changed:
            self.users -= 1
            if not self.users:
                del _state.maps[self.key]
                for opened in (self.opened, *self._spare):
                    os.close(opened)

    def begin_anew(self) -> None:
        """Resets a fork: the fetching threads and the locks are its parent's."""
        self._busy = set()

    def is_free(self, numbers: range) -> bool:
        """True if no thread of this process is fetching one of these pieces."""
        return self._busy.isdisjoint(numbers)

    def release(self, first: int, stop: int) -> None:
        """Releases claimed pieces, fetched or not."""
        with _state.changed:
            self._busy.difference_update(range(first, stop))
            unlock_range(self.opened, first, stop)
            _state.changed.notify_all()


class _State:
    """The maps that this process has open."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.maps: dict[MapKey, PieceMap] = {}


_state = _State()


def open_map(at: int) -> PieceMap | None:
    """The map in the folder ``at``, which the caller closes; None if there is none."""
    with _state.changed:
        found = _map_in(at, _state)
        if found is not None:
            found.users += 1
    return found


def _map_in(at: int, state: _State) -> PieceMap | None:
    try:
        status = os.stat(RANGES, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None
    key = status.st_dev, status.st_ino
    if key in state.maps:
        return state.maps[key]
    opened = open_own(RANGES, os.O_RDWR, at)
    if opened is None:
        return None
    status = os.fstat(opened)
    key = status.st_dev, status.st_ino
    if key in state.maps:  # it was just replaced
        state.maps[key].keep(opened)
    else:
        state.maps[key] = PieceMap(opened, key)
    return state.maps[key]


def wait_for_threads(found: PieceMap, run: Run) -> bool:
    """Waits for threads of this process that fetch such pieces; False: they still do.

    It returns now and then, so that a waiting thread can be stopped.
    """
    numbers = range(*run)
    with _state.changed:
        return _state.changed.wait_for(lambda: found.is_free(numbers), _LONG_POLL_S)


def wait_for_processes() -> None:
    """Waits a moment for another process to fetch a piece: there is no notification."""
    with _state.changed:
        _state.changed.wait(_POLL_S)


def _begin_anew() -> None:
    _state.changed = threading.Condition()
    for one in _state.maps.values():
        one.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
