"""Any executor of ``concurrent.futures`` as an engine: Dask's, MPI's, joblib's, a pool of yours.

The work travels with the first tasks, and stays in the worker that got it.  A worker that has not
got it yet says so, and the task is sent again, together with the work.  Threads of this process
share the work as it is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from concurrent.futures import Executor as AnyExecutor
from typing import Any

from loaderx.engines.base import (
    Element,
    Made,
    Pending,
    Task,
    Work,
    WorkerStats,
    check_counts,
    closed_error,
    cores,
    forked_error,
    warn_if_in_order,
    worker_error,
)
from loaderx.engines.elsewhere.maker import kept_maker
from loaderx.engines.elsewhere.packing import Packed, Unpacker, made_now, packed_error
from loaderx.engines.elsewhere.payload import Payload, payload_of
from loaderx.engines.elsewhere.session import ElsewhereSession
from loaderx.engines.processes.jobs import step_of
from loaderx.engines.processes.pickling import PicklingError, ResetAttribute
from loaderx.errors import ArgumentTypeError, LoaderxError, one_line
from loaderx.frozen import Frozen
from loaderx.memory import PoolPerThread

CHECK_S = 0.25  # how often a waiting consumer checks whether it was cancelled
MOST_BREAKS = 3  # of executors on the same task
HELD = 4  # elements that the user may hold before memory is added


class Executor(Frozen):
    """The workers of an executor of `concurrent.futures`.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from loaderx import DataLoader, Dataset
    >>> engine = Executor(lambda: ThreadPoolExecutor(2))
    >>> [batch.tolist() for batch in DataLoader(Dataset.range(6).batch(3), engine=engine)]
    [[0, 1, 2], [3, 4, 5]]

    Batches travel as the executor sends them.  Its workers run the functions of the dataset, and
    what they return is unpickled here: use it only with workers that you trust.

    Args:
        factory: makes the executor, such as ``lambda: ProcessPoolExecutor(4)`` or Dask's
            ``client.get_executor``.  It is called with the first batch, and what it made is shut
            down with the loader.  Or an executor, which is left as it is.
        num_workers: tasks to give it at once; by default as many as its workers, if it tells their
            number, else as many as this machine has cores.
        prefetch: finished elements to keep ready; by default as many as workers, at least 2.
    """

    factory: Callable[[], AnyExecutor] | AnyExecutor
    num_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.factory, "submit", self.factory)):
            raise ArgumentTypeError(
                "Executor takes a function that makes an executor, such as "
                f"lambda: ProcessPoolExecutor(4), or an executor; got {self.factory!r}."
            )
        check_counts("num_workers", self.num_workers, self.prefetch)

    def __reduce__(self) -> tuple[object, ...]:
        if hasattr(self.factory, "submit"):
            raise PicklingError(
                "an Executor that was given an executor cannot be pickled. Give it a function that "
                "makes one."
            )
        return Executor, (self.factory, self.num_workers, self.prefetch)

    def session(self, work: Work) -> ExecutorSession:
        warn_if_in_order(work, "engines.Executor")
        return ExecutorSession(work, self)


class ExecutorSession(ElsewhereSession):
    """An executor for the tasks of one loader."""

    def __init__(self, work: Work, engine: Executor) -> None:
        super().__init__(work, engine.prefetch)
        self._engine = engine
        self._is_own = not hasattr(engine.factory, "submit")
        self._executor: AnyExecutor | None = None
        self._finaliser: weakref.finalize[..., ExecutorSession] | None = None
        self._sent = SentWork(work)
        self._without = 0  # workers that may not have the work yet
        self._lock = threading.RLock()
        self._unpacker: Unpacker | None = None
        self._warnings: deque[str] = deque()
        self._made: dict[str, WorkerStats] = {}

    @property
    def at_once(self) -> int:
        told = self._engine.num_workers or getattr(self._executor, "_max_workers", None)
        return told if isinstance(told, int) else cores()

    @property
    def shares_disk(self) -> bool:  # type: ignore[override]
        """False for all that may have its workers on other machines."""
        with self._lock:
            return type(self._usable()).__module__.startswith("concurrent.futures.")

    def submit(self, task: Task) -> PendingCall:
        executor, future = self.start(task)
        return PendingCall(self, executor, future, task)

    def start(self, task: Task, *, with_work: bool = False) -> tuple[AnyExecutor, Future[Any]]:
        """Gives a task to the executor."""
        with self._lock:
            executor = self._usable()
            takes_work = with_work or self._without > 0
            self._without -= takes_work
            try:
                return executor, executor.submit(Call(self._sent, takes_work=takes_work), task)
            except BrokenExecutor as error:  # noticed before any of its tasks was asked for
                broken: Future[Any] = Future()
                broken.set_exception(error)
                return executor, broken
            except RuntimeError as error:
                raise LoaderxError(f"the executor takes no tasks: {one_line(error)}.") from error

    def _usable(self) -> AnyExecutor:
        if self._executor is not None and self._owner != os.getpid():
            self._forget()  # in a fork: its workers belong to the parent
        executor = self._executor
        if executor is None:
            factory: Any = self._engine.factory
            executor = factory() if self._is_own else factory
            if not callable(getattr(executor, "submit", None)):
                raise ArgumentTypeError(
                    f"the function given to engines.Executor has returned {executor!r}, and that "
                    "is no executor."
                )
            self._owner, self._executor = os.getpid(), executor
            self._without = self.at_once
            if self._is_own:
                self._finaliser = weakref.finalize(self, _shut_down, executor)
                self._finaliser.atexit = False  # executors end by themselves at exit
        return executor

    def _forget(self) -> AnyExecutor | None:
        executor, self._executor = self._executor, None
        if self._finaliser is not None:
            self._finaliser.detach()
            self._finaliser = None
        return executor

    def replace(self, broken: AnyExecutor, error: BaseException) -> None:
        """The next task goes to a new executor."""
        if not self._is_own:
            raise LoaderxError(
                f"the executor is broken: {one_line(error)}. Given a function that makes it, "
                "engines.Executor would have made another."
            ) from error
        with self._lock:
            if self._executor is broken:
                self._forget()
                _shut_down(broken)

    def element(self, made: Any, task: Task, sent_at: float) -> Element:
        """The element that a worker has made."""
        if type(made) is not Packed:
            return made  # by a thread of this process
        with self._lock:
            self._count(made, sent_at)
            if self._unpacker is None:
                self._unpacker = Unpacker(self.window + HELD, self._sent.reset, self._warnings)
            try:
                return self._unpacker.unpack(made, step_of(task))
            finally:
                self.tell(self._warnings)

    def _count(self, packed: Packed, sent_at: float) -> None:
        name, travel_s = packed.worker, time.monotonic() - sent_at - packed.making_s
        old = self._made.get(name) or WorkerStats(name, "executor", 0, 0.0, 0.0)
        self._made[name] = old.replace(
            made=old.made + 1,
            making_s=old.making_s + packed.making_s,
            travel_s=old.travel_s + max(0.0, travel_s),
        )

    def made(self, pending: Pending) -> Made | None:
        return pending.made if type(pending) is PendingCall else None

    def workers_stats(self) -> Sequence[WorkerStats]:
        return list(self._made.values())

    def close(self) -> None:
        with self._lock:
            executor = self._forget()
            self._sent = SentWork(self._work)  # what it holds may be large
        if executor is not None and self._is_own and self._owner == os.getpid():
            _end(executor, wait=True)

    def describe(self) -> tuple[str, str]:
        name = "" if self._executor is None else f" of {type(self._executor).__name__}"
        return f"executor({self.at_once})", f"it was asked for: the workers{name}"


def _shut_down(executor: AnyExecutor) -> None:
    with contextlib.suppress(Exception):  # a broken one
        _end(executor, wait=False)


def _end(executor: AnyExecutor, *, wait: bool) -> None:
    try:
        executor.shutdown(wait=wait, cancel_futures=True)
    except TypeError:  # Dask's and loky's do not know `cancel_futures`
        executor.shutdown(wait=wait)


class PendingCall:
    """The consumer's side of a task."""

    __slots__ = (
        "_executor", "_future", "_is_cancelled", "_owner", "_sent_at", "_session", "_task", "made",
    )  # fmt: skip

    def __init__(
        self, session: ExecutorSession, executor: AnyExecutor, future: Future[Any], task: Task
    ) -> None:
        self._session = weakref.ref(session)  # a pending task must not keep the session alive
        self._executor, self._future, self._task = executor, future, task
        self._is_cancelled, self._owner = False, os.getpid()
        self._sent_at = time.monotonic()
        self.made: Made | None = None

    def result(self) -> Element:
        breaks = 0
        while True:
            error = self._wait()
            session = self._session()
            if session is None:
                raise closed_error()
            if isinstance(error, BrokenExecutor):
                breaks += 1
                if breaks == MOST_BREAKS:
                    raise session.died(
                        self._task, f"the workers of {MOST_BREAKS} executors in a row have died"
                    ) from error
                session.replace(self._executor, error)
                self._executor, self._future = session.start(self._task)
            elif error is not None:
                try:
                    raise error
                finally:
                    del error  # else it would hold this frame, and the frame the error
            elif type(made := self._future.result()) is Packed and made.needs_work:
                again = session.start(self._task, with_work=True)
                self._executor, self._future = again
            else:
                if type(made) is Packed:
                    self.made = made_now(made.worker, made)
                return session.element(made, self._task, self._sent_at)

    def _wait(self) -> BaseException | None:
        """Waits for the end of the call, and returns its error."""
        if self._owner != os.getpid():
            raise forked_error("workers")
        while True:
            try:
                return self._future.exception(CHECK_S)
            except TimeoutError:
                if self._is_cancelled or self._session() is None:
                    raise closed_error() from None
            except CancelledError:
                raise closed_error() from None

    def done(self) -> bool:
        return self._is_cancelled or self._future.done()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._future.cancel()


