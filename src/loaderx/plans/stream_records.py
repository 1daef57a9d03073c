"""Which records the elements of a stream were made of: known by reading them.

Units are made here, in the caller's thread, by a plan with ``traces``.  Every row goes through the
stages under a name that says its input position: "number of the unit plan:epoch key:position".  A
row that was made of several has all their names.  Functions after the last stage that can drop or
move records do not run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from loaderx.chain.node import Node
from loaderx.errors import PositionError
from loaderx.memory import Pool
from loaderx.plans.records import Provenance, Records, SourcePart, records_of, source_parts
from loaderx.plans.stream_plan import Reading, StreamPlan
from loaderx.reading.context import ReadContext
from loaderx.reading.lookahead import MakeHere
from loaderx.reading.trails import Trail
from loaderx.sources.base import Indices

_NAME = re.compile(r"(\d+):(\d+):(\d+)")


def make_here(plan: StreamPlan) -> MakeHere:
    """Makes the units of a plan with ``traces``."""
    lend = Pool().lend
    return MakeHere(plan.units, lambda: ReadContext(lend))


class StreamProvenance(Provenance):
    """Of a stream: what a step is made of is known by reading up to it.

    ``begin`` returns a reading by a plan with ``traces``, and the step at which it begins: that of
    the last position that is known before a step; without a step that of the state ``near``.
    """

    def __init__(
        self, node: Node, begin: Callable[[int | None, object], tuple[int, Reading]], stop: int
    ) -> None:
        super().__init__(node, stop if node.ends else None)
        self.begin, self.stop = begin, stop

    def _each(self, step: int | None, near: object) -> Iterator[tuple[int, Records]]:
        list(source_parts(self.node))  # refuses iterables
        at, reading = self.begin(step, near)
        while at < self.stop:
            with reading.monitor.muted():  # what the stages drop is no news
                batch = reading.next()
            if batch is None:
                return
            if step is None or at >= step:
                yield at, _records(reading.plan, batch.tree)
            at += 1

    def records(self, step: int, near: object = None) -> Records:
        for _, records in self._each(step, near):
            return records
        raise PositionError(f"there is no step {step}: the stream ends before it.")

    def find(self, part: SourcePart, indices: Indices, until: int, near: object) -> Indices:
        steps = []
        for step, records in self._each(None, near):
            if step >= until:
                break
            if np.isin(records.index[records.part == part.name], indices).any():
                steps.append(step)
        return np.array(steps, np.int64)


def of_dataset(node: Node) -> StreamProvenance:
    """The provenance of a dataset that is a stream, read from its beginning."""
    plan = StreamPlan(node, traces=True)
    return StreamProvenance(node, lambda step, near: (0, plan.read(make_here(plan))), node.limit)


def _records(plan: StreamPlan, pairs: list[tuple[int, str]]) -> Records:
    rows: list[int] = []
    segments: list[int] = []
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    divides = plan.cut is not None and plan.cut.divides_batches  # a name has all rows of a batch
    for row, name in pairs:
        names = _NAME.findall(name)
        assert names or divides, f"a stage has lost the name of a row, {name!r}"
        for number, named in enumerate(names):
            unit_plan, key, position = map(int, named)
            found[unit_plan, key].append((position, len(rows)))
            rows.append(number if divides else row)
            segments.append(0 if divides else number)
    trails: list[Trail] = []
    for (number, key), entries in found.items():
        positions, places = np.array(entries, np.int64).T
        units = plan.units[number]
        trail = Trail.of(positions, np.array([key], np.uint64))
        epoch = np.full_like(places, units.epochs_before(units.paths[key]))
        trail = trail._replace(rounds=epoch, rows=places, path=units.path)
        trails += units.operator.trails(trail)
    return records_of(plan.node, trails, (np.array(rows, int), np.array(segments, int)))
