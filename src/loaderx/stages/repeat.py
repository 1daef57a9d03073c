"""repeat: further epochs of the same dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.families import Moved
from loaderx.chain.node import Node
from loaderx.chain.numbers import checked_length
from loaderx.chain.row_counts import ShortBatches
from loaderx.errors import ChainError, StateError
from loaderx.order.epochs import LIMIT, child, wrap
from loaderx.reading.batch_readers import BatchReader, Counted, counter_of
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.operators import Move
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Rows
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.trails import Find, Found, Sought, numbered
from loaderx.rng import Keys

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, Reading, StreamBuild
    from loaderx.reading.empty_epochs import EmptyEpochs

MANY_EPOCHS = 1 << 36  # stands for endless: more than any stream has


class Repeated(Moved):
    """``epochs`` epochs of the input; None: endless."""

    epochs: int | None

    window = None
    unit_cost = "nothing"
    is_ordered = False
    is_repeat = True
    repeats_here = 1

    def __post_init__(self) -> None:
        if not self.input.ends:
            raise ChainError("repeat needs a dataset that ends; this one is endless already.")
        checked_length((self.input.length or 1) * (self.epochs or 1))

    @property
    def length(self) -> int | None:
        if self.epochs is None or self.input.length is None:
            return None
        return self.input.length * self.epochs

    @cached_property
    def limit(self) -> int:
        return LIMIT if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        return self.epochs is not None

    @cached_property
    def rows(self) -> int | None:
        if self.epochs is None or self.input.rows is None:
            return None
        return self.input.rows * self.epochs

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and self.input.rows is not None

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        known, period = self.input.short_batches, self.input.length
        if not known or period is None:
            return () if self.uniform else None
        (short,) = known
        if short.every is None:  # once in every epoch
            return short._replace(every=period).among(0, self.length)
        is_regular = period % short.every == 0  # across epochs too
        return short.among(0, self.length) if is_regular else None

    @property
    def stage(self) -> str:
        return "repeat()" if self.epochs is None else f"repeat({self.epochs})"

    @property
    def begins_epochs(self) -> bool:
        return self.epochs != 1

    @property
    def epoch_steps(self) -> int | None:
        return self.input.length

    def one_epoch(self) -> Node:
        return self.input

    def batch_rows_before(self, step: int) -> int:
        assert self.input.length is not None
        epochs, inside = divmod(step, self.input.length)
        before = self.input.batch_rows_before
        return epochs * before(self.input.length) + before(inside)

    def epoch_of(self, step: int) -> int:
        assert self.input.length is not None
        return step // self.input.length

    def move(self, seed: int) -> Move:
        assert self.input.length is not None
        return Repeat(self.input.length, self.input.rows, self.repeats, self.epochs)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        below = build.reader(self.input, above.again(self.epochs, self.repeats))
        epochs, stage, empty_epochs = self.epochs, f".{self.stage}", build.empty_epochs

        def repeated(reading: Reading, lane: int) -> Reader:
            return RepeatReader(below(reading, lane), epochs, stage, empty_epochs)

        return repeated

    def above_cut(self, build: StreamBuild, above: Above) -> Above:
        return above.again(self.epochs, self.repeats)

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return RepeatAfterBatch(below, f".{self.stage}", build.empty_epochs, 0, self.epochs)


class Repeat(Move):
    """Further epochs, each with its own key."""

    def __init__(
        self, length: int, row_count: int | None, ordinal: int, epochs: int | None
    ) -> None:
        self.length, self.row_count, self.ordinal = length, row_count, ordinal
        self.epochs = epochs

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return wrap(epochs, positions, self.length, self.ordinal)

    def rounds(self, rounds: Positions, positions: Positions) -> Positions:
        return rounds * (self.epochs or 1) + positions // self.length

    def find(self, sought: Sought, below: Find) -> Found:
        number, which = numbered(-(-sought.limits // self.length))
        before = number * self.length
        limits = np.minimum(sought.limits[which] - before, self.length)
        epochs = child(sought.epochs[which], number, self.ordinal)
        found = below(sought.pick(which, epochs, limits))
        positions = before[found.which] + found.positions
        return Found(which[found.which], positions, found.rows)

    def of_rows(self, size: int) -> Move:
        assert self.row_count is not None
        return Repeat(self.row_count, None, self.ordinal, self.epochs)


class RepeatReader(Reader):
    """Epochs of a reader.  State: the epoch, and the position in it."""

    def __init__(
        self, below: Reader, count: int | None, stage: str, empty_epochs: EmptyEpochs
    ) -> None:
        self.below, self.count, self.stage = below, count, stage
        self.empty_epochs = empty_epochs
        self.number = self.empty = 0
        self.has_rows = False  # this epoch has given a row

    def start(self, path: Path) -> None:
        self.path, self.number, self.has_rows, self.empty = path, 0, False, 0
        self.below.start((*path, 0))

    def ready_here(self, n: int) -> int:
        """Rows of this epoch."""
        found = self.below.ready(n)
        self.has_rows = self.has_rows or found > 0
        return found

    def advance(self) -> None:
        """Goes to the next epoch."""
        self.empty = 0 if self.has_rows else self.empty + 1
        if self.empty and self.count is None:
            self.empty_epochs.check(self.empty, self.stage)
        self.number, self.has_rows = self.number + 1, False
        self.below.start((*self.path, self.number))

    def ready(self, n: int) -> int:
        while True:
            found = self.ready_here(n)
            if found or (self.count is not None and self.number + 1 >= self.count):
                return found
            self.advance()

    def take(self, n: int) -> Rows:
        return self.below.take(n)

    def state(self) -> LanePosition:
        return [self.number, self.below.state()]

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        number, below = entries(state, ("epoch", "position in it"))
        if self.count is not None and whole(number, "the epoch", MANY_EPOCHS) >= self.count:
            raise StateError(
                f"the state is in epoch {number} (counted from 0), but {self.stage} has only "
                f"{self.count}. Was it saved with a larger count?"
            )
        self.path, self.number, self.empty = path, whole(number, "the epoch", MANY_EPOCHS), 0
        self.has_rows = True  # assumed: it is not known
        self.below.restore((*path, self.number), below, changed=changed)

    def needs(self, n: int) -> Iterator[Lookahead]:
        return self.below.needs(n)

    def epochs_read(self) -> int:
        return max(self.number if self.count is None else 0, self.below.epochs_read())


class RepeatAfterBatch(Counted):
    """repeat after batch: epochs ``first`` to ``stop``; its counter is the epoch."""

    def __init__(
        self,
        below: BatchReader,
        stage: str,
        empty_epochs: EmptyEpochs,
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(below)
        self.stage, self.first, self.stop = stage, first, stop
        self.most_counted = LIMIT if stop is None else stop - 1
        self.empty_epochs = empty_epochs
        self.has_batches, self.empty = False, 0

    def start(self, path: Path) -> None:
        self.path, self.count, self.has_batches, self.empty = path, self.first, False, 0
        self.below.start((*path, self.count))

    def next(self) -> Rows | None:
        while True:
            made = self.below.next()
            if made is not None:
                self.has_batches = True
                return made
            if self.stop is not None and self.count + 1 >= self.stop:
                return None
            self.empty = 0 if self.has_batches else self.empty + 1
            if self.empty and self.stop is None:
                self.empty_epochs.check(self.empty, self.stage, "batch")
            self.count, self.has_batches = self.count + 1, False
            self.below.start((*self.path, self.count))

    def restore(
        self,
        path: Path,
        counters: Iterator[int],
        lanes: Sequence[LanePosition],
        *,
        changed: Changed,
    ) -> None:
        self.path, self.count = path, counter_of(counters, self.most_counted)
        self.has_batches, self.empty = True, 0  # assumed: it is not known
        self.below.restore((*path, self.count), counters, lanes, changed=changed)
