"""Single records, a few of them in a task.

Handing a task to a worker and taking its result costs 20 to 50 microseconds, more than most single
records need.  So a task is a range of consecutive steps that take about half a millisecond: one
step at first, and while records take longer than that.  A slow record delays those before it by no
more than the time of a range, since a worker that has taken too long hands over what it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from loaderx.engines.base import Element, Measured, Task
from loaderx.loader.tasks.ranges import MadeRange, RangeTasks
from loaderx.loader.tasks.steps import Submitted
from loaderx.reading.single_records import detached

RANGE_S = 0.5e-3  # target time of a range
MOST = 64  # steps in a range


class RecordTasks(RangeTasks):
    """Cuts steps into ranges that take about the same time."""

    _size = 1

    def next(self, under_way: Sequence[Submitted]) -> Task | None:
        steps = self.advance(self._size)
        return (steps.start, 0, steps.stop, 0) if steps else None

    def notice(self, made: MadeRange) -> None:
        count = len(made["elements"])
        fitting = int(RANGE_S * count / max(float(made["seconds"][0]), 1e-9))
        self._size = max(1, min(2 * self._size, fitting, MOST))

    def _make_alone(self, step: int, last: int, end: int) -> None:
        """Submits the rest of a range that the worker cut short."""
        self.again = [((step, 0, last, end), None)]

    def detached(self, element: Element) -> Element:
        if type(element) is Measured:
            element.value = detached(element.value)
            return element
        return detached(element)
