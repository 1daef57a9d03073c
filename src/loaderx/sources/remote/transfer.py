"""How pieces of files are fetched: many requests at once, each piece once.

The requests are made by threads of their own, never by the one that waits: so Ctrl-C, which comes
to the main thread, finds it waiting here, and nothing is left half done.
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
_BEGIN_S = 1.0  # in which a thread has begun

Wanted: TypeAlias = tuple[PartFile, Indices]
"""Missing pieces of a file."""


class _Thread(threading.local):
    """What stops the downloads that this thread begins."""

    stop: threading.Event | None = None


_thread = _Thread()


def stop_with(event: threading.Event) -> None:
    """Has the downloads that this thread begins from now on end when the event is set."""
    _thread.stop = event


def current_stop() -> threading.Event | None:
    """What ends the downloads of this thread."""
    return _thread.stop


def fetch_pieces(
    wanted: Sequence[Wanted], count: Callable[[int], None] = lambda nbytes: None
) -> int:
    """Fetches pieces, or waits for those who do; returns the bytes that were fetched here."""
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
            self._end.wait()  # a `join` that Ctrl-C ends takes the thread for one that has ended
        except BaseException:  # each thread ends with the bytes that it is reading
            self._stop.set()
            _wait_for(self._end, lead)
            raise
        finally:
            if lead.ident is not None:
                lead.join()

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name="loaderx-download", daemon=True)

    def _lead(self) -> None:
        """Starts the others: Ctrl-C while the main thread does so would leave one half begun."""
        others: list[threading.Thread] = []
        try:
            for _ in range(min(CONCURRENCY, len(self._left)) - 1):
                others.append(self._thread(self._work))
                others[-1].start()
        except RuntimeError:  # the system has no more threads: fewer do
            others.pop()
        try:
            self._work()
            for thread in others:
                thread.join()
        finally:
            self._end.set()

    def _rest(self) -> list[tuple[PartFile, Run]]:
        """What is still missing of what others were fetching; they are waited for."""
        elsewhere, self._elsewhere = self._elsewhere, deque()
        rest = list[tuple[PartFile, Run]]()
        for part, run in elsewhere:
            while not (self._is_stopped() or part.wait_for_threads(run)):
                pass
            missing = part.still_missing(np.arange(*run))
            rest.extend((part, one) for one in part.marks.requests(missing))
        if rest:  # another process has them, or a thread of this one has given up
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
    """Waits for threads, whatever comes: they write to a file that will be closed."""
    while True:
        try:
            # Without a number it was never begun; if it begins later, it finds itself stopped.
            if end.wait(_BEGIN_S) or lead.ident is None:
                return
        except KeyboardInterrupt:
            continue
