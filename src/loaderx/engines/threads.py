"""Worker threads, for work that releases the GIL: NumPy, image decoding, reading files.

Steps are handed out one by one to whoever is free, and delivered in order.  At most ``workers +
prefetch`` steps are under way or waiting to be taken.  Each step has a lock that its worker opens
when it is done; waiting for the next step in order is waiting for its lock.

The threads know the crew's queue and nothing else: not the run, and between two steps not even the
user's functions, which may well hold the loader (a method of a trainer, a closure).  So a run that
nobody holds any more is collected, and its finaliser sends the crew home.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any

from loaderx.engines.base import (
    BareWorkshop,
    Noted,
    Work,
    closed_error,
    cores,
    warn_if_in_order,
    what_to_say,
)
from loaderx.engines.decision import FAST_S, LARGE_SHARE
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import LoaderxError, check_int, warn_user
from loaderx.frozen import Frozen
from loaderx.memory import Pool

PATIENCE_S = 10.0  # how long closing waits for a step that is under way
EXIT_PATIENCE_S = 2.0
LOOKED_AT = 8  # timed batches, to see whether threads wait for each other
LOOK_S = 0.25  # how often a waiting consumer looks whether it was closed


class Threads(Frozen):
    """A crew of threads.

    Args:
        num_workers: threads; by default one per core.
        prefetch: finished elements to keep ready; by default as many as threads, at least 2.
    """

    num_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.num_workers is not None:
            check_int("num_workers", self.num_workers, least=1)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, least=0)

    def workshop(self, work: Work) -> BareWorkshop:
        warn_if_in_order(work, "engine='threads'")
        turns = _Turns(work.unsure) if work.unsure and self.num_workers != 1 else None
        return BareWorkshop(lambda steps: self.open(work, steps, turns))

    def open(self, work: Work, steps: range, turns: _Turns | None = None) -> ThreadsRun:
        """A run with a crew of its own."""
        workers = cores() if self.num_workers is None else self.num_workers
        prefetch = max(2, workers) if self.prefetch is None else self.prefetch
        return ThreadsRun(work, steps, workers, prefetch, turns)


class _Turns:
    """Notices that threads wait for each other to read a source that may not be thread-safe.

    It looks at the first batches that were timed: the time of reading includes that of waiting for
    one's turn.  The median, since a thread that loses the GIL while it reads says nothing.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen: list[tuple[float, float]] | None = []  # None: enough

    def notice(self, element: Any) -> None:
        """Warns once if reading takes a good part of the time."""
        seen = self._seen
        if seen is None or type(element) is not Noted or not element.times:
            return
        if not element.times.weight:  # the first batch also opens files
            return
        stages = element.times.stages
        seen.append((stages.get("source", 0.0), sum(stages.values())))
        if len(seen) < LOOKED_AT:
            return
        self._seen = None
        reading_s, all_s = (sorted(times)[LOOKED_AT // 2] for times in zip(*seen, strict=True))
        if reading_s >= FAST_S and reading_s > LARGE_SHARE * all_s:
            warn_user(
                f"threads read {self._source} one at a time, since it is not known whether they "
                f"may read it at once, and reading takes {reading_s / all_s:.0%} of the time to "
                f"make a batch. {what_to_say(self._source)}"
            )


class _Task:
    """One step, and what came of it."""

    __slots__ = ("done", "error", "is_done", "step", "value", "work")

    def __init__(self, work: Work, step: int) -> None:
        self.work: Work | None = work
        self.step = step
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.done = threading.Lock()
        self.done.acquire()


class _Flag:
    """A flag that nobody waits for.  Unlike an Event it has no lock: any code may set it."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class _Crew:
    """The threads of one run, and the queue they take their tasks from."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.stopping = _Flag()
        self.threads: list[threading.Thread] = []
        self.owner = os.getpid()
        _crews.add(self)

    def start(self, workers: int, capacity: int) -> None:
        with SignalsDeferred():  # a thread that is half started can neither be used nor joined
            for number in range(workers):
                thread = threading.Thread(
                    target=_labour,
                    args=(self.tasks, self.stopping, capacity),
                    name=f"loaderx-{number}",
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    raise LoaderxError(
                        f"worker thread {number + 1} of {workers} cannot start: {error}. A limit "
                        "on processes and threads (ulimit -u) or on memory (ulimit -v) was met. "
                        "Use fewer workers: num_workers=..."
                    ) from error
                self.threads.append(thread)

    def dismiss(self) -> None:
        """Sends everybody home, and waits for nobody: safe in a finaliser, whatever is locked."""
        self.stopping.is_set = True
        self.tasks.put(None)  # whoever takes it puts it back for the next

    def wait(self, patience_s: float) -> None:
        """Waits until they have gone; a step that never ends is left to its (daemon) thread."""
        patience = time.monotonic() + patience_s
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, patience - time.monotonic()))


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()


@atexit.register
def _close_up() -> None:
    crews = list(_crews)
    for crew in crews:
        crew.dismiss()
    for crew in crews:
        crew.wait(EXIT_PATIENCE_S)


def _labour(tasks: SimpleQueue[_Task | None], stopping: _Flag, capacity: int) -> None:
    lend = Pool(capacity).lend
    while (task := tasks.get()) is not None:
        work, task.work = task.work, None
        if work is not None and not stopping.is_set:
            try:
                task.value = work(task.step, lend)
            except BaseException as error:
                task.error = error
        else:
            task.error = closed_error()
        task.is_done = True
        with contextlib.suppress(RuntimeError):  # `interrupt` was faster
            task.done.release()
        del task, work  # a waiting worker must hold no batch, and nothing of the user's
    tasks.put(None)  # for the others


class ThreadsRun:
    """A run on a crew, which starts with the first element."""

    def __init__(
        self,
        work: Work,
        steps: range,
        workers: int,
        prefetch: int,
        turns: _Turns | None = None,
    ) -> None:
        self._work = work
        self._turns = turns
        self._steps = iter(steps)
        self._workers = workers
        self._window = workers + prefetch
        self._pending: deque[_Task] = deque()
        self._crew: _Crew | None = None
        self._is_closing = False
        self._lock = threading.Lock()  # two threads may share an iterator

    def next(self) -> Any:
        with self._lock:
            task = self._first()
            while not task.done.acquire(timeout=LOOK_S) and not self._is_closing:
                pass
            if not task.is_done:  # `interrupt` has opened the lock: the step may never end
                raise closed_error()
            self._pending.popleft()
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task
                self.close()
        if self._turns is not None:
            self._turns.notice(task.value)
        return task.value

    def ready(self) -> bool:
        return not self._pending or not self._pending[0].done.locked()

    def _first(self) -> _Task:
        """Hands out steps as far as the window goes, and gives the first that is under way."""
        if self._is_closing:
            raise closed_error()
        crew, pending = self._crew or self._start(), self._pending
        if crew.owner != os.getpid():  # threads do not survive a fork, and would be waited for
            raise LoaderxError(
                "this iterator's threads belong to the process from which this one was forked. "
                "Make a new iterator here."
            )
        while len(pending) < self._window:
            step = next(self._steps, None)
            if step is None:
                break
            task = _Task(self._work, step)
            pending.append(task)
            crew.tasks.put(task)
        if not pending:
            self._send_home()
            raise StopIteration
        return pending[0]

    def _start(self) -> _Crew:
        crew = _Crew()
        weakref.finalize(self, crew.dismiss).atexit = False  # `_close_up` does that
        self._crew = crew  # known before its threads are, so that they always can be sent home
        # A worker's slots are lent to elements that wait here, and to those that the user holds.
        crew.start(self._workers, self._window // self._workers + 3)
        return crew

    def drain(self) -> None:
        """Takes on no new steps: what is under way is still delivered, then the run ends."""
        self._steps = iter(())

    def interrupt(self) -> bool:
        self.dismiss()
        with contextlib.suppress(IndexError, RuntimeError):  # nobody waits, or it is done
            self._pending[0].done.release()
        return True

    def dismiss(self) -> None:
        """Ends the run without waiting for its threads."""
        self._is_closing = True
        if self._crew is not None:
            self._crew.dismiss()

    def close(self) -> None:
        self._is_closing = True
        self._send_home()

    def _send_home(self) -> None:
        if self._crew is not None:
            self._crew.dismiss()
            self._crew.wait(PATIENCE_S)

    def describe(self) -> tuple[str, str]:
        return f"threads({self._workers})", "it was asked for"
