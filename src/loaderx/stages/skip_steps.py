"""skip_steps: some steps of a run are left out, and all others keep their numbers.

The stage itself moves batches, so a dataset that is iterated without a loader has fewer of them.
A loader takes it off (`all_steps`), and passes over the steps: its positions, states and errors
have the numbers that they have without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import Moved
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError, check_int
from loaderx.order.epochs import NO_STEPS, SkippedSteps
from loaderx.reading.batch_readers import BatchReader, Counted
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions, Rows
from loaderx.rng import Keys
from loaderx.stages.select import Sliced

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, StreamBuild


def check_ranges(ranges: object) -> list[tuple[int, int]]:
    """The argument of `Dataset.skip_steps`."""
    if not isinstance(ranges, Iterable) or isinstance(ranges, (str, bytes)):
        raise ArgumentTypeError(
            f"`ranges` must be a list such as [(81_200, 81_500)], got {ranges!r}."
        )
    found = []
    for pair in ranges:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentTypeError(
                "`ranges` must have pairs (first step, step after the last), as in "
                f"[(81_200, 81_500)]; got {pair!r}."
            )
        start = check_int("the first step of a range", pair[0], least=0)
        stop = check_int("the end of a range", pair[1], least=0)
        if stop <= start:
            raise ArgumentError(
                f"skip_steps: the range ({start}, {stop}) has no step; its end must be larger."
            )
        found.append((start, stop))
    return found


class StepsSkipped(Moved):
    """All batches but those of some steps."""

    skipped: SkippedSteps

    window = None
    unit_cost = "nothing"
    is_ordered = False

    def __post_init__(self) -> None:
        if not self.batched:
            raise ChainError(
                "skip_steps counts batches: put it after .batch(...), as the last stage. Single "
                "records are left out with .without(...), or .filter(...)."
            )
        if self.length == 0:
            raise ArgumentError(
                f"{self.stage} leaves nothing of {self.input.length} steps. If they are repeated, "
                "put .repeat() before it."
            )

    @property
    def length(self) -> int | None:
        length = self.input.length
        return None if length is None else self.skipped.kept_before(length)

    @cached_property
    def limit(self) -> int:
        return self.skipped.kept_before(self.input.limit)

    @property
    def stage(self) -> str:
        return f"skip_steps({list(self.skipped.ranges)})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("skip_steps", {"ranges": self.skipped.ranges}, self, without=("skipped",))

    @property
    def skipped_steps(self) -> SkippedSteps | None:
        return self.skipped

    def move(self, seed: int) -> Move:
        return PassOverSteps(self.skipped)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        raise AssertionError("its elements are batches")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return StepsSkippedAfterBatch(below, self.skipped)


class PassOverSteps(Move):
    """The steps that are left."""

    def __init__(self, skipped: SkippedSteps) -> None:
        self.skipped = skipped

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        return epochs, self.skipped.steps_of(positions)


class StepsSkippedAfterBatch(Counted):
    """The same for the batches of a stream; its counter is the step."""

    def __init__(self, below: BatchReader, skipped: SkippedSteps) -> None:
        super().__init__(below)
        self.skipped = skipped

    def next(self) -> Rows | None:
        first = self.skipped.first_from(self.count)
        while self.count <= first:
            made = self.below.next()
            if made is None:
                return None
            self.count += 1
        return made


def all_steps(node: Node) -> Node:
    """The dataset without its `skip_steps`: its positions are the steps of a loader."""
    skipped = node.skipped_steps
    if skipped is None:
        return node
    below = node.inputs[0]
    if isinstance(node, StepsSkipped):
        return below
    if isinstance(node, Sliced) and node.count is not None:  # a take counts what comes
        last = skipped.steps_of(np.array([node.count - 1]))
        return node.replace(input=all_steps(below), count=int(last[0]) + 1)
    return node.replace(input=all_steps(below))


def skip_steps(node: Node, ranges: list[tuple[int, int]]) -> Node:
    """``node`` without these steps, and without those that it skips already."""
    before = node.skipped_steps or NO_STEPS
    return StepsSkipped(all_steps(node), SkippedSteps.joined([*before.ranges, *ranges]))
