"""A pool of threads for the work of one loader.

A free thread takes the next task.  Each task has a lock that its worker releases when it is done;
waiting for a task is waiting for its lock.

The threads hold only the pool's queue: not the session, and between two tasks not even the user's
functions, which may hold the loader (a method of a trainer, a closure).  So an unreferenced session
is collected, and its finaliser stops the threads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from queue import SimpleQueue

from loaderx.engines.auto.decision import FAST_S, LARGE_SHARE
from loaderx.engines.base import (
    Element,
    Made,
    Measured,
    Pending,
    Session,
    Task,
    Work,
    closed_error,
    forked_error,
    what_to_say,
)
from loaderx.engines.signals import SignalsDeferred
from loaderx.engines.threads import Threads
from loaderx.engines.threads.jobs import Flag, Job
from loaderx.errors import LoaderxError, RecordError, warn_user
from loaderx.memory import Lend, Pool
from loaderx.reading.error_text import READING

STOP_PATIENCE_S = 10.0  # how long closing waits for idle threads
EXIT_PATIENCE_S = 2.0
TIMED_BATCHES = 8  # examined to see whether threads wait for each other
CHECK_S = 0.25  # how often a waiting consumer checks whether it was cancelled


class ThreadsSession(Session):
    """A pool of threads for the tasks of one loader."""

    shares_sources = True

    def __init__(
        self,
        work: Work,
        workers: int,
        prefetch: int,
        turns: Turns | None = None,
        *,
        name: str = Threads.name,
        in_order: bool = False,
    ) -> None:
        self._work = work
        self.workers = workers
        self.window = workers + prefetch
        self._turns = turns
        self._name, self._in_order = name, in_order
        self._pool: _ThreadPool | None = None
        self._finaliser: weakref.finalize[..., ThreadsSession] | None = None
        self._lock = threading.RLock()  # threads may share a loader

    def submit(self, task: Task) -> PendingInThread:
        pool = self._usable_pool()
        job = Job(self._work, task, pool)
        pool.jobs.put(job)
        return PendingInThread(job)

    def notice(self, measured: Measured) -> None:
        if self._turns is not None:
            self._turns.notice(measured)

    def made(self, pending: Pending) -> Made | None:
        if type(pending) is not PendingInThread or self._pool is None:
            return None
        job, threads = pending.job, self._pool.threads
        name = next((one.name for one in threads if one.ident == job.thread), "thread")
        return Made(name, job.began, job.ended)

    def is_end(self, error: BaseException) -> bool:
        if not self._in_order or not isinstance(error, RecordError) or error.stage != READING:
            return False
        return isinstance(error.__cause__, StopIteration)

    def finish(self, until: float) -> None:
        pool = self._pool
        while pool is not None and pool.runs_cancelled() and time.monotonic() < until:
            time.sleep(0.001)

    def _usable_pool(self) -> _ThreadPool:
        pool = self._pool
        return self._start() if pool is None or not pool.is_usable else pool

    def _start(self) -> _ThreadPool:
        with self._lock:
            if self._pool is not None:
                if self._pool.is_usable:
                    return self._pool  # another thread started it
                self._pool.stop()  # again: Ctrl-C may have interrupted an earlier stop
            pool = _ThreadPool()
            try:
                if self._finaliser is not None:
                    self._finaliser.detach()
                self._finaliser = weakref.finalize(self, pool.stop)
                self._finaliser.atexit = False  # `_stop_all` does that
                self._pool = pool  # set before the threads start, so that they can be stopped
                # A worker's slots hold elements that are ready and elements that the user holds.
                pool.start(self.workers, self.window // self.workers + 3, self._name)
            except BaseException:
                self.stop()
                raise
            return pool

    def drain(self) -> None:
        """Lets the threads finish what was submitted and then end; does not wait."""
        if self._pool is not None:
            self._pool.finish()

    def stop(self) -> None:
        """Stops the threads without waiting for them."""
        if self._pool is not None:
            self._pool.stop()

    def close(self) -> None:
        pool = self._pool
        if pool is not None:
            pool.stop()
            pool.wait_for_idle(STOP_PATIENCE_S)

    def describe(self) -> tuple[str, str]:
        return f"threads({self.workers})", "it was asked for"


class Turns:
    """Notices that threads wait for each other to read a source that may not be thread-safe.

    It looks at the first timed batches: reading time includes waiting for one's turn.  It takes the
    median, to ignore threads that happened to lose the GIL while reading.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen: list[tuple[float, float]] | None = []  # None: done

    def notice(self, element: Element) -> None:
        """Warns once if reading takes a good part of the time."""
        seen = self._seen
        if seen is None or type(element) is not Measured or not element.times:
            return
        if not element.times.weight:  # the first batch also opens files
            return
        stages = element.times.stages
        seen.append((stages.get("source", 0.0), sum(stages.values())))
        if len(seen) < TIMED_BATCHES:
            return
        self._seen = None
        reading_s, all_s = (sorted(times)[TIMED_BATCHES // 2] for times in zip(*seen, strict=True))
        if reading_s >= FAST_S and reading_s > LARGE_SHARE * all_s:
            warn_user(
                f"threads read {self._source} one at a time, since it is not known whether they "
                f"may read it at once, and reading takes {reading_s / all_s:.0%} of the time to "
                f"make a batch. {what_to_say(self._source)}"
            )


class PendingInThread:
    """The consumer's side of a job."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job

    def result(self) -> Element:
        job = self.job
        if job.owner != os.getpid():
            raise forked_error("threads")
        if _worker.stopping is job.stopping:  # a user's function iterates its own loader
            job.run(_worker.lend)  # else all threads might wait for it
        while not job.done.acquire(timeout=CHECK_S):
            # A pool that has ended may have got one more job, which no thread will run.
            if job.is_cancelled or job.stopping.is_set:
                break
        if not job.is_done:
            raise closed_error()
        if job.error is not None:
            try:
                raise job.error
            finally:
                del job  # else the error would hold this frame, and the frame the error
        return job.value

    def done(self) -> bool:
        job = self.job
        return not job.done.locked() or job.is_cancelled or job.stopping.is_set

    def cancel(self) -> None:
        self.job.is_cancelled = True
        with contextlib.suppress(RuntimeError):  # it is done
            self.job.done.release()


class _ThreadPool:
    """Threads and their queue of jobs."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.stopping = Flag()
        self.threads: list[threading.Thread] = []
        self.running: dict[int, Job] = {}  # by thread
        self.owner = os.getpid()
        self._has_started = False
        _pools.add(self)

    @property
    def is_usable(self) -> bool:
        """True if all threads have started in this process (they do not survive a fork)."""
        return self._has_started and not self.stopping.is_set and self.owner == os.getpid()

    def start(self, workers: int, capacity: int, name: str) -> None:
        with SignalsDeferred():  # a thread that is half started can neither be used nor joined
            for number in range(workers):
                thread = threading.Thread(
                    target=_worker_loop,
                    args=(self.jobs, self.stopping, self.running, capacity),
                    name=name.format(number),
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    self.stop()
                    raise LoaderxError(
                        f"worker thread {number + 1} of {workers} cannot start: {error}. A limit "
                        "on processes and threads (ulimit -u) or on memory (ulimit -v) was met. "
                        "Use fewer workers: num_workers=..."
                    ) from error
                self.threads.append(thread)
            self._has_started = True

    def stop(self) -> None:
        """Stops all threads without waiting: safe in a finaliser, whatever is locked."""
        self.stopping.is_set = True
        self.jobs.put(None)  # each thread that takes it puts it back for the next

    def finish(self) -> None:
        """Ends the threads after all queued jobs."""
        self._has_started = False  # accepts no more jobs
        self.jobs.put(None)

    def wait_for_idle(self, patience_s: float) -> None:
        """Waits until the threads that have no job have ended."""
        until = time.monotonic() + patience_s
        for thread in self.threads:
            while thread.is_alive() and thread.ident not in self.running:
                if time.monotonic() > until:
                    return
                time.sleep(0.0001)

    def runs_cancelled(self) -> bool:
        """True while a thread other than the caller's runs a cancelled job."""
        if self.owner != os.getpid():
            return False
        caller, running = threading.get_ident(), list(self.running.items())
        return any(job.is_cancelled and thread != caller for thread, job in running)

    def wait(self, patience_s: float) -> None:
        """Waits until the threads have ended; an endless task is left to its (daemon) thread."""
        patience = time.monotonic() + patience_s
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, patience - time.monotonic()))


class _Worker(threading.local):
    """Set in worker threads: the pool that a thread belongs to."""

    stopping: Flag | None = None  # its pool's flag
    lend: Lend


_worker = _Worker()
_pools: weakref.WeakSet[_ThreadPool] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    pools = list(_pools)
    for pool in pools:
        pool.stop()
    for pool in pools:
        pool.wait(EXIT_PATIENCE_S)


def _worker_loop(
    jobs: SimpleQueue[Job | None], stopping: Flag, running: dict[int, Job], capacity: int
) -> None:
    lend, thread = Pool(capacity).lend, threading.get_ident()
    _worker.lend, _worker.stopping = lend, stopping
    while (job := jobs.get()) is not None:
        running[thread] = job
        job.run(lend)
        del job, running[thread]  # a waiting worker must hold no batch and no object of the user's
    jobs.put(None)  # for the others
