"""Parts of a dataset: take, skip, slices, chosen indices, and the parts of a split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import Encoded, encode, stage_text
from loaderx.chain.families import Moved, MovedByIndex
from loaderx.chain.node import Node
from loaderx.chain.row_counts import ShortBatches
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError, PositionError
from loaderx.order.epochs import LIMIT, SkippedSteps, child
from loaderx.order.permutation import permute
from loaderx.reading.batch_readers import BatchReader, Counted
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.operators import Move
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Rows
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.trails import Find, Found, Sought, numbered
from loaderx.rng import PART, ROOT, Keys, fold, fold_int
from loaderx.sources.base import Indices

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaderx.chain.stream_build import Above, MakeReader, Reading, StreamBuild

# take, skip, slices -----------------------------------------------------------------------------


class Sliced(Moved):
    """Positions start, start + step, ...; ``count`` of them (None: endless)."""

    start: int
    step: int
    count: int | None

    window = None
    unit_cost = "records"
    is_ordered = True

    def __post_init__(self) -> None:
        last = self.start + ((self.count or 1) - 1) * self.step
        if self.input.length is None and last >= self.input.limit:
            raise ArgumentError(
                f"{self.stage} goes beyond the {self.input.limit} elements that can be numbered "
                "here: positions of records are below 2**62."
            )

    @property
    def length(self) -> int | None:
        return None if self.is_stream else self.count

    @cached_property
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        if self.count is not None:
            return self.count
        return -(-(self.input.limit - self.start) // self.step)

    @cached_property
    def ends(self) -> bool:
        return self.count is not None or (self.is_stream and self.input.ends)

    @cached_property
    def uniform(self) -> bool:
        return self.input.uniform or (self.input.only_last_is_short and not self._has_last)

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        known = self.input.short_batches
        if not known or self.step != 1:
            return () if self.uniform else None
        return known[0].among(self.start, self.count)

    @property
    def _has_last(self) -> bool:
        """Whether the slice takes the input's last element, the one that may be short."""
        if self.input.length is None or self.count is None or self.count == 0:
            return False
        ends = (self.start, self.start + (self.count - 1) * self.step)
        return self.input.length - 1 in ends

    @property
    def stage(self) -> str:
        if self.step == 1 and self.start == 0 and self.count is not None:
            return f"take({self.count})"
        if self.step == 1 and (self.count is None or self._has_last):
            return f"skip({self.start})"
        stop = "" if self.count is None else self.start + self.count * self.step
        return f"[{self.start}:{stop}:{self.step}]"

    def fingerprint(self, seed: int) -> str:
        return stage_text("slice", {}, self)

    @property
    def is_part(self) -> bool:
        if self.count is not None and self.count == self.input.length:
            return False
        # Users take the first batches to set the length of an epoch, not to choose data.
        return not (self.batched and self.is_take)

    @property
    def ends_of_part(self) -> list[int] | None:
        if self.step != 1:
            return None
        ends = [self.start]
        if self.count is not None and self.start + self.count != self.input.length:
            ends.append(self.start + self.count)
        return ends

    @property
    def is_take(self) -> bool:
        return (self.start, self.step) == (0, 1)

    @property
    def skipped_steps(self) -> SkippedSteps | None:
        return self.input.skipped_steps if self.is_take else None

    @property
    def largest_request(self) -> int:
        return self.start

    def one_epoch(self) -> Node:
        inner = self.input.one_epoch()
        return inner if self.is_take and inner is not self.input else self

    @property
    def block_starts(self) -> Indices | None:
        if self.step != 1 or self.count is None:
            return None
        return part_of_blocks(self.input.block_starts, self.start, self.count)

    def batch_rows_before(self, step: int) -> int:
        if self.step != 1:
            return super().batch_rows_before(step)
        before = self.input.batch_rows_before
        return before(self.start + step) - before(self.start)

    def epoch_of(self, step: int) -> int:
        return self.input.epoch_of(self.start + step * self.step)

    def check_lanes(self, lanes: int) -> None:
        if self.is_stream:
            skip = "" if self.is_take else ".skip(steps)"
            take = "" if skip and self.count is None else ".take(steps)"
            raise ChainError(
                f".{self.stage} of a stream counts its records, which needs one lane, not "
                f"{lanes}. Count steps instead, with {skip}{take} after .batch(...), "
                "or count records before the stage that makes the stream."
            )

    def move(self, seed: int) -> Move:
        return Slice(self.start, self.step)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        from loaderx.chain.stream_build import guards_of

        (inside,) = above.input.inputs
        pushed, rest = above.split()
        if guards := guards_of(above.stages):
            pushed, rest = (), above.stages  # failures above do not change the count
        finish = build.loose if rest else above.finish
        below = build.reader(
            self.input,
            above._replace(input=inside, stages=(*pushed, *guards), finish=finish),
        )
        begin, count = self.start, self.count

        def sliced(reading: Reading, lane: int) -> Reader:
            return SliceReader(below(reading, lane), begin, count)

        return build.windowed(sliced, above, rest) if rest else sliced

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return SliceAfterBatch(below, self.start, self.count)


