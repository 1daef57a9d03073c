"""Epoch keys, which make the second epoch of a dataset differ from the first; and skipped steps."""

from __future__ import annotations

import numpy as np

from loaderx.frozen import Frozen
from loaderx.rng import EPOCH, Keys, fold

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

LIMIT = 1 << 62  # positions are int64, with room for arithmetic


def wrap(epochs: Keys, positions: Positions, length: int, ordinal: int) -> tuple[Keys, Positions]:
    """Addresses inside a dataset of ``length`` that is repeated without end.

    The first epoch keeps its key, so that epoch 0 of a repetition is the dataset itself.
    ``ordinal`` tells this repetition from those below it.
    """
    if not positions.size:
        return epochs, positions
    first, last = int(positions.min()) // length, int(positions.max()) // length
    if first == last:
        return child(epochs, np.array([first]), ordinal), positions - first * length
    rounds = positions // length
    return child(epochs, rounds, ordinal), positions - rounds * length


def child(epochs: Keys, rounds: Positions, ordinal: int) -> Keys:
    """The key of round ``rounds`` of each epoch; round 0 is the epoch itself."""
    tag = EPOCH + (ordinal << 8)
    first, last = int(rounds.min()), int(rounds.max())
    if last == 0:
        return epochs
    if epochs.size == 1 and last - first < rounds.size:  # few rounds for many rows: hash each once
        table = _child(epochs, np.arange(first, last + 1), tag)
        return table[rounds - first] if rounds.size > 1 else table
    return _child(epochs, rounds, tag)


def _child(epochs: Keys, rounds: Positions, tag: int) -> Keys:
    return np.where(rounds == 0, epochs, fold(epochs, rounds, tag))


class SkippedSteps(Frozen):
    """Steps that a run leaves out, while all others keep their numbers.

    The ranges are ascending, and between any two is a step that is not skipped.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def joined(ranges: list[tuple[int, int]]) -> SkippedSteps:
        """Ranges in any order, which may overlap."""
        found: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if found and start <= found[-1][1]:
                start, last = found.pop()
                stop = max(stop, last)
            found.append((start, stop))
        return SkippedSteps(tuple(found))

    def first_from(self, step: int) -> int:
        """The first step from ``step`` on that is not skipped."""
        return next((stop for start, stop in self.ranges if start <= step < stop), step)

    def next_start(self, step: int) -> int:
        """Where the next range begins, after a step that is not skipped."""
        return next((start for start, _ in self.ranges if start > step), LIMIT)

    def kept_before(self, step: int) -> int:
        """How many of the steps before ``step`` are not skipped."""
        return step - sum(max(0, min(step, stop) - start) for start, stop in self.ranges)

    def kept_in(self, steps: range) -> int:
        """How many of these steps are not skipped."""
        return self.kept_before(steps.stop) - self.kept_before(steps.start)

    def are_kept(self, steps: Positions) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which of these steps are not skipped."""
        kept = np.ones(len(steps), np.bool_)
        for start, stop in self.ranges:
            kept &= (steps < start) | (steps >= stop)
        return kept

    def positions_of(self, steps: Positions) -> Positions:
        """The inverse of `steps_of`; negative for those that are skipped."""
        before = sum((np.clip(steps, a, b) - a for a, b in self.ranges), np.zeros_like(steps))
        return np.where(self.are_kept(steps), steps - before, -1)

    def steps_of(self, positions: Positions) -> Positions:
        """The steps with these positions among those that are not skipped."""
        for start, stop in self.ranges:
            positions = positions + (positions >= start) * (stop - start)
        return positions


NO_STEPS = SkippedSteps()
