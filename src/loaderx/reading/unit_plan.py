"""Units: the outputs of fixed runs of input positions, each computed from its number alone.

`UnitPlan` makes the output of a unit; it is sent to workers.  The output is a tree that goes
through shared memory as batches do: columns where the records could be stacked, else an `Opaque`
list of them.  `rows_from` makes `Rows` of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypedDict, TypeVar

import numpy as np

from loaderx.errors import RecordError, StackError
from loaderx.order.epochs import child
from loaderx.reading.addresses import Addresses
from loaderx.reading.context import Failed, ReadContext
from loaderx.reading.operators import RecordOperator, SourceRecords
from loaderx.reading.rows import Positions, Record, Rows, named
from loaderx.reading.stacking import NO_PADDING, Padding, stack
from loaderx.reading.unit_stage import UnitStage, first_guard, run_stages
from loaderx.rng import ROOT, Keys
from loaderx.tree import Tree, flatten

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

READ = -1  # the number of the meter that counts the records read

Names = tuple[list[Record], list[str] | None, list[int | None] | None]
"""Single records, with names and indices in their source where messages need them."""


class Opaque(Generic[T]):
    """Wraps a list, or any value, to make it one leaf of a tree."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class PackedRows(TypedDict):
    """Rows on their way from the worker that made them: the encoding of all rows that travel."""

    columns: Tree  # None: they are single records
    records: Opaque[Names] | None
    chosen: Positions | None
    keys: Keys | None


class UnitOutput(PackedRows):
    """The output of a unit."""

    meters: npt.NDArray[np.int64]  # per stage that counts: its number, records in, records out
    failures: Opaque[list[Failed]] | None  # records that `on_error` left out


def rows_from(packed: PackedRows, padding: Padding) -> Rows:
    """The rows that were packed."""
    keys = packed["keys"]
    if packed["records"] is not None:
        records, names, indices = packed["records"].value
        return Rows.of_records(
            records, keys, identify=None if names is None else named(names, indices)
        )
    chosen = packed["chosen"]
    count = len(flatten(packed["columns"])[0][0]) if chosen is None else len(chosen)
    if chosen is not None:
        padding = NO_PADDING
    return Rows.of_columns(packed["columns"], count, keys, chosen=chosen, padding=padding)


class Finish:
    """The last step of a unit: stacks its records as the batch will need them, if it can."""

    only_counts = False  # the values of the rows are not needed

    def __init__(self, *, stacked: bool, padding: Padding, named: bool = False) -> None:
        self.stacked, self.padding = stacked, padding
        self.named = named  # single records are sent with their names and indices

    @property
    def takes_views(self) -> bool:
        """Whether views of the source are enough, if all rows have one shape."""
        return self.stacked and not self.padding.lengths

    def output(self, rows: Rows, context: ReadContext) -> UnitOutput:
        meters = [[meter, *counts] for meter, counts in sorted(context.meters.items())]
        made: UnitOutput = {
            "columns": None,
            "records": None,
            "chosen": rows.chosen,
            "keys": rows.keys,
            "meters": np.array(meters, np.int64).reshape(-1, 3),
            "failures": Opaque(context.failures) if context.failures else None,
        }
        if rows.chosen is not None:
            made["columns"] = rows.structure.build(rows.leaves)
        elif not self.stacked or not len(rows):
            made["records"] = self._single(rows)
        else:
            self._stack(rows, context, made)
        return made

    def _single(self, rows: Rows) -> Opaque[Names]:
        records = rows.records() if len(rows) else []
        if not self.named:
            return Opaque((records, None, None))
        known = [rows.identity(number) for number in range(len(rows))]
        return Opaque((records, [name for _, name in known], [index for index, _ in known]))

    def _stack(self, rows: Rows, context: ReadContext, made: UnitOutput) -> None:
        tree = rows.tree if rows.is_stacked and self.takes_views else None
        if tree is None:
            records = rows.records()
            try:
                tree = stack(records, context.lend, rows.name, self.padding)
            except StackError:  # the batch may fit together even if the unit does not
                names = [rows.name(number) for number in range(len(records))]
                made["records"] = Opaque((records, names, None))
                return
        leaves, _ = flatten(tree)
        if leaves and all(isinstance(leaf, np.ndarray) and leaf.ndim for leaf in leaves):
            made["columns"] = tree
        else:
            made["records"] = Opaque((rows.records(), None, None))


