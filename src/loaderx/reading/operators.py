"""Operators: how a dataset that is read by index makes its records and batches.

`resolve` (for batches: `steps`) turns positions into `Addresses`, for thousands of rows at once and
ahead of time; `read` turns those of one step into `Rows`, or into a batch.  Stages that only move
elements are not operators but `Move`s of the operator below them, so they cost nothing in `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from loaderx.errors import ArgumentError, LoaderxError, RecordError
from loaderx.frozen import Frozen
from loaderx.memory import Lend
from loaderx.order.epochs import LIMIT
from loaderx.order.permutation import another
from loaderx.reading.addresses import Addresses, AnchoredAddresses, Steps
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import failed
from loaderx.reading.rows import Fail, Positions, Record, Rows
from loaderx.reading.stacking import NO_PADDING, Padding
from loaderx.reading.trails import Find, Found, Sought, Traced, Trail, find_through
from loaderx.rng import REPLACE, Keys, fold, fold_int
from loaderx.sources.adapt.arrays import ArraySource
from loaderx.sources.base import Indices, Source
from loaderx.tree import Tree

Policy: TypeAlias = str | Callable[[RecordError], str]
"""The argument of `on_error`: "replace" or "skip", or a function of the error."""

Gather: TypeAlias = Callable[[Positions, Lend], Tree]
"""The records with these indices, as one batch."""

Views: TypeAlias = Callable[[int, int], Tree | None]
"""The records from one index to another as views of the source; None if it has no such views."""


SourceRecords: TypeAlias = tuple[Source, Indices]
"""Records of a source."""

Own = TypeVar("Own", bound=Addresses)  # the addresses that an operator resolves, and reads
OwnSteps = TypeVar("OwnSteps", bound=Steps)
OneStep = TypeVar("OneStep")


class Sharing(IntEnum):
    """Whether several workers may make the rows of a batch, each a range of them."""

    NEVER = 0  # a function gets all rows at once
    POINTLESS = 1  # the rows are the same, but hardly any Python runs per record
    USEFUL = 2


def shared_by_all(operators: Sequence[RecordOperator]) -> Sharing:
    """The value for rows that come from several operators."""
    each = [operator.sharing for operator in operators]
    return Sharing.NEVER if Sharing.NEVER in each else max(each)


class Request(Frozen):
    """The needs of the stages above, for the operator of a node."""

    seed: int  # the default of the chain
    host: int = 0
    hosts: int = 1
    stacked: bool = False  # columns are wanted, rather than single records
    guarded: bool = False  # an `on_error` stands above: rows must be replaceable
    policy: Policy | None = None  # of an `on_error` above the batch
    full: int | None = None  # records per read, except for the last one; None: that varies
    whole: bool = True  # batches are read as they are cut, rather than row by row

    def rows_of_host(self, size: int | None, available: int | None) -> int | None:
        """Rows of every batch on this host, except for a short last one; None where that varies."""
        if size is None or not self.whole:
            return None
        rows = size // self.hosts
        return rows if available is None else min(rows, available)


class Move:
    """A stage that only moves elements: maps the address of each to an address of its input.

    `steps` does so, and `back` is its inverse.  A move that changes epochs overrides `find`.
    """

    limit = LIMIT  # the number of elements
    shown = ""  # the stage, as the dataset's ``repr`` has it

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        raise NotImplementedError

    def rounds(self, rounds: Positions, positions: Positions) -> Positions:
        """The numbers of the epochs below, where those above are ``rounds``."""
        return rounds

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        """The position of each element of the input; negative or too large if it has none."""
        raise NotImplementedError

    def limits_below(self, limits: Positions) -> Positions:
        """The elements of the input that may come before each limit: all, if the input ends."""
        return np.full_like(limits, LIMIT)

    def find(self, sought: Sought, below: Find) -> Found:
        """The elements that have the records, where ``below`` finds those of the input."""
        found = below(sought.within(self.limits_below(sought.limits)))
        return found.at(self.back(sought.epochs[found.which], found.positions), sought.limits)

    def of_rows(self, size: int) -> Move:
        """The same move for the records inside batches of ``size`` rows, below an `unbatch`."""
        return MovedRows(self, size)


class MovedRows(Move):
    """Moves rows with their batches.

    The position of a row is that of its batch times ``size``, plus its place in the batch.
    """

    def __init__(self, batches: Move, size: int) -> None:
        self.batches, self.size = batches, size

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        batches, places = np.divmod(positions, self.size)
        epochs, batches = self.batches.steps(epochs, batches)
        return epochs, batches * self.size + places

    def rounds(self, rounds: Positions, positions: Positions) -> Positions:
        return self.batches.rounds(rounds, positions // self.size)

    def find(self, sought: Sought, below: Find) -> Found:
        def batches_below(inner: Sought) -> Found:
            found = below(inner.within(np.minimum(inner.limits, LIMIT // self.size) * self.size))
            return Found(found.which, *np.divmod(found.positions, self.size))

        inner = sought.within(-(-sought.limits // self.size))
        found = find_through([self.batches], inner, batches_below)
        return found.at(found.positions * self.size + found.rows, sought.limits)

    def of_rows(self, size: int) -> Move:
        raise AssertionError("these are rows already")


class RecordOperatorOf(Traced, Generic[Own]):
    """The base of operators on records: moves rows first, then finds them."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.moves: list[Move] = []  # outermost first

    def resolve(self, epochs: Keys, positions: Positions) -> Own:
        for move in self.moves:
            epochs, positions = move.steps(epochs, positions)
        return self.locate(epochs, positions)

    def locate(self, epochs: Keys, positions: Positions) -> Own:
        raise NotImplementedError

    def read(self, addresses: Own, context: ReadContext) -> Rows:
        raise NotImplementedError

    def source_records(self, addresses: Own) -> Iterator[SourceRecords]:
        """The records of remote sources that `read` will need, so that they can be fetched."""
        raise NotImplementedError

    @property
    def reads_each(self) -> bool:
        """Whether `each` can be used: not where a stage needs several records at once."""
        return False

    def each(self, addresses: Own) -> Iterator[Record]:
        """The records of `read` one by one, each made when asked for: see `single_records`."""
        raise NotImplementedError

    @property
    def large_records(self) -> bool:
        """Whether they are so large that the next operator should not wait for all of a batch."""
        return False

    @property
    def sharing(self) -> Sharing:
        return Sharing.NEVER

    def keys(self, addresses: Own) -> Keys:
        """A key per row, independent of the position of the row."""
        raise NotImplementedError

    def index(self, addresses: Own, number: int) -> tuple[int, str]:
        """A row's index in its source, and the record's name for messages."""
        raise NotImplementedError

    def relocate(self, addresses: Own, attempt: int) -> Own:
        """The rows that replace these when they cannot be read."""
        raise NotImplementedError

    def gather_of(self, width: int) -> Gather | None:
        """The source's own gather, if ``width`` records need nothing else."""
        return None

    def array_source(self) -> ArraySource | None:
        """The source of arrays that these rows come from, moved or not, if they will be stacked."""
        return None

    def pad(self, padding: Padding) -> None:
        """From now on `read` gives padded columns if it can, else records for the caller to pad."""

    def views(self) -> Views | None:
        """Reads consecutive records as views of the source, if they need nothing else."""
        return None

    def namer(self, addresses: Own) -> Callable[[int], str]:
        return lambda number: self.index(addresses, number)[1]

    def failer(self, addresses: Own, stage: str) -> Fail:
        """A function that makes the errors of a stage above this operator."""

        def fail(number: int | None, error: BaseException) -> LoaderxError:
            if number is None:
                return failed(stage, f"a run of {len(addresses)} records", None, error)
            index, name = self.index(addresses, number)
            return failed(stage, name, index, error)

        return fail


