"""How many records, of those that were removed since a state was saved, had come before.

It follows from the chain as it was then, without reading: the steps of a record are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from loaderx.chain.node import Node
from loaderx.loader.state import State
from loaderx.order.epochs import SkippedSteps
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.operators import Request
from loaderx.reading.trails import Sought, Trail
from loaderx.rng import ROOT, Numbers
from loaderx.stages.repeat import Repeated
from loaderx.stages.sample import Sampled
from loaderx.stages.without import Without

MOST = 1 << 20  # places to look at, a second or two

Since: TypeAlias = tuple[Without, tuple[int, ...], Numbers]
"""A `without`, the way to it through the components of joins, and what it removes since then."""


def came_before(base: Node, state: State, step: int, skipped: SkippedSteps) -> int | None:
    """The number of records; None if it would take long to tell.  ``base`` is one epoch."""
    since: list[Since] = []
    base = _as_saved(base, "/", state.get("removed", {}), since)
    whole = base if base.length is None else Repeated(base, None)
    rows = whole.rows_before(step)
    epochs = 2 + (step // base.length if base.length else 0)
    cost = [len(node.removed.ids) * (epochs + rows // node.removed.length) for node, *_ in since]
    cost += [rows + n.count + len(n.weights) for n in base.below() if isinstance(n, Sampled)]
    if sum(cost) > MOST:
        return None
    came, operator = 0, IndexPlan(whole).operator
    for node, path, ids in since:
        below = node.input.record_operator(Request(0))
        for trail in below.trails(Trail.of(ids.astype(np.int64), ROOT)) if len(ids) else ():
            keys, limits = np.repeat(ROOT, len(trail.which)), np.full(len(trail.which), step)
            sought = Sought(trail.positions, keys, limits, (*path, *trail.path))
            found = operator.find(sought)
            came += len(np.unique(found.which[skipped.are_kept(found.positions)]))
    return came


def _as_saved(node: Node, way: str, saved: Mapping[str, str], since: list[Since]) -> Node:
    """The chain as it was then.  ``way`` is the name of its `without` in the state."""
    if isinstance(node, Without):
        removed, path = node.removed, tuple(map(int, way.split("/")[1:-1]))
        known = removed.count_in(saved.get(way, ""))
        since.append((node, path, removed.ids[known:]))
        then = node.transform.replace(removed=removed.replace(ids=removed.ids[:known]))
        return node.replace(transform=then) if known else node.input
    if node.is_stage:
        return node.replace(input=_as_saved(node.inputs[0], way, saved, since))
    parts = [_as_saved(part, f"{way}{n}/", saved, since) for n, part in enumerate(node.inputs)]
    return node.replace(components=tuple(parts)) if parts else node
