"""Stages after which it is not known which input makes output number n: streams.

A stream is read in *units*: fixed runs of input positions.  What comes out of a unit depends on its
number alone, so units can be made by any worker, and again if one is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from loaderx.errors import ChainError
from loaderx.memory import Pool
from loaderx.reading.batch_readers import BatchReader, Lanes
from loaderx.reading.operators import BatchOperator, RecordOperator, Request
from loaderx.reading.readers import Reader
from loaderx.reading.unit_stage import UnitStage
from loaderx.reading.units import Finish
from loaderx.stages.node import MadeInUnits, Node, OneInput, UnitCost
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.stages.stream_build import StreamBuild


class StreamStage(MadeInUnits, OneInput):
    """The base of stages that make a stream of records.

    Each says its `window` and makes its `unit_stage`.
    """

    def __post_init__(self) -> None:
        if self.input.batched:
            kind = self.stage.partition("(")[0]
            raise ChainError(f"{kind} after batch: it works on records. Put it before .batch(...).")
        check_windows(self)

    @property
    def length(self) -> int | None:
        return None

    @cached_property
    def ends(self) -> bool:
        return self.input.ends

    @cached_property
    def is_stream(self) -> bool:
        return True

    @cached_property
    def spec(self) -> Tree | None:
        return None

    @property
    def unit_cost(self) -> UnitCost:
        return "records"

    @property
    def can_drop(self) -> bool:
        return True

    @property
    def keeps_places(self) -> bool:
        return False

    @property
    def is_ordered(self) -> bool:
        return False

    def batch_rows_before(self, step: int) -> int:
        return step * (self.batch_size or 1)

    def epoch_of(self, step: int) -> int:
        return 0

    def make_record_operator(self, request: Request) -> RecordOperator:
        raise AssertionError("a stream is not read by index")

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("a stream is not read by index")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("refused when the chain was made: it stands below the batch")


class StreamCut(OneInput):
    """The base of stages that cut the records of a stream into batches."""

    @property
    def cuts_stream(self) -> bool:
        """Is it a stream that is cut, rather than a dataset that is read by index?"""
        raise NotImplementedError

    @property
    def lanes(self) -> int:
        """The parts that the records are cut from."""
        return 1

    @property
    def unit_records(self) -> Node:
        """What the units are made of: the input, or with the stage itself."""
        raise NotImplementedError

    def cut_in_units(self, build: StreamBuild) -> tuple[UnitStage, ...]:
        """What the stage does to the records of a unit."""
        return ()

    def finish(self) -> Finish:
        """How units hand their records over."""
        raise NotImplementedError

    def cut_reader(self, lanes: Sequence[Reader], pool: Pool, *, is_alone: bool) -> Lanes:
        """The batches of the lanes of this host, which may be the only one."""
        raise NotImplementedError

    def rows_per_batch(self, lanes: int) -> int | None:
        """The rows of a full batch of so many lanes; None where that varies."""
        return None

    def check_shareable(self) -> None:
        """Raises if several hosts cannot share the batches."""

    def check_hosts(self, hosts: int) -> None:
        """Raises if so many hosts cannot share the batches."""
        self.check_shareable()


def stream_cut(node: Node) -> StreamCut | None:
    """The stage that cuts a stream into batches, not one of the dataset that it is made of."""
    for below in node.below():
        if isinstance(below, StreamCut) and below.cuts_stream:
            return below
    return None


def check_windows(node: Node) -> None:
    """Windows of stages that share their units: each must divide the largest."""
    windows: dict[int, str] = {}
    while node.is_stage and node.is_stream and not node.is_ordered:
        if node.window is not None:
            windows[node.window] = node.stage
        node = node.inputs[0]
    largest = max(windows, default=1)
    for window, stage in windows.items():
        if largest % window:
            raise ChainError(
                f"{stage} and {windows[largest]} work on the same runs of {largest} records, and "
                f"{window} does not divide {largest}. Choose windows that do."
            )
