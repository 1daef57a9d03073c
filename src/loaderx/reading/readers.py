"""Readers: the rows of one lane of a stream, in order, with a position that can be saved.

``start(path)`` goes to the beginning of an epoch; a path has the epoch number of every repeat
above, outermost first.  ``ready(n)`` says how many rows can be taken now: at least one and at most
``n``, or 0 at the end.  ``take(n)`` takes rows that are ready.  ``state()`` is the position as
small nested lists, and ``restore(path, state)`` goes back to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import LoaderxError, StateError
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.rows import Rows
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.unit_plan import UnitPlan, rows_from
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import Keys

if TYPE_CHECKING:
    from loaderx.reading.empty_epochs import EmptyEpochs
    from loaderx.reading.monitor import Monitor

FEW_UNITS = 16  # to read before an endless dataset is judged: a large unit may span many epochs


class Reader:
    """The base."""

    def start(self, path: Path) -> None:
        raise NotImplementedError

    def ready(self, n: int) -> int:
        raise NotImplementedError

    def take(self, n: int) -> Rows:
        raise NotImplementedError

    def state(self) -> LanePosition:
        raise NotImplementedError

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        """Goes back to a position, in a chain that may have changed since."""
        raise NotImplementedError

    def epochs_read(self) -> int:
        """Epochs that an endless reader has read; 0 if it ends, or if that is not known."""
        return 0

    def needs(self, n: int) -> Iterator[Lookahead]:
        """The inputs of the next ``n`` rows that are made in units."""
        return iter(())

    @property
    def reads_records(self) -> bool:
        """Whether it reads records itself, which no unit counts."""
        return False

    def check_window(self, number: int, window: int, used: int) -> None:
        """Raises unless its position is the start of this window of the reader above."""


class UnitReader(Reader):
    """Rows of units.  State: the unit's number in its lane, and how many of its rows were used."""

    def __init__(
        self,
        plan: UnitPlan,
        lookahead: Lookahead,
        lane: Callable[[Path], range],
        lanes: int,
        monitor: Monitor,
        empty_epochs: EmptyEpochs,
    ) -> None:
        self.plan, self.lookahead, self.monitor = plan, lookahead, monitor
        self.lane = lane  # its units, by epoch
        self.lanes, self.empty_epochs = lanes, empty_epochs
        self.may_have_fewer = False  # rows of the unit than were used, as records were removed
        self.start((0,) * len(plan.repeats))

    def start(self, path: Path) -> None:
        self._go(path, 0, 0)

    def _go(self, path: Path, unit: int, used: int) -> None:
        self.path, self.unit, self.used = path, unit, used
        self.units = len(self.lane(path))
        self.lookahead.position = (path, unit)
        self.rows: Rows | None = None
        self.empty_units = 0

    def ready(self, n: int) -> int:
        while True:
            rows = self.rows
            if rows is not None:
                left = rows.count - self.used
                if left > 0:
                    return min(n, left)
                if left < 0 and not self.may_have_fewer:
                    raise StateError(
                        f"the state has used {self.used} rows of unit {self.unit} of its lane, "
                        f"which has {rows.count}: the state is damaged, or the data or the "
                        "functions have changed."
                    )
                self.unit, self.used, self.rows = self.unit + 1, 0, None
            if self.unit >= self.units:
                self._check_end()
                return 0
            output = self.lookahead.get(self.path, self.unit)
            self.rows = rows_from(output, self.plan.finish.padding)
            if not self.used:  # else it was reported before the state was saved
                self.monitor.note(output)
            self.monitor.weigh(self.plan, self.plan.rows, output)
            self.empty_units = 0 if self.rows.count else self.empty_units + 1
            if self.empty_units > FEW_UNITS and self.plan.length is None:
                # The first and the last of these epochs may have been read in part.
                self.empty_epochs.check(
                    self._epochs_in(self.empty_units) - 1, listed(self.plan.stages)
                )

    def _check_end(self) -> None:
        if self.plan.length is None:
            raise LoaderxError("this endless stream has used up the record numbers below 2**62.")

    def take(self, n: int) -> Rows:
        assert self.rows is not None
        start, self.used = self.used, self.used + n
        return self.rows.cut(start, self.used)

    def state(self) -> LanePosition:
        return [self.unit, self.used]

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        unit, used = entries(state, ("unit", "rows used"))
        units = len(self.lane(path))
        unit, used = whole(unit, "the unit of a lane", units), whole(used, "rows used")
        if unit == units and used:
            raise StateError(
                f"the state has used {used} rows of unit {unit} of its lane, and there are "
                f"{units} units, counted from 0."
            )
        if changed.weights is not None:
            changed.weights.check(
                path, changed.weights.position_of(self._records_read(path, unit, used))
            )
        self.may_have_fewer = changed.removed
        self._go(path, unit, 0 if changed.rows else used)

    def needs(self, n: int) -> Iterator[Lookahead]:
        yield self.lookahead

    def _records_read(self, path: Path, unit: int, used: int) -> int:
        """The records of the dataset up to the end of the last unit of which rows were used."""
        last = unit if used else unit - 1
        if last < 0:
            return 0
        epoch: Keys = np.array([self.plan.epoch_key(path)], np.uint64)
        return self.plan.records_of(epoch, self.lane(path)[last])[1]

    def epochs_read(self) -> int:
        return 0 if self.plan.length is not None else self._epochs_in(self.unit)

    def _epochs_in(self, units: int) -> int:
        """Epochs of an endless dataset after which its lanes have made this many units."""
        return units * self.lanes * self.plan.rows // max(1, self.plan.longest)


def listed(stages: Sequence[UnitStage]) -> str:
    return ", ".join(f".{stage.stage}" for stage in stages if stage.stage)