RecordOperator: TypeAlias = RecordOperatorOf[Any]
"""An operator on records, whose addresses only the operator itself knows."""


class OverRecords(RecordOperatorOf[Own]):
    """The base of operators above one other."""

    def __init__(self, stage: str, child: RecordOperator) -> None:
        super().__init__(stage)
        self.child = child

    def locate(self, epochs: Keys, positions: Positions) -> Own:
        found: Own = self.child.resolve(epochs, positions)
        return found

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        yield self.child, trail

    def find_below(self, sought: Sought) -> Found:
        return self.child.find(sought)

    def inner(self, addresses: Own) -> Addresses:
        """The addresses of the operator below."""
        return addresses

    def source_records(self, addresses: Own) -> Iterator[SourceRecords]:
        return self.child.source_records(self.inner(addresses))

    @property
    def sharing(self) -> Sharing:
        return self.child.sharing

    def keys(self, addresses: Own) -> Keys:
        return self.child.keys(self.inner(addresses))

    def index(self, addresses: Own, number: int) -> tuple[int, str]:
        return self.child.index(self.inner(addresses), number)

    def relocate(self, addresses: Own, attempt: int) -> Own:
        found: Own = self.child.relocate(addresses, attempt)
        return found


class Anchor(OverRecords[AnchoredAddresses]):
    """Marks where a row that cannot be read is replaced by another row of the same dataset."""

    def __init__(self, child: RecordOperator, length: int, seed: int) -> None:
        super().__init__(child.stage, child)  # statistics do not count it as a stage
        self.length, self.seed = length, seed

    def locate(self, epochs: Keys, positions: Positions) -> AnchoredAddresses:
        return AnchoredAddresses(epochs, positions, self.child.resolve(epochs, positions))

    def read(self, addresses: AnchoredAddresses, context: ReadContext) -> Rows:
        return context.read(self.child, addresses.inner)

    def inner(self, addresses: AnchoredAddresses) -> Addresses:
        return addresses.inner

    @property
    def reads_each(self) -> bool:
        return self.child.reads_each

    @property
    def large_records(self) -> bool:
        return self.child.large_records

    def each(self, addresses: AnchoredAddresses) -> Iterator[Record]:
        return self.child.each(addresses.inner)

    def relocate(self, addresses: AnchoredAddresses, attempt: int) -> AnchoredAddresses:
        if self.length < 2:
            raise ArgumentError("on_error: there is no other record to use instead.")
        epochs, before = addresses.epochs, addresses.positions
        tries = np.array([fold_int(self.seed, attempt, REPLACE)], np.uint64)
        drawn = fold(fold(epochs, before, REPLACE), tries, REPLACE)
        positions = another(drawn, before, self.length)
        return AnchoredAddresses(epochs, before, self.child.resolve(epochs, positions))


