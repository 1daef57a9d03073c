"""skip_steps: some steps of a run are left out, and all others keep their numbers.

The stage itself moves batches, so a dataset that is iterated without a loader has fewer of them.
A loader takes it off (`all_steps`), and passes over the steps: its positions, states and errors
have the numbers that they have without it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np

from loaderx.chain.families import MovedByIndex
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError
from loaderx.order.epochs import NO_STEPS, SkippedSteps
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions
from loaderx.rng import Keys
from loaderx.stages.select import Sliced


class StepsSkipped(MovedByIndex):
    """All batches but those of some steps."""

    skipped: SkippedSteps

    def __post_init__(self) -> None:
        if not self.batched:
            raise ChainError(
                "skip_steps counts batches: put it after .batch(...), as the last stage. Single "
                "records are left out with .without(...), or .filter(...)."
            )

    @property
    def length(self) -> int | None:
        length = self.input.length
        return None if length is None else self.skipped.kept_before(length)

    @property
    def stage(self) -> str:
        return f"skip_steps({list(self.skipped.ranges)})"

    @property
    def skipped_steps(self) -> SkippedSteps | None:
        return self.skipped

    def move(self, seed: int) -> Move:
        return PassOverSteps(self.skipped)


class PassOverSteps(Move):
    """The steps that are left."""

    def __init__(self, skipped: SkippedSteps) -> None:
        self.skipped = skipped

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return epochs, self.skipped.steps_of(positions)

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        return self.skipped.positions_of(positions)


def all_steps(node: Node) -> tuple[Node, SkippedSteps]:
    """The dataset without its `skip_steps`: its positions are the steps of a loader."""
    skipped = node.skipped_steps
    if skipped is None:
        return node, NO_STEPS
    if isinstance(node, StepsSkipped):
        return node.input, skipped
    below, _ = all_steps(node.inputs[0])
    if isinstance(node, Sliced) and node.count is not None:  # a take counts what comes
        last = skipped.steps_of(np.array([node.count - 1]))
        node = node.replace(count=int(last[0]) + 1)
    return node.replace(input=below), skipped


def skip_steps(node: Node, ranges: Iterable[tuple[int, int]]) -> Node:
    """``node`` without these steps, and without those that it skips already."""
    try:
        found = [(operator.index(start), operator.index(stop)) for start, stop in ranges]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            "`ranges` must be pairs (first step, step after the last), as in [(81_200, 81_500)]; "
            f"got {ranges!r}."
        ) from None
    for start, stop in found:
        if not 0 <= start < stop:
            raise ArgumentError(f"skip_steps: from {start} up to {stop} there are no steps.")
    whole, before = all_steps(node)
    return StepsSkipped(whole, SkippedSteps.joined([*before.ranges, *found])) if found else node
