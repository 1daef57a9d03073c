"""Units: what comes out of a fixed run of input positions, by its number alone.

`UnitPlan` makes the output of a unit; it is sent to workers.  What it gives is a dict of arrays,
or `Loose` records where they cannot be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.errors import RecordError, StackError
from loaderx.order.epochs import child
from loaderx.reading.chunks import Branch, Chunk, Filter, Guard, UnitStage, run_stages
from loaderx.reading.context import Failed, ReadContext
from loaderx.reading.records import Chosen, ReadSource, RecordOperator, Run, Stacked, as_records
from loaderx.rng import ROOT, Keys
from loaderx.sources import ArraySource
from loaderx.stages.stacking import Padding, stack
from loaderx.tree import flatten

Positions = npt.NDArray[np.int64]

NO_METERS = np.empty((0, 3), np.int64)
READ = -1  # the meter of the records that were read


class Loose:
    """Records that were not stacked, with a name each where they should have been.

    Where an `on_error` stands above, each also has its index in its source.
    """

    __slots__ = ("failures", "indices", "keys", "meters", "names", "records")

    def __init__(
        self,
        records: list[Any],
        keys: Any,
        meters: Any,
        names: Any = None,
        failures: FailedRecords | None = None,
        indices: list[int | None] | None = None,
    ) -> None:
        self.records, self.keys, self.meters, self.names = records, keys, meters, names
        self.indices = indices
        self.failures = failures


class FailedRecords:
    """The records of a unit that `on_error` left out.  A class, since lists are structure."""

    __slots__ = ("records",)

    def __init__(self, records: list[Failed]) -> None:
        self.records = records


def failures_of(output: Any) -> list[Failed]:
    """The records that were left out when the output of a unit was made."""
    found = output.failures if isinstance(output, Loose) else output["failures"]
    return [] if found is None else found.records


class Finish:
    """The last step of a unit: records stacked as batches will want them, where that can be."""

    def __init__(self, *, stacked: bool, padding: Padding, named: bool = False) -> None:
        self.stacked, self.padding = stacked, padding
        self.named = named  # must single records say where they come from?

    @property
    def takes_views(self) -> bool:
        """Does it take rows where they lie, if all are of one shape?"""
        return self.stacked and not self.padding.lengths

    def output(self, chunk: Chunk, context: ReadContext) -> Any:
        """A dict of arrays, or `Loose`."""
        meters = np.array(
            [[meter, *counts] for meter, counts in sorted(chunk.meters.items())], np.int64
        ).reshape(-1, 3)
        keys = chunk.keys
        failures = FailedRecords(context.failures) if context.failures else None
        if isinstance(chunk.run, Chosen):
            return {
                "rows": chunk.run.tree,
                "chosen": chunk.run.rows,
                "keys": keys,
                "meters": meters,
                "failures": failures,
            }
        if not self.stacked or not len(chunk):
            records = as_records(chunk.run) if len(chunk) else []
            if not self.named:
                return Loose(records, keys, meters, failures=failures)
            known = [chunk.identify(origin) for origin in chunk.origins.tolist()]
            names, indices = [name for _, name in known], [index for index, _ in known]
            return Loose(records, keys, meters, names, failures, indices)
        tree = chunk.run.tree if isinstance(chunk.run, Stacked) else None
        if tree is None or not self.takes_views:
            records = as_records(chunk.run)
            try:
                tree = stack(records, context.lend, chunk.name, self.padding)
            except StackError:  # the batch may fit together even if the unit does not
                names = [chunk.name(number) for number in range(len(records))]
                return Loose(records, keys, meters, names, failures)
        leaves, _ = flatten(tree)
        if not leaves or not all(isinstance(leaf, np.ndarray) and leaf.ndim for leaf in leaves):
            return Loose(as_records(chunk.run), keys, meters, failures=failures)
        return {
            "rows": tree,
            "chosen": None,
            "keys": keys,
            "meters": meters,
            "failures": failures,
        }


class UnitPlan:
    """What to do for a unit of a dataset that is read by index."""

    def __init__(
        self,
        operator: RecordOperator,
        stages: Sequence[UnitStage],
        finish: Finish,
        *,
        rows: int,
        length: int | None,
        longest: int,
        limit: int,
        passes: Sequence[tuple[int | None, int]],
        keyed: bool,
    ) -> None:
        self.operator, self.stages, self.finish = operator, list(stages), finish
        self.rows, self.length = rows, length
        self.limit = limit  # records that can be numbered
        self.longest = longest  # records until all have come once, for a dataset that is endless
        self.passes = list(passes)  # (how many, ordinal) of the repeats above, outermost first
        self.keyed = keyed
        self.window = self._borrowed()
        self._epoch: tuple[Sequence[int], int] | None = None  # the last one that was asked for
        components = [stage.component for stage in stages if isinstance(stage, Branch)]
        self._components = "".join(f" of dataset {int(number[0])}" for number in components)

    def _borrowed(self) -> Callable[[int, int], Any] | None:
        """Reads a unit as views of the source: where a mask picks rows from it, that is enough."""
        first = self.stages[0] if self.stages else None
        operator = self.operator
        if not isinstance(first, Filter) or not first.wants or operator.moves:
            return None
        if not isinstance(operator, ReadSource) or not isinstance(operator.source, ArraySource):
            return None
        first.borrows = True
        first.lends = len(self.stages) == 1 and self.finish.takes_views
        return operator.source.window

    @property
    def units(self) -> int | None:
        return None if self.length is None else -(-self.length // self.rows)

    def units_of(self, lane: int, lanes: int) -> range:
        """The units of a lane; of an endless dataset, those whose records can be numbered."""
        units = self.limit // self.rows if self.units is None else self.units
        return range(lane, units, lanes)

    @property
    def epoch_counts(self) -> list[int | None]:
        """How many epochs each of the repeats above has, outermost first; None: endless."""
        return [count for count, _ in self.passes]

    def epoch_key(self, path: Sequence[int]) -> int:
        """The key of an epoch, from the numbers of all repeats: draws and orders depend on it."""
        known = self._epoch
        if known is None or known[0] != path:
            key = ROOT
            for (_, ordinal), number in zip(self.passes, path, strict=True):
                key = child(key, np.array([number]), ordinal)
            self._epoch = known = (tuple(path), int(key[0]))
        return known[1]

    def make(self, epoch_key: int, unit: int, context: ReadContext) -> Any:
        """The output of a unit."""
        first = unit * self.rows
        stop = first + self.rows if self.length is None else min(first + self.rows, self.length)
        epoch: Keys = np.array([epoch_key], np.uint64)
        views = None if self.window is None else self.window(first, stop)

        def find() -> Any:
            return self.operator.resolve(epoch, np.arange(first, stop))

        found = None if views is not None and not self.keyed else find()
        if views is not None:
            run: Run = Stacked(views, stop - first)
            kept = np.arange(stop - first)
        else:
            run, kept = self._read(found, context)
        chunk = Chunk(
            run,
            self.operator.keys(found)[kept] if self.keyed else None,
            kept,
            kept,
            epoch=epoch,
            first=first,
            identify=lambda row: self.operator.index(find() if found is None else found, row),
            meters={READ: (stop - first, 0)},
        )
        chunk = run_stages(self.stages, chunk, context)
        if context.failures:
            context.name_failures(0, self._components)
        return self.finish.output(chunk, context)

    def _read(self, rows: Any, context: ReadContext) -> tuple[Run, Positions]:
        try:
            return context.read(self.operator, rows), np.arange(len(rows))
        except RecordError as error:
            guard = next((stage for stage in self.stages if isinstance(stage, Guard)), None)
            if guard is None or error.index is None:
                raise
        context.failures.clear()  # those of an `on_error` below come again
        found: list[Any] = []
        kept: list[int] = []
        for number in range(len(rows)):
            before = len(context.failures)
            try:
                found += as_records(context.read(self.operator, rows.cut(number, number + 1)))
                kept.append(number)
            except RecordError as error:
                if not guard.drops(error):
                    raise
                del context.failures[before:]
                context.add_failure(error)
        return found, np.array(kept, np.int64)