class Slice(Move):
    """Every ``step``-th element from ``start`` on."""

    def __init__(self, start: int, step: int) -> None:
        self.start, self.step = start, step

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return epochs, positions * self.step + self.start

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        steps, rest = np.divmod(positions - self.start, self.step)
        return np.where(rest == 0, steps, -1)

    def limits_below(self, limits: Positions) -> Positions:
        last: Positions = self.start + np.maximum((limits - 1) * self.step, 0)
        return last + 1


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

    def take(self, n: int) -> Rows:
        self.passed += n
        return self.below.take(n)

    def state(self) -> LanePosition:
        return [self.passed, self.below.state()]

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        passed, below = entries(state, ("rows passed", "position below"))
        most = LIMIT if self.count is None else self.begin + self.count
        self.passed = whole(passed, "the rows that a take or skip has counted", most)
        self.below.restore(path, below, changed=changed)

    def needs(self, n: int) -> Iterator[Lookahead]:
        return self.below.needs(n)

    def epochs_read(self) -> int:
        return 0 if self.count is not None else self.below.epochs_read()


class SliceAfterBatch(Counted):
    """take and skip after batch."""

    def __init__(self, below: BatchReader, begin: int, most: int | None) -> None:
        super().__init__(below)
        self.begin, self.most = begin, most
        self.most_counted = LIMIT if most is None else begin + most

    def next(self) -> Rows | None:
        while self.count < self.begin:
            if self.below.next() is None:
                return None
            self.count += 1
        if self.most is not None and self.count >= self.begin + self.most:
            return None
        made = self.below.next()
        self.count += made is not None
        return made


def part_of_blocks(starts: Indices | None, start: int, count: int) -> Indices | None:
    """Where the blocks of a run of records begin, counted from its first."""
    if starts is None:
        return None
    return np.unique(np.clip(starts - start, 0, count))


def slice_text(index: slice) -> str:
    """A slice as a user would write it."""
    ends = ["" if end is None else str(end) for end in (index.start, index.stop, index.step)]
    return f"[{':'.join(ends if ends[2] else ends[:2])}]"


# Chosen indices ---------------------------------------------------------------------------------


class Picked(MovedByIndex):
    """The elements at given positions."""

    table: npt.NDArray[np.int64]
    call: str = ""  # that chose them, if there was one

    @property
    def length(self) -> int:
        return len(self.table)

    @cached_property
    def seen(self) -> npt.NDArray[np.int64] | None:
        """How often each entry came before in the table; None if no entry repeats."""
        if _are_different(self.table):
            return None
        order, ordered = sorted_table(self.table)
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        if len(starts) == len(ordered):
            return None
        run = np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
        seen = np.empty_like(self.table)
        seen[order] = np.arange(len(ordered)) - run
        return seen

    @property
    def repeats_here(self) -> int:
        return int(self.seen is not None)

    @cached_property
    def uniform(self) -> bool:
        last = -1 if self.input.length is None else self.input.length - 1
        return self.input.uniform or (self.input.only_last_is_short and last not in self.table)

    @property
    def stage(self) -> str:
        return self.call or f"[{len(self.table)} chosen]"

    def fingerprint(self, seed: int) -> str:
        return stage_text("pick", {"indices": self._indices}, self, without=("table", "call"))

    @cached_property
    def _indices(self) -> Encoded:
        """The text of the table, cached: it may be long, and every epoch needs it."""
        return Encoded(encode(self.table))

    @property
    def is_part(self) -> bool:
        return self.length != self.input.length or self.seen is not None

    def move(self, seed: int) -> Move:
        return Pick(self.table, self.seen, self.repeats)


