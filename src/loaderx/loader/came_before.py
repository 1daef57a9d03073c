"""How many records, of those that were removed since a state was saved, had come before.

It follows from the chain as it was then, without reading: the steps of a record are computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loaderx.chain.node import Node
from loaderx.loader.state import State
from loaderx.order.epochs import SkippedSteps
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.operators import Request
from loaderx.reading.trails import Sought, Trail
from loaderx.rng import ROOT
from loaderx.stages.repeat import Repeated
from loaderx.stages.sample import Sampled
from loaderx.stages.without import Without

MOST = 1 << 22  # places to look at, which takes some seconds at most


def came_before(base: Node, state: State, step: int, skipped: SkippedSteps) -> int | None:
    """The number of records; None if it would take long to tell.  ``base`` is one epoch."""
    removing: dict[str, Without] = {}
    base = _as_saved(base, "/", state.get("removed", {}), removing)
    whole = base if base.length is None else Repeated(base, None)
    rows = whole.rows_before(step)
    epochs = 2 + (step // base.length if base.length else 0)
    sizes = [(len(node.removed.ids), node.removed.length) for node in removing.values()]
    sizes += [(n.count + len(n.weights), n.count) for n in base.below() if isinstance(n, Sampled)]
    # Tables are made for each epoch, and each finds its own among all.
    each = [(size, epochs + rows // length) for size, length in sizes]
    if sum((size + times) * times for size, times in each) > MOST:
        return None
    came, operator = 0, IndexPlan(whole).operator
    for way, node in removing.items():
        # Also those that were removed before: they did not come.
        ids, path = node.removed.ids.astype(np.int64), [*map(int, way.split("/")[1:-1])]
        for trail in node.input.record_operator(Request(0)).trails(Trail.of(ids, ROOT)):
            keys, limits = np.repeat(ROOT, len(trail.which)), np.full(len(trail.which), step)
            sought = Sought(trail.positions, keys, limits, (*path, *trail.path))
            found = operator.find(sought)
            came += len(np.unique(found.which[skipped.are_kept(found.positions)]))
    return came


def _as_saved(node: Node, way: str, saved: Mapping[str, str], removing: dict[str, Without]) -> Node:
    """The chain as it was then; ``removing`` gets what removes records now.

    ``way`` is the name of its `without` in a state.
    """
    if isinstance(node, Without):
        removing[way], removed = node, node.removed
        known = removed.count_in(saved.get(way, ""))
        then = node.transform.replace(removed=removed.replace(ids=removed.ids[:known]))
        return node.replace(transform=then) if known else node.input
    if node.is_stage:
        return node.replace(input=_as_saved(node.inputs[0], way, saved, removing))
    parts = [_as_saved(part, f"{way}{n}/", saved, removing) for n, part in enumerate(node.inputs)]
    return node.replace(components=tuple(parts)) if parts else node
