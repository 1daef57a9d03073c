"""Fetches records ahead of the stream, before they are read.

The addresses of a stream are known long before it gets there.  So threads of the loader walk ahead
of the consumer, and ask the sources to `fetch` the records that come next: in the order of the
stream, the first element alone, then more and more at a time, so that requests become large.  They
stay within a budget of bytes (``LOADERX_AHEAD_BYTES``), as reported by the sources.

Nothing depends on it: a reader fetches a record that is missing.  So a failed fetch is no error.
It stops the walk until the stream has passed that place, where the reader hit the same failure or
succeeded.

The consumer takes no lock.  After each element it checks whether there is room again, and if so
puts a *turn* into the queue of the threads.  An idle thread holds that queue and nothing else.  So
an unused iterator is collected, and its finaliser ends the threads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeAlias

from loaderx.engines.base import Element, Run
from loaderx.engines.signals import SignalsDeferred
from loaderx.engines.threads.jobs import Flag
from loaderx.errors import bytes_setting
from loaderx.loader.fetch_ahead.budget import MOST_ROWS, Job, Track, Walk
from loaderx.sources.remote.room import CACHE_LIMIT, limit_bytes
from loaderx.sources.remote.transfer import stop_with

AHEAD_BYTES = "LOADERX_AHEAD_BYTES"
DEFAULT_BYTES = 1 << 28
THREADS = 8
CLOSE_S = 2.0  # how long closing waits for a fetch that is under way

Turn: TypeAlias = Callable[[], None]
Turns: TypeAlias = "SimpleQueue[Turn | None]"


def ahead_budget() -> int:
    """The bytes that may be fetched ahead of the consumer; 0: nothing is fetched ahead."""
    found = bytes_setting(AHEAD_BYTES, DEFAULT_BYTES, least=0)
    if not os.environ.get(CACHE_LIMIT):
        return found
    return min(found, limit_bytes("", 0) // 4)  # more would be evicted before it is read


class Ahead:
    """Threads that fetch the records of tracks ahead of their readers."""

    def __init__(self, tracks: Sequence[Track], budget: int) -> None:
        count = max(1, len(tracks))
        rows = max(1, MOST_ROWS // count)
        self._walks = [Walk(track, max(1, budget // count), rows) for track in tracks]
        self._tracks = list(tracks)
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()  # guards the walks; never taken by the consumer
        self._threads: list[threading.Thread] = []
        self._owner = os.getpid()
        self._is_woken = False  # a turn is in the queue
        self.turns: Turns = SimpleQueue()
        self.stopping, self._stop = Flag(), threading.Event()

    def start(self) -> None:
        self._owner = os.getpid()
        with SignalsDeferred():  # a half-started thread could not be stopped
            self._start_thread()
            _living.add(self)
        self.wake()

    def _start_thread(self) -> None:
        if len(self._threads) >= THREADS or self.stopping.is_set:
            return
        number, given = len(self._threads), (self.turns, self._stop)
        name = f"loaderx-ahead-{number}"
        thread = threading.Thread(target=_loop, args=given, name=name, daemon=True)
        with contextlib.suppress(RuntimeError):  # a system limit: fewer threads will do, or none
            thread.start()
            self._threads.append(thread)

    def notice(self) -> None:
        """Called by the consumer after each element."""
        moved = [track.moved() for track in self._tracks]  # each notes what was read
        if any(moved) and self._is_mine:
            self.wake()

    @property
    def _is_mine(self) -> bool:
        """False in a fork, which has no threads, and may have locks that nobody releases."""
        return self._owner == os.getpid()

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self.turns.put(self._turn)

    def _turn(self) -> None:
        """Run by a woken thread: fetches as long as there is room."""
        self._is_woken = False
        while (job := self._next_job()) is not None:
            self.wake()  # there may be more to do, for another thread
            with self._lock:
                self._start_thread()
            nbytes = job.run()
            with self._lock:
                job.group.finish(nbytes)

    def _next_job(self) -> Job | None:
        with self._lock:
            while not self._jobs and not self.stopping.is_set:
                walks = [walk for walk in self._walks if walk.has_room()]
                if not walks:
                    return None
                # Of several lanes, or datasets of a mix, the one that is least ahead.
                self._jobs += min(walks, key=lambda walk: walk.nbytes).next_group()
            return None if self.stopping.is_set else self._jobs.popleft()

    def stop(self) -> None:
        """Ends the threads without waiting for them."""
        if self._is_mine:
            _drop(self.turns, self.stopping)
            with SignalsDeferred():  # an interrupt inside `set` would leave the event locked
                self._stop.set()

    def wait(self, patience_s: float) -> None:
        """Waits for the threads, but not for ever: one may be stuck in a fetch."""
        until = time.monotonic() + patience_s
        # Threads start others only before they end, so this loop sees all of them.
        for thread in self._threads if self._is_mine else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


_living: weakref.WeakSet[Ahead] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    living = list(_living)
    for ahead in living:
        ahead.stop()
    for ahead in living:
        ahead.wait(CLOSE_S)


def _loop(turns: Turns, stop: threading.Event) -> None:
    stop_with(stop)
    while (turn := turns.get()) is not None:
        turn()
        del turn  # a waiting thread must hold none of the user's objects
    turns.put(None)  # for the others
    stop.set()  # not done by a finaliser, which must not wait for the event's lock


def _drop(turns: Turns, stopping: Flag) -> None:
    """Ends the threads from a finaliser, which may take no lock."""
    stopping.is_set = True
    turns.put(None)


class AheadRun:
    """A run whose next elements are fetched meanwhile."""

    def __init__(self, run: Run, tracks: Sequence[Track], budget: int) -> None:
        self._run, self._ahead = run, Ahead(tracks, budget)
        self._is_started = False
        self.ready, self.interrupt, self.describe = run.ready, run.interrupt, run.describe
        finaliser = weakref.finalize(self, _drop, self._ahead.turns, self._ahead.stopping)
        finaliser.atexit = False  # `_stop_all` does that

    def start(self) -> None:
        self._begin()
        self._run.start()
        self._ahead.wake()  # workers may have got many tasks

    def _begin(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._ahead.start()

    def next(self) -> Element:
        if not self._is_started:
            self._begin()
        element = self._run.next()
        self._ahead.notice()
        return element

    def close(self) -> None:
        self._ahead.stop()
        try:
            self._run.close()
        finally:
            self._ahead.wait(CLOSE_S)
