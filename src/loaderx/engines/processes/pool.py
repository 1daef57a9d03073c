"""Worker processes that make the tasks of a loader, and what happens when one of them dies.

Nothing here runs by itself: there is no thread.  Tasks lie ready in a pipe, so the workers go on
while the consumer trains, and everything that has to be noticed is noticed when a consumer submits
a task or waits for a result.

Several threads may use a pool.  Its state has a lock, which nobody holds while waiting.  One of the
threads that wait polls the pipes, for all of them; the others wait to be woken, either because
their job is done or because it is their turn to poll.

Whoever wants to stop something in the middle of this (a signal handler, a finaliser, another
thread) only sets flags, which whoever is inside sees: `cancel`, and `is_closing`.  An exception
that breaks into pool code, such as Ctrl-C, may leave it half done, so it ends the pool: the last
thread that leaves releases the processes, and the session starts other ones.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, TypeVar

from loaderx.engines.base import Measured, Task, Work, closed_error, forked_error
from loaderx.engines.processes import exceptions, protocol
from loaderx.engines.processes.jobs import Job, TaskNames, step_of
from loaderx.engines.processes.limits import tight_limits
from loaderx.engines.processes.pickling import PicklingError, SharedPayload
from loaderx.engines.processes.protocol import Report
from loaderx.engines.processes.shared_slots import Slot
from loaderx.engines.processes.stuck import StuckCheck
from loaderx.engines.processes.worker_processes import WorkerProcess, WorkerProcesses, exit_reason
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import LoaderxError, RecordError, one_line, warn_user
from loaderx.memory import COUNTS_REFERENCES, Pool

MOST_DEATHS = 3  # of workers with the same task, or while they start
CHECK_S = 0.25  # how often whoever waits looks after the workers, and whether it was cancelled
GRACE_S = 0.5  # for a worker to end by itself
CLOSE_PATIENCE_S = 10.0  # how long closing waits for consumers in other threads
LOCK_PATIENCE_S = 5.0

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
        self._grace_s = 0.0
        self.failure: Exception | None = None  # that `done` met, for `result` to raise
        self.warnings: deque[str] = deque()  # to be given outside of pool code
        self._worker_warnings: set[str] = set()
        self._names = TaskNames(work)
        self._reset_attributes = payload.reset_attributes
        self._inside: set[int] = set()  # threads that are in pool code
        self._lock = threading.Lock()  # of all that follows
        self._polling = threading.Lock()  # whoever has it polls, and looks after the workers
        self._awaited: dict[int, Job] = {}  # by the thread that waits for it
        self._cancelled: deque[Job] = deque()
        self._queue: deque[Job] = deque()  # not sent yet
        self._sent: dict[int, Job] = {}  # sent, not reported yet
        self._under_way = 0  # jobs that were submitted, and whose results were not taken
        self._numbers = 0
        self._bad_starts = 0
        self._memory = Pool()
        self._checked = time.monotonic()
        self._check_s = CHECK_S if timeout_s is None else min(CHECK_S, timeout_s / 4)
        with SignalsDeferred():  # whatever is made here must be known to who gives it back
            self._processes = processes = WorkerProcesses(payload, workers, window)
            # Dropping a pool ends its workers.  At exit `_release_all` does that.
            weakref.finalize(self, processes.release).atexit = False
            self.window = min(window, processes.capacity)
            self._stuck = StuckCheck(
                processes, self._names, self._sent, self.warnings, timeout_s, replace_stuck
            )
            self._started = 0
            try:
                self._start_workers(started)
            except BaseException:
                processes.release()
                raise

    @property
    def is_usable(self) -> bool:
        """False in a fork of the process that started the workers, and after the end."""
        return not self.is_closing and self.owner == os.getpid()

    def _enter(self, action: Callable[..., T], *arguments: object) -> T:
        """Runs pool code.  If an exception breaks it off, the pool is not used again."""
        if self.owner != os.getpid():
            raise forked_error("worker processes")
        thread = get_ident()
        if thread in self._inside:
            raise reentered_error()
        # The next lines stay in one function: Ctrl-C may come wherever a function begins.
        try:
            self._inside.add(thread)
            if self.is_closing:
                raise closed_error()
            return action(*arguments)
        except BaseException:
            self.is_closing = True
            raise
        finally:
            self._inside.discard(thread)
            if self.is_closing:
                self._leave()

    def _leave(self) -> None:
        """The pool is at its end: the last that leaves releases the processes."""
        self._wake_all()
        if not self._inside:
            self._processes.release(self._grace_s)

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers.  One that is in the middle of a task gets a moment, then is killed.

        A thread that is in pool code leaves it soon, and ends them then.
        """
        self._grace_s, self.is_closing = grace_s, True
        self._wake_all()
        if get_ident() in self._inside or self.owner != os.getpid():
            return
        until = time.monotonic() + CLOSE_PATIENCE_S
        while self._inside and time.monotonic() < until:
            time.sleep(0.001)
        if not self._inside:
            self._processes.release(grace_s)
        while not self._processes.are_released and time.monotonic() < until:
            time.sleep(0.001)  # another thread is at it

    # Workers.

    def start_workers(self, count: int) -> None:
        """Starts the first so many workers, as far as they have not been started."""
        if self._started < count:
            self._enter(self._start_locked, count)

    def _start_locked(self, count: int) -> None:
        with self._lock:
            self._start_workers(count)

    def _start_workers(self, count: int) -> None:
        for worker in self._processes.workers[self._started : count]:
            self._processes.start(worker)
            self._started += 1

    def are_ready(self, count: int) -> bool:
        """Have the first so many workers started?  Looks, but does not wait."""
        self._enter(self._poll_once)
        return all(worker.is_ready for worker in self._processes.workers[:count])

    @property
    def start_s(self) -> float:
        """CPU seconds that the first worker took to start, or has taken so far."""
        return self._processes.start_s(self._processes.workers[0])

    # Jobs.

    def submit(self, task: Task) -> PendingJob:
        words = protocol.pack_words(task)
        return self._enter(self._submit, task, words)

    def _submit(self, task: Task, words: bytes) -> PendingJob:
        with self._lock:
            self._drop_cancelled()
            self._numbers += 1
            self._under_way += 1
            job = Job(self._numbers, task, words)
            self._queue.append(job)
            self._send_queued()
            return PendingJob(self, job)

    def _send_queued(self) -> None:
        """Sends as many jobs as the pipes hold, and as there are slots for."""
        while self._queue and len(self._sent) < self._processes.capacity:
            slot = self._processes.slots.take(self._under_way)
            if slot is None:
                return
            self._send(self._queue.popleft(), slot)

    def _send_first(self, job: Job) -> None:
        """Sends a job that somebody waits for before the others, in a slot of its own if need be.

        All slots may hold what the user has, or results that are asked for only after this one.
        """
        if job.slot is None and not job.is_closed and len(self._sent) < self._processes.capacity:
            slot = self._processes.slots.take(self._under_way, must=True)
            assert slot is not None
            self._queue.remove(job)
            self._send(job, slot)

    def _send(self, job: Job, slot: Slot) -> None:
        job.slot, job.sent_at = slot, time.monotonic()
        self._sent[job.number] = job
        self._write(job)

    def _write(self, job: Job) -> None:
        assert job.slot is not None
        message = protocol.pack_task(job.number, job.slot.number, job.task, job.words)
        os.write(self._processes.tasks_in, message)

    def _close_job(self, job: Job) -> None:
        """Nobody is going to ask for the result of a job, or somebody has got it."""
        job.is_closed = True
        self._under_way -= 1
        slot, job.slot = job.slot, None
        if slot is not None:
            self._processes.slots.put_back(slot)

    def cancel(self, job: Job) -> None:
        """For any thread, signal handlers and finalisers: waits for nobody and takes no lock."""
        if not (job.is_cancelled or job.is_closed):
            job.is_cancelled = True
            self._cancelled.append(job)
            job.wake_up()

    def _drop_cancelled(self) -> None:
        is_sent = False
        while self._cancelled:
            job = self._cancelled.popleft()
            if job.is_closed:
                continue
            if job.number in self._sent:
                is_sent = True
                continue
            if job.slot is None:
                self._queue.remove(job)
            self._close_job(job)
        if is_sent:
            self._recall_cancelled()

    def _recall_cancelled(self) -> None:
        """Takes jobs that no worker has begun out of the pipe.  Those under way are left to end."""
        with self._claims_locked():
            for job in self._read_tasks():
                if job.is_cancelled:
                    del self._sent[job.number]
                    self._close_job(job)
                else:
                    self._write(job)

    def done(self, job: Job) -> bool:
        """Looks whether a job is done, without waiting."""
        if job.is_done or job.is_cancelled or not self.is_usable:
            return True
        if get_ident() not in self._inside:
            try:
                self._enter(self._poll_once)
            except Exception as error:
                self.failure = error  # `result` says what is wrong
                return True
        return job.is_done

    def result(self, job: Job) -> Any:
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
            leaves = self._enter(self._wait_and_take, job)
            if job.is_closed and not job.is_cancelled:
                return self._element(job, leaves)

    def _element(self, job: Job, leaves: list[Any]) -> Any:
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
            others = iter(job.others)
            for number, place in enumerate(job.layout.places):
                if place is None:
                    leaves[number] = next(others)
        value = job.layout.structure.build(leaves)
        return value if job.measured is None else Measured(value, *job.measured)

    # Waiting.

    def _wait_and_take(self, job: Job) -> list[Any]:
        """The leaves of a job's element, and closes the job; leaves it open if it is not done."""
        if not job.is_done:
            self._wait(job)
        with self._lock:
            leaves: list[Any] = []
            if not job.is_done or job.is_closed:
                return leaves
            if job.layout is not None:
                assert job.slot is not None
                slots = self._processes.slots
                # When there is no slot to go on with, this one is made free at once.
                if not COUNTS_REFERENCES or (job.layout.in_slot and slots.is_exhausted()):
                    leaves = job.slot.copies(job.layout, self._memory)
                else:
                    leaves = job.slot.leaves(job.layout)
            self._close_job(job)
            self._send_queued()
            return leaves

    def _wait(self, job: Job) -> None:
        thread = get_ident()
        job.wake.acquire(blocking=False)
        try:
            self._awaited[thread] = job
            with self._lock:
                self._send_first(job)
            while not (job.is_done or job.is_cancelled or self.is_closing or self.warnings):
                if self._polling.acquire(blocking=False):
                    try:
                        self._poll(self._check_s)
                    finally:
                        self._polling.release()
                else:
                    job.wake.acquire(timeout=CHECK_S)
        finally:
            self._awaited.pop(thread, None)
            self._wake_all()  # one of the others polls from here on

    def _wake_all(self) -> None:
        for job in list(self._awaited.values()):
            job.wake_up()

    def _poll_once(self) -> None:
        if self._polling.acquire(blocking=False):
            try:
                self._poll(0.0)
            finally:
                self._polling.release()

    def _poll(self, timeout_s: float) -> None:
        """Waits for something to happen and deals with it.  Only for who has `_polling`."""
        processes = self._processes
        events = processes.waiting.poll(timeout_s * 1000)
        now = time.monotonic()
        is_check_due = timeout_s > 0 and now - self._checked >= self._check_s
        with self._lock:
            self._drop_cancelled()
            dead = []
            for descriptor, _ in events:
                if descriptor == processes.reports_out:
                    self._read_reports()
                else:
                    dead.append(processes.by_lifeline[descriptor])
            if is_check_due:  # a fork of the worker may hold its end of the lifeline
                dead += [worker for worker in processes.ended() if worker not in dead]
            for worker in dead:
                self._replace(worker)
            self._send_queued()
            if self._queue:
                for job in list(self._awaited.values()):
                    self._send_first(job)
        if is_check_due:
            self._checked = now
            for job in list(self._awaited.values()):
                self._stuck.check(job)

    def _read_reports(self) -> None:
        most = 64 * protocol.REPORT_BYTES
        while True:
            try:
                data = os.read(self._processes.reports_out, most)
            except BlockingIOError:
                return
            for report in protocol.unpack_reports(data):
                self._read_report(report)
            if len(data) < most:
                return

    def _read_report(self, report: Report) -> None:
        worker = self._processes.workers[report.worker]
        self._bad_starts = 0
        if report.kind == protocol.READY:
            worker.is_ready, worker.start_s = True, report.tail_bytes * 1e-6
            return
        if report.kind == protocol.NOT_STARTED:
            raise self._start_error(worker)
        job = self._sent.pop(report.job, None)
        if job is None:
            return
        slot = job.slot
        assert slot is not None
        slot.is_kept = bool(report.flags & protocol.KEPT)
        tail = b""
        if report.flags & protocol.TAIL:
            tail = slot.read_bytes(report.tail_start, report.tail_bytes)
        if report.kind == protocol.FAILED:
            job.error = exceptions.unpack(tail, worker.name, step_of(job.task))
            exceptions.note_reset_attributes(job.error, self._reset_attributes)
        else:
            self._read_done(job, worker, report.layout, tail)
        if job.is_cancelled:
            self._close_job(job)
        else:
            job.finish()

    def _start_error(self, worker: WorkerProcess) -> PicklingError:
        said, _, trace = self._processes.claims.read_text(worker.number).rstrip().partition("\n")
        error = PicklingError(
            f"the dataset cannot be sent to worker processes: a worker failed to build it: {said}"
        )
        error.add_note(f"\nIn {worker.name}:\n{trace}")
        return error

    def _read_done(self, job: Job, worker: WorkerProcess, layout: int, tail: bytes) -> None:
        try:
            if tail:
                described, others, job.measured, warning = pickle.loads(tail)
                if warning and warning not in self._worker_warnings:  # each worker finds it
                    self._worker_warnings.add(warning)
                    self.warnings.append(warning)
                if described:
                    worker.layouts[layout] = pickle.loads(described)
                    worker.layouts.pop(layout - protocol.LAYOUTS_KEPT, None)
                job.others = pickle.loads(others) if others else []
            job.layout = worker.layouts[layout]
        except Exception as error:
            job.error = LoaderxError(
                f"{self._names.name(job.task)}: what {worker.name} made could not be read: "
                f"{one_line(error)}"
            )

    # Deaths.

    def _replace(self, worker: WorkerProcess) -> None:
        """A worker has died: another takes its place, and what it held is made again."""
        assert worker.process is not None
        how = exit_reason(worker.process.wait())
        has_started, claims = worker.is_ready, self._processes.claims
        with self._claims_locked():
            # Reports are read under the lock: whoever has taken another task since has reported.
            self._read_reports()
            held, _ = claims.claimed(worker.number)
            claims.claim(worker.number, 0)
            waiting = self._read_tasks()
            found = {job.number for job in waiting}
            found |= {claims.claimed(one.number)[0] for one in self._processes.workers}
            lost = [job for number, job in self._sent.items() if number not in found]
            for job in lost:
                self._send_again(job, how, is_culprit=job.number == held)
            for job in waiting:
                self._write(job)
        if not has_started:
            self._bad_starts += 1
            if self._bad_starts >= MOST_DEATHS:
                raise LoaderxError(
                    f"worker processes die while they start ({how}). What they said is on the "
                    f"standard error of this process.{tight_limits()} Does this machine let a "
                    "process start Python, and has it memory left?"
                )
        self._processes.start(worker)
        culprit = next((job for job in lost if job.number == held), None)
        if culprit is None:
            self.warnings.append(
                f"worker {worker.number} died ({how}) and has been replaced: the stream stays the "
                "same."
            )
        elif not (culprit.is_done or culprit.is_closed):  # else it is told in another way
            self.warnings.append(
                f"worker {worker.number} died ({how}) while it made "
                f"{self._names.name(culprit.task)}. It has been replaced, and the "
                f"{self._names.noun(culprit.task)} is made again: the stream stays the same."
            )

    def _send_again(self, job: Job, how: str, is_culprit: bool) -> None:
        if is_culprit:
            job.deaths += 1
            job.fate = job.fate or how
        if job.is_cancelled:
            del self._sent[job.number]
            self._close_job(job)
        elif job.deaths >= MOST_DEATHS:
            del self._sent[job.number]
            job.finish()
        else:
            self._write(job)

    def _read_tasks(self) -> list[Job]:
        """Takes all tasks out of the pipe.  Only under the lock of the claims."""
        found: list[Job] = []
        while True:
            try:
                data = os.read(self._processes.tasks_out, 64 * protocol.TASK_BYTES)
            except BlockingIOError:
                return found
            found += [self._sent[number] for number in protocol.unpack_jobs(data)]

    @contextlib.contextmanager
    def _claims_locked(self) -> Iterator[None]:
        """No worker takes a task meanwhile."""
        claims = self._processes.claims
        if not claims.try_lock(LOCK_PATIENCE_S):
            raise LoaderxError(
                "a worker process has been stopped (by a debugger, or SIGSTOP) while it took a "
                "task. The loader can be iterated anew."
            )
        try:
            yield
        finally:
            claims.unlock()


def reentered_error() -> LoaderxError:
    """For who asks for a batch while its thread is in the middle of getting one."""
    return LoaderxError(
        "a signal handler or a finaliser asked for a batch of this loader while the thread that it "
        "interrupted was getting one from the same worker processes. Ask for it after the handler "
        "has returned."
    )


class PendingJob:
    """A job as who submitted it sees it.  Dropping it cancels the job."""

    __slots__ = ("_job", "_pool")

    def __init__(self, pool: WorkerPool, job: Job) -> None:
        self._pool, self._job = pool, job

    def result(self) -> Any:
        return self._pool.result(self._job)

    def done(self) -> bool:
        return self._pool.done(self._job)

    def cancel(self) -> None:
        self._pool.cancel(self._job)

    def __del__(self) -> None:
        if not self._job.is_closed:
            self._pool.cancel(self._job)
