"""The stages that only move rows: each maps the address of a row to an address of its input.

``steps`` does so for elements.  ``rows`` does it for the records inside batches of ``size`` rows,
for what stands between a batch and its unbatch; there a record is batch times size plus place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaderx.order.epochs import child, wrap
from loaderx.order.permutation import permute
from loaderx.rng import ORDER, PART, ROOT, Keys, fold, fold_int

Positions = npt.NDArray[np.int64]
Address = tuple[Keys, Positions]


class Move:
    """Rows move with their batch, unless a subclass knows better."""

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        raise NotImplementedError

    def rows(self, epochs: Keys, positions: Positions, size: int) -> Address:
        batches, places = np.divmod(positions, size)
        epochs, batches = self.steps(epochs, batches)
        return epochs, batches * size + places


class Shuffle(Move):
    """A new order in every epoch."""

    def __init__(self, length: int, seed: int, ordinal: int) -> None:
        self.length = length
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        return epochs, permute(positions, self.length, fold(epochs, self.stage, ORDER))


class WindowShuffle(Move):
    """A new order within each window of consecutive elements, in every epoch."""

    def __init__(self, length: int | None, window: int, seed: int, ordinal: int) -> None:
        self.length, self.window = length, window
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> Address:
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
                out[short] += permute(inside[short], rest, keys[short])
        full = np.flatnonzero(whole)
        if full.size:
            out[full] += permute(inside[full], self.window, keys[full])
        return epochs, out


class Part(Move):
    """A part of one fixed order, the same in every epoch: what `split` makes."""

    def __init__(self, length: int, seed: int | None, start: int) -> None:
        self.length, self.start = length, start
        self.keys = None
        if seed is not None:
            self.keys = fold(ROOT, np.array([fold_int(seed, 0, PART)], np.uint64), PART)

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        positions = positions + self.start
        if self.keys is not None:
            positions = permute(positions, self.length, self.keys)
        return epochs, positions


class Slice(Move):
    """Every ``step``-th element from ``start`` on."""

    def __init__(self, start: int, step: int) -> None:
        self.start, self.step = start, step

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        return epochs, positions * self.step + self.start


class Pick(Move):
    """The elements of a table."""

    def __init__(self, table: Positions, seen: Positions | None, ordinal: int) -> None:
        self.table, self.seen, self.ordinal = table, seen, ordinal

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        if self.seen is not None:  # the second time round, a record is another row
            epochs = child(epochs, self.seen[positions], self.ordinal)
        return epochs, self.table[positions]


class Repeat(Move):
    """The same again, under other epoch keys."""

    def __init__(self, length: int, row_count: int | None, ordinal: int) -> None:
        self.length, self.row_count, self.ordinal = length, row_count, ordinal

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        return wrap(epochs, positions, self.length, self.ordinal)

    def rows(self, epochs: Keys, positions: Positions, size: int) -> Address:
        assert self.row_count is not None
        return wrap(epochs, positions, self.row_count, self.ordinal)
