"""The stages that only move rows: each maps the address of a row to an address of its input.

``steps`` does so for elements.  ``rows`` does it for the records inside batches of ``size`` rows,
for what stands between a batch and its unbatch; there a record is batch times size plus place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loaderx.order.epochs import child, wrap
from loaderx.order.permutation import permute
from loaderx.rng import ORDER, ROOT, Keys, fold, fold_int

Positions = npt.NDArray[np.int64]
Address = tuple[Keys, Positions]


class Move(Protocol):
    def steps(self, epochs: Keys, positions: Positions) -> Address: ...

    def rows(self, epochs: Keys, positions: Positions, size: int) -> Address: ...


class _ByBatch:
    """Rows move with their batch."""

    __slots__ = ()

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        raise NotImplementedError

    def rows(self, epochs: Keys, positions: Positions, size: int) -> Address:
        batches, places = np.divmod(positions, size)
        epochs, batches = self.steps(epochs, batches)
        return epochs, batches * size + places


@dataclass(frozen=True, slots=True)
class Shuffle(_ByBatch):
    length: int
    seed: int
    ordinal: int
    per_epoch: bool = True

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        stage = np.array([fold_int(self.seed, self.ordinal, ORDER)], np.uint64)
        keys = fold(epochs if self.per_epoch else ROOT, stage, ORDER)
        return epochs, permute(positions, self.length, keys)


@dataclass(frozen=True, slots=True)
class Slice(_ByBatch):
    start: int
    step: int

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        return epochs, positions * self.step + self.start


@dataclass(frozen=True, slots=True)
class Pick(_ByBatch):
    table: Positions = field(repr=False)
    seen: Positions | None = field(repr=False)
    ordinal: int

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        if self.seen is not None:  # the second time round, a record is another row
            epochs = child(epochs, self.seen[positions], self.ordinal)
        return epochs, self.table[positions]


@dataclass(frozen=True, slots=True)
class Repeat:
    length: int
    row_count: int | None
    ordinal: int

    def steps(self, epochs: Keys, positions: Positions) -> Address:
        return wrap(epochs, positions, self.length, self.ordinal)

    def rows(self, epochs: Keys, positions: Positions, size: int) -> Address:
        assert self.row_count is not None
        return wrap(epochs, positions, self.row_count, self.ordinal)
