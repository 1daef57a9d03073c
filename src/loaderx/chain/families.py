"""Base classes of nodes, with the answers that the stages of a family share."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, final

from loaderx.chain.node import Node
from loaderx.chain.row_counts import ShortBatches
from loaderx.order.epochs import LIMIT, SkippedSteps
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.operators import BatchOperator, Move, RecordOperator, Request
from loaderx.reading.unit_stage import UnitStage
from loaderx.sources.base import Indices
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, StreamBuild

Below = TypeVar("Below", RecordOperator, BatchOperator)

# What a stage reads from ------------------------------------------------------------------------


class OneInput(Node):
    """A stage with one input."""

    input: Node

    is_stage = True

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def length(self) -> int | None:
        return self.input.length

    @cached_property
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        return self.input.limit if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        return self.input.ends if self.is_stream else self.length is not None

    @cached_property
    def only_last_is_short(self) -> bool:
        return self.uniform if self.moves else self.input.only_last_is_short

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and (self.uniform or not self.moves)

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        return () if self.uniform else None if self.moves else self.input.short_batches

    @cached_property
    def rows(self) -> int | None:
        if not self.moves:
            return self.input.rows
        if self.length is None or self.batch_size is None or not self.uniform:
            return None
        return self.length * self.batch_size

    @property
    def is_one_dataset(self) -> bool:
        return self.input.is_one_dataset and not self.repeats_here


# Where its elements are -------------------------------------------------------------------------


class KeepsPlaces(OneInput):
    """Leaves every element where it is: map, on_error, seed."""

    keeps_places = True
    window = None
    is_ordered = False

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec

    @property
    def block_starts(self) -> Indices | None:
        return self.input.block_starts

    def batch_rows_before(self, step: int) -> int:
        return self.input.batch_rows_before(step)

    @property
    def epoch_steps(self) -> int | None:
        return self.input.epoch_steps

    def epoch_of(self, step: int) -> int:
        return self.input.epoch_of(step)

    @property
    def skipped_steps(self) -> SkippedSteps | None:
        return None if self.needs_positions else self.input.skipped_steps

    def one_epoch(self) -> Node:
        inner = self.input.one_epoch()
        return self if inner is self.input else self.replace(input=inner)


class ChangesPlaces(Node):
    """Element n of the output is not element n of the input, so epochs of a repeat are lost."""

    keeps_places = False

    def batch_rows_before(self, step: int) -> int:
        return step * (self.batch_size or 1)

    def epoch_of(self, step: int) -> int:
        return 0


# How it is read ---------------------------------------------------------------------------------


class ByIndex(Node):
    """Is read by index only; a chain that has it in a stream is refused when it is made."""

    window = None
    is_ordered = False

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        raise AssertionError(f"{self.stage} is read by index, not in order")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError(f"{self.stage} is read by index, not in order")


class InOrder(Node):
    """Is a stream, which cannot be read by index."""

    length = None
    is_stream = True

    def make_record_operator(self, request: Request) -> RecordOperator:
        raise AssertionError(f"{self.stage} is a stream, which is not read by index")

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError(f"{self.stage} is a stream, which is not read by index")


class MadeInUnits(OneInput):
    """Works on the records of one unit at a time, where it is part of a stream."""

    @abstractmethod
    def unit_stage(self, build: StreamBuild) -> UnitStage:
        """The stage as it works on the rows of a unit."""

    @final
    def make_unit_stage(self, build: StreamBuild) -> UnitStage:
        """The unit stage, with the window of this node."""
        made = self.unit_stage(build)
        made.window = self.window
        return made

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        return build.reader(self.input, above.over(self.make_unit_stage(build)))


class Moved(ChangesPlaces, OneInput):
    """Changes the positions of elements.

    Read by index, it is a `Move` of the operator below it: only addresses go through it.
    """

    moves = True
    can_drop = False
    user_objects = ()

    @abstractmethod
    def move(self, seed: int) -> Move:
        """Where each element is found in the input."""

    def make_record_operator(self, request: Request) -> RecordOperator:
        return self._moved(self.input.record_operator(request), request.seed)

    def batch_operator(self, request: Request) -> BatchOperator:
        return self._moved(self.input.batch_operator(request), request.seed)

    def _moved(self, below: Below, seed: int) -> Below:
        move = self.move(seed)
        move.limit, move.shown = self.limit, self.stage
        below.moves.insert(0, move)
        return below

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec


class MovedByIndex(ByIndex, Moved):
    """Moves elements only of datasets that are read by index."""

    unit_cost = "records"
