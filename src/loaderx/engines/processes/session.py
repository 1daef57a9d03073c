"""The session of a loader with worker processes: one pool that serves all its iterators."""

from __future__ import annotations

import os
import threading
import weakref
from threading import get_ident

from loaderx.engines.base import Element, Made, Pending, Session, Task, Work, closed_error
from loaderx.engines.processes.jobs import Job
from loaderx.engines.processes.pickling import Init, SharedPayload
from loaderx.engines.processes.pool import PoolBrokenError, WorkerPool, reentered_error


class ProcessesSession(Session):
    """Worker processes, which start with the first task and live until the session is closed.

    Args:
        work: makes the element of a task.
        workers: processes.
        prefetch: tasks to keep under way beyond one for each worker.
        timeout_s: report a task that takes longer, with the stack of its worker. None: never.
        replace_stuck: also replace that worker, and make the task again.
        free_share: the share of the free memory that sharing the data may take.
        init: called in each worker with its number and their count, before it gets the work.
    """

    shares_memory = True

    def __init__(
        self,
        work: Work,
        workers: int,
        prefetch: int,
        timeout_s: float | None,
        replace_stuck: bool = False,
        free_share: float = 1.0,
        init: Init | None = None,
    ) -> None:
        self.workers = workers
        self.window = workers + prefetch
        self.start_s = 0.0  # CPU time that a worker took to start
        self._work = work
        self._timeout_s = timeout_s
        self._replace_stuck = replace_stuck
        self._free_share = free_share
        self._init = init
        self._payload: SharedPayload | None = None
        self._pool: WorkerPool | None = None
        self._closings = 0
        self._lock = threading.Lock()  # for starting a pool: threads may share a loader
        self._lock_owner = os.getpid()
        self._starting = 0  # the thread that starts a pool

    def submit(self, task: Task) -> PendingJob:
        job = Job(task)
        while True:
            pool = self._pool
            if pool is None or not pool.is_usable(self.workers):
                pool = self._started(self.workers)
            try:
                pool.enter(pool.jobs.add, job)
            except PoolBrokenError:
                continue
            return PendingJob(self, pool, job)

    def prepare(self, count: int) -> bool:
        """Starts the first ``count`` workers if needed, and returns whether they have started."""
        pool = self._started(count)
        is_ready = pool.are_ready(count)
        self.start_s = pool.start_s
        return is_ready

    def _started(self, count: int) -> WorkerPool:
        """The pool, with at least ``count`` workers started."""
        pool = self._pool
        if pool is None or not pool.is_usable():
            return self._start(count)
        pool.start_workers(count)
        return pool

    def _start(self, count: int) -> WorkerPool:
        if self._lock_owner != os.getpid():  # in a fork: the copied lock may be locked
            self._lock, self._lock_owner, self._starting = threading.Lock(), os.getpid(), 0
        ended = self._pool
        if self._starting == get_ident() or (ended is not None and ended.is_entered):
            raise reentered_error()
        closings = self._closings
        with self._lock:
            try:
                self._starting = get_ident()
                pool = self._pool
                if pool is None or not pool.is_usable():
                    if pool is not None:
                        pool.release()  # two pools never have workers at the same time
                    self._pool = pool = self._new_pool(count)
            finally:
                self._starting = 0
        self.window = min(self.window, pool.window)
        if closings != self._closings:  # the session was closed while this pool started
            pool.close()
            raise closed_error()
        pool.start_workers(count)
        return pool

    def _new_pool(self, count: int) -> WorkerPool:
        payload = self._payload
        if payload is None:
            self._payload = payload = SharedPayload(self._work, self._free_share, self._init)
        return WorkerPool(
            payload,
            self._work,
            self.workers,
            self.window,
            started=count,
            timeout_s=self._timeout_s,
            replace_stuck=self._replace_stuck,
        )

    def drain(self) -> None:
        """Called when nothing is submitted any more.  Workers end when the session is dropped."""

    def close(self) -> None:
        self._closings += 1
        self._payload = None
        pool = self._pool
        if pool is not None:
            pool.close()
            # A pool that has not ended yet is kept: the next one starts only after its end.
            if self._pool is pool and pool.is_released:
                self._pool = None

    def made(self, pending: Pending) -> Made | None:
        return pending.job.made if type(pending) is PendingJob else None

    def describe(self) -> tuple[str, str]:
        return f"processes({self.workers})", "it was asked for"


class PendingJob:
    """The consumer's side of a job."""

    __slots__ = ("_session", "job", "pool")

    def __init__(self, session: ProcessesSession, pool: WorkerPool, job: Job) -> None:
        self._session = weakref.ref(session)  # a pending task must not keep the session alive
        self.pool, self.job = pool, job

    def result(self) -> Element:
        while True:
            try:
                return self.pool.result(self.job)
            except PoolBrokenError:
                session = self._session()
                if session is None or self.job.is_cancelled:
                    raise closed_error() from None
                again = session.submit(self.job.task)
                self.pool, self.job = again.pool, again.job

    def done(self) -> bool:
        return self.pool.done(self.job)

    def cancel(self) -> None:
        self.pool.cancel(self.job)
