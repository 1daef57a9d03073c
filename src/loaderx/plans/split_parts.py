"""The parts of a split: of one order that is drawn once, or dealt out by class or by group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderx.chain.families import Moved
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError, check_bool, check_seed
from loaderx.plans.leaf_values import labels_of
from loaderx.reading.rows import Positions
from loaderx.rng import ROOT
from loaderx.sources.base import Indices
from loaderx.stages.select import Part, PartOfOrder, Picked, index_table
from loaderx.tree import Array, Leaf


def split_parts(
    node: Node,
    sizes: Sequence[Any],
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
    if stratify is not None and groups is not None:
        raise ArgumentError(
            "`stratify` and `groups` cannot be used together: a group is in one part, whatever "
            "classes it has."
        )
    name, labels = ("stratify", stratify) if groups is None else ("groups", groups)
    given = [*map(str, sizes)]
    if seed is not None or not shuffle:
        given.append(f"seed={own}" if shuffle else "shuffle=False")
    if labels is not None:
        given.append(f"{name}={labels!r}" if isinstance(labels, str) else f"{name}=labels")
    calls = [f"split({', '.join(given)})[{number}]" for number in range(len(sizes))]
    if labels is None:
        parts = zip(calls, bounds, strict=True)
        return [Part(node, call, start, stop - start, drawn) for call, (start, stop) in parts]
    deal = by_class if groups is None else by_group
    order = PartOfOrder(length, drawn, 0).steps(ROOT, np.arange(length))[1]
    tables = deal(labels_of(node, labels, name), order, [stop - start for start, stop in bounds])
    dealt = zip(calls, tables, strict=True)
    return [Picked(node, index_table(table, length), call) for call, table in dealt]


def indices_of(part: Moved) -> Indices:
    """The positions of the elements of a part in the dataset that was split."""
    assert part.length is not None
    return part.move(0).steps(ROOT, np.arange(part.length))[1]


def check_splittable(node: Node) -> int:
    """The number of elements; raises if they cannot be put into parts that share none."""
    if node.is_stream:
        raise ChainError(
            "split of a stream: the number of its records is not known. Split first, then put "
            "filter, flat_map or pack on each part."
        )
    if node.length is None:
        raise ChainError("split needs a dataset that ends: put it before .repeat().")
    for below in node.below():
        if below.shuffle_span is not None or below.repeats_here:
            when = " from one epoch to the next" if below.order_varies or below.is_repeat else ""
            raise ChainError(
                f"split after .{below.stage}: the parts would share records{when}. Split first, "
                "then shuffle and repeat each part."
            )
    return node.length


# Sizes ------------------------------------------------------------------------------------------


def split_bounds(sizes: Sequence[Any], length: int) -> list[int]:
    """Where the parts of a split begin and end, for fractions or counts."""
    for size in sizes:
        if isinstance(size, (list, tuple)):
            listed = ", ".join(map(str, size))
            raise ArgumentTypeError(f"split takes separate numbers, not a list: .split({listed}).")
    is_counted = sizes != (1,) and all(isinstance(size, (int, np.integer)) for size in sizes)
    for size in () if is_counted else sizes:
        if not (isinstance(size, (int, float, np.floating)) and 0 < size <= 1):
            raise ArgumentError(
                f"`sizes` must be fractions between 0 and 1, got {size!r}; or all of them whole "
                f"numbers, which add up to the {length} elements."
            )
    # Not in the types of NumPy, of which small ones overflow.
    sizes = list(map(int if is_counted else float, sizes))
    total, whole = (sum(sizes), length) if is_counted else (math.fsum(sizes), 1)
    if not sizes or abs(total - whole) > 1e-6:
        text = str if is_counted else "{:.6g}".format
        rest = f"; write .split({', '.join(map(str, sizes))}, {text(whole - total)})"
        what = f"{whole}, the number of elements (fractions to 1)" if is_counted else "1"
        raise ArgumentError(
            f"the sizes of a split must add up to {what}, got {text(total)}"
            f"{rest if 0 < total < whole else ''}."
        )
    scale = 1 if is_counted else length
    ends = [round(end * scale) for end in itertools.accumulate(sizes)]
    bounds = [0, *ends[:-1], length]
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if start >= stop:
            raise ArgumentError(
                f"split: part {number} would be empty ({sizes[number]} of {length})."
            )
    return bounds


# Classes and groups -----------------------------------------------------------------------------


def by_class(labels: Array, order: Positions, sizes: Sequence[int]) -> list[Positions]:
    """The elements of each part, of which each class has its share, in this order.

    One part after the other takes from each class what is due by the elements that are left; what
    is lost by rounding goes to the classes with the largest remainders.
    """
    names, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
    if left.min() < len(sizes):
        rare = int(left.argmin())
        raise ArgumentError(
            f"`stratify`: class {names.tolist()[rare]!r} has {left[rare]} of {len(labels)} "
            f"elements, fewer than there are parts ({len(sizes)}). Join rare classes, leave their "
            "elements out with ds[mask], or split without it."
        )
    counts = []
    for size in sizes:
        due, rest = np.divmod(left * size, left.sum())
        due[np.argsort(-rest, kind="stable")[: size - due.sum()]] += 1
        left = left - due
        counts.append(due)
    part = np.empty(len(order), np.int64)
    numbers = np.tile(np.arange(len(sizes)), len(names))
    # Elements by class, and in their order within it: the first are for the first part.
    part[np.argsort(classes.reshape(-1)[order], kind="stable")] = np.repeat(
        numbers, np.stack(counts, axis=1).reshape(-1)
    )
    return [order[part == number] for number in range(len(sizes))]


def by_group(labels: Array, order: Positions, sizes: Sequence[int]) -> list[Positions]:
    """The elements of each part, where no group is in two of them, in this order.

    The largest groups are dealt out first, equal ones as they come in the order.  Each goes, of the
    parts that have room for it, to the one with the largest share missing; if none has room, to the
    one that lacks the most elements.
    """
    _, groups, counts = np.unique(labels, return_inverse=True, return_counts=True)
    groups = groups.reshape(-1)[order]
    first = np.unique(groups, return_index=True)[1]
    part_of, lacking = np.empty(len(counts), np.int64), list(sizes)
    for group in np.lexsort((first, -counts)).tolist():
        count = int(counts[group])
        needs = [
            (True, lack / size, size) if lack >= count else (False, lack, lack / size)
            for lack, size in zip(lacking, sizes, strict=True)
        ]
        part = part_of[group] = needs.index(max(needs))
        lacking[part] -= count
    empty = set(range(len(sizes))) - set(part_of.tolist())
    if empty:
        number = min(empty)
        raise ArgumentError(
            f"`groups`: no group is left for part {number}, of {sizes[number]} elements. There are "
            f"{len(counts)} groups, of {counts.min()} to {counts.max()} elements: make that part "
            "larger, or the groups smaller."
        )
    return [order[part_of[groups] == number] for number in range(len(sizes))]
