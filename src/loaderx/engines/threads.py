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
import os
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any

from loaderx.engines.base import BareWorkshop, Work, cores, warn_caller, what_to_say
from loaderx.errors import LoaderxError, check_int
from loaderx.frozen import Frozen
from loaderx.memory import Pool

PATIENCE_S = 10.0  # how long closing waits for a step that is under way
EXIT_PATIENCE_S = 2.0


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
        if self.num_workers != 1 and work.unsure:
            warn_caller(
                f"threads read {work.unsure} one at a time, since it is not known whether they may "
                f"read it at once. {what_to_say(work.unsure)}"
            )
        return BareWorkshop(lambda steps: self.open(work, steps))

    def open(self, work: Work, steps: range) -> ThreadsRun:
        """A run with a crew of its own."""
        workers = cores() if self.num_workers is None else self.num_workers
        prefetch = max(2, workers) if self.prefetch is None else self.prefetch
        return ThreadsRun(work, steps, workers, prefetch)


class _Task:
    """One step, and what came of it."""

    __slots__ = ("done", "error", "step", "value", "work")

    def __init__(self, work: Work, step: int) -> None:
        self.work: Work | None = work
        self.step = step
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class _Crew:
    """The threads of one run, and the queue they take their tasks from."""

    def __init__(self, workers: int, capacity: int) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self.owner = os.getpid()
        try:
            for number in range(workers):
                thread = threading.Thread(
                    target=_labour,
                    args=(self.tasks, self.stopping, capacity),
                    name=f"loaderx-{number}",
                    daemon=True,
                )
                thread.start()
                self.threads.append(thread)
        except BaseException:
            self.dismiss()
            raise
        _crews.add(self)

    def dismiss(self) -> None:
        """Sends everybody home, and waits for nobody: safe in a finaliser, whatever is locked."""
        self.stopping.set()
        for _ in self.threads:
            self.tasks.put(None)

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


def _labour(tasks: SimpleQueue[_Task | None], stopping: threading.Event, capacity: int) -> None:
    lend = Pool(capacity).lend
    while (task := tasks.get()) is not None:
        work, task.work = task.work, None
        if work is not None and not stopping.is_set():
            try:
                task.value = work(task.step, lend)
            except BaseException as error:
                task.error = error
        else:
            task.error = LoaderxError("the loader was closed while this batch was waited for.")
        task.done.release()
        del task, work  # a waiting worker must hold no batch, and nothing of the user's


class ThreadsRun:
    """A run on a crew, which starts with the first element."""

    def __init__(self, work: Work, steps: range, workers: int, prefetch: int) -> None:
        self._work = work
        self._steps = iter(steps)
        self._workers = workers
        self._window = workers + prefetch
        self._pending: deque[_Task] = deque()
        self._crew: _Crew | None = None
        self._lock = threading.Lock()  # two threads may share an iterator

    def next(self) -> Any:
        with self._lock:
            task = self._first()
            task.done.acquire()
            self._pending.popleft()
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task
                self.close()
        return task.value

    def ready(self) -> bool:
        return not self._pending or not self._pending[0].done.locked()

    def _first(self) -> _Task:
        """Hands out steps as far as the window goes, and gives the first that is under way."""
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
        if not pending or crew.stopping.is_set():
            self.close()
            raise StopIteration
        return pending[0]

    def _start(self) -> _Crew:
        # A worker's slots are lent to elements that wait here, and to those that the user holds.
        self._crew = crew = _Crew(self._workers, self._window // self._workers + 3)
        weakref.finalize(self, crew.dismiss).atexit = False  # `_close_up` does that
        return crew

    def drain(self) -> None:
        """Takes on no new steps: what is under way is still delivered, then the run ends."""
        self._steps = iter(())

    def dismiss(self) -> None:
        """Ends the run without waiting for its threads."""
        self._steps = iter(())
        if self._crew is not None:
            self._crew.dismiss()

    def close(self) -> None:
        self.dismiss()
        if self._crew is not None:
            self._crew.wait(PATIENCE_S)

    def describe(self) -> tuple[str, str]:
        return f"threads({self._workers})", "it was asked for"
