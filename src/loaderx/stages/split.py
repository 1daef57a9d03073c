"""split: parts of a dataset that share no element, by size, by class or by group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import MovedByIndex
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError
from loaderx.order.permutation import permute
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions
from loaderx.rng import PART, ROOT, Keys, fold, fold_int
from loaderx.sources.base import Indices
from loaderx.stages.select import part_of_blocks
from loaderx.tree import Array


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


class Part(MovedByIndex):
    """One part of a split: a run of one order that is the same in every epoch."""

    call: str  # as the user wrote it
    start: int
    count: int
    seed: int | None  # None: not shuffled

    @property
    def length(self) -> int:
        return self.count

    @property
    def stage(self) -> str:
        return self.call

    def fingerprint(self, seed: int) -> str:
        return stage_text("split", {}, self, without=("call",))

    @property
    def block_starts(self) -> Indices | None:
        if self.seed is not None:
            return None
        return part_of_blocks(self.input.block_starts, self.start, self.count)

    def move(self, seed: int) -> Move:
        assert self.input.length is not None
        return PartOfOrder(self.input.length, self.seed, self.start)


class PartOfOrder(Move):
    """A part of one fixed order, the same in every epoch, for `split`."""

    def __init__(self, length: int, seed: int | None, start: int) -> None:
        self.length, self.start = length, start
        self.keys = None
        if seed is not None:
            self.keys = fold(ROOT, np.array([fold_int(seed, 0, PART)], np.uint64), PART)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        positions = positions + self.start
        if self.keys is not None:
            positions = permute(positions, self.length, self.keys)
        return epochs, positions

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        if self.keys is not None:
            positions = permute(positions, self.length, self.keys, undo=True)
        return positions - self.start


# Sizes ------------------------------------------------------------------------------------------


def split_bounds(sizes: Sequence[object], length: int) -> list[int]:
    """Where the parts of a split begin and end, for fractions or counts."""
    for size in sizes:
        if isinstance(size, (list, tuple)):
            listed = ", ".join(map(str, size))
            raise ArgumentTypeError(f"split takes separate numbers, not a list: .split({listed}).")
    counts = [int(size) for size in sizes if isinstance(size, (int, np.integer))]
    is_counted = len(counts) == len(sizes) > 0 and sizes != (1,)
    bounds = _of_counts(counts, length) if is_counted else _of_fractions(sizes, length)
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if start >= stop:
            raise ArgumentError(
                f"split: part {number} would be empty ({sizes[number]} of {length})."
            )
    return bounds


def _of_counts(counts: Sequence[int], length: int) -> list[int]:
    total = sum(counts)
    if total != length and min(counts) > 0:
        rest = f", or .split({', '.join(map(str, [*counts, length - total]))})"
        raise ArgumentError(
            f"the counts of a split must add up to the {length} elements, got {total}. For shares "
            f"write fractions, .split(0.8, 0.2){rest if total < length else ''}."
        )
    return [0, *itertools.accumulate(counts)]


def _of_fractions(fractions: Sequence[object], length: int) -> list[int]:
    shares: list[float] = []
    for fraction in fractions:
        if not (isinstance(fraction, (int, float)) and 0 < fraction <= 1):
            raise ArgumentError(
                f"`fractions` must be between 0 and 1, got {fraction!r}. Counts are whole numbers, "
                f"all of them, that add up to the {length} elements."
            )
        shares.append(fraction)
    total = math.fsum(shares)
    if not fractions or abs(total - 1) > 1e-6:
        rest = f"; write .split({', '.join(map(str, fractions))}, {1 - total:.6g})"
        raise ArgumentError(
            f"`fractions` must add up to 1, got {total:.6g}{rest if 0 < total < 1 else ''}."
        )
    ends = [round(share * length) for share in itertools.accumulate(shares)]
    return [0, *ends[:-1], length]


# Classes and groups -----------------------------------------------------------------------------


def check_labels(name: str, labels: Array, length: int) -> Array:
    """One label for each element."""
    if labels.shape != (length,):
        raise ArgumentError(
            f"`{name}` must have one label for each of the {length} elements, got an array of "
            f"shape {labels.shape}."
        )
    try:
        np.unique(labels)
    except TypeError:
        raise ArgumentTypeError(
            f"`{name}` must have labels of one kind, numbers or text, and has others: "
            f"{', '.join(sorted({type(label).__name__ for label in labels}))}."
        ) from None
    return labels


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
