"""The base of stages that put elements in other places: orders, parts, repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.operators import BatchOperator, Move, RecordOperator, Request
from loaderx.stages.node import OneInput, UnitCost

if TYPE_CHECKING:
    from loaderx.stages.stream_build import Above, MakeReader, StreamBuild


class Moved(OneInput):
    """A stage that puts elements in other places.

    Read by index, it is a `Move` of the operator below it, so that reading never meets it.
    """

    def move(self, seed: int) -> Move:
        """Where each element is found in the input."""
        raise NotImplementedError

    def make_record_operator(self, request: Request) -> RecordOperator:
        below = self.input.record_operator(request)
        below.moves.insert(0, self.move(request.seed))
        return below

    def batch_operator(self, request: Request) -> BatchOperator:
        below = self.input.batch_operator(request)
        below.moves.insert(0, self.move(request.seed))
        return below

    @property
    def moves(self) -> bool:
        return True

    @property
    def unit_cost(self) -> UnitCost:
        return "records"

    @property
    def can_drop(self) -> bool:
        return False

    @property
    def keeps_places(self) -> bool:
        return False

    def user_objects(self) -> Iterator[tuple[str, object]]:
        yield from ()

    def batch_rows_before(self, step: int) -> int:
        return step * (self.batch_size or 1)

    def epoch_of(self, step: int) -> int:
        return 0


class MovedByIndex(Moved):
    """The base of stages that move elements only of datasets that are read by index."""

    @property
    def window(self) -> int | None:
        return None

    @property
    def is_ordered(self) -> bool:
        return False

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        raise AssertionError("refused when the chain was made: it needs to know every position")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("refused when the chain was made: it needs to know every position")
