"""Stages that make one element of each: the node, and how it is carried out.

A stage of this kind is a `Transform`, which says what is done to records and to batches, and a
subclass of `OneToOne`, which says what the stage is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loaderx.chain.families import KeepsPlaces, MadeInUnits
from loaderx.chain.node import Node
from loaderx.chain.transforms import Transform
from loaderx.errors import LoaderxError
from loaderx.memory import Pool
from loaderx.reading.addresses import Addresses, Steps, TaggedAddresses, TaggedSteps
from loaderx.reading.batch_readers import AfterBatch, BatchReader, Counted
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import failed_on_batch
from loaderx.reading.operators import (
    BatchOperator,
    BatchOperatorOf,
    Gather,
    Move,
    OverRecords,
    RecordOperator,
    Request,
    Sharing,
    SourceRecords,
)
from loaderx.reading.rows import Positions, Record, Rows, rows_of
from loaderx.reading.stacking import Padding
from loaderx.reading.trails import Found, Sought, Traced, Trail
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import Keys, stage_keys
from loaderx.tree import Tree, flatten

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild

_LARGE_AT_ONCE = 4  # decoded images that are held while a function makes smaller ones of them


class OneToOne(MadeInUnits, KeepsPlaces):
    """Makes one element of each, and leaves it in its place."""

    transform: Transform

    can_drop = False

    @property
    def stacked(self) -> bool:
        """Whether the transform gets stacked records, below the batch."""
        return False

    @property
    def own_seed(self) -> int | None:
        """The seed of the stage; None: the default of its chain."""
        return None

    @property
    def is_random(self) -> bool:
        return self.transform.needs == "keys"

    @property
    def needs_keys(self) -> bool:
        return self.is_random

    @property
    def needs_positions(self) -> bool:
        return self.transform.needs == "positions"

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        return None if below is None else self.transform.spec(below, _leading(self.input))

    def one_epoch(self) -> Node:
        # The position of an element counts all epochs, so the repeat below is part of the stage.
        return self if self.needs_positions else super().one_epoch()

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.transform),)

    def seed_here(self, default: int) -> int:
        """The seed of the stage, where that of its chain is ``default``."""
        return default if self.own_seed is None else self.own_seed

    def make_record_operator(self, request: Request) -> RecordOperator:
        stacked = request.stacked if self.transform.takes_either else self.stacked
        return ApplyToRecords(
            self.stage,
            self.input.record_operator(request.replace(stacked=stacked)),
            self.transform.for_batches_of(request.full),
            stacked=stacked,
            seed=self.seed_here(request.seed),
            ordinal=self.random_stages,
        )

    def batch_operator(self, request: Request) -> BatchOperator:
        return ApplyToBatches(
            self.stage,
            self.input.batch_operator(request),
            self.transform.for_batches_of(request.rows_of_host(self.batch_size, self.rows)),
            seed=self.seed_here(request.seed),
            ordinal=self.random_stages,
        )

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        return ApplyInUnit(
            self.stage,
            self.transform,
            stacked=None if self.transform.takes_either else self.stacked,
            seed=self.seed_here(build.seed),
            ordinal=self.random_stages,
        )

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        if self.needs_positions:
            return IndexAfterBatch(below, self.stage, None if build.traces else self.transform)
        if build.traces:
            return below
        transform = self.transform.for_batches_of(build.full_batch)
        return ApplyAfterBatch(
            below, self.stage, transform, self.seed_here(build.seed), self.random_stages
        )


def _leading(node: Node) -> tuple[int | None, ...]:
    """The first axis of batches, and nothing for records."""
    if not node.batched:
        return ()
    leaves, _ = flatten(node.spec)
    first = leaves[0].shape[0] if leaves and leaves[0].shape else None
    return (first if isinstance(first, int) else None,)


# Read by index ----------------------------------------------------------------------------------


class ApplyToRecords(OverRecords[Addresses]):
    """A transform of records.  Keys or positions that it needs are resolved with the addresses."""

    def __init__(
        self,
        stage: str,
        child: RecordOperator,
        transform: Transform,
        *,
        stacked: bool,
        seed: int,
        ordinal: int,
    ) -> None:
        super().__init__(stage, child)
        self.transform, self.stacked = transform, stacked
        self.seed, self.ordinal = seed, ordinal
        self.is_tagged = transform.needs in ("keys", "positions")

    def locate(self, epochs: Keys, positions: Positions) -> Addresses:
        addresses = self.child.resolve(epochs, positions)
        return self._tagged(addresses, positions) if self.is_tagged else addresses

    def _tagged(self, addresses: Addresses, positions: Positions) -> TaggedAddresses:
        if self.transform.needs == "positions":
            return TaggedAddresses(addresses, positions)
        keys = stage_keys(self.child.keys(addresses), self.seed, self.ordinal)
        return TaggedAddresses(addresses, keys)

    def read(self, addresses: Addresses, context: ReadContext) -> Rows:
        count = len(addresses)
        if count > _LARGE_AT_ONCE and self.child.large_records and not self.stacked:
            made: list[Record] = []
            for start in range(0, count, _LARGE_AT_ONCE):
                piece = addresses.cut(start, min(start + _LARGE_AT_ONCE, count))
                made += self._read(piece, context).records()
            return Rows.of_records(made)
        return self._read(addresses, context)

    def _read(self, addresses: Addresses, context: ReadContext) -> Rows:
        addresses, extra = _untagged(self.is_tagged, addresses)
        if self.transform.needs == "memory":
            extra = context.lend
        rows = context.read(self.child, addresses)
        fail = self.child.failer(addresses, self.stage)
        if not self.stacked:
            return Rows.of_records(self.transform.on_records(rows.records(), extra, fail))
        tree = rows.columns(context.lend, self.stage, self.child.namer(addresses))
        return rows_of(self.transform.on_batch(tree, extra, fail), len(rows), fail)

    def inner(self, addresses: Addresses) -> Addresses:
        return _untagged(self.is_tagged, addresses)[0]

    @property
    def reads_each(self) -> bool:
        return self.child.reads_each and not self.stacked and self.transform.goes_singly

    def each(self, addresses: Addresses) -> Iterator[Record]:
        addresses, extra = _untagged(self.is_tagged, addresses)
        if self.transform.needs == "memory":
            extra = Pool().lend
        fail = self.child.failer(addresses, self.stage)
        return self.transform.on_each(self.child.each(addresses), extra, fail)

    @property
    def sharing(self) -> Sharing:
        if self.transform.is_cheap:
            return self.child.sharing
        # Stacked functions are given all rows of a batch: fewer at a time could be seen.
        alone = self.stacked or self.child.sharing is Sharing.NEVER
        return Sharing.NEVER if alone else Sharing.USEFUL

    def relocate(self, addresses: Addresses, attempt: int) -> Addresses:
        inner, values = _untagged(self.is_tagged, addresses)
        other = self.child.relocate(inner, attempt)
        return self._tagged(other, values) if self.is_tagged else other


def _untagged(is_tagged: bool, addresses: Addresses) -> tuple[Addresses, Any]:
    """The addresses below a stage, and the keys or positions that it tagged them with, if any."""
    if not is_tagged:
        return addresses, None
    assert isinstance(addresses, TaggedAddresses)
    return addresses.inner, addresses.values


class ApplyToBatches(BatchOperatorOf[Steps, Addresses]):
    """A transform of batches.  Keys or positions that it needs are resolved with the addresses."""

    def __init__(
        self, stage: str, child: BatchOperator, transform: Transform, *, seed: int, ordinal: int
    ) -> None:
        super().__init__(stage, child.size)
        self.child, self.transform = child, transform
        self.seed, self.ordinal = seed, ordinal
        self.is_tagged = transform.needs in ("keys", "positions")

    def locate(self, epochs: Keys, numbers: Positions) -> Steps:
        steps: Steps = self.child.steps(epochs, numbers)
        if not self.is_tagged:
            return steps
        if self.transform.needs == "positions":
            return TaggedSteps(steps, numbers.tolist(), per_row=False)
        keys = stage_keys(self.child.keys(steps), self.seed, self.ordinal)
        return TaggedSteps(steps, keys, per_row=True)

    def locate_rows(self, epochs: Keys, positions: Positions) -> Addresses:
        addresses: Addresses = self.child.rows(epochs, positions)
        if not self.is_tagged:
            return addresses
        keys = stage_keys(self.child.row_keys(addresses), self.seed, self.ordinal)
        return TaggedAddresses(addresses, keys)

    def read(self, addresses: Addresses, context: ReadContext) -> Tree:
        inner, extra = _untagged(self.is_tagged, addresses)
        if self.transform.needs == "memory":
            extra = context.lend
        return self.transform.on_batch(context.read(self.child, inner), extra, self._fail)

    def source_records(self, addresses: Addresses) -> Iterator[SourceRecords]:
        return self.child.source_records(self._inner(addresses))

    def _inner(self, addresses: Addresses) -> Addresses:
        return _untagged(self.is_tagged, addresses)[0]

    def plain_gather(self) -> Gather | None:
        gather = self.child.plain_gather()
        return None if gather is None else self.transform.over_gather(gather)

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        yield self.child, trail

    def find_below(self, sought: Sought) -> Found:
        return self.child.find(sought)

    def rows_below_moves(self) -> tuple[list[Move], RecordOperator]:
        return self.child.rows_of()

    def shared_rows(self) -> int:
        return self.child.shared_rows()

    @property
    def padding(self) -> Padding:
        return self.child.padding

    def rows_below(self, addresses: Addresses) -> tuple[RecordOperator, Addresses]:
        return self.child.rows_below(self._inner(addresses))

    def _fail(self, number: int | None, error: BaseException) -> LoaderxError:
        return failed_on_batch(self.stage, error)

    def keys(self, steps: Steps) -> Keys:
        return self.child.keys(steps.inner if isinstance(steps, TaggedSteps) else steps)

    def row_keys(self, addresses: Addresses) -> Keys:
        return self.child.row_keys(self._inner(addresses))

    def index(self, addresses: Addresses, number: int) -> tuple[int, str]:
        return self.child.index(self._inner(addresses), number)


# In a stream ------------------------------------------------------------------------------------


class ApplyInUnit(UnitStage):
    """A transform of the records of a unit."""

    is_one_to_one = True

    def __init__(
        self, stage: str, transform: Transform, *, stacked: bool | None, seed: int, ordinal: int
    ) -> None:
        super().__init__(stage)
        self.transform, self.wants = transform, stacked
        self.seed, self.ordinal = seed, ordinal

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        extra: Any = context.lend if self.transform.needs == "memory" else None
        if self.transform.needs == "keys":
            assert rows.keys is not None
            extra = stage_keys(rows.keys, self.seed, self.ordinal)
        fail = rows.fail(self.stage)
        stacked = rows.is_stacked if self.wants is None else self.wants
        if not stacked:
            return rows.with_records(self.transform.on_records(rows.records(), extra, fail))
        if not len(rows):
            return rows
        given = rows.columns(context.lend, self.stage)
        made = rows_of(self.transform.on_batch(given, extra, fail), len(rows), fail)
        return rows.with_content(made)


class ApplyAfterBatch(AfterBatch):
    """A transform of the batches of a stream."""

    def __init__(
        self, below: BatchReader, stage: str, transform: Transform, seed: int, ordinal: int
    ) -> None:
        super().__init__(below)
        self.stage, self.transform = stage, transform
        self.seed, self.ordinal = seed, ordinal
        self._lend = Pool().lend if transform.needs == "memory" else None

    def next(self) -> Rows | None:
        batch = self.below.next()
        if batch is None:
            return None
        extra: Any = self._lend
        if self.transform.needs == "keys":
            assert batch.keys is not None
            extra = stage_keys(batch.keys, self.seed, self.ordinal)
        tree = self.timed(self.transform.on_batch, batch.tree, extra, self._fail)
        return batch.with_columns(tree)

    def _fail(self, number: int | None, error: BaseException) -> LoaderxError:
        return failed_on_batch(self.stage, error)


class IndexAfterBatch(Counted):
    """map_with_index of the batches of a stream."""

    def __init__(self, below: BatchReader, stage: str, transform: Transform | None) -> None:
        super().__init__(below)
        self.stage, self.transform = stage, transform

    def next(self) -> Rows | None:
        batch = self.below.next()
        if batch is None:
            return None
        self.count += 1
        if self.transform is None:
            return batch
        tree = self.timed(self.transform.on_batch, batch.tree, self.count - 1, self._fail)
        return batch.with_columns(tree)

    def _fail(self, number: int | None, error: BaseException) -> LoaderxError:
        return failed_on_batch(self.stage, error)
