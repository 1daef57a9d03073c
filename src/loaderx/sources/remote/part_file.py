"""`PartFile`: a download that is mapped while pieces of it are missing.

It has its full size from the beginning, but takes disk space only for the pieces that have come.
Processes that have it open or mapped share its lock, which survives renaming: a file in use is not
removed.  Pieces must be fetched before they are read: `missing` says which.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.mapping import map_array
from loaderx.sources.remote.pieces import (
    PieceMap,
    PieceMarks,
    Run,
    covered,
    runs_of,
    wait_for_threads,
)
from loaderx.sources.remote.private_files import WRITE, is_linked, lock, open_own, own_folder
from loaderx.sources.remote.room import LOCK, NOTE, PART, RANGES, Room, check_fits
from loaderx.sources.remote.store import RemoteFile, StoreOf, retrying
from loaderx.sources.remote.urls import file_name, harmless_name
from loaderx.tree import Array

SYNC_BYTES = 64 << 20  # at most this much is lost when the machine restarts
_MOST_REQUESTS = 32  # of a process
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class _Requests:
    """The requests that this process has under way."""

    free = threading.BoundedSemaphore(_MOST_REQUESTS)


if hasattr(os, "register_at_fork"):

    def _begin_anew() -> None:  # in a fork, the parent's requests never end
        _Requests.free = threading.BoundedSemaphore(_MOST_REQUESTS)

    os.register_at_fork(after_in_child=_begin_anew)


class Opened(NamedTuple):
    """A file of the folder."""

    descriptor: int
    pieces: PieceMap | None  # None: all are here

    def close(self) -> None:
        os.close(self.descriptor)
        if self.pieces is not None:
            self.pieces.close()


class PartFile:
    """One version of a file, mapped."""

    def __init__(
        self,
        folder: str,
        file: RemoteFile,
        store_of: StoreOf,
        opened: Opened,
        head: bytes = b"",
    ) -> None:
        """``opened`` is locked, has its full size, and belongs to this object from now on."""
        self.file, self.folder, self._store_of, self._head = file, folder, store_of, head
        self._opened, self._pieces = opened
        self.is_whole = self._pieces is None
        close = weakref.finalize(self, opened.close)
        self.marks = PieceMarks(key_of(file), file.size)
        self._is_here = np.full(self.marks.count, self.is_whole)
        self._unsynced, self.has_ranges = 0, True
        self.data: Array = self._map()
        if self.is_whole:
            close()  # the map has its own descriptor

    def _map(self) -> Array:
        if not self.file.size:
            return np.empty(0, np.uint8)
        path = os.path.join(self.folder, key_of(self.file), local_name(self.file))
        with open(path, "rb", opener=lambda *_: os.dup(self._opened)) as file:
            # The map holds the lock of the file, so that it is not evicted.
            return map_array(file, np.dtype(np.uint8), (self.file.size,))

    @property
    def nbytes(self) -> int:
        """The bytes that are on disk."""
        if self.is_whole:
            return self.file.size
        return min(self.file.size, os.fstat(self._opened).st_blocks * 512)

    # What is missing --------------------------------------------------------------------------

    def has(self, starts: Indices, stops: Indices) -> bool:
        """True if these ranges, none empty, are known to be here."""
        if self.is_whole:
            return True
        first, last = self._pieces_of(starts, stops)
        if not (self._is_here[first].all() and self._is_here[last].all()):
            return False
        return bool((last - first <= 1).all()) or not len(self.missing(starts, stops))

    def missing(self, starts: Indices, stops: Indices) -> Indices:
        """The pieces of these ranges that are not known to be here."""
        if self.is_whole:
            return np.empty(0, np.int64)
        return self._not_here(covered(*self._pieces_of(starts, stops)))

    def _not_here(self, numbers: Indices) -> Indices:
        found: Indices = numbers[~self._is_here[numbers]]
        return found

    def _pieces_of(self, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
        return starts // self.marks.piece_bytes, (stops - 1) // self.marks.piece_bytes

    def still_missing(self, missing: Indices) -> Indices:
        """Those of these pieces that have not been fetched meanwhile."""
        if self.is_whole or not len(missing):
            return missing[:0]
        first, stop = int(missing[0]), int(missing[-1]) + 1
        assert self._pieces is not None
        self._is_here[first:stop] |= self.marks.read(self._pieces.opened, first, stop)
        if self._is_here.all():  # another process fetched the last one
            self.finish()
        return self._not_here(missing)

    def all_missing(self) -> Indices:
        """All pieces that are not here."""
        return self.still_missing(np.arange(self.marks.count))

    # Fetching ---------------------------------------------------------------------------------

    def fetch(self, run: Run, is_stopped: Callable[[], bool], count: Callable[[int], None]) -> bool:
        """Fetches consecutive pieces; False: others are fetching some of them."""
        found = self._pieces
        if found is None or self.is_whole:
            return True
        first, stop = run
        if not self.has_ranges:  # all of it comes
            check_fits(self.folder, self.file.size, self.file.url)
            first, stop = 0, self.marks.count
        claimed = found.claim(self.marks, first, stop)
        try:
            if self.has_ranges or self._is_all_missing(found, claimed):
                while claimed and not is_stopped():
                    with self._room(claimed[0]) as room:
                        self._fetch(found, claimed[0], is_stopped, count, room)
                    found.release(*claimed.pop(0))
        finally:
            for one in claimed:
                found.release(*one)
        is_here = self.marks.read(found.opened, *run)
        self._is_here[slice(*run)] |= is_here
        if self._is_here.all() or self.marks.read(found.opened).all():
            self.finish()
        return bool(is_here.all())

    def _room(self, run: Run) -> Room:
        first, end = self.marks.range_of(run)
        return Room(self.folder, end - first)

    def wait_for_threads(self, run: Run) -> bool:
        """Waits for threads of this process that fetch these pieces; False: they still do."""
        return self._pieces is None or wait_for_threads(self._pieces, run)

    def _is_all_missing(self, found: PieceMap, claimed: list[Run]) -> bool:
        """True if nobody else is fetching: then the whole file may come in one answer."""
        missing = int((~self.marks.read(found.opened)).sum())
        if missing != sum(stop - first for first, stop in claimed):
            return False
        if claimed:
            claimed[:] = [(0, self.marks.count)]
        return True

    def _fetch(
        self,
        found: PieceMap,
        run: Run,
        is_stopped: Callable[[], bool],
        count: Callable[[int], None],
        room: Room,
    ) -> None:
        """Makes one request; after a failure it asks for the rest."""
        first, end = self.marks.range_of(run)
        at, marked = first, run[0]
        if first < len(self._head):  # it came when the file was looked up
            at = min(len(self._head), end)
            self._write(self._head[first:at], first, room)

        def mark() -> None:
            """Marks pieces as they come: others wait for them, and this process may be killed."""
            nonlocal marked
            reached = run[1] if at == end else at // self.marks.piece_bytes
            if reached > marked and (at == end or not self.marks.must_sync):
                self._mark(found, (marked, reached))
                found.release(marked, reached)
                marked = reached

        def attempt() -> None:
            nonlocal at
            if is_stopped():
                return
            if not self.has_ranges:  # start over after a failure
                at = first
            with _Requests.free:
                pieces = self._store_of(self.file).read(self.file, at, end)
                try:
                    for piece in pieces:
                        self._write(piece, at, room)
                        at += len(piece)
                        count(len(piece))
                        mark()
                        if is_stopped():
                            return
                finally:
                    pieces.close()

        if at < end:
            retrying(attempt, self.file.url, is_stopped=is_stopped)
        mark()

    def _mark(self, found: PieceMap, run: Run) -> None:
        if self.marks.must_sync:
            _sync(self._opened)  # the mark must not reach the disk before the pieces
        self.marks.write(found.opened, *run, lasting=self.marks.must_sync)
        self._is_here[slice(*run)] = True
        first, end = self.marks.range_of(run)
        self._unsynced += end - first
        if self._unsynced >= SYNC_BYTES:
            self._unsynced = 0
            is_here = self.marks.read(found.opened)
            _sync(self._opened)
            for one in runs_of(np.flatnonzero(is_here)):
                self.marks.write(found.opened, *one, lasting=True)

    def _write(self, piece: bytes, at: int, room: Room) -> None:
        view = memoryview(piece)
        try:
            while view:
                written = os.pwrite(self._opened, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise FileError(
                f"{self.file.url} ({self.file.size / 1e6:,.0f} MB) cannot be written into the "
                f"cache folder: {error.strerror}. Give another folder with `cache=` or "
                "LOADERX_CACHE; `loaderx cache` shows what this one holds."
            ) from error
        room.fill(len(piece))

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int]:
        try:
            with own_folder(self.folder) as root, own_folder(key_of(self.file), root) as at:
                yield at
        except OSError as error:
            raise FileError(
                f"{self.file.url} must be downloaded, and {self.folder} cannot be used: {error}. "
                "Give another cache folder with `cache=`, or set LOADERX_CACHE."
            ) from error

    def finish(self) -> bool:
        """Gives the file its name once all pieces are here; False: it was removed meanwhile."""
        name = local_name(self.file)
        with self._open_folder() as at:
            if not is_linked(self._opened, name, at):
                with locked(at) as is_locked:
                    if is_locked and is_linked(self._opened, PART, at):
                        self._check_content(at)
                        os.fsync(self._opened)
                        os.rename(PART, name, src_dir_fd=at, dst_dir_fd=at)
                        os.fsync(at)
                    if is_locked and is_linked(self._opened, name, at):
                        remove((RANGES, LOCK), at)
                        with contextlib.suppress(OSError):
                            os.utime(NOTE, dir_fd=at)  # the mtime of `.part` no longer counts
            is_named = is_linked(self._opened, name, at)
        self._is_here[:] = True
        self.is_whole = True
        return is_named

    def _check_content(self, at: int) -> None:
        """Compares the file with the digest that the store gives; a wrong file is not kept."""
        expected = self.file.sha256
        if expected and hashlib.sha256(self.data.data).hexdigest() != expected:
            remove((PART, RANGES), at)
            raise FileError(
                f"{self.file.url}: what came is not what the server lists: its SHA-256 is not "
                f"{expected[:12]}…. Nothing of it was kept; try again, and if that does not help, "
                "a proxy or a mirror on the way has another file."
            )


@contextlib.contextmanager
def locked(at: int) -> Iterator[bool]:
    """Locks the folder of a file; False if the folder was removed or the file is finished."""
    held = open_own(LOCK, WRITE, at)
    if held is None:  # the folder was just removed
        yield False
        return
    try:
        lock(held, shared=False)
        yield is_linked(held, LOCK, at)
    finally:
        os.close(held)


def remove(names: tuple[str, ...], at: int) -> None:
    """Removes files if they exist."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)


def key_of(file: RemoteFile) -> str:
    """The folder name of this version of a file."""
    version = f"{file.version} {file.size}"
    hashes = (hashlib.sha256(text.encode()).hexdigest()[:32] for text in (file.url, version))
    return "-".join(hashes)


def local_name(file: RemoteFile) -> str:
    """The file's own name, which may show its format, made harmless."""
    return harmless_name(file_name(file.url))