class BatchOperatorOf(Traced, Generic[OwnSteps, OneStep]):
    """The base of operators on batches: moves batches first, then finds their rows.

    `steps` resolves a stretch of steps to the rows that each must read, `rows` resolves single
    records of batches (for `unbatch`), and `read` makes one batch from either.
    """

    def __init__(self, stage: str, size: int | None) -> None:
        self.stage = stage
        self.size = size  # rows per global batch, None where components differ
        self.moves: list[Move] = []  # outermost first

    def steps(self, epochs: Keys, numbers: Positions) -> OwnSteps:
        for move in self.moves:
            epochs, numbers = move.steps(epochs, numbers)
        return self.locate(epochs, numbers)

    def rows(self, epochs: Keys, positions: Positions) -> OneStep:
        for move in self._moves_of_rows():
            epochs, positions = move.steps(epochs, positions)
        return self.locate_rows(epochs, positions)

    def _moves_of_rows(self) -> list[Move]:
        if not self.moves:
            return []
        assert self.size is not None
        made = [move.of_rows(self.size) for move in self.moves]
        for move, batches in zip(made, self.moves, strict=True):
            move.limit = min(LIMIT, batches.limit * self.size)
        return made

    def rows_of(self) -> tuple[list[Move], RecordOperator]:
        """The records below an `unbatch`: how they move, and the operator that has them."""
        moves, records = self.rows_below_moves()
        return [*self._moves_of_rows(), *moves], records

    def rows_below_moves(self) -> tuple[list[Move], RecordOperator]:
        """`rows_of` for what is below the moves."""
        raise NotImplementedError

    def locate(self, epochs: Keys, numbers: Positions) -> OwnSteps:
        raise NotImplementedError

    def locate_rows(self, epochs: Keys, positions: Positions) -> OneStep:
        raise NotImplementedError

    def read(self, addresses: OneStep, context: ReadContext) -> Tree:
        raise NotImplementedError

    def source_records(self, addresses: OneStep) -> Iterator[SourceRecords]:
        """The records of remote sources that `read` will need, so that they can be fetched."""
        raise NotImplementedError

    def keys(self, steps: OwnSteps) -> Keys:
        """A key per row of a stretch of steps."""
        raise NotImplementedError

    def row_keys(self, addresses: OneStep) -> Keys:
        raise NotImplementedError

    def index(self, addresses: OneStep, number: int) -> tuple[int, str]:
        raise NotImplementedError

    def plain_gather(self) -> Gather | None:
        """The source's own gather, if a batch needs nothing else."""
        return None

    def shared_rows(self) -> int:
        """The rows of a batch if several workers should share the work of making it; else 0."""
        return 0

    @property
    def padding(self) -> Padding:
        """The padding of the rows of a batch."""
        return NO_PADDING

    def rows_below(self, addresses: OneStep) -> tuple[RecordOperator, Addresses]:
        """The operator that the rows of a batch come from, for workers that make some of them."""
        raise NotImplementedError


BatchOperator: TypeAlias = BatchOperatorOf[Any, Any]
"""An operator on batches, whose steps only the operator itself knows."""