class CountRows(Finish):
    """Hands over how many rows a unit has, one byte for each."""

    only_counts = True

    def __init__(self) -> None:
        super().__init__(stacked=True, padding=NO_PADDING)

    def output(self, rows: Rows, context: ReadContext) -> UnitOutput:
        made = super().output(Rows.of_records([]), context)
        made["columns"], made["records"] = np.zeros(len(rows), np.uint8), None
        return made


class NameRows(Finish):
    """Hands over the names of the rows in place of their values."""

    only_counts = True

    def __init__(self) -> None:
        super().__init__(stacked=False, padding=NO_PADDING)

    def output(self, rows: Rows, context: ReadContext) -> UnitOutput:
        names: list[Record] = [rows.name(number) for number in range(len(rows))]
        return super().output(Rows.of_records(names), context)


class UnitBounds(Protocol):
    """Where units begin and end, if they do not all have the same size."""

    def bounds(self, epoch: Keys, number: int) -> tuple[int, int]: ...


class UnitPlan:
    """Makes the units of a dataset that is read by index."""

    def __init__(
        self,
        operator: RecordOperator,
        stages: Sequence[UnitStage],
        finish: Finish,
        *,
        rows: int,
        units: int | None,
        length: int | None,
        longest: int,
        limit: int,
        repeats: Sequence[tuple[int | None, int]],
        keyed: bool,
        are_equal: bool,
        bounds: UnitBounds | None = None,
        traced: int | None = None,
        path: tuple[int, ...] = (),
    ) -> None:
        self.operator, self.stages, self.finish = operator, list(stages), finish
        self.rows = rows  # of a unit, at most
        self.units, self.length = units, length  # None: endless
        self.are_equal = are_equal  # or nearly so; else every unit but the last has ``rows``
        self.bounds = bounds  # of units that are neither
        self.limit = limit  # records that can be numbered
        self.longest = longest  # of an endless dataset: records until all have come once
        self.repeats = list(repeats)  # (how many, ordinal) of the repeats above, outermost first
        self.keyed = keyed
        # A mask only looks at rows, so it can work on views of the source.
        first = self.stages[0] if self.stages else None
        self.views = operator.views() if first is not None and first.takes_views else None
        if first is not None and self.views is not None:
            first.use_views(is_last=len(self.stages) == 1 and finish.takes_views)
        self._epoch: tuple[Sequence[int], int] | None = None  # the last result of `epoch_key`
        self.traced = traced  # its number, if rows are to be named after their input positions
        self.path = path  # to its dataset, through the components of the mixes above
        self.paths: dict[int, Sequence[int]] = {}  # of the epochs that were read, if it is traced
        datasets = [stage.dataset for stage in stages if stage.dataset is not None]
        self._datasets = "".join(f" of dataset {number}" for number in datasets)

    def units_of(self, lane: int, lanes: int, path: Sequence[int]) -> range:
        """The units of a lane in an epoch.

        Units are dealt in turn, over the endless row of all epochs and to other lanes in each.  So
        a lane whose units give more rows than those of others gives fewer in another epoch.  Of an
        endless dataset, these are the units whose records can be numbered.
        """
        if self.units is None:
            return range(lane, self.limit // self.rows, lanes)
        turn = self.units % lanes or 1
        return range((lane - self.epochs_before(path) * turn) % lanes, self.units, lanes)

    def epochs_before(self, path: Sequence[int]) -> int:
        count = 0
        for epochs, number in zip(self.epoch_counts, path, strict=True):
            count = count * (epochs or 1) + number
        return count

    @property
    def epoch_counts(self) -> list[int | None]:
        """How many epochs each of the repeats above has, outermost first; None: endless."""
        return [count for count, _ in self.repeats]

    def epoch_key(self, path: Sequence[int]) -> int:
        """The key of an epoch, from the numbers of all repeats: draws and orders depend on it."""
        known = self._epoch
        if known is None or known[0] != path:
            key = epoch_key([ordinal for _, ordinal in self.repeats], path)
            self._epoch = known = (tuple(path), int(key[0]))
            if self.traced is not None:
                self.paths[known[1]] = known[0]
        return known[1]

    def make(self, epoch_key: int, unit: int, context: ReadContext) -> UnitOutput:
        """The output of a unit."""
        epoch: Keys = np.array([epoch_key], np.uint64)
        first, stop = self.records_of(epoch, unit)
        if first == stop:
            return self.finish.output(Rows.of_records([]), context)
        views = None if self.views is None else self.views(first, stop)

        @cache
        def find() -> Addresses:
            found: Addresses = self.operator.resolve(epoch, np.arange(first, stop))
            return found

        if views is not None:
            rows = Rows.of_columns(views, stop - first)
            kept: Positions = np.arange(stop - first)
        else:
            rows, kept = self._read(find(), context)
        if self.keyed:
            rows.keys = self.operator.keys(find())[kept]
        # Counted as if all units before had ``rows``, so that no window spans two of them.
        place = unit * self.rows if self.bounds is None else first
        rows.places, rows.origins = kept + place, kept
        rows.identify = lambda row: self.operator.index(find(), row)
        if self.traced is not None:
            named = f"{self.traced}:{epoch_key}:"
            rows.identify = lambda row: (
                self.operator.index(find(), row)[0],
                f"{named}{first + row}",
            )
        context.epoch = epoch
        context.count(READ, stop - first, 0)
        rows = run_stages(self.stages, rows, context)
        if context.failures:
            context.name_failures(0, self._datasets)
        return self.finish.output(rows, context)

    def source_records(self, epoch_key: int, unit: int) -> list[SourceRecords]:
        """The records of remote sources that a unit will read."""
        epoch: Keys = np.array([epoch_key], np.uint64)
        first, stop = self.records_of(epoch, unit)
        if first == stop:
            return []
        addresses = self.operator.resolve(epoch, np.arange(first, stop))
        return list(self.operator.source_records(addresses))

    def records_of(self, epoch: Keys, unit: int) -> tuple[int, int]:
        """The first record of a unit, and the one after its last."""
        if self.bounds is not None:
            return self.bounds.bounds(epoch, unit)
        if self.are_equal and self.length is not None and self.units is not None:
            return unit * self.length // self.units, (unit + 1) * self.length // self.units
        first = unit * self.rows
        stop = first + self.rows
        return first, stop if self.length is None else min(stop, self.length)

    def _read(self, addresses: Addresses, context: ReadContext) -> tuple[Rows, Positions]:
        try:
            return context.read(self.operator, addresses), np.arange(len(addresses))
        except RecordError as error:
            guard = first_guard(self.stages)
            if guard is None or error.index is None:
                raise
        context.failures.clear()  # those of an `on_error` below come again
        found: list[Record] = []
        kept: list[int] = []
        for number in range(len(addresses)):
            before = len(context.failures)
            try:
                found += context.read(self.operator, addresses.cut(number, number + 1)).records()
                kept.append(number)
            except RecordError as error:
                if not guard.drops(error):
                    raise
                del context.failures[before:]
                context.add_failure(error)
        return Rows.of_records(found), np.array(kept, np.int64)


def epoch_key(ordinals: Sequence[int], path: Sequence[int]) -> Keys:
    """The key of an epoch, from the ordinals of the repeats above and their epoch numbers."""
    key = ROOT
    for ordinal, number in zip(ordinals, path, strict=True):
        key = child(key, np.array([number]), ordinal)
    return key
