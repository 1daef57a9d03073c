"""unbatch: turns the rows of batches into records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from loaderx.chain.families import ByIndex, ChangesPlaces, OneInput
from loaderx.chain.node import Node
from loaderx.errors import ChainError, RecordError
from loaderx.order.epochs import LIMIT
from loaderx.reading.addresses import Addresses
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import (
    BatchOperator,
    RecordOperator,
    RecordOperatorOf,
    Request,
    SourceRecords,
)
from loaderx.reading.rows import Positions, Rows, rows_problem
from loaderx.reading.trails import Found, Sought, Traced, Trail, find_through
from loaderx.rng import Keys
from loaderx.tree import ArraySpec, Tree, map_leaves


class Unbatched(ByIndex, ChangesPlaces, OneInput):
    """The records of batches that are read by index."""

    stage = "unbatch()"
    unit_cost = "records"
    can_drop = False
    user_objects = ()
    batched = False
    batch_size = None
    uniform = False
    only_last_is_short = False
    rows = None
    rows_are_known = False
    short_batches = None

    def __post_init__(self) -> None:
        if not self.input.batched:
            raise ChainError("unbatch needs batches: there is no .batch(...) before it.")
        if self.input.is_stream:
            raise ChainError(
                "unbatch of a stream: leave .batch(...) out. Functions get stacked runs of records "
                "with batched=True."
            )
        for node in self.input.below():
            if node is self.input or node.batched:
                self._check(node)
        if not self.input.rows_are_known:
            raise ChainError(
                "unbatch: a short last batch was moved from its place. Use batch(..., "
                "drop_remainder=True) before reordering batches, or unbatch first."
            )

    @staticmethod
    def _check(node: Node) -> None:
        if len(node.inputs) > 1 or not node.is_stage:
            raise ChainError(
                "unbatch after joining batched datasets: write .unbatch() on each of them, "
                "then join the records."
            )
        if node.needs_positions:
            raise ChainError(
                "unbatch after map_with_index on batches: records have no batch index. "
                "Put map_with_index before .batch(...)."
            )

    @property
    def length(self) -> int | None:
        return self.input.rows

    @cached_property
    def limit(self) -> int:
        if self.length is not None:
            return self.length
        return min(LIMIT, self.input.limit * (self.input.batch_size or 1))

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        return below and map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), below)

    @property
    def is_one_dataset(self) -> bool:
        return self.length is not None  # replacements are drawn among all records, which must end

    def make_record_operator(self, request: Request) -> RecordOperator:
        below = Request(request.seed, request.host, request.hosts, whole=False)
        return Unbatch(self.input.batch_operator(below), self.limit)

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("its elements are records")


class Unbatch(RecordOperatorOf[Addresses]):
    """The rows of batches.

    Batch functions work row by row, so any run of rows can be computed as a batch.
    """

    def __init__(self, child: BatchOperator, limit: int) -> None:
        super().__init__("unbatch()")
        self.child, self.limit = child, limit

    def locate(self, epochs: Keys, positions: Positions) -> Addresses:
        found: Addresses = self.child.rows(epochs, positions)
        return found

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        moves, records = self.child.rows_of()
        yield records, trail.through(moves)

    def find_below(self, sought: Sought) -> Found:
        moves, records = self.child.rows_of()
        limits = np.minimum(sought.limits, self.limit)
        return find_through(moves, sought.within(limits), records.find)

    def read(self, addresses: Addresses, context: ReadContext) -> Rows:
        batch = context.read(self.child, addresses)
        problem = rows_problem(batch, len(addresses))
        if problem is not None:
            text = f"unbatch() needs functions that keep the rows of their batch: {problem}"
            raise RecordError(text, stage=self.stage)
        return Rows.of_columns(batch, len(addresses))

    def source_records(self, addresses: Addresses) -> Iterator[SourceRecords]:
        return self.child.source_records(addresses)

    def keys(self, addresses: Addresses) -> Keys:
        return self.child.row_keys(addresses)

    def index(self, addresses: Addresses, number: int) -> tuple[int, str]:
        return self.child.index(addresses, number)
