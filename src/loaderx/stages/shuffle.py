"""shuffle: a new order in every epoch, of all elements or within windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import MadeInUnits, Moved, MovedByIndex
from loaderx.chain.stream_stage import check_windows
from loaderx.errors import ChainError
from loaderx.order.epochs import LIMIT
from loaderx.order.permutation import permute
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions, Rows
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import ORDER, Keys, fold, fold_int
from loaderx.stages.seed import seed_of

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


class Shuffled(MovedByIndex):
    """A new order of all elements in every epoch."""

    own_seed: int | None = None

    is_random = True

    def __post_init__(self) -> None:
        if self.input.is_stream:
            raise ChainError(
                "shuffle of a stream needs a window: write .shuffle(window=1000), or put "
                ".shuffle() before the stage that makes it a stream."
            )
        if self.input.length is None:
            raise ChainError("shuffle needs a dataset that ends: put it before .repeat().")
        if not self.batched and not self.input.random_access:
            raise ChainError(
                "shuffle of all records needs a source that reads them in any order, and this one "
                "decodes large blocks. Either leave cache=False out where it is opened (a copy is "
                "made once, and all of it is shuffled), or shuffle the blocks and then windows of "
                'them, .shuffle(block="source", window=10_000).'
            )

    @property
    def stage(self) -> str:
        return "shuffle()" if self.own_seed is None else f"shuffle(seed={self.own_seed})"

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            "shuffle", {"seed": seed_of(self.own_seed, seed)}, self, without=("own_seed",)
        )

    @property
    def shuffle_span(self) -> int | None:
        return self.length

    def batch_rows_before(self, step: int) -> int:
        return self.input.batch_rows_before(step)

    def move(self, seed: int) -> Move:
        assert self.length is not None
        return Shuffle(self.length, seed_of(self.own_seed, seed), self.random_stages)


class Shuffle(Move):
    """A new order in every epoch."""

    def __init__(self, length: int, seed: int, ordinal: int) -> None:
        self.length = length
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return epochs, permute(positions, self.length, fold(epochs, self.stage, ORDER))

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        return permute(positions, self.length, fold(epochs, self.stage, ORDER), undo=True)


class WindowShuffled(MadeInUnits, Moved):
    """A new order within each window of consecutive records."""

    span: int
    own_seed: int | None = None

    is_random = True
    unit_cost = "records"
    is_ordered = False

    def __post_init__(self) -> None:
        if self.input.is_stream and self.batched:
            raise ChainError(
                "shuffle after the batch of a stream: put .shuffle(window=...) before .batch(...)."
            )
        check_windows(self)

    @property
    def stage(self) -> str:
        seed = "" if self.own_seed is None else f"seed={self.own_seed}, "
        return f"shuffle({seed}window={self.span})"

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            "shuffle",
            {"seed": seed_of(self.own_seed, seed)},
            self,
            without=("own_seed",),
            renamed={"span": "window"},
        )

    @property
    def window(self) -> int | None:
        return self.span

    @property
    def shuffle_span(self) -> int | None:
        return self.span

    def move(self, seed: int) -> Move:
        return WindowShuffle(
            self.length, self.span, seed_of(self.own_seed, seed), self.random_stages
        )

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        own = seed_of(self.own_seed, build.seed)
        return ShuffleWindows(self.stage, own, self.random_stages)

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError(f"{self.stage} of a stream stands below the batch")


class WindowShuffle(Move):
    """A new order within each window of consecutive elements, in every epoch."""

    def __init__(self, length: int | None, window: int, seed: int, ordinal: int) -> None:
        self.length, self.window = length, window
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return epochs, self._moved(epochs, positions, undo=False)

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        return self._moved(epochs, positions, undo=True)

    def limits_below(self, limits: Positions) -> Positions:
        return np.minimum(limits, LIMIT - self.window) + self.window

    def _moved(self, epochs: Keys, positions: Positions, *, undo: bool) -> Positions:
        windows, inside = np.divmod(positions, self.window)
        keys = fold(fold(epochs, self.stage, ORDER), windows, ORDER)
        if keys.size == 1 and len(positions) > 1:
            keys = np.repeat(keys, len(positions))
        whole = np.ones(len(positions), np.bool_)
        out = windows * self.window
        if self.length is not None:
            whole = windows < self.length // self.window
            short = np.flatnonzero(~whole)
            if short.size:
                rest = self.length % self.window
                out[short] += permute(inside[short], rest, keys[short], undo=undo)
        full = np.flatnonzero(whole)
        if full.size:
            out[full] += permute(inside[full], self.window, keys[full], undo=undo)
        return out


class ShuffleWindows(UnitStage):
    """Shuffles each window of a unit."""

    def __init__(self, stage: str, seed: int, ordinal: int) -> None:
        super().__init__(stage)
        self.key = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        assert self.window is not None
        parts = []
        for number, start, stop in rows.windows(self.window):
            key = fold(fold(context.epoch, self.key, ORDER), np.array([number]), ORDER)
            parts.append(start + permute(np.arange(stop - start), stop - start, key))
        if not parts:
            return rows
        return rows.pick(np.concatenate(parts), context.lend, keep_places=True)
