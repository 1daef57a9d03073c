"""Engines that do without workers what those with workers do: whole parts are written by tasks."""

from __future__ import annotations

from typing import Any

from loaderx.engines import Session, Task, Work
from loaderx.memory import PoolPerThread


class InCaller:
    """Makes a task when its result is asked for; ``times`` over, as if workers had been lost."""

    def __init__(self, times: int = 1) -> None:
        self.times, self.tasks = times, list[Task]()

    def session(self, work: Work) -> Session:
        return _Session(work, self)


class _Session(Session):
    window = 2

    def __init__(self, work: Work, engine: InCaller) -> None:
        self._work, self._engine, self._pools = work, engine, PoolPerThread()

    def submit(self, task: Task) -> _Pending:
        self._engine.tasks.append(task)
        return _Pending(lambda: self._work(task, self._pools.lend), self._engine.times)

    def close(self) -> None:
        pass


class _Pending:
    def __init__(self, make: Any, times: int) -> None:
        self._make, self._times = make, times

    def result(self) -> Any:
        for _ in range(self._times):
            made = self._make()
        return made

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        pass
