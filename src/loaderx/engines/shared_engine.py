"""One set of workers for several loaders.

A loader's workers belong to its session, so ten loaders that run at once would start ten times as
many.  `Shared` opens one session of another engine for all of them.  It combines the works of all
loaders, and the first number of a task names its loader.

The works are combined when the first task is submitted.  A loader that joins later causes a new
session for all; the old one still delivers the tasks that it has.  The session belongs to the
loaders that use it: when the last of them is closed or dropped, its workers end.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence

from loaderx.engines.auto import Auto
from loaderx.engines.base import (
    Element,
    Engine,
    Made,
    Pending,
    Session,
    Task,
    Work,
    WorkerStats,
    warn_if_in_order,
)
from loaderx.engines.inline import Inline
from loaderx.engines.threads import Threads
from loaderx.errors import ArgumentError, ArgumentTypeError, RecordError
from loaderx.memory import Lend


class Shared:
    """The workers of another engine, for all loaders that are given this object.

    >>> from loaderx import DataLoader, Dataset
    >>> engine = Shared(Threads(2))
    >>> train = DataLoader(Dataset.range(6).batch(3), engine=engine)
    >>> test = DataLoader(Dataset.range(4).batch(2), engine=engine)
    >>> [(one.tolist(), other.tolist()) for one, other in zip(train, test)]
    [([0, 1, 2], [0, 1]), ([3, 4, 5], [2, 3])]

    Workers start with the first ``next`` of one of these loaders, and serve the loaders that had an
    iterator by then.  A loader that joins later makes them start again.

    Args:
        engine: one that has workers, such as `Threads`, `Processes`, `Executor` or `Ray`.  Its
            ``num_workers`` and ``prefetch`` are for all loaders together.
    """

    def __init__(self, engine: Engine) -> None:
        is_engine = callable(getattr(engine, "session", None)) and not isinstance(engine, type)
        if not is_engine or isinstance(engine, (Auto, Inline, Shared)):
            raise ArgumentTypeError(
                "Shared takes an engine that has workers, such as Shared(Processes(4)); got "
                f"{engine!r}."
            )
        if isinstance(engine, Threads) and engine.in_order:
            raise ArgumentError(
                "in_order=True reads for one loader: give each its own Threads(in_order=True)."
            )
        self._engine = engine
        self._lock = threading.RLock()
        self._members: list[weakref.ref[SharedSession]] = []

    def session(self, work: Work) -> SharedSession:
        warn_if_in_order(work, f"{self!r}")
        made = SharedSession(self, work)
        with self._lock:
            self._members = [member for member in self._members if member() is not None]
            self._members.append(weakref.ref(made))
        return made

    def members(self) -> list[SharedSession]:
        """The sessions that are alive."""
        found = (member() for member in self._members)
        return [member for member in found if member is not None]

    def join(self, session: SharedSession) -> tuple[Session, int]:
        """The common session, and the number of this loader's work in it."""
        with self._lock:
            if session.joined is None:
                members = self.members()
                together = self._engine.session(WorksTogether([one.work for one in members]))
                for number, one in enumerate(members):
                    one.joined = (together, number)
            assert session.joined is not None
            return session.joined

    def __reduce__(self) -> tuple[object, ...]:
        return Shared, (self._engine,)

    def __repr__(self) -> str:
        return f"Shared({self._engine!r})"


class SharedSession(Session):
    """The tasks of one loader, among those of others."""

    def __init__(self, engine: Shared, work: Work) -> None:
        self._engine = engine
        self.work = work
        self.joined: tuple[Session, int] | None = None
        self.is_in_use = False  # it has submitted tasks since it was last closed
        self._pending: weakref.WeakSet[SharedPending] = weakref.WeakSet()

    @property
    def window(self) -> int:  # type: ignore[override]
        """Its share of the tasks to keep under way: at least one in use and one in the making."""
        together, _ = self._engine.join(self)
        users = sum(one.is_in_use or one is self for one in self._engine.members())
        return max(2, -(-together.window // users)) if together.window else 0

    def submit(self, task: Task) -> SharedPending:
        together, number = self._engine.join(self)
        self.is_in_use = True
        made = SharedPending(together, together.submit((number, *task)), task)
        self._pending.add(made)
        return made

    @property
    def shares_memory(self) -> bool:  # type: ignore[override]
        return self._engine.join(self)[0].shares_memory

    @property
    def shares_sources(self) -> bool:  # type: ignore[override]
        return self._engine.join(self)[0].shares_sources

    @property
    def shares_disk(self) -> bool:  # type: ignore[override]
        return self._engine.join(self)[0].shares_disk

    def made(self, pending: Pending) -> Made | None:
        if type(pending) is SharedPending:
            return pending.together.made(pending.pending)
        return None

    def finish(self, until: float) -> None:
        if self.joined is not None:
            self.joined[0].finish(until)

    def close(self) -> None:
        self.is_in_use = False
        for pending in list(self._pending):
            pending.cancel()
        joined = self.joined
        if joined is None:
            return
        others = [one for one in self._engine.members() if one.joined and one.is_in_use]
        if not any(one.joined and one.joined[0] is joined[0] for one in others):
            joined[0].close()

    def workers_stats(self) -> Sequence[WorkerStats]:
        return () if self.joined is None else self.joined[0].workers_stats()

    def describe(self) -> tuple[str, str]:
        together, _ = self._engine.join(self)
        name, _ = together.describe()
        return name, "it was asked for, and is shared by several loaders"


class SharedPending:
    """A task of one loader."""

    __slots__ = ("__weakref__", "_task", "pending", "together")

    def __init__(self, together: Session, pending: Pending, task: Task) -> None:
        self.together = together  # kept alive until this is done, even if it was replaced
        self.pending, self._task = pending, task

    def result(self) -> Element:
        try:
            return self.pending.result()
        except RecordError as error:
            if error.step is None and len(self._task) == 1:
                error.step = self._task[0]
            raise

    def done(self) -> bool:
        return self.pending.done()

    def cancel(self) -> None:
        self.pending.cancel()


class WorksTogether(Work):
    """The works of several loaders as one: the first number of a task selects one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self.thread_safe = all(work.thread_safe for work in works)
        self.unsure = next((work.unsure for work in works if work.unsure), "")
        self.only_gathers = all(work.only_gathers for work in works)

    def __call__(self, task: Task, lend: Lend) -> Element:
        return self._works[task[0]](task[1:], lend)

    def steps(self, task: Task) -> int:
        return self._works[task[0]].steps(task[1:])

    def describe(self, task: Task) -> str:
        return self._works[task[0]].describe(task[1:])

    def parts(self) -> Iterator[tuple[str, object]]:
        for work in self._works:
            yield from work.parts()
