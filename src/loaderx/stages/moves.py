"""The base of stages that change the positions of elements: orders, parts, repetitions."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

from loaderx.reading.operators import BatchOperator, Move, RecordOperator, Request
from loaderx.stages.families import ByIndex, ChangesPlaces, OneInput
from loaderx.tree import Tree


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
        below = self.input.record_operator(request)
        below.moves.insert(0, self.move(request.seed))
        return below

    def batch_operator(self, request: Request) -> BatchOperator:
        below = self.input.batch_operator(request)
        below.moves.insert(0, self.move(request.seed))
        return below

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec


class MovedByIndex(ByIndex, Moved):
    """Moves elements only of datasets that are read by index."""

    unit_cost = "records"
