"""What worker threads do: a task, or a range of the rows of a step that several of them share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from loaderx.engines.base import Element, Task, Work, closed_error, worker_error
from loaderx.engines.sharing import MadeRows, Range, RowsWork
from loaderx.memory import Lend


class Flag:
    """A flag that nobody waits for.  Unlike an Event it has no lock: any code may set it."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class ThreadPool(Protocol):
    """What a job knows of the threads that may do it."""

    owner: int  # the process
    stopping: Flag


class Job:
    """A task, and what came of it."""

    __slots__ = (
        "claim", "done", "error", "has_failed_part", "is_cancelled", "is_done", "owner",
        "seconds", "stopping", "task", "thread", "value", "work",
    )  # fmt: skip

    def __init__(self, work: Work, task: Task, pool: ThreadPool) -> None:
        self.work: Work | None = work
        self.task = task
        self.owner, self.stopping = pool.owner, pool.stopping
        self.value: Element = None
        self.error: BaseException | None = None
        self.is_done = self.is_cancelled = self.has_failed_part = False
        self.seconds = 0.0  # that it took
        self.thread = 0  # that does it
        self.claim = threading.Lock()  # whoever gets it runs the job
        self.done = threading.Lock()
        self.done.acquire()

    @property
    def is_unwanted(self) -> bool:
        return self.stopping.is_set or self.is_cancelled

    def run(self, lend: Lend) -> None:
        """Does it, in this thread, unless another thread is at it already."""
        if not self.claim.acquire(blocking=False):
            return
        self.thread = threading.get_ident()
        work, self.work = self.work, None
        if work is not None and not self.is_unwanted:
            begun = time.perf_counter()
            try:
                self.value = self.make(work, lend)
            except BaseException as error:
                self.error = worker_error(error, self.task)
            self.seconds += time.perf_counter() - begun
        else:
            self.error = closed_error()
        self.is_done = True
        with contextlib.suppress(RuntimeError):  # `cancel` was faster
            self.done.release()

    def make(self, work: Work, lend: Lend) -> Element:
        return work(self.task, lend)

    def help(self, lend: Lend) -> None:
        """Does what nobody has begun: all threads may be waiting for it, as this one would."""
        self.run(lend)

    def is_under_way(self) -> bool:
        """Is a thread other than this one at it?"""
        return self.thread not in (0, threading.get_ident()) and not self.is_done


class SharedJob(Job):
    """A step that several threads make: each a range of its rows, and the last the rest."""

    __slots__ = ("left", "lock", "made", "parts")

    def __init__(
        self, work: RowsWork, task: Task, pool: ThreadPool, ranges: Sequence[Range]
    ) -> None:
        super().__init__(work, task, pool)
        self.parts = [RangeJob(self, number, rows) for number, rows in enumerate(ranges)]
        self.made: list[MadeRows | None] = [None] * len(ranges)
        self.left = len(ranges)
        self.lock = threading.Lock()

    def make(self, work: Work, lend: Lend) -> Element:
        if self.has_failed_part:
            return work(self.task, lend)  # so it fails as it would without ranges
        assert isinstance(work, RowsWork)
        made, self.made = [part for part in self.made if part is not None], []
        return work.join_rows(self.task, made, lend)

    def help(self, lend: Lend) -> None:
        for part in self.parts:
            part.run(lend)

    def finish_part(self, seconds: float, *, has_failed: bool) -> bool:
        """One more part has ended; True if this thread is to make the rest.

        After a failure nobody needs the other parts, which may take long.
        """
        with self.lock:
            self.left -= 1
            self.seconds += seconds
            if not has_failed:
                return not (self.left or self.has_failed_part)
            is_first, self.has_failed_part = not self.has_failed_part, True
            return is_first

    def is_under_way(self) -> bool:
        return super().is_under_way() or any(part.is_under_way() for part in self.parts)


class RangeJob:
    """A range of the rows of a step."""

    __slots__ = ("_claim", "_number", "_rows", "_step", "_thread")

    def __init__(self, step: SharedJob, number: int, rows: Range) -> None:
        self._step: SharedJob | None = step
        self._number, self._rows = number, rows
        self._claim = threading.Lock()
        self._thread = 0

    def run(self, lend: Lend) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self._thread = threading.get_ident()
        step, self._step = self._step, None  # or they would hold each other
        assert step is not None
        begun, work, has_failed = time.perf_counter(), step.work, False
        if not (step.is_unwanted or step.has_failed_part):
            try:
                assert isinstance(work, RowsWork)
                step.made[self._number] = work.make_rows(step.task, *self._rows, lend)
            except BaseException:
                has_failed = True
        del work
        self._thread = 0
        if step.finish_part(time.perf_counter() - begun, has_failed=has_failed):
            step.run(lend)

    def is_under_way(self) -> bool:
        return self._thread not in (0, threading.get_ident())
