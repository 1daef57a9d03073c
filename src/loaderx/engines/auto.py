"""The engine that is chosen by measuring; `loaderx.engines.auto_search` tells how."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loaderx.engines.auto_search import Clock, Found, Search
from loaderx.engines.base import (
    Pending,
    Session,
    Task,
    Work,
    cores,
    warn_if_in_order,
    what_to_say,
)
from loaderx.engines.processes import why_not
from loaderx.errors import RecordError, check_int, warn_user
from loaderx.first_use import reachable
from loaderx.frozen import Frozen
from loaderx.memory import PoolPerThread
from loaderx.reading.lookahead import FillAgainError

if TYPE_CHECKING:
    from loaderx.engines.processes.session import ProcessesSession
    from loaderx.engines.threads.session import ThreadsSession

STUCK_S = 60.0
FREE_SHARE = 0.25  # of the free memory, which data may take to be shared unasked
_NO_WORKERS = Session()


class Auto(Frozen):
    """Inline, threads or processes, whichever is measured to be faster.

    ``max_workers`` bounds the workers.
    """

    max_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.max_workers is not None:
            check_int("max_workers", self.max_workers, least=1)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, least=0)

    def session(self, work: Work) -> AutoSession:
        if self.max_workers is not None:
            warn_if_in_order(work, f"num_workers={self.max_workers}")
        return AutoSession(
            work, self.max_workers or cores(), self.prefetch, asked=self.max_workers is not None
        )


class AutoSession(Session):
    """Submits tasks to the engine that is in use, and tells the search what came of them."""

    def __init__(
        self,
        work: Work,
        max_workers: int,
        prefetch: int | None,
        *,
        asked: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.work = work
        self.clock = clock or Clock()
        self.max_workers = max_workers
        self.cores = cores()
        self.no_processes = why_not()
        self.is_unsendable = False  # is it the work for which there are none?
        self._wants_warning = asked  # a user who asks for workers is told, once, why there are none
        self._prefetch = prefetch
        self.pools = PoolPerThread()
        self._threads: ThreadsSession | None = None
        self._thread_count = 0
        self._processes: ProcessesSession | None = None
        self._unused: list[_Unused] = []
        self._open: weakref.WeakSet[AutoPending] = weakref.WeakSet()
        self._lock = threading.RLock()  # threads may share a loader
        self.search = Search(self, self.clock)

    @functools.cached_property
    def not_for_processes(self) -> str:
        """Why worker processes are not for this work, if it or a user's object says so."""
        if self.work.decodes_chunks and self.work.thread_safe:
            return "threads share the chunks that its source decodes"
        for _, part in self.work.parts():
            for value in reachable(part):
                why = getattr(type(value), "why_no_processes", None)
                if isinstance(why, str):
                    return f"{value!r} is not run in worker processes: {why}"
        return ""

    @property
    def _in_use(self) -> Session:
        """The session of the engine in use; one that has no workers if that is inline."""
        engine = self.search.engine
        if engine is None:
            return _NO_WORKERS
        with self._lock:
            return self.session_of(engine)

    @property
    def window(self) -> int:  # type: ignore[override]
        window = self._in_use.window
        return min(1, window) if self.search.is_careful else window

    @property
    def shares_memory(self) -> bool:  # type: ignore[override]
        return self._in_use.shares_memory

    @property
    def shares_sources(self) -> bool:  # type: ignore[override]
        return self.search.engine is None or self._in_use.shares_sources

    @property
    def here(self) -> int:  # type: ignore[override]
        return self.search.resting

    def made_here(self, count: int) -> None:
        self.search.rested(count)

    def finish(self, cancelled: Sequence[Pending], until: float) -> None:
        for made in cancelled:
            if isinstance(made, AutoPending):
                made.finish(until)

    def begin(self, tasks: int | None) -> None:
        self.search.begin(tasks)

    def submit(self, task: Task) -> AutoPending:
        made = AutoPending(self, task)
        self.hand_over(made, task)
        return made

    def hand_over(self, made: AutoPending, task: Task) -> None:
        """Submits a task to the engine that is in use now, if that has workers."""
        engine = self.search.engine
        if engine is None:
            return
        with self._lock:  # so that no other thread stops using this engine meanwhile
            made.session = session = self.session_of(engine)
            made.pending, made.engine = session.submit(task), engine
            self._open.add(made)

    def delivered(self, pending: AutoPending, made_s: float) -> None:
        """The element of a task is handed out."""
        if pending.engine is not None:
            with self._lock:
                self._open.discard(pending)
                for unused in self._unused:
                    unused.pending.discard(pending)
                if self._unused:
                    self._close_unused()
        self.search.delivered(pending.engine, made_s, self.work.elements(pending.task))

    # The engines to choose from.

    def session_of(self, engine: Found) -> Session:
        kind, workers = engine
        if kind == "processes":
            return self.processes(workers)
        if self._threads is None or self._thread_count != workers:
            from loaderx.engines.threads.session import ThreadsSession  # late: many need none

            self.stop_using(self._threads)
            prefetch = max(2, workers) if self._prefetch is None else self._prefetch
            self._threads = ThreadsSession(self.work, workers, prefetch)
            self._thread_count = workers
        return self._threads

    def processes(self, workers: int) -> ProcessesSession:
        if self._processes is None or self._processes.workers != workers:
            from loaderx.engines.processes.session import ProcessesSession  # brings cloudpickle

            self.stop_using(self._processes)
            prefetch = max(2, workers) if self._prefetch is None else self._prefetch
            self._processes = ProcessesSession(
                self.work, workers, prefetch, timeout_s=STUCK_S, free_share=FREE_SHARE
            )
        return self._processes

    def stop_using(self, session: Session | None) -> None:
        """Closes one of the sessions as soon as all that it has begun is handed out."""
        if session is None:
            return
        with self._lock:
            close, threads = session.close, self._threads
            if threads is not None and session is threads:
                close = threads.stop  # nothing may be waited for in the middle of a stream
                threads.drain()  # another iterator may hold its tasks for long
                self._threads = None
            self._processes = None if session is self._processes else self._processes
            self._unused.append(_Unused(session, close, weakref.WeakSet(self._open)))
            self._close_unused()

    def keep_only(self, engine: Found | None) -> None:
        """Stops using all engines but one."""
        kind = None if engine is None else engine[0]
        if kind != "threads":
            self.stop_using(self._threads)
        if kind != "processes":
            self.stop_using(self._processes)

    def _close_unused(self) -> None:
        unused, self._unused = self._unused, []
        self._unused += [one for one in unused if one.pending]
        for one in unused:
            if not one.pending:
                one.close()

    def close(self) -> None:
        # Without the lock: the thread that holds it may be starting workers, and is woken by this.
        unused, self._unused = self._unused, []
        for session in [self._threads, self._processes, *[one.session for one in unused]]:
            if session is not None:
                session.close()

    # What is told.

    def describe(self) -> tuple[str, str]:
        found = self.search.found
        return "inline" if found is None else "{}({})".format(*found), self.search.reason

    def warn_of_workers(self, *, is_unsafe: bool) -> None:
        """Workers are worth it, and cannot be had: the user who asked for them can do something."""
        if self.is_unsendable:
            self._warn(self.no_processes)
        elif is_unsafe and self.work.unsure:  # threads may do what processes cannot
            self._warn(f"{self.search.reason}. {what_to_say(self.work.unsure)}")

    def _warn(self, why: str) -> None:
        if self._wants_warning:
            self._wants_warning = False
            warn_user(
                f"num_workers={self.max_workers} was asked for, and batches are made in the "
                f"caller's thread: {why}"
            )