def _are_different(table: Positions) -> bool:
    """Whether it is certain, without sorting, that no entry comes twice."""
    if not len(table) or table.max() >= 16 * len(table):  # marks would take more than the table
        return False
    is_there = np.zeros(int(table.max()) + 1, np.bool_)
    is_there[table] = True
    return int(np.count_nonzero(is_there)) == len(table)


def sorted_table(table: Positions) -> tuple[Positions, Positions]:
    """The places of entries, ordered by entry and then by place, and the entries in that order."""
    bits = len(table).bit_length()
    if not len(table) or int(table.max()).bit_length() + bits > 63:
        order = np.argsort(table, kind="stable")
        return order, table[order]
    # Entry and place in one number: `sort` is ten times as fast as `argsort`.
    both = np.sort((table << bits) | np.arange(len(table)))
    return both & ((1 << bits) - 1), both >> bits


class Pick(Move):
    """The elements of a table."""

    def __init__(self, table: Positions, seen: Positions | None, ordinal: int) -> None:
        self.table, self.seen, self.ordinal = table, seen, ordinal

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        if self.seen is not None:  # a record that comes again gets another key
            epochs = child(epochs, self.seen[positions], self.ordinal)
        return epochs, self.table[positions]

    @cached_property
    def _sorted(self) -> tuple[Positions, Positions]:
        return sorted_table(self.table)

    def find(self, sought: Sought, below: Find) -> Found:
        times = 1 if self.seen is None else int(self.seen.max()) + 1
        number, which = numbered(np.full(len(sought.records), times))
        places, entries = self._sorted
        epochs = child(sought.epochs[which], number, self.ordinal)
        found = below(sought.pick(which, epochs, np.full(len(which), LIMIT)))
        number, which = number[found.which], which[found.which]
        at = np.searchsorted(entries, found.positions) + number
        is_there = at < np.searchsorted(entries, found.positions, side="right")
        positions = np.where(is_there, places[np.minimum(at, len(places) - 1)], -1)
        return found._replace(which=which).at(positions, sought.limits)


def index_table(index: npt.NDArray[np.generic], length: int | None) -> npt.NDArray[np.int64]:
    """Indices or a mask, as positions from 0 on."""
    if index.dtype == object:  # of pandas, where values may be missing
        index = np.array(index.tolist())
    if index.ndim != 1:
        raise ArgumentError(f"indices must be one-dimensional, got shape {index.shape}.")
    if length is None:
        raise ChainError("indices of an endless dataset: write .take(n) first.")
    if index.dtype == bool:
        if len(index) != length:
            raise PositionError(f"the mask has {len(index)} entries for {length} elements.")
        table = np.flatnonzero(index)
    elif index.dtype.kind in "iu":
        table = index.astype(np.int64)
        outside = (table < -length) | (table >= length)
        if outside.any():
            bad = int(table[outside][0])
            raise PositionError(f"index {bad} is out of range for {length} elements.")
        table[table < 0] += length
    else:
        raise ArgumentTypeError(f"indices must be integers or bools, got {index.dtype}.")
    if not table.size:
        raise ArgumentError("the indices select no elements.")
    table.flags.writeable = False
    return table


# Parts of a split -------------------------------------------------------------------------------


class Part(MovedByIndex):
    """One part of a split: a run of one order that is the same in every epoch."""

    call: str  # as the user wrote it
    start: int
    count: int
    seed: int | None  # None: not shuffled

    @property
    def length(self) -> int:
        return self.count

    @property
    def stage(self) -> str:
        return self.call

    def fingerprint(self, seed: int) -> str:
        return stage_text("split", {}, self, without=("call",))

    @property
    def block_starts(self) -> Indices | None:
        if self.seed is not None:
            return None
        return part_of_blocks(self.input.block_starts, self.start, self.count)

    def move(self, seed: int) -> Move:
        assert self.input.length is not None
        return PartOfOrder(self.input.length, self.seed, self.start)


class PartOfOrder(Move):
    """A part of one fixed order, the same in every epoch, for `split`."""

    def __init__(self, length: int, seed: int | None, start: int) -> None:
        self.length, self.start = length, start
        self.keys = None
        if seed is not None:
            self.keys = fold(ROOT, np.array([fold_int(seed, 0, PART)], np.uint64), PART)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        positions = positions + self.start
        if self.keys is not None:
            positions = permute(positions, self.length, self.keys)
        return epochs, positions

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        if self.keys is not None:
            positions = permute(positions, self.length, self.keys, undo=True)
        return positions - self.start
