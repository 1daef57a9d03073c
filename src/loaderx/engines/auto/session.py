"""Submits tasks to the engine in use, and hands out their results."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

from loaderx.engines.auto.search import Search
from loaderx.engines.auto.timing import Clock, Found
from loaderx.engines.base import Made, Pending, Session, Task, Work, cores, what_to_say
from loaderx.engines.processes import why_not
from loaderx.errors import RecordError, warn_user
from loaderx.first_use import reachable
from loaderx.memory import PoolPerThread
from loaderx.reading.lookahead import FillAgainError

if TYPE_CHECKING:
    from loaderx.engines.processes.session import ProcessesSession
    from loaderx.engines.threads.session import ThreadsSession

STUCK_S = 60.0
FREE_SHARE = 0.25  # share of the free memory that sharing data may take unasked
_NO_WORKERS = Session()


class AutoSession(Session):
    """Submits tasks to the engine in use, and reports their results to the search.

    The session of an engine that is no longer used is dropped: its workers end when the results of
    its tasks have been handed out.
    """

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
        self.is_unsendable = False  # there are no processes because the work cannot be pickled
        self._wants_warning = asked  # tell the user, once, why the workers asked for do not exist
        self._prefetch = prefetch
        self.pools = PoolPerThread()
        self._sessions: dict[str, ThreadsSession | ProcessesSession] = {}  # in use, by kind
        self._all: list[weakref.ref[Session]] = []  # also those that get no more tasks
        self._lock = threading.RLock()  # threads may share a loader
        self.search = Search(self, self.clock)

    @functools.cached_property
    def not_for_processes(self) -> str:
        """Why worker processes do not suit this work, if it or a user's object says so."""
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
        """The session of the engine in use; one without workers for inline."""
        engine = self.search.engine
        return _NO_WORKERS if engine is None else self.session_of(engine)

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

    def finish(self, until: float) -> None:
        for session in [one() for one in self._all]:
            if session is not None:
                session.finish(until)

    def made(self, pending: Pending) -> Made | None:
        if type(pending) is AutoPending and pending.session and pending.pending:
            return pending.session.made(pending.pending)
        return None

    def begin(self, tasks: int | None) -> None:
        self.search.begin(tasks)

    def submit(self, task: Task) -> AutoPending:
        made = AutoPending(self, task)
        self.hand_over(made, task)
        return made

    def hand_over(self, made: AutoPending, task: Task) -> None:
        """Submits a task to the engine now in use, if it has workers."""
        engine = self.search.engine
        if engine is not None:
            with self._lock:  # so that no other thread drops this engine meanwhile
                made.session = self.session_of(engine)
                made.pending, made.engine = made.session.submit(task), engine

    # The engines to choose from.

    def session_of(self, engine: Found) -> Session:
        kind, workers = engine
        with self._lock:
            session = self._sessions.get(kind)
            if session is None or session.workers != workers:
                self._drop(kind)
                session = self._sessions[kind] = self._new(kind, workers)
                living = [one for one in self._all if one() is not None]
                self._all = [*living, weakref.ref(session)]
            return session

    def processes(self, workers: int) -> ProcessesSession:
        return cast("ProcessesSession", self.session_of(("processes", workers)))

    def _new(self, kind: str, workers: int) -> ThreadsSession | ProcessesSession:
        prefetch = max(2, workers) if self._prefetch is None else self._prefetch
        if kind == "threads":
            from loaderx.engines.threads.session import ThreadsSession  # late: many need none

            return ThreadsSession(self.work, workers, prefetch)
        from loaderx.engines.processes.session import ProcessesSession  # late: brings cloudpickle

        return ProcessesSession(self.work, workers, prefetch, STUCK_S, free_share=FREE_SHARE)

    def _drop(self, kind: str) -> None:
        session = self._sessions.pop(kind, None)
        if session is not None:
            session.drain()  # another iterator may hold its tasks for long

    def keep_only(self, engine: Found | None) -> None:
        """Stops using all engines but one."""
        kept = None if engine is None else engine[0]
        with self._lock:
            for kind in [kind for kind in self._sessions if kind != kept]:
                self._drop(kind)

    def close(self) -> None:
        # Without the lock: its holder may be starting workers, and closing interrupts that.
        for one in self._all:
            session = one()
            if session is not None:
                session.close()

    # Reports and warnings.

    def describe(self) -> tuple[str, str]:
        found = self.search.found
        return "inline" if found is None else "{}({})".format(*found), self.search.reason

    def warn_of_workers(self, *, is_unsafe: bool) -> None:
        """Warns once that the workers the user asked for would help but cannot be used."""
        if self.is_unsendable:
            why = self.no_processes
        elif is_unsafe and self.work.unsure:  # threads may do what processes cannot
            why = f"{self.search.reason}. {what_to_say(self.work.unsure)}"
        else:
            return
        if self._wants_warning:
            self._wants_warning = False
            warn_user(
                f"num_workers={self.max_workers} was asked for, and batches are made in the "
                f"caller's thread: {why}"
            )


class AutoPending:
    """A task and the engine that has it; without one, it runs when its result is asked for."""

    __slots__ = ("_auto", "_begun", "engine", "pending", "session", "task")

    def __init__(self, auto: AutoSession, task: Task) -> None:
        self._auto, self.task = auto, task
        self.engine: Found | None = None
        self.session: Session | None = None  # None: not submitted yet
        self.pending: Pending | None = None
        self._begun = 0.0  # when its result was first asked for

    def result(self) -> Any:
        """As for every `Pending`, but after a `FillAgainError` it may be called again."""
        auto = self._auto
        self._begun = self._begun or auto.clock.now()
        try:
            auto.search.watch(self.engine, self.pending)
        except FillAgainError:
            if self.pending is None:
                auto.hand_over(self, self.task)
            raise
        element = self._element(auto)
        made_s = auto.clock.now() - self._begun
        auto.search.delivered(self.engine, made_s, auto.work.elements(self.task))
        return element

    def _element(self, auto: AutoSession) -> Any:
        if self.pending is not None:
            try:
                return self.pending.result()
            except RecordError as error:
                if not auto.search.is_failed_trial(self.engine, error):
                    raise
                # Made again in this thread.  If it fails here as well, that error is raised.
        return auto.work(self.task, auto.pools.lend)

    def done(self) -> bool:
        return self.pending is None or self.pending.done()

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()
