"""How a file is fetched: ranges in parallel, into a file beside a map of the finished ones.

The map has a byte for each range, which is set once the range is on disk.  So a download that was
killed goes on with the ranges that are missing.
"""

from __future__ import annotations

import os
import threading
from collections import deque

from loaderx.errors import FileError
from loaderx.sources.ondisk.progress import Progress, progress
from loaderx.sources.remote.store import NoRangesError, RemoteFile, Store, retrying
from loaderx.sources.remote.urls import file_name

RANGE_BYTES = 8 << 20
CONCURRENCY = 8  # requests for one file
_MOST_REQUESTS = 32  # of a process
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
_requests = threading.BoundedSemaphore(_MOST_REQUESTS)


class _Thread(threading.local):
    """What stops the downloads that this thread begins."""

    stop: threading.Event | None = None


_thread = _Thread()


def stop_with(event: threading.Event) -> None:
    """Has the downloads that this thread begins from now on end when the event is set."""
    _thread.stop = event


def needs_ranges(size: int) -> bool:
    """Is a file of this size fetched in several ranges?"""
    return size > RANGE_BYTES


class Transfer:
    """One file on its way."""

    def __init__(self, file: RemoteFile, store: Store, part: int, done: int | None) -> None:
        """``part`` has its full size already; without a map of ranges, ``done``, there is one."""
        self._file, self._store = file, store
        self._part, self._done = part, done
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._stop_all = _thread.stop or self._stop

    def run(self) -> None:
        """Fetches what is missing."""
        missing = self._missing()
        left = sum(self._size(number) for number in missing)
        with progress(f"downloading {file_name(self._file.url)}", left) as shown:
            try:
                self._fetch_all(missing, shown)
            except NoRangesError:
                self._fetch_whole(shown)
        os.fsync(self._part)

    def _missing(self) -> list[int]:
        count = -(-self._file.size // RANGE_BYTES)
        if self._done is None:
            return list(range(count))
        if os.fstat(self._done).st_size != count:
            os.truncate(self._done, 0)
            os.truncate(self._done, count)
        marks = os.pread(self._done, count, 0)
        return [number for number in range(count) if marks[number] != 1]

    def _size(self, number: int) -> int:
        return min(RANGE_BYTES, self._file.size - number * RANGE_BYTES)

    def _fetch_all(self, missing: list[int], shown: Progress) -> None:
        queue, errors = deque(missing), list[BaseException]()

        def work() -> None:
            while queue and not self._is_stopped():
                try:
                    number = queue.popleft()
                except IndexError:
                    return
                try:
                    self._fetch(number, shown)
                except BaseException as error:
                    errors.append(error)
                    self._stop.set()

        others = min(CONCURRENCY, len(missing)) - 1
        threads = [
            threading.Thread(target=work, name="loaderx-download", daemon=True)
            for _ in range(others)
        ]
        try:
            for thread in threads:
                thread.start()
            work()
            _join(threads)
        finally:  # also after Ctrl-C: each ends with the piece that it is reading
            self._stop.set()
            _join(threads)
        if errors:
            raise errors[0]
        if self._stop_all.is_set() and self._stop_all is not self._stop:
            raise FileError(f"the download of {self._file.url} was stopped.")

    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._stop_all.is_set()

    def _fetch(self, number: int, shown: Progress) -> None:
        """One range; after a failure the rest of it is asked for."""
        at = number * RANGE_BYTES
        stop = at + self._size(number)

        def attempt() -> None:
            nonlocal at
            if self._is_stopped():
                return
            with _requests:
                pieces = self._store.read(self._file, at, stop)
                try:
                    for piece in pieces:
                        self._write(piece, at)
                        at += len(piece)
                        self._count(len(piece), shown)
                        if self._is_stopped():
                            return
                finally:
                    pieces.close()

        retrying(attempt, self._file.url)
        if at == stop and self._done is not None:
            _sync(self._part)  # the mark must not be on disk before the range
            os.pwrite(self._done, b"\1", number)

    def _fetch_whole(self, shown: Progress) -> None:
        """All of it in one answer, from a server that has no ranges; a failure begins anew."""

        def attempt() -> None:
            at = 0
            with _requests:
                for piece in self._store.read(self._file, 0, self._file.size):
                    self._write(piece, at)
                    at += len(piece)

        self._stop.clear()
        retrying(attempt, self._file.url)
        shown.add(self._file.size)

    def _count(self, nbytes: int, shown: Progress) -> None:
        with self._lock:
            shown.add(nbytes)

    def _write(self, piece: bytes, at: int) -> None:
        view = memoryview(piece)
        try:
            while view:
                written = os.pwrite(self._part, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise FileError(
                f"{self._file.url} ({self._file.size / 1e6:,.0f} MB) cannot be written into the "
                f"cache folder: {error.strerror}. Give another folder with `cache=` or "
                "LOADERX_CACHE; `loaderx cache` shows what this one holds."
            ) from error


def _join(threads: list[threading.Thread]) -> None:
    """Waits for threads, whatever comes: they write to a file that will be closed."""
    interrupt: KeyboardInterrupt | None = None
    for thread in threads:
        while True:
            try:
                thread.join()
                break
            except RuntimeError:  # it was never begun
                break
            except KeyboardInterrupt as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
