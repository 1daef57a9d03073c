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

from loaderx.errors import LoaderxError, RecordError, StateError
from loaderx.order.epochs import child as epoch_child
from loaderx.order.tickets import Schedule
from loaderx.plan.chunks import Chunk, UnitStage, run_stages
from loaderx.plan.feeds import Feed
from loaderx.plan.job import Job
from loaderx.plan.pieces import Piece, interleaved, joined_keys
from loaderx.plan.records import say, within
from loaderx.plan.units import READ, Finish, UnitPlan, rounds_of
from loaderx.rng import ROOT, ROW, Keys, fold
from loaderx.sources.iterables import IterableSource, OpenIterable

Path = tuple[int, ...]
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


def _numbers(state: Any, count: int) -> list[Any]:
    if not isinstance(state, (list, tuple)) or len(state) != count:
        raise StateError(f"the state does not fit this chain: {str(state)[:60]!r}.")
    return list(state)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateError(f"the state has {value!r} where a whole number is expected.")
    return value


class UnitReader(Reader):
    """Rows of units.  State: the lane's unit, and the rows of it that were used."""

    def __init__(
        self, plan: UnitPlan, feed: Feed, lane: int, lanes: int, inside: int, note: Note
    ) -> None:
        self.plan, self.feed, self.note = plan, feed, note
        self.inside = inside  # this lane, among those of the host
        units = plan.units
        self.rounds = rounds_of(units, lanes)
        self.units = self.rounds if units is None else len(range(lane, units, lanes))
        self.lanes, self.patience = lanes, _patience(plan)
        self.start((0,) * len(plan.passes))

    def start(self, path: Path) -> None:
        self._go(path, 0, 0)

    def _go(self, path: Path, unit: int, used: int) -> None:
        self.base = self.plan.pass_number(path) * self.rounds
        self.unit, self.used = unit, used
        self.piece: Piece | None = None
        self.barren = 0
        self.feed.expect(self.inside, self.base + unit)

    def ready(self, n: int) -> int:
        while True:
            piece = self.piece
            if piece is not None:
                left = piece.count - self.used
                if left > 0:
                    return min(n, left)
                if left < 0:
                    raise StateError(
                        f"the state has used {self.used} rows of a unit that has "
                        f"{piece.count}: the data or the functions have changed."
                    )
                self.unit, self.used, self.piece = self.unit + 1, 0, None
            if self.unit >= self.units:
                return 0
            output = self.feed.get(self.inside, self.base + self.unit)
            self.piece = Piece.of(output, self.plan.finish.padding)
            if not self.used:  # else it was noted before the state was taken
                self.note(output)
            self.barren = 0 if self.piece.count else self.barren + 1
            if self.patience is not None and self.barren > self.patience:
                raise LoaderxError(
                    f"no record came through in {self.barren * self.plan.rows:,} records of an "
                    "endless dataset: a filter lets nothing through. Look at what it returns."
                )

    def take(self, n: int) -> Piece:
        assert self.piece is not None
        start, self.used = self.used, self.used + n
        return self.piece.cut(start, self.used)

    def state(self) -> Any:
        return [self.unit, self.used]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        unit, used = map(_whole, _numbers(state, 2))
        self._go(path, unit, used)

    def passes(self) -> int:
        if self.plan.length is not None:
            return 0
        return self.unit * self.lanes * self.plan.rows // max(1, self.plan.longest)


