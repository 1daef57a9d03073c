"""Steps that several workers make together, some rows each.

While there are enough steps, each worker makes its own, and nothing has to be joined.  At the
beginning of a run, however, the consumer waits for the first step alone, and at the end fewer steps
are left than there are workers.  There a step is cut into ranges of rows.

A step is shared only if user functions run for its single records, and none for the whole batch,
which the consumer would have to call.  Once the time of a step is known, only long ones are shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from loaderx.engines.base import Element, Session, Task
from loaderx.loader.tasks.ranges import JoinsParts, MadeRange, RangeTasks
from loaderx.loader.tasks.steps import Again, Submitted

SHARED_S = 10e-3  # a step that takes less is not worth sharing
RANGE_S = 4e-3  # least time of a range
RANGES = 16  # most ranges of a step, unless more tasks are kept under way


class StepTimes:
    """Times of a loader's steps, shared by all its runs."""

    def __init__(self) -> None:
        self.step_s: float | None = None  # time of a shared step, all its rows together
        self.can_share = True  # until a step is too fast, or could not be shared

    def took(self, step_s: float) -> None:
        self.step_s = step_s
        self.can_share = self.can_share and step_s >= SHARED_S


class SharedStepTasks(RangeTasks):
    """One task per step, but several for the first and the last ones."""

    def __init__(
        self, session: Session, work: JoinsParts, steps: range, rows: int, times: StepTimes
    ) -> None:
        super().__init__(session, work, steps)
        self._first, self._rows, self._times = steps.start, rows, times
        self._ranges: list[Task] = []  # of the step that is being cut, the next one last
        self._more: dict[int, int] = {}  # by step: what it adds to `extra` until it is whole
        self._spent_s = 0.0

    def next(self, under_way: Sequence[Submitted]) -> Task | None:
        can_share = self._times.can_share and not self._ranges and self.position < self.stop
        if can_share and self.is_shared(under_way):
            self._ranges = cut(self.position, self._rows, self._count())[::-1]
            self._more[self.position] = len(self._ranges) - 1
            self.extra += len(self._ranges) - 1  # cutting does not reduce the steps under way
            self.position += 1
        return self._ranges.pop() if self._ranges else super().next(under_way)

    def take(self, count: int) -> range:
        self._ranges, self._more, self.extra = [], {}, 0
        return super().take(count)

    def is_shared(self, under_way: Sequence[Submitted]) -> bool:
        """True if the next step should be cut."""
        window = self.session.window
        if window < 2:
            return False
        if self.position == self._first:
            return True
        is_tail = self.stop - self.position < window // 2
        return is_tail and not (under_way and under_way[0][1].done())  # only if the consumer waits

    def _count(self) -> int:
        """The number of ranges: small ones, so that a slow record holds up few others."""
        step_s, window = self._times.step_s, self.session.window
        return window if step_s is None else max(window, min(RANGES, int(step_s / RANGE_S)))

    def notice(self, made: MadeRange) -> None:
        self._spent_s += float(made["seconds"][0])
        if made["first"] is None:
            self._times.can_share = False  # rows that cannot be sent would be made twice each time

    def collect(self, task: Task, made: Element) -> list[Element]:
        ready = super().collect(task, made)
        if self._more and self.again == [] and (len(task) == 1 or task[2] > task[0]):
            self.extra -= self._more.pop(task[0], 0)  # the step is whole
            if len(task) > 1:
                self._times.took(self._spent_s)
                self._spent_s = 0.0
        return ready

    def after_loss(self, task: Task, error: Exception) -> list[Again]:
        self._times.can_share = False
        return super().after_loss(task, error)


def cut(step: int, rows: int, count: int) -> list[Task]:
    """Cuts the rows of a step into ``count`` ranges, as equal as possible, none empty.

    >>> cut(7, rows=10, count=4)
    [(7, 0, 7, 2), (7, 2, 7, 5), (7, 5, 7, 7), (7, 7, 8, 0)]
    """
    count = max(1, min(rows, count))
    borders = [rows * number // count for number in range(count)]
    ranges = [(step, first, step, stop) for first, stop in itertools.pairwise(borders)]
    return [*ranges, (step, borders[-1], step + 1, 0)]
