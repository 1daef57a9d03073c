"""Worker processes that do the tasks of a loader, for any number of threads.

The pool has no thread of its own.  Tasks lie ready in a pipe, so the workers keep going while the
consumer trains; reports and deaths are noticed when a consumer submits a task or waits for a
result.

Several threads may use a pool.  The lock of the `JobTable` guards its state; no thread holds it
while waiting.  One of the waiting threads polls the pipes for all of them; the others sleep until
their job is done or it is their turn to poll.

A signal handler, a finaliser or another thread that wants to stop this only sets flags, which the
threads inside check: `cancel` and `is_closing`.  An exception that interrupts pool code, such as
Ctrl-C, may leave it half done, so it ends the pool: the last thread that leaves releases the
processes, and the session starts new ones.  The other threads continue with those
(`PoolBrokenError`), since the exception does not concern them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from loaderx.engines.base import (
    Element,
    Measured,
    TryAgainError,
    Work,
    closed_error,
    forked_error,
)
from loaderx.engines.processes.job_table import MOST_DEATHS, JobTable
from loaderx.engines.processes.jobs import Job, TaskNames, step_of
from loaderx.engines.processes.pickling import SharedPayload
from loaderx.engines.processes.protocol import read_reports
from loaderx.engines.processes.stuck import StuckCheck
from loaderx.engines.processes.worker_processes import WorkerProcesses
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import RecordError, warn_user

CHECK_S = 0.25  # how often a waiting thread checks the workers, and whether it was cancelled
GRACE_S = 0.5  # for a worker to end by itself
CLOSE_PATIENCE_S = 10.0  # how long closing waits for consumers in other threads

T = TypeVar("T")


class WorkerPool:
    """A fixed number of worker processes, and the jobs that they have been given."""

    def __init__(
        self,
        payload: SharedPayload,
        work: Work,
        workers: int,
        window: int,
        *,
        started: int,
        timeout_s: float | None,
        replace_stuck: bool,
    ) -> None:
        self.owner = os.getpid()
        self.is_closing = False
        self._is_broken = False  # ended by an exception rather than by `close`
        self._grace_s = 0.0
        self.failure: Exception | None = None  # found by `done`, raised by `result`
        self.warnings: deque[str] = deque()  # to be issued outside of pool code
        self._names = TaskNames(work)
        self._inside: set[int] = set()  # threads that are in pool code
        self._polling = threading.Lock()  # its holder polls, and checks the workers
        self.awaited: dict[int, Job] = {}  # by the thread that waits for it
        self._checked = time.monotonic()
        self._check_s = CHECK_S if timeout_s is None else min(CHECK_S, timeout_s / 4)
        with SignalsDeferred():  # no signal between acquiring resources and `finalize`
            self._processes = processes = WorkerProcesses(payload, workers, window)
            # Dropping a pool ends its workers.  At exit `_release_all` does that.
            weakref.finalize(self, processes.release).atexit = False
            self.window = min(window, processes.capacity)
            self.jobs = JobTable(processes, self._names, payload.reset_attributes, self.warnings)
            self._stuck = StuckCheck(
                processes, self._names, self.jobs.sent, self.warnings, timeout_s, replace_stuck
            )
            self._started = 0  # workers
            try:
                self.start_first(started)
            except BaseException:
                processes.release()
                raise

    def is_usable(self, workers: int = 0) -> bool:
        """True if that many workers have been started.

        False in a fork of the process that started them, and after the pool has ended.
        """
        return self._started >= workers and not self.is_closing and self.owner == os.getpid()

    @property
    def is_entered(self) -> bool:
        """True if this thread is in pool code, interrupted by a handler or finaliser."""
        return get_ident() in self._inside

    @property
    def is_released(self) -> bool:
        """True if all processes have ended."""
        return self._processes.are_released

    def enter(self, action: Callable[..., T], *arguments: object) -> T:
        """Runs pool code.  If an exception interrupts it, the pool is not used again."""
        if self.owner != os.getpid():
            raise forked_error("worker processes")
        thread = get_ident()
        if thread in self._inside:
            raise reentered_error()
        # The next lines stay in one function: Ctrl-C may strike at the start of any function.
        try:
            self._inside.add(thread)
            if self.is_closing:
                raise PoolBrokenError if self._is_broken else closed_error()
            return action(*arguments)
        except BaseException:
            if not self.is_closing:
                self.is_closing = self._is_broken = True
            raise
        finally:
            self._inside.discard(thread)
            if self.is_closing:
                self._leave()

    def _leave(self) -> None:
        """Leaves an ended pool; the last thread to leave releases the processes."""
        self._wake_all()
        if not self._inside:
            self._processes.release(self._grace_s)

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers.  One in the middle of a task gets a moment, then it is killed.

        If a thread is in pool code, it leaves soon, and ends them then.
        """
        self._is_broken = False  # threads with a job here must not continue in another pool
        self.release(grace_s)

    def release(self, grace_s: float = 0.0) -> None:
        """The same for a pool that another one replaces."""
        self._grace_s, self.is_closing = grace_s, True
        self._wake_all()
        if self.is_entered or self.owner != os.getpid():
            return
        until = time.monotonic() + CLOSE_PATIENCE_S
        while self._inside and time.monotonic() < until:
            time.sleep(0.001)
        if not self._inside:
            self._processes.release(grace_s)
        while not self.is_released and time.monotonic() < until:
            time.sleep(0.001)  # another thread is releasing them

    # Workers.

    def start_workers(self, count: int) -> None:
        """Starts those of the first ``count`` workers that have not been started."""
        if self._started < count:
            self.enter(self._start_locked, count)

    def _start_locked(self, count: int) -> None:
        with self.jobs.lock:
            self.start_first(count)

    def start_first(self, count: int) -> None:
        for worker in self._processes.workers[self._started : count]:
            self._processes.start(worker)
            self._started += 1

    def are_ready(self, count: int) -> bool:
        """True if the first ``count`` workers have started.  Does not wait."""
        self.enter(self._poll_once)
        return all(worker.is_ready for worker in self._processes.workers[:count])

    @property
    def start_s(self) -> float:
        """CPU seconds that the first worker took to start, or has taken so far."""
        return self._processes.start_s(self._processes.workers[0])

    # Jobs.

    def cancel(self, job: Job) -> None:
        """Safe in any thread, signal handler or finaliser: it takes no lock and does not wait."""
        if not (job.is_cancelled or job.is_closed):
            job.is_cancelled = True
            self.jobs.cancelled.append(job)
            job.wake_up()

    def done(self, job: Job) -> bool:
        """True if a job is done.  Does not wait."""
        if job.is_done or job.is_cancelled or not self.is_usable():
            return True
        if not self.is_entered:
            try:
                self.enter(self._poll_once)
            except Exception as error:
                self.failure = error  # `result` raises it
                return True
        return job.is_done

    def result(self, job: Job) -> Element:
        """Waits for a job; raises its error."""
        while True:
            while self.warnings:  # not inside: a warning may be raised as an error
                with contextlib.suppress(IndexError):  # another thread was faster
                    warn_user(self.warnings.popleft())
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            if job.is_cancelled:
                raise closed_error()
            if not job.is_done:
                self.enter(self._wait, job)
                continue
            leaves = self.enter(self.jobs.take, job)
            if not job.is_cancelled:
                return self._element(job, leaves)

    def _element(self, job: Job, leaves: list[Any]) -> Element:
        if job.deaths >= MOST_DEATHS:
            raise RecordError(
                f"{MOST_DEATHS} worker processes in a row died of this "
                f"{self._names.noun(job.task)} ({job.fate}). It is made of "
                f"{self._names.records(job.task)}. With engine='inline' the same happens where a "
                "debugger can see it.",
                step=step_of(job.task),
            )
        error, job.error = job.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it would hold this frame, and the frame the error
        assert job.layout is not None
        if job.others:
            others, job.others = iter(job.others), []
            for number, place in enumerate(job.layout.places):
                if place is None:
                    leaves[number] = next(others)
        value = job.layout.structure.build(leaves)
        return value if job.measured is None else Measured(value, *job.measured)

    # Waiting.

    def _wait(self, job: Job) -> None:
        """Waits until a job is done, or the pool needs attention."""
        thread = get_ident()
        try:
            self.awaited[thread] = job
            if job.slot is None:
                with self.jobs.lock:
                    self.jobs.send_first(job)
            while not (job.is_done or job.is_cancelled or self.is_closing or self.warnings):
                if self._polling.acquire(blocking=False):
                    try:
                        self.poll(self._check_s)
                    finally:
                        self._polling.release()
                else:
                    # The first time this only acquires the lock: the job may be done by now.
                    job.wake.acquire(timeout=CHECK_S)
        finally:
            self.awaited.pop(thread, None)
            if self.awaited:
                self._wake_all()  # one of the others takes over polling

    def _wake_all(self) -> None:
        for job in list(self.awaited.values()):
            job.wake_up()

    def _poll_once(self) -> None:
        if self._polling.acquire(blocking=False):
            try:
                self.poll(0.0)
            finally:
                self._polling.release()
                self._wake_all()  # another thread may have tried to poll meanwhile

    def poll(self, timeout_s: float) -> None:
        """Waits for an event and handles it.  The caller holds `_polling`."""
        processes = self._processes
        events = processes.waiting.poll(timeout_s * 1000)
        now = time.monotonic()
        is_check_due = timeout_s > 0 and now - self._checked >= self._check_s
        with self.jobs.lock:
            if self.jobs.cancelled:
                self.jobs.drop_cancelled()
            dead = []
            for descriptor, _ in events:
                if descriptor == processes.reports_out:
                    for report in read_reports(descriptor):
                        self.jobs.note(report)
                else:
                    dead.append(processes.by_lifeline[descriptor])
            if is_check_due:  # a fork of the worker may hold its end of the lifeline
                dead += [worker for worker in processes.ended() if worker not in dead]
            for worker in dead:
                self.jobs.replace(worker)
            if self.jobs.queue:
                self._send_queued()
        if len(self.awaited) > 1:
            self._wake_all()  # the jobs of others may be done
        if is_check_due:
            self._checked = now
            for job in list(self.awaited.values()):
                self._stuck.check(job)

    def _send_queued(self) -> None:
        self.jobs.send_queued()
        for job in list(self.awaited.values()):
            self.jobs.send_first(job)


class PoolBrokenError(TryAgainError):
    """An exception in another thread ended the pool; the task can go to new workers."""


def reentered_error() -> TryAgainError:
    """For a handler that asks for a batch while its thread is in the middle of getting one."""
    return TryAgainError(
        "a signal handler or a finaliser asked for a batch of this loader while the thread that it "
        "interrupted was getting one from the same worker processes. Ask for it after the handler "
        "has returned."
    )
