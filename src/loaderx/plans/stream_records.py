"""Which records the elements of a stream were made of: known by reading them.

Units are made here, in the caller's thread, by a plan with ``traces``.  Every row goes through the
stages under a name that says its input position: "number of the unit plan:epoch key:position".  A
row that was made of several has all their names.  Functions after the last stage that can drop or
move records do not run.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from loaderx.chain.node import Node
from loaderx.memory import Pool
from loaderx.plans.records import Records, check_known, records_of, sought_of
from loaderx.plans.stream_plan import Reading, StreamPlan
from loaderx.reading.context import ReadContext
from loaderx.reading.lookahead import MakeHere
from loaderx.reading.trails import Trail
from loaderx.sources.base import Indices

_NAME = re.compile(r"(\d+):(\d+):(\d+)")


def make_here(plan: StreamPlan) -> MakeHere:
    """Makes the units of a plan with ``traces``."""
    check_known(plan.node)
    lend = Pool().lend
    return MakeHere(plan.units, lambda: ReadContext(lend))


def each_records(reading: Reading) -> Iterator[Records]:
    """The records of each element that is left of a reading."""
    while True:
        with reading.monitor.muted():  # what the stages drop is no news
            batch = reading.next()
        if batch is None:
            return
        yield _records(reading.plan, batch.tree)


def records_of_element(node: Node, number: int) -> Records | None:
    """The records of an element of a dataset; None if the stream ends before it."""
    return next(itertools.islice(_all(node), number, None), None)


def _all(node: Node) -> Iterator[Records]:
    plan = StreamPlan(node, traces=True)
    return each_records(plan.read(make_here(plan)))


def steps_in(node: Node, index: object, part: str | None, until: int) -> Indices:
    """The elements of a dataset before ``until`` that have some of the records, ascending."""
    return steps_with(node, enumerate(_all(node)), index, part, until)


def _records(plan: StreamPlan, pairs: list[tuple[int, str]]) -> Records:
    rows: list[int] = []
    segments: list[int] = []
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row, name in pairs:
        for number, named in enumerate(_NAME.findall(name)):
            unit_plan, key, position = map(int, named)
            found[unit_plan, key].append((position, len(rows)))
            divides = plan.cut is not None and plan.cut.divides_batches
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


def steps_with(
    node: Node,
    each: Iterator[tuple[int, Records]],
    index: object,
    part: str | None,
    until: int,
) -> Indices:
    """The steps before ``until`` that have some of the records, ascending."""
    found, indices = sought_of(node, index, part)
    steps = []
    for step, records in each:
        if step >= until:
            break
        if np.isin(records.index[records.part == found.name], indices).any():
            steps.append(step)
    return np.array(steps, np.int64)
