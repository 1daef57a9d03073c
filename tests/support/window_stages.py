"""Stages as users write them.  Worker processes import this module: it must stay light."""

from __future__ import annotations

import numpy as np

from loaderx.stages import WindowStage


class SortBy(WindowStage):
    """Reorders."""

    leaf: str
    largest_first: bool = False
    window: int = 8

    def map_window(self, records):
        return sorted(
            enumerate(records),
            key=lambda pair: np.max(pair[1][self.leaf]),
            reverse=self.largest_first,
        )


class DropRepeated(WindowStage):
    """Drops."""

    leaf: str
    divisor: int = 1
    window: int = 8

    def map_window(self, records):
        seen = set()
        for number, record in enumerate(records):
            value = int(np.max(record[self.leaf])) // self.divisor
            if value not in seen:
                seen.add(value)
                yield number, record


class Neighbours(WindowStage):
    """Merges, and adds: sums of neighbours, then each record once more."""

    leaf: str
    window: int = 4

    def map_window(self, records):
        for number in range(1, len(records)):
            pair = records[number - 1 : number + 1]
            yield number - 1, {self.leaf: pair[0][self.leaf] + pair[1][self.leaf]}
        for number, record in enumerate(records):
            yield number, {self.leaf: record[self.leaf]}


class Sample(WindowStage):
    """Draws: some of the records, in another order, with a number that was drawn."""

    leaf: str
    share: float = 0.5
    window: int = 8

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f"`share` must be above 0 and at most 1, got {self.share}.")

    def random_map_window(self, records, rng):
        count = max(1, int(len(records) * self.share))
        for number in rng.permutation(len(records))[:count]:
            record = records[number]
            yield number, {self.leaf: record[self.leaf], "drawn": rng.random()}


class Rearrange(WindowStage):
    """Drops, adds, merges and reorders records {"x", "y"}."""

    window: int = 8

    def map_window(self, records):
        for number in reversed(range(len(records))):
            record = records[number]
            if record["x"] % 5 != 4:
                yield number, record
            if record["x"] % 3 == 0:
                yield number, {**record, "y": record["y"] + records[0]["y"]}


class Scatter(WindowStage):
    """Draws from records {"x", "y"}."""

    window: int = 8

    def random_map_window(self, records, rng):
        for number in rng.permutation(len(records)):
            if rng.random() < 0.8:
                record = records[number]
                yield number, {**record, "y": record["y"] + rng.integers(1000)}