def _patience(plan: UnitPlan) -> int | None:
    """Units without a row after which an endless dataset is given up; None if it ends by itself."""
    if plan.length is not None:
        return None
    return 16 + 2 * -(-plan.longest // plan.rows)


class RepeatReader(Reader):
    """Passes over a reader.  State: the pass, and the position in it."""

    def __init__(self, below: Reader, count: int | None, stage: str, lanes: int) -> None:
        self.below, self.count, self.stage = below, count, stage
        # A lane has a share of the records, and in another order another share.
        self.patience = 1 if lanes == 1 else 4 * lanes
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
        if self.barren >= self.patience and self.count is None:
            raise LoaderxError(
                f"{self.stage}: not one record came through in a whole pass, so the next would be "
                "as empty. Does a filter let nothing through, or is there no data?"
            )
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
        number, below = _numbers(state, 2)
        if self.count is not None and _whole(number) >= self.count:
            raise StateError(
                f"the state is in pass {number} (counted from 0), and {self.stage} has "
                f"{self.count}. Was it saved with more of them?"
            )
        self.path, self.number, self.barren = path, _whole(number), 0
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
        passed, below = _numbers(state, 2)
        self.passed = _whole(passed)
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
        return period[np.arange(self.given, self.given + n) % len(period)]

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
        return parts[0][2] if len(parts) == 1 else interleaved(parts, n)

    def state(self) -> Any:
        return [self.given, *[part.state() for part in self.parts]]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        given, *parts = _numbers(state, len(self.parts) + 1)
        self.given = 0 if fresh else _whole(given)
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


class ChunkReader(Reader):
    """Stages over the ordered rows of another reader, window by window, in the caller's thread.

    State: the position below at the start of the window, the window's number, the rows of it that
    were used.
    """

    def __init__(
        self,
        below: Reader,
        stages: Sequence[UnitStage],
        finish: Finish,
        window: int | None,
        ordinals: Sequence[int],
        lanes: int,
        make_job: Callable[[], Job],
        note: Note,
    ) -> None:
        self.below, self.stages, self.finish = below, list(stages), finish
        self.window, self.ordinals = window, ordinals
        self.patience = 4 * lanes  # passes over an endless input without a row
        self.make_job, self.note = make_job, note
        self._begin((0,) * len(ordinals))

    def _begin(self, path: Path) -> None:
        self.path = path
        self.number, self.used = -1, 0
        self.left = 0  # rows to be passed over before the next one: a state was restored
        self.piece: Piece | None = None
        self.below_state: Any = None
        self.fruitful: int | None = None  # the pass below that gave the last row

    def start(self, path: Path) -> None:
        self._begin(path)
        self.below.start(path)
        self.below_state = self.below.state()

    def _epoch(self) -> Keys:
        key = ROOT
        for ordinal, number in zip(self.ordinals, self.path, strict=True):
            key = epoch_child(key, np.array([number]), ordinal)
        return key

    def ready(self, n: int) -> int:
        while self.left:  # without a window, runs may be cut in other places than before
            found = self._ready(self.left)
            if not found:
                raise StateError("the state is beyond the end of the stream: the data are shorter.")
            self.take(found)
            self.left -= found
        return self._ready(n)

    def _ready(self, n: int) -> int:
        while True:
            if self.piece is not None:
                left = self.piece.count - self.used
                if left > 0:
                    return min(n, left)
                self.piece, self.used = None, 0
            if not self._fill(n):
                return 0

    def _fill(self, n: int) -> bool:
        self.below_state = self.below.state()
        want = self.window or max(n, 1)
        pieces: list[Piece] = []
        while want and (found := self.below.ready(want)):
            pieces.append(self.below.take(found))
            want -= found
        if not pieces:
            return False
        self.number += 1
        job = self.make_job()
        output = self.finish.output(run_stages(self.stages, self._chunk(pieces), job), job)
        self.piece = Piece.of(output, self.finish.padding)
        if not self.left:  # else it was noted before the state was taken
            self.note(output)
        self._judge()
        return True

    def _judge(self) -> None:
        """Gives an endless input up of which nothing comes through."""
        now = self.below.passes()
        if self.fruitful is None or (self.piece is not None and self.piece.count):
            self.fruitful = now
        elif now - self.fruitful > self.patience:
            listed = ", ".join(f".{stage.stage}" for stage in self.stages)
            raise LoaderxError(
                f"no record came through {listed} in {self.patience} passes over an endless "
                "dataset: a filter lets nothing through. Look at what it returns."
            )

    def passes(self) -> int:
        return self.below.passes()

    def _chunk(self, pieces: list[Piece]) -> Chunk:
        named = any(piece.names for piece in pieces)
        names = [piece.name(i) for piece in pieces for i in range(piece.count) if named]
        count = sum(piece.count for piece in pieces)
        first = pieces[0].first
        run = pieces[0].as_run()
        if len(pieces) > 1:
            run = [record for piece in pieces for record in piece.as_records()]

        def identify(number: int) -> tuple[int | None, str]:
            name = names[number] if names else f"row {number} of window {self.number}"
            return first + number, name

        return Chunk(
            run,
            joined_keys(pieces),
            np.arange(count),
            np.arange(count),
            epoch=self._epoch(),
            first=self.number * (self.window or 0),
            identify=identify,
            meters={READ: (count, 0)} if isinstance(self.below, IterableReader) else {},
        )

    def take(self, n: int) -> Piece:
        assert self.piece is not None
        start, self.used = self.used, self.used + n
        return self.piece.cut(start, self.used)

    def state(self) -> Any:
        if self.piece is None or self.used >= self.piece.count:
            return [self.number + 1, self.left, self.below.state()]
        return [self.number, self.used, self.below_state]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        number, used, below = _numbers(state, 3)
        self._begin(path)
        self.below.restore(path, below, fresh=fresh)
        self.number = _whole(number) - 1
        self.left = _whole(used)


class IterableReader(Reader):
    """Records of an iterable.  State: records read, and the source's own state."""

    def __init__(
        self,
        source: IterableSource,
        stage: str,
        lane: int,
        lanes: int,
        ordinals: Sequence[int],
        keyed: bool,
    ) -> None:
        self.source, self.stage = source, stage
        self.lane, self.lanes = lane, lanes
        self.ordinals, self.keyed = ordinals, keyed
        self.path: Path = (0,) * len(ordinals)
        self.opened: OpenIterable | None = None
        self.position: Any = None
        self.records: list[Any] = []

    def start(self, path: Path) -> None:
        self._go(path, None)

    def _go(self, path: Path, position: Any) -> None:
        self.path, self.position = path, position
        self.opened, self.records = None, []

    def ready(self, n: int) -> int:
        if not self.records:
            try:
                if self.opened is None:
                    self.opened = self.source.open(self.lane, self.lanes, self.position)
                self.records = self.opened.read(n)
            except LoaderxError:
                raise
            except Exception as error:
                raise self._failure(error) from error
        return min(n, len(self.records))

    def _failure(self, error: Exception) -> RecordError:
        number = None if self.opened is None else self.opened.count
        where = "when it was opened" if number is None else f"on record {number}"
        text = f"{self.stage} failed {where}: {say(error)}"
        return RecordError(text, index=number, stage=self.stage)

    def take(self, n: int) -> Piece:
        assert self.opened is not None
        records, self.records = self.records[:n], self.records[n:]
        first = self.opened.count - len(self.records) - n
        numbers = np.arange(first, first + n)
        key = ROOT
        for ordinal, number in zip(self.ordinals, self.path, strict=True):
            key = epoch_child(key, np.array([number]), ordinal)
        keys = fold(key, numbers, ROW) if self.keyed else None
        names = [f"record {number}" for number in numbers.tolist()]
        return Piece(n, keys, None, None, records, names, first=first)

    def state(self) -> Any:
        """Where the next record is; asked for only when all that was read has been taken."""
        assert not self.records
        return self.position if self.opened is None else self.opened.position()

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        if state is not None:
            _whole(_numbers(state, 3)[0])
        self._go(path, state)