class _Unused(Frozen):
    """A session that gets no more tasks, and is closed when those it has are handed out."""

    session: Session
    close: Callable[[], None]
    pending: weakref.WeakSet[AutoPending]


class AutoPending:
    """A task, with the engine that it was submitted to; None: it is made when it is asked for."""

    __slots__ = ("__weakref__", "_auto", "_begun", "engine", "pending", "session", "task")

    def __init__(self, auto: AutoSession, task: Task) -> None:
        self._auto, self.task = auto, task
        self.engine: Found | None = None
        self.session: Session | None = None  # that it was submitted to
        self.pending: Pending | None = None
        self._begun = 0.0  # when its result was first asked for

    def result(self) -> Any:
        """As of every `Pending`; but a `FillAgainError` is an invitation to ask once more."""
        auto = self._auto
        self._begun = self._begun or auto.clock.now()
        try:
            auto.search.watch(self.engine, self.pending)
        except FillAgainError:
            if self.pending is None:
                auto.hand_over(self, self.task)
            raise
        element = self._element(auto)
        auto.delivered(self, auto.clock.now() - self._begun)
        return element

    def _element(self, auto: AutoSession) -> Any:
        if self.pending is not None:
            try:
                return self.pending.result()
            except RecordError as error:
                if not auto.search.is_failed_trial(self.engine, error):
                    raise
                # It is made again in this thread.  If it fails here as well, that is the error.
        return auto.work(self.task, auto.pools.lend)

    def done(self) -> bool:
        return self.pending is None or self.pending.done()

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()

    def finish(self, until: float) -> None:
        if self.session is not None and self.pending is not None:
            self.session.finish([self.pending], until)
