"""A session of `auto` in a world of its own: engines of known speed, and a clock moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderx.engines.auto.search import Search
from loaderx.engines.auto.timing import Clock
from loaderx.engines.base import Session, Task, Work
from loaderx.reading.lookahead import FillAgainError, Lookahead
from runs import run_of_steps

SWITCH_S = 0.005  # for which a thread that holds the GIL keeps it


class World(Clock):
    """Time passes when somebody sleeps, waits or works; nothing else takes any."""

    def __init__(self) -> None:
        self.time = 0.0
        self.held_until = 0.0  # by threads that hold the GIL

    def now(self) -> float:
        return self.time

    def nap(self, seconds: float) -> None:
        self.time += seconds
        if self.time < self.held_until:
            self.time += SWITCH_S


class TimedSession(Session):
    """Stands for `AutoSession`: a task takes ``made_s``, and workers make several at once.

    Each kind of workers may be slower by a factor; threads that hold the GIL wait for each other.
    """

    no_processes = not_for_processes = unsure = ""
    max_workers, cores = 2, 2
    only_gathers = holds_gil = makes_units = False
    thread_safe = True
    noun = "batch"
    takes_s = 0.3  # for a worker process to start
    handover_s = 100e-6

    def __init__(self, made_s: float, **more: Any) -> None:
        self.world, self.made_s, self.work = World(), made_s, self
        self.slower = {"threads": 1.0, "processes": 1.0}
        self.started, self.start_s = 0, 0.0  # worker processes, and the time of one
        self.tried: list[Any] = []  # engines in the order in which they got tasks
        self.fails_in: str | None = None  # the kind of workers in which every task fails
        self._prepared = -1.0  # when the worker processes were started
        self._free: dict[Any, list[float]] = {}  # when each worker of an engine is free
        for name, value in more.items():
            setattr(self, name, value)
        self.search = Search(self, self.world)

    @property
    def window(self) -> int:
        engine = self.search.engine
        if engine is None:
            return 0
        return 1 if self.search.is_careful else 2 * max(2, engine[1])

    def begin(self, tasks: int | None) -> None:
        self.search.begin(tasks)

    def submit(self, task: Task) -> TimedPending:
        engine = self.search.engine
        if engine is not None and engine not in self.tried[-1:]:
            self.tried.append(engine)
        made = TimedPending(self, task)
        self.hand_over(made)
        return made

    def hand_over(self, pending: TimedPending) -> None:
        pending.engine = engine = self.search.engine
        if engine is None:
            return
        kind, workers = engine
        is_held = kind == "threads" and self.holds_gil
        free = self._free.setdefault(engine, [0.0] * (1 if is_held else workers))
        takes_s = self.made_s * self.slower[kind] + self.handover_s
        worker = free.index(min(free))
        free[worker] = pending.ready = max(self.world.time, free[worker]) + takes_s
        if is_held:
            self.world.held_until = max(self.world.held_until, pending.ready)

    @property
    def found(self) -> Any:
        return self.search.found

    @property
    def reason(self) -> str:
        return self.search.reason

    def read(self, stop: int = 1 << 62) -> Iterator[int]:
        """The steps of an iterator; what it gives is right."""
        self.begin(stop)
        run = run_of_steps(self, Work(), range(stop))
        for number in range(stop):
            step = run.next()
            assert step == number
            yield step

    def read_units(self, batches: int) -> Iterator[int]:
        """The batches of an endless stream, so many of every unit."""
        self.begin(None)
        ahead = Lookahead(self, 0, _Plan(), lambda _: range(1 << 40), share=1, last_epoch=None)  # type: ignore[arg-type]
        for unit in range(1 << 40):
            assert ahead.get((), unit) == unit
            yield from range(unit * batches, (unit + 1) * batches)

    # The worker processes.

    def processes(self, workers: int) -> TimedSession:
        return self

    def prepare(self, count: int) -> bool:
        """Workers take a while to start, and all of that on a core."""
        if self._prepared < 0:
            self._prepared = self.world.time
            self.started += 1
        self.start_s = min(self.takes_s, self.world.time - self._prepared)
        return self.start_s >= self.takes_s

    def keep_only(self, engine: Any) -> None:
        if engine is None or engine[0] != "processes":
            self.close()

    def close(self) -> None:
        self._prepared = -1.0

    def warn_of_workers(self, *, is_unsafe: bool) -> None:
        """Nobody has asked for workers."""


class _Plan:
    epoch_counts = (None,)

    def epoch_key(self, path: object) -> int:
        return 0


class TimedPending:
    """A task that takes as long as its engine does."""

    def __init__(self, session: TimedSession, task: Task) -> None:
        self.session, self.task = session, task
        self.engine: Any = None
        self.ready = self.begun = -1.0

    def result(self) -> int:
        session, world = self.session, self.session.world
        self.begun = world.time if self.begun < 0 else self.begun
        try:
            session.search.watch(self.engine, None if self.engine is None else self)
        except FillAgainError:
            if self.engine is None:
                session.hand_over(self)
            raise
        if self.engine is None:
            world.time += session.made_s
        else:
            world.time = max(world.time, self.ready)
            if self.engine[0] == session.fails_in:
                session.fail(self.engine, self.task)
                world.time += session.made_s
        session.search.delivered(self.engine, world.time - self.begun)
        return self.task[-1]

    def done(self) -> bool:
        return self.session.world.time >= self.ready

    def cancel(self) -> None:
        """There is nothing to stop."""
