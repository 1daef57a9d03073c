"""One reading of one element: the buffers it may use, and what it has to tell afterwards."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from loaderx.memory import Lend


class Job:
    """Passed down through the operators while they read."""

    __slots__ = ("lend", "replaced")

    def __init__(self, lend: Lend) -> None:
        self.lend = lend
        self.replaced = 0  # rows that `on_error` replaced

    def read(self, operator: Any, rows: Any) -> Any:
        return operator.read(rows, self)


class TimedJob(Job):
    """A job that also says how long each stage took, what it called not counted."""

    __slots__ = ("_inside", "times")

    def __init__(self, lend: Lend) -> None:
        super().__init__(lend)
        self.times: dict[str, float] = {}
        self._inside = 0.0

    def read(self, operator: Any, rows: Any) -> Any:
        outside, self._inside = self._inside, 0.0
        start = perf_counter()
        try:
            return operator.read(rows, self)
        finally:
            took = perf_counter() - start
            own = took - self._inside
            self.times[operator.stage] = self.times.get(operator.stage, 0.0) + own
            self._inside = outside + took
