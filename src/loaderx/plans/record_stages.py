"""What each stage does to one record: the way of a step's trail, with what is found on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Anchor, BatchOperatorOf, RecordOperatorOf
from loaderx.reading.single_records import owned
from loaderx.reading.trails import Traced, Trail
from loaderx.rng import ROOT
from loaderx.tree import Tree, map_leaves


class Passed(NamedTuple):
    """A stage that a record passes."""

    stage: str  # as the dataset's ``repr`` has it
    position: int  # of the element that has the record, behind the stage
    read: Callable[[], Tree] | None  # makes the record as it is then; None: it was only moved


def record_stages(
    operator: Traced, step: int, index: int, row: int = 0, path: tuple[int, ...] = ()
) -> list[Passed]:
    """The stages that a record of a step passes, from its source on.

    ``index`` is its number in its source, to which ``path`` leads through the joins, and ``row``
    its row in the batch.  Of what follows `batch`, the row of the batch is given.
    """
    trail, passed = Trail.of(np.array([step], np.int64), ROOT), []
    while True:
        for move in operator.moves:
            passed.append(Passed(move.shown, int(trail.positions[0]), None))
            trail = trail.through([move])
        if not isinstance(operator, Anchor):  # that is no stage
            read = partial(_element, operator, trail, row)
            passed.append(Passed(operator.stage, int(trail.positions[0]), read))
        below = list(operator.below(trail))
        if not below:
            return passed[::-1]
        operator, trail = next(each for each in below if _leads_to(each[1], path))
        if len(trail.rows) > 1:  # the rows of a batch, the records of a window
            mine = (trail.pick(place) for place in np.flatnonzero(trail.rows == row)[:, None])
            trail = next(one for one in mine if _has(operator.trails(one), index, path))


def _has(trails: Iterable[Trail], index: int, path: tuple[int, ...]) -> bool:
    return any(trail.path == path and index in trail.positions for trail in trails)


def _leads_to(trail: Trail, path: tuple[int, ...]) -> bool:
    return trail.path == path[: len(trail.path)]


def _element(operator: Traced, trail: Trail, row: int) -> Tree:
    context = ReadContext(Pool().lend)
    if isinstance(operator, RecordOperatorOf):
        found = operator.read(operator.locate(trail.epochs, trail.positions), context)
        return owned(found.records()[0])
    assert isinstance(operator, BatchOperatorOf)
    batch = operator.read(operator.locate(trail.epochs, trail.positions).step(0), context)
    return map_leaves(lambda leaf: leaf[row] if np.ndim(leaf) and len(leaf) > row else leaf, batch)
