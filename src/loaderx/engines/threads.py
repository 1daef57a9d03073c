"""Worker threads, for work that releases the GIL: NumPy, image decoding, reading files.

Steps are handed out one by one to whoever is free, and delivered in order.  At most ``workers +
prefetch`` steps are under way or waiting to be taken.  Each step has a lock that its worker opens
when it is done; waiting for the next step in order is waiting for its lock.

The threads know the crew's queue and nothing else: not the run, and between two steps not even the
user's functions, which may well hold the loader (a method of a trainer, a closure).  So a run that
nobody holds any more is collected, and its finaliser sends the crew home.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any

from loaderx.engines.base import Work, cores
from loaderx.errors import check_int
from loaderx.frozen import Frozen
from loaderx.memory import Pool


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

    def open(self, work: Work, steps: range) -> ThreadsRun:
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
        self.stopping = False
        self.threads = [
            threading.Thread(
                target=_labour,
                args=(self.tasks, self._is_stopping, capacity),
                name=f"loaderx-{number}",
                daemon=True,
            )
            for number in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def _is_stopping(self) -> bool:
        return self.stopping

    def stop(self) -> None:
        self.stopping = True
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():  # a finaliser may run in a worker
                thread.join()


def _labour(tasks: SimpleQueue[_Task | None], is_stopping: Any, capacity: int) -> None:
    lend = Pool(capacity).lend
    while (task := tasks.get()) is not None:
        work, task.work = task.work, None
        if work is not None and not is_stopping():
            try:
                task.value = work(task.step, lend)
            except BaseException as error:
                task.error = error
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
        self._finalizer: Any = None

    def next(self) -> Any:
        crew, pending = self._crew or self._start(), self._pending
        while len(pending) < self._window:
            step = next(self._steps, None)
            if step is None:
                break
            task = _Task(self._work, step)
            pending.append(task)
            crew.tasks.put(task)
        if not pending:
            self.close()
            raise StopIteration
        task = pending[0]
        task.done.acquire()
        pending.popleft()
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task
                self.close()
        return task.value

    def _start(self) -> _Crew:
        # A worker's slots are lent to elements that wait here, and to those that the user holds.
        self._crew = crew = _Crew(self._workers, self._window + 3)
        self._finalizer = weakref.finalize(self, crew.stop)
        return crew

    def drain(self) -> None:
        """Takes on no new steps: what is under way is still delivered, then the run ends."""
        self._steps = iter(())

    def close(self) -> None:
        self._steps = iter(())
        self._pending.clear()
        if self._finalizer is not None:
            self._finalizer()

    def describe(self) -> tuple[str, str]:
        return f"threads({self._workers})", "it was asked for"