class SentWork:
    """The work, which is pickled only if the executor pickles its calls."""

    def __init__(self, work: Work) -> None:
        self.work, self.pools = work, PoolPerThread()
        self.reset: list[ResetAttribute] = []
        self._payload: Payload | None = None
        self._lock = threading.Lock()

    def payload(self) -> Payload:
        with self._lock:  # executors pickle in threads of their own
            if self._payload is None:
                self._payload, self.reset = payload_of(self.work)
            return self._payload


class Call:
    """Makes the element of a task, in a thread of this process.  Its pickle is a `RemoteCall`."""

    def __init__(self, sent: SentWork, *, takes_work: bool) -> None:
        self._sent, self._takes_work = sent, takes_work

    def __call__(self, task: Task) -> Element:
        try:
            return self._sent.work(task, self._sent.pools.lend)
        except SystemExit as error:
            raise worker_error(error, task) from error

    def __reduce__(self) -> tuple[object, ...]:
        payload = self._sent.payload()
        return RemoteCall, (payload.key, payload if self._takes_work else None)


class RemoteCall:
    """The same in another process, which keeps the work that it gets."""

    def __init__(self, key: str, payload: Payload | None) -> None:
        self._key, self._payload = key, payload

    def __call__(self, task: Task) -> Packed:
        try:
            maker = kept_maker(self._key, self._payload)
        except BaseException as error:
            return packed_error(error)
        return Packed() if maker is None else maker.make(task)
