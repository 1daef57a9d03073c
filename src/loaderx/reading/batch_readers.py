"""Batches of a stream: rows of all lanes, cut and stacked, and the stages above.

Readers of batches have a position, too: a list of counters, one for each take, skip, repeat and
index above the batch (the same on every host), and the positions of the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import ParamSpec, Protocol, TypeVar

from loaderx.errors import LoaderxError, StateError
from loaderx.order.epochs import LIMIT
from loaderx.reading.lookahead import Path
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Rows, joined_keys
from loaderx.reading.saved_position import Changed, LanePosition
from loaderx.reading.saved_position import whole as whole_number
from loaderx.reading.single_records import copy_of

Positions = Sequence[LanePosition]
"""The position of each lane."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


class BatchReader:
    """The base.  A reader runs its own work through `timed`, for the statistics."""

    stage = ""
    took_s = 0.0  # since the last `add_times`

    def timed(
        self, function: Callable[Given, Made], *arguments: Given.args, **options: Given.kwargs
    ) -> Made:
        begun = perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            self.took_s += perf_counter() - begun

    def add_times(self, times: dict[str, float]) -> None:
        """Adds the time of each stage from here down to the lanes, and resets it."""
        if self.took_s:
            times[self.stage] = times.get(self.stage, 0.0) + self.took_s
            self.took_s = 0.0

    def start(self, path: Path) -> None:
        raise NotImplementedError

    def next(self) -> Rows | None:
        """The next batch: its columns are the batch, its count the real rows; None at the end."""
        raise NotImplementedError

    def counters(self) -> list[int]:
        raise NotImplementedError

    def restore(
        self, path: Path, counters: Iterator[int], lanes: Positions, *, changed: Changed
    ) -> None:
        raise NotImplementedError


class LaneEnds(Protocol):
    """The rows of lanes in one epoch, counted beforehand."""

    @property
    def steps(self) -> int:
        """The number of batches, the same on every host."""

    @property
    def some_lane(self) -> int:
        """A lane that has rows, of any host."""

    def rows(self, lane: int) -> int:
        """The rows of a lane."""

    def differs(self, lane: int, found: int) -> LoaderxError:
        """The error for a lane that has another number of rows."""


class Lanes(BatchReader):
    """The base of readers that read from lanes.

    Where the rows of an epoch were counted, each lane must end where it did then.
    """

    first_lane = 0  # the number of the first of them
    ends_of: Callable[[Path], LaneEnds | None] | None = None  # where they end, by epoch
    step = 0  # batches of this epoch so far; set before `restore`
    first_row: Callable[[Path, int], Rows] | None = None  # of an epoch of any lane

    def __init__(self, lanes: Sequence[Reader], rows: int = 1) -> None:
        self.lanes = lanes
        self.rows = rows  # of each lane in a batch

    def start(self, path: Path) -> None:
        for lane in self.lanes:
            lane.start(path)
        self.step = 0
        self._begin(path)

    def _begin(self, path: Path) -> None:
        self.path = path
        self.ends = None if self.ends_of is None else self.ends_of(path)

    def rows_of_lanes(self) -> list[list[Rows]] | None:
        """The rows of each lane for the next batch; None where the count says that it is over."""
        ends, rows = self.ends, self.rows
        if ends is None:
            return [rows_of_lane(lane, rows) for lane in self.lanes]
        found, before = [], self.step * rows
        for number, lane in enumerate(self.lanes, self.first_lane):
            left = ends.rows(number) - before
            if self.step < ends.steps:
                found.append(rows_of_lane(lane, rows))
                count = sum(part.count for part in found[-1])
                is_right = count == max(0, min(left, rows))
            else:
                count = 0 if left > 0 else lane.ready(1)  # the remainder may be dropped
                is_right = not count
            if not is_right:
                raise ends.differs(number, before + count)
        self.step += 1
        return found or None

    def counters(self) -> list[int]:
        return []

    def positions(self) -> list[LanePosition]:
        return [lane.state() for lane in self.lanes]

    def restore(
        self, path: Path, counters: Iterator[int], lanes: Positions, *, changed: Changed
    ) -> None:
        if changed.removed and self.ends_of is not None:
            raise StateError(
                "records were removed since the state was saved, and the rows of this stream were "
                "counted without them: the rows used before no longer fit. Go on with the next "
                "epoch, loader.epoch(e)."
            )
        for number, (lane, position) in enumerate(zip(self.lanes, lanes, strict=True)):
            try:
                lane.restore(path, position, changed=changed)
            except StateError as error:
                raise StateError(f"lane {self.first_lane + number}: {error}") from None
        self._begin(path)


def rows_of_lane(lane: Reader, count: int) -> list[Rows]:
    """The next ``count`` rows of a lane, in the parts that they come in; fewer at the end."""
    parts = []
    while count and (found := lane.ready(count)):
        parts.append(lane.take(found))
        count -= found
    return parts


class CutRecords(Lanes):
    """A stream without batches: one record after the other."""

    def next(self) -> Rows | None:
        found = self.rows_of_lanes()
        if not found or not found[0]:
            return None
        (parts,) = found
        record = copy_of(parts[0].records()[0])  # one record must not keep a whole unit alive
        return Rows.of_columns(record, 1, joined_keys(parts))


class AfterBatch(BatchReader):
    """A stage that changes the batches of another reader."""

    def __init__(self, below: BatchReader) -> None:
        self.below = below

    def add_times(self, times: dict[str, float]) -> None:
        super().add_times(times)
        self.below.add_times(times)

    def start(self, path: Path) -> None:
        self.below.start(path)

    def counters(self) -> list[int]:
        return self.below.counters()

    def restore(
        self, path: Path, counters: Iterator[int], lanes: Positions, *, changed: Changed
    ) -> None:
        self.below.restore(path, counters, lanes, changed=changed)


class Counted(AfterBatch):
    """The base of stages that count the batches since their start."""

    count = 0
    most_counted = LIMIT

    def start(self, path: Path) -> None:
        self.count = 0
        self.below.start(path)

    def counters(self) -> list[int]:
        return [self.count, *self.below.counters()]

    def restore(
        self, path: Path, counters: Iterator[int], lanes: Positions, *, changed: Changed
    ) -> None:
        self.count = counter_of(counters, self.most_counted)
        self.below.restore(path, counters, lanes, changed=changed)


def counter_of(counters: Iterator[int], most: int) -> int:
    """The next counter of a state."""
    value = next(counters, None)
    if value is None:
        raise StateError(
            "the state does not fit this chain: it has too few counters of takes, skips, repeats "
            "and indices after batch."
        )
    return whole_number(value, "a counter of a take, skip, repeat or index after batch", most)
