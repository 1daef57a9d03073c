"""The parts of a split: of one order that is drawn once, or dealt out by labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from loaderx.chain.families import Moved
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, check_bool, check_seed
from loaderx.plans.leaf_values import leaf_values
from loaderx.rng import ROOT
from loaderx.sources.base import Indices
from loaderx.stages.select import Picked, index_table
from loaderx.stages.split import (
    Part,
    PartOfOrder,
    by_class,
    by_group,
    check_labels,
    check_splittable,
    split_bounds,
)
from loaderx.tree import Array, Leaf


def split_parts(
    node: Node,
    sizes: Sequence[object],
    shuffle: bool,
    seed: int | None,
    stratify: str | Leaf | None,
    groups: str | Leaf | None,
) -> list[Moved]:
    """A node for each part."""
    length = check_splittable(node)
    bounds = list(itertools.pairwise(split_bounds(sizes, length)))
    # Fixed now: a seed that is set on one part later must not change which records it has.
    own = node.default_seed() if seed is None else check_seed(seed)
    drawn = own if check_bool("shuffle", shuffle) else None
    given = [*map(str, sizes)]
    if seed is not None or not shuffle:
        given.append(f"seed={own}" if shuffle else "shuffle=False")
    if stratify is None and groups is None:
        call = f"split({', '.join(given)})"
        return [
            Part(node, f"{call}[{number}]", start, stop - start, drawn)
            for number, (start, stop) in enumerate(bounds)
        ]
    if stratify is not None and groups is not None:
        raise ArgumentError(
            "`stratify` and `groups` cannot be used together: a group is in one part, whatever "
            "classes it has."
        )
    name, labels, deal = "stratify", stratify, by_class
    if groups is not None:
        name, labels, deal = "groups", groups, by_group
    order = PartOfOrder(length, drawn, 0).steps(ROOT, np.arange(length))[1]
    found = labels_of(node, labels, name, length)
    tables = deal(found, order, [stop - start for start, stop in bounds])
    given.append(f"{name}={labels!r}" if isinstance(labels, str) else f"{name}=labels")
    call = f"split({', '.join(given)})"
    return [
        Picked(node, index_table(table, length), f"{call}[{number}]")
        for number, table in enumerate(tables)
    ]


def labels_of(node: Node, labels: str | Leaf, name: str, length: int) -> Array:
    """A label for each element: those that were given, or those of a leaf."""
    found = leaf_values(node, labels, name) if isinstance(labels, str) else np.asarray(labels)
    return check_labels(name, found, length)


def indices_of(part: Moved) -> Indices:
    """The positions of the elements of a part in the dataset that was split."""
    assert part.length is not None
    return part.move(0).steps(ROOT, np.arange(part.length))[1]
