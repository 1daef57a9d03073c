"""A session of `auto` whose engines have known costs, on a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

from loaderx.engines import auto_search
from loaderx.engines.auto_price import Price
from loaderx.engines.base import OrderedRun, Session, Task


class TimedSession(Session):
    """Stands for `AutoSession`: inline takes ``made_s`` an element, workers hand one out sooner."""

    no_processes = not_for_processes = unsure = ""
    max_workers, cores = 1, 2
    only_gathers = False
    thread_safe = True
    takes_s = 0.0  # for a worker process to start
    share_s = 0.0

    def __init__(self, made_s: float, handed_s: float, by_processes_s: float = 1.0) -> None:
        self.price, self.prepared = Price(0.25, 0.0), []
        self.now, self.made_s, self.work = 0.0, made_s, self
        self.handed_s = {"threads": handed_s, "processes": by_processes_s}
        self.tried, self.started, self.start_s = 0, 0, 0.0
        self.before: Any = None
        self.fails_in: str | None = None  # the kind of workers in which every task fails
        self.search = auto_search.Search(self)

    @property
    def window(self) -> int:
        return 0 if self.search.engine is None else 3

    def begin(self, tasks: int | None) -> None:
        self.search.begin(tasks)

    def submit(self, task: Task) -> TimedPending:
        engine = self.search.engine
        if engine not in (None, self.before):
            self.tried += 1
        self.before = engine
        return TimedPending(self, task, engine)

    @property
    def found(self):
        return self.search.found

    @property
    def reason(self) -> str:
        return self.search.reason

    def read(self, stop: int = 1 << 62):
        """The steps of an iterator; what it gives is right."""
        self.begin(stop)
        run = OrderedRun(self, range(stop))
        for number in range(stop):
            step = run.next()
            assert step == number
            yield step

    # The worker processes.

    def processes(self, workers: int) -> TimedSession:
        return self

    def prepare(self, count: int) -> bool:
        """Each worker takes a while to start, and all of that on a core."""
        if count > len(self.prepared):
            self.prepared += [self.now] * (count - len(self.prepared))
            self.started += count == 1
        self.start_s = min(self.takes_s, self.now - self.prepared[0])
        return self.now - self.prepared[-1] >= self.takes_s

    def keep_only(self, engine: Any) -> None:
        if engine is None or engine[0] != "processes":
            self.close()

    def close(self) -> None:
        self.prepared = []

    def warn_of_workers(self, *, is_unsafe: bool) -> None:
        """Nobody has asked for workers."""


class TimedPending:
    """A task that takes as long as its engine does."""

    def __init__(self, session: TimedSession, task: Task, engine: Any) -> None:
        self.session, self.task, self.engine = session, task, engine

    def result(self) -> int:
        session = self.session
        begun = session.now
        session.now += session.made_s if self.engine is None else session.handed_s[self.engine[0]]
        if self.engine is not None and self.engine[0] == session.fails_in:
            session.fail(self.engine, self.task)
            session.now += session.made_s
        session.search.delivered(self.engine, session.now - begun)
        return self.task[0]

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        """There is nothing to stop."""
