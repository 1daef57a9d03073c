"""Readers: the rows of one lane of a stream, in order, with a position that can be saved.

Every reader has four methods.  ``start(path)`` goes to the beginning of a pass; a path has the pass
number of every repeat above, outermost first.  ``ready(n)`` says how many rows can be taken now: at
least one and at most ``n``, or 0 at the end.  ``take(n)`` takes rows that are ready.  ``state()``
is the position as small nested lists, and ``restore(path, state)`` goes back to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loaderx.chain.base import LIMIT
from loaderx.errors import LoaderxError, RecordError, StateError
from loaderx.order.mixing import Schedule
from loaderx.reading.chunks import UnitStage
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.pieces import Piece, interleaved
from loaderx.reading.records import within
from loaderx.reading.state_numbers import entries, whole
from loaderx.reading.units import UnitPlan

FEW_UNITS = 16  # before an endless dataset is judged: units may be large, and the data few

MANY_PASSES = 1 << 36  # more than any stream makes

Note = Callable[[Any], None]
"""Is told the meters of every unit that is used."""


class Reader:
    """The base."""

    def start(self, path: Path) -> None:
        raise NotImplementedError

    def ready(self, n: int) -> int:
        raise NotImplementedError

    def take(self, n: int) -> Piece:
        raise NotImplementedError

    def state(self) -> Any:
        raise NotImplementedError

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        """Goes back; with ``fresh`` mixes begin their schedule anew (their weights changed)."""
        raise NotImplementedError

    def passes(self) -> int:
        """How often an endless reader has gone through its data; 0 where it ends or none knows."""
        return 0


class UnitReader(Reader):
    """Rows of units.  State: the lane's unit, and the rows of it that were used."""

    def __init__(
        self,
        plan: UnitPlan,
        lookahead: Lookahead,
        lane: range,
        lanes: int,
        note: Note,
        empty_epochs: EmptyEpochs,
    ) -> None:
        self.plan, self.lookahead, self.note = plan, lookahead, note
        self.units = len(lane)
        self.lanes, self.empty_epochs = lanes, empty_epochs
        self.start((0,) * len(plan.passes))

    def start(self, path: Path) -> None:
        self._go(path, 0, 0)

    def _go(self, path: Path, unit: int, used: int) -> None:
        self.path, self.unit, self.used = path, unit, used
        self.piece: Piece | None = None
        self.barren = 0

    def ready(self, n: int) -> int:
        while True:
            piece = self.piece
            if piece is not None:
                left = piece.count - self.used
                if left > 0:
                    return min(n, left)
                if left < 0:
                    raise StateError(
                        f"the state has used {self.used} rows of unit {self.unit} of its lane, "
                        f"which has {piece.count}: the state is damaged, or the data or the "
                        "functions have changed."
                    )
                self.unit, self.used, self.piece = self.unit + 1, 0, None
            if self.unit >= self.units:
                self._check_end()
                return 0
            output = self.lookahead.get(self.path, self.unit)
            self.piece = Piece.of(output, self.plan.finish.padding)
            if not self.used:  # else it was noted before the state was taken
                self.note(output)
            self.barren = 0 if self.piece.count else self.barren + 1
            if self.barren > FEW_UNITS and self.plan.length is None:
                # The first and the last of these passes may have been read in part.
                self.empty_epochs.check(self._passes_in(self.barren) - 1, listed(self.plan.stages))

    def _check_end(self) -> None:
        if self.plan.length is None:
            raise LoaderxError("this endless stream has come further than records can be numbered.")

    def take(self, n: int) -> Piece:
        assert self.piece is not None
        start, self.used = self.used, self.used + n
        return self.piece.cut(start, self.used)

    def state(self) -> Any:
        return [self.unit, self.used]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        unit, used = entries(state, ("unit", "rows used"))
        unit, used = whole(unit, "the unit of a lane", self.units), whole(used, "rows used")
        if unit == self.units and used:
            raise StateError(
                f"the state has used {used} rows of unit {unit} of its lane, and there are "
                f"{self.units} units, counted from 0."
            )
        self._go(path, unit, used)

    def passes(self) -> int:
        return 0 if self.plan.length is not None else self._passes_in(self.unit)

    def _passes_in(self, units: int) -> int:
        """The passes over the data of an endless dataset in which all lanes make so many units."""
        return units * self.lanes * self.plan.rows // max(1, self.plan.longest)


def listed(stages: Sequence[UnitStage]) -> str:
    return ", ".join(f".{stage.stage}" for stage in stages if stage.stage)


