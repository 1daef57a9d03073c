"""Fetches pieces of files: many requests at once, each piece once.

Separate threads make the requests, never the one that waits: so Ctrl-C, which goes to the main
thread, interrupts only its wait, and nothing is left half done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.remote.part_file import PartFile
from loaderx.sources.remote.pieces import Run, wait_for_processes
from loaderx.sources.remote.room import warn_if_exceeded
from loaderx.sources.remote.store import NoRangesError

CONCURRENCY = 16  # requests of one transfer
_BEGIN_S = 1.0  # time for a thread to start

Wanted: TypeAlias = tuple[PartFile, Indices]
"""Missing pieces of a file."""


class _Thread(threading.local):
    """The event that stops the downloads of this thread."""

    stop: threading.Event | None = None


_thread = _Thread()


def stop_with(event: threading.Event) -> None:
    """Makes the event stop all downloads that this thread begins from now on."""
    _thread.stop = event


def current_stop() -> threading.Event | None:
    """The event that stops the downloads of this thread."""
    return _thread.stop


def fetch_pieces(
    wanted: Sequence[Wanted], count: Callable[[int], None] = lambda nbytes: None
) -> int:
    """Fetches pieces, or waits for others that do; returns the bytes fetched here."""
    nbytes = _Transfer(wanted, count).run()
    for folder in {part.folder for part, _ in wanted}:
        warn_if_exceeded(folder)
    return nbytes


class _Transfer:
    def __init__(self, wanted: Sequence[Wanted], count: Callable[[int], None]) -> None:
        self._left = deque[tuple[PartFile, Run]](
            (part, run) for part, missing in wanted for run in part.marks.requests(missing)
        )
        self._elsewhere = deque[tuple[PartFile, Run]]()  # others are fetching some of it
        self._lock, self._stop, self._end = threading.Lock(), threading.Event(), threading.Event()
        self._stop_all = _thread.stop or self._stop
        self._errors: list[BaseException] = []
        self._told, self._nbytes = count, 0

    def run(self) -> int:
        while self._left:
            self._fetch()
            if self._errors:
                raise self._errors[0]
            if self._stop_all.is_set():
                raise FileError("a download was stopped.")
            self._left = deque(self._rest())
        return self._nbytes

    def _fetch(self) -> None:
        lead = self._thread(self._lead)
        self._end.clear()
        try:
            lead.start()
            self._end.wait()  # not `join`: if Ctrl-C ends it, the thread seems to have ended
        except BaseException:  # each thread ends after its current read
            self._stop.set()
            _wait_for(self._end, lead)
            raise
        finally:
            if lead.ident is not None:
                lead.join()

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name="loaderx-download", daemon=True)

    def _lead(self) -> None:
        """Starts the others: Ctrl-C in the main thread would leave one half started."""
        others: list[threading.Thread] = []
        try:
            for _ in range(min(CONCURRENCY, len(self._left)) - 1):
                others.append(self._thread(self._work))
                others[-1].start()
        except RuntimeError:  # the system allows no more threads: fewer will do
            others.pop()
        try:
            self._work()
            for thread in others:
                thread.join()
        finally:
            self._end.set()

    def _rest(self) -> list[tuple[PartFile, Run]]:
        """Waits for others that fetch; returns what is still missing then."""
        elsewhere, self._elsewhere = self._elsewhere, deque()
        rest = list[tuple[PartFile, Run]]()
        for part, run in elsewhere:
            while not (self._is_stopped() or part.wait_for_threads(run)):
                pass
            missing = part.still_missing(np.arange(*run))
            rest.extend((part, one) for one in part.marks.requests(missing))
        if rest:  # another process is fetching, or a thread of this one gave up
            wait_for_processes()
        return rest

    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._stop_all.is_set()

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._nbytes += nbytes
            self._told(nbytes)

    def _work(self) -> None:
        while not self._is_stopped():
            try:
                part, run = self._left.popleft()
            except IndexError:
                return
            try:
                if not part.fetch(run, self._is_stopped, self._count):
                    self._elsewhere.append((part, run))
            except NoRangesError:
                part.has_ranges = False
                self._elsewhere.append((part, run))
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()


def _wait_for(end: threading.Event, lead: threading.Thread) -> None:
    """Waits for threads despite interrupts: they write to a file that will be closed."""
    while True:
        try:
            # Without an ident it never started; if it starts later, it sees the stop.
            if end.wait(_BEGIN_S) or lead.ident is None:
                return
        except KeyboardInterrupt:
            continue
