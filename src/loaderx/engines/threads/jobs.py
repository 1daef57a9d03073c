"""The jobs of worker threads."""

from __future__ import annotations

import contextlib
import threading
from time import perf_counter
from typing import Protocol

from loaderx.engines.base import Element, Task, Work, closed_error, worker_error
from loaderx.memory import Lend


class Flag:
    """A flag to poll.  Unlike an Event it has no lock: any code may set it."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class ThreadPool(Protocol):
    """What a job knows about its pool of threads."""

    owner: int  # process id
    stopping: Flag


class Job:
    """A task and its result."""

    __slots__ = (
        "began", "claim", "done", "ended", "error", "is_cancelled", "is_done", "owner", "stopping",
        "task", "thread", "value", "work",
    )  # fmt: skip

    def __init__(self, work: Work, task: Task, pool: ThreadPool) -> None:
        self.work: Work | None = work
        self.task = task
        self.owner, self.stopping = pool.owner, pool.stopping
        self.value: Element = None
        self.error: BaseException | None = None
        self.is_done = self.is_cancelled = False
        self.thread, self.began, self.ended = 0, 0.0, 0.0
        self.claim = threading.Lock()  # the thread that acquires it runs the job
        self.done = threading.Lock()
        self.done.acquire()

    @property
    def is_unwanted(self) -> bool:
        return self.stopping.is_set or self.is_cancelled

    def run(self, lend: Lend) -> None:
        """Runs the job in this thread, unless another thread has claimed it."""
        if not self.claim.acquire(blocking=False):
            return
        work, self.work = self.work, None
        self.thread, self.began = threading.get_ident(), perf_counter()
        if work is not None and not self.is_unwanted:
            try:
                self.value = work(self.task, lend)
            except BaseException as error:
                self.error = worker_error(error, self.task)
        else:
            self.error = closed_error()
        self.ended = perf_counter()
        self.is_done = True
        with contextlib.suppress(RuntimeError):  # `cancel` was faster
            self.done.release()