class RepeatReader(Reader):
    """Passes over a reader.  State: the pass, and the position in it."""

    def __init__(
        self, below: Reader, count: int | None, stage: str, empty_epochs: EmptyEpochs
    ) -> None:
        self.below, self.count, self.stage = below, count, stage
        self.empty_epochs = empty_epochs
        self.number = self.barren = 0
        self.given = False  # did this pass give a row?

    def start(self, path: Path) -> None:
        self.path, self.number, self.given, self.barren = path, 0, False, 0
        self.below.start((*path, 0))

    def ready_here(self, n: int) -> int:
        """Rows of this pass."""
        found = self.below.ready(n)
        self.given = self.given or found > 0
        return found

    def advance(self) -> None:
        """Goes to the next pass."""
        self.barren = 0 if self.given else self.barren + 1
        if self.barren and self.count is None:
            self.empty_epochs.check(self.barren, self.stage)
        self.number, self.given = self.number + 1, False
        self.below.start((*self.path, self.number))

    def ready(self, n: int) -> int:
        while True:
            found = self.ready_here(n)
            if found or (self.count is not None and self.number + 1 >= self.count):
                return found
            self.advance()

    def take(self, n: int) -> Piece:
        return self.below.take(n)

    def state(self) -> Any:
        return [self.number, self.below.state()]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        number, below = entries(state, ("pass", "position in it"))
        if self.count is not None and whole(number, "the pass", MANY_PASSES) >= self.count:
            raise StateError(
                f"the state is in pass {number} (counted from 0), and {self.stage} has "
                f"{self.count}. Was it saved with more of them?"
            )
        self.path, self.number, self.barren = path, whole(number, "the pass", MANY_PASSES), 0
        self.given = True  # nobody knows: the next pass will tell
        self.below.restore((*path, self.number), below, fresh=fresh)

    def passes(self) -> int:
        return max(self.number if self.count is None else 0, self.below.passes())


class SliceReader(Reader):
    """Rows from ``begin`` on, ``count`` of them.  State: rows passed, and the position below."""

    def __init__(self, below: Reader, begin: int, count: int | None) -> None:
        self.below, self.begin, self.count = below, begin, count
        self.passed = 0

    def start(self, path: Path) -> None:
        self.passed = 0
        self.below.start(path)

    def ready(self, n: int) -> int:
        while self.passed < self.begin:
            found = self.below.ready(self.begin - self.passed)
            if not found:
                return 0
            self.below.take(found)
            self.passed += found
        if self.count is not None:
            n = min(n, self.begin + self.count - self.passed)
        return self.below.ready(n) if n else 0

    def take(self, n: int) -> Piece:
        self.passed += n
        return self.below.take(n)

    def state(self) -> Any:
        return [self.passed, self.below.state()]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        passed, below = entries(state, ("rows passed", "position below"))
        most = LIMIT if self.count is None else self.begin + self.count
        self.passed = whole(passed, "the rows that a take or skip has counted", most)
        self.below.restore(path, below, fresh=fresh)

    def passes(self) -> int:
        return 0 if self.count is not None else self.below.passes()


class MixReader(Reader):
    """Rows of several readers by tickets.  State: rows given, and each component's position."""

    def __init__(self, parts: Sequence[Reader], schedule: Schedule) -> None:
        self.parts, self.schedule = parts, schedule
        self.given = 0

    def start(self, path: Path) -> None:
        self.given = 0
        for part in self.parts:
            part.start(path)

    def _upcoming(self, n: int) -> Any:
        """The components of the next rows."""
        period = self.schedule.component
        first = self.given % len(period)
        return period[np.arange(first, first + n) % len(period)]

    def ready(self, n: int) -> int:
        n = min(n, 4096)
        while True:
            which = self._upcoming(n)
            ready, short = n, -1
            for number, part in enumerate(self.parts):
                places = np.flatnonzero(which[:ready] == number)
                if not places.size:
                    continue
                try:
                    found = self._ready_of(part, len(places))
                except RecordError as error:
                    raise within(number, error) from error.__cause__
                if found < len(places):
                    ready, short = int(places[found]), number
            if ready or not self._goes_on(short):
                return ready

    def _ready_of(self, part: Reader, n: int) -> int:
        return part.ready(n)

    def _goes_on(self, ended: int) -> bool:
        """Does the mix continue although a component has ended?"""
        return False

    def take(self, n: int) -> Piece:
        which = self._upcoming(n)
        parts = []
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(which == number)
            if places.size:
                parts.append((number, places, part.take(len(places))))
        self.given += n
        only = parts[0][2]
        if len(parts) == 1 and only.names is None:  # a name says which dataset it is of
            return only
        return interleaved(parts, n)

    def state(self) -> Any:
        return [self.given, *[part.state() for part in self.parts]]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        names = (f"dataset {number}" for number in range(len(self.parts)))
        given, *parts = entries(state, ("rows given", *names))
        given = whole(given, "the rows that a mix has given")
        self.given = 0 if fresh else given
        for part, inner in zip(self.parts, parts, strict=True):
            part.restore(path, inner, fresh=fresh)

    def passes(self) -> int:
        return min(part.passes() for part in self.parts)


class AgainMixReader(MixReader):
    """A mix whose components start again, until the last of them has ended."""

    parts: Sequence[RepeatReader]

    def _ready_of(self, part: Reader, n: int) -> int:
        assert isinstance(part, RepeatReader)
        return part.ready_here(n)

    def _goes_on(self, ended: int) -> bool:
        part = self.parts[ended]
        others = [other for number, other in enumerate(self.parts) if number != ended]
        if part.number == 0 and all(other.number > 0 for other in others):
            return False
        part.advance()
        return True

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        super().restore(path, state, fresh=fresh)
        if all(part.number > 0 for part in self.parts):
            raise StateError(
                "the state has every dataset of a mix in a later pass, and the mix ends when the "
                "last of them has ended its first."
            )
