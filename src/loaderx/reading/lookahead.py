"""Units submitted ahead of their use.

The reader of a lane asks for one unit after the other.  `Lookahead` submits the next units, so that
workers make them meanwhile, and takes their results in order.  The next unit is known: the
following one of the lane, or the first of the next epoch.  Where the stream goes elsewhere (a mix
ended before this component did, a state was restored), the submitted units are cancelled.  A unit
depends on its task alone, so this is never visible in results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from loaderx.reading.context import ReadContext
from loaderx.reading.operators import SourceRecords
from loaderx.reading.unit_plan import UnitOutput, UnitPlan

Path = tuple[int, ...]
"""The epoch number of every repeat above, outermost first."""


class FillAgainError(Exception):
    """More tasks may be submitted, and then the result may be asked for once more.

    Raised by an engine that changes its workers while its consumer waits.
    """


class PendingUnit(Protocol):
    """A unit that was submitted."""

    def result(self) -> UnitOutput:
        """The output of the unit; may raise a `FillAgainError`."""

    def cancel(self) -> object: ...


class UnitMaker(Protocol):
    """Makes units: an engine's session, as a stream sees it."""

    @property
    def window(self) -> int:
        """The number of units to keep under way; 0: each is made when its result is asked for."""

    def submit(self, task: tuple[int, ...]) -> PendingUnit:
        """Submits a unit: the number of its plan, the key of its epoch, its own number."""


class Lookahead:
    """The units of one input for one lane."""

    def __init__(
        self,
        maker: UnitMaker,
        number: int,
        plan: UnitPlan,
        lane: Callable[[Path], range],
        *,
        share: int,
        last_epoch: int | None,
    ) -> None:
        self._maker, self._number, self._plan = maker, number, plan
        self._lane = lane  # the units of this lane, by epoch
        self._share = share  # the number of readers that share the window
        self._bounds = [last_epoch, *plan.epoch_counts[1:]]
        self._pending: deque[tuple[Path, int, PendingUnit]] = deque()
        self._following: tuple[Path, int] | None = None  # the unit to submit next
        self.position: tuple[Path, int] | None = None  # where the reader starts
        self.reached: tuple[Path, int] | None = None  # the unit that was asked for last

    def begin(self) -> None:
        """Submits the first unit, if none is under way yet."""
        if not self._pending and self._maker.window:
            self._following = self.first
            if self._following:
                self._submit(*self._following)

    def get(self, path: Path, unit: int) -> UnitOutput:
        """The output of a unit of the lane."""
        self.reached = (path, unit)
        pending = self._pending
        while pending and pending[0][:2] != (path, unit):
            pending.popleft()[2].cancel()
        if not pending:
            self._following = (path, unit)
        had_workers = self._maker.window > 0
        while True:
            self.fill()
            try:
                output = pending[0][2].result()
            except FillAgainError:
                continue
            pending.popleft()
            if self._maker.window and not had_workers:  # a long unit has shown that it needs them
                self.fill()
            return output

    def fill(self) -> None:
        """Submits the following units, up to the number that is kept under way."""
        pending = self._pending
        while self._following and (not pending or len(pending) < self._depth):
            self._submit(*self._following)

    @property
    def _depth(self) -> int:
        window = self._maker.window
        if self._share == 1 or not window:
            return window
        return max(2, -(-window // self._share))  # one in use, one in the making

    def _submit(self, path: Path, unit: int) -> None:
        task = (self._number, self._plan.epoch_key(path), self._lane(path)[unit])
        self._pending.append((path, unit, self._maker.submit(task)))
        self._following = self.after(path, unit)

    def after(self, path: Path, unit: int) -> tuple[Path, int] | None:
        """The unit after this one; None if it is not known."""
        if unit + 1 < len(self._lane(path)):
            return path, unit + 1
        following = next_path(path, self._bounds)
        return None if following is None else (following, 0)

    @property
    def first(self) -> tuple[Path, int] | None:
        """The unit that will be asked for first; None if it is not known."""
        if self.position is None:
            return None
        path, unit = self.position
        return (path, unit) if unit < len(self._lane(path)) else self.after(path, unit)

    @property
    def under_way(self) -> int:
        """The number of units that were submitted and not used yet."""
        return len(self._pending)

    @property
    def rows(self) -> int:
        """The number of input records that a unit is made of."""
        return self._plan.rows

    def source_records(self, path: Path, unit: int) -> list[SourceRecords]:
        """The records of remote sources that a unit will read."""
        return self._plan.source_records(self._plan.epoch_key(path), self._lane(path)[unit])

    def __del__(self) -> None:
        for _, _, pending in self.__dict__.get("_pending", ()):  # `__init__` may have ended early
            pending.cancel()

    def clear(self) -> list[PendingUnit]:
        """Returns the submitted units, to be cancelled, and keeps none."""
        self._following = None
        pending = [one for _, _, one in self._pending]
        self._pending.clear()
        return pending


def next_path(path: Path, bounds: Sequence[int | None]) -> Path | None:
    """The next epoch: of the innermost repeat, or if that has ended, of the one above it.

    >>> next_path((0, 1), (None, 3)), next_path((0, 2), (None, 3)), next_path((4, 2), (5, 3))
    ((0, 2), (1, 0), None)
    """
    for place in range(len(path) - 1, -1, -1):
        bound, number = bounds[place], path[place] + 1
        if bound is None or number < bound:
            return (*path[:place], number, *(0,) * (len(path) - place - 1))
    return None


class MakeHere:
    """Makes units in the caller's thread, when their results are asked for."""

    window = 0

    def __init__(self, plans: Sequence[UnitPlan], new_context: Callable[[], ReadContext]) -> None:
        self._plans, self._new_context = plans, new_context

    def submit(self, task: tuple[int, ...]) -> UnitHere:
        return UnitHere(self._plans, task, self._new_context)


class UnitHere:
    """A unit that is made when its result is asked for."""

    def __init__(
        self,
        plans: Sequence[UnitPlan],
        task: tuple[int, ...],
        new_context: Callable[[], ReadContext],
    ) -> None:
        self._plans, self._task, self._new_context = plans, task, new_context

    def result(self) -> UnitOutput:
        number, epoch_key, unit = self._task
        return self._plans[number].make(epoch_key, unit, self._new_context())

    def cancel(self) -> None:
        """There is nothing to stop."""
