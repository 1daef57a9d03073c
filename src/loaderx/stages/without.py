"""without: records are removed, and all others keep their places.

A removed record is never read.  Its position is moved to that of another record; with fill="mask"
and fill="empty", zeros of the same types then take the place of what was read there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from loaderx.chain.node import Node
from loaderx.chain.one_to_one import ApplyToRecords, OneToOne
from loaderx.chain.transforms import Fail, Transform
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError
from loaderx.memory import aligned
from loaderx.order.removed import Removed
from loaderx.reading.operators import Move, RecordOperator, Request
from loaderx.reading.rows import Positions
from loaderx.reading.stacking import add_leaf
from loaderx.rng import REPLACE, Keys, fold
from loaderx.stages import nodes
from loaderx.stages.select import index_table
from loaderx.tree import Array, ArraySpec, Leaf, Tree, as_array, map_leaves


class Fill(Transform):
    """What stands in the place of a removed record: as it is, another record."""

    removed: Removed

    needs = "positions"
    is_cheap = True

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        return below

    def on_records(self, records: list[object], extra: Positions, fail: Fail) -> list[object]:
        return list(self.on_each(iter(records), extra, fail))

    def on_each(self, records: Iterator[object], extra: Positions, fail: Fail) -> Iterator[object]:
        is_removed = np.zeros(len(extra), np.bool_)
        is_removed[self.removed.among(extra)] = True
        return map(self.on_record, records, is_removed)

    def on_record(self, record: Tree, is_removed: Any) -> Tree:
        raise NotImplementedError


class EmptyRecord(Fill):
    """Nothing along the first axis, as of a text without tokens."""

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        return map_leaves(
            lambda leaf: ArraySpec((None, *leaf.shape[1:])[: len(leaf.shape)], leaf.dtype), below
        )

    def on_record(self, record: Tree, is_removed: Any) -> Tree:
        return map_leaves(_nothing, record) if is_removed else record


class MaskedRecord(Fill):
    """Zeros, and a leaf that tells which records are real."""

    mask_key: str

    takes_either = True

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        if not isinstance(below, dict):
            return None
        return {**below, self.mask_key: ArraySpec(rows, np.dtype(np.bool_))}

    def on_record(self, record: Tree, is_removed: Any) -> Tree:
        made = map_leaves(_zeros, record) if is_removed else record
        return add_leaf(made, self.mask_key, ~is_removed, "without")

    def on_batch(self, batch: Tree, extra: Positions, fail: Fail) -> Tree:
        removed = self.removed.among(extra)
        mask = np.ones(len(extra), np.bool_)
        if removed.size:
            mask[removed] = False
            batch = map_leaves(lambda leaf: _with_zeros(leaf, removed), batch)
        return add_leaf(batch, self.mask_key, aligned(mask), "without")


def _zeros(leaf: Leaf) -> Leaf:
    return type(leaf)() if isinstance(leaf, (str, bytes)) else np.zeros_like(as_array(leaf))[()]


def _nothing(leaf: Leaf) -> Leaf:
    made = _zeros(leaf)
    return made[:0] if np.ndim(made) else made


def _with_zeros(column: Leaf, rows: Positions) -> Leaf:
    made = column.copy() if column.dtype.hasobject else aligned(column)
    made[rows] = type(column[rows[0]])() if column.dtype.hasobject else 0
    return made


class Without(OneToOne):
    """A fill in the place of each removed record."""

    transform: Fill

    unit_cost = "nothing"
    user_objects = ()
    needs_positions = False  # nothing is repeated below

    @property
    def stage(self) -> str:
        return f"without({len(self.removed.ids)} records, fill={self.removed.fill!r})"

    def fingerprint(self, seed: int) -> str:
        return ""  # a state names them apart from its chain, since more may be removed later

    @property
    def removed(self) -> Removed:
        return self.transform.removed

    def make_record_operator(self, request: Request) -> RecordOperator:
        if type(self.transform) is Fill:
            made = below = self.input.record_operator(request)
        else:
            made = super().make_record_operator(request)
            assert isinstance(made, ApplyToRecords)
            below = made.child
        below.moves.insert(0, ReplaceRemoved(self.removed))
        return made


class ReplaceRemoved(Move):
    """Another record for each removed one, under a key of its own: it may come twice."""

    def __init__(self, removed: Removed) -> None:
        self.removed = removed

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        found = self.removed.among(positions)
        if not found.size:
            return epochs, positions
        epochs = np.array(np.broadcast_to(epochs, positions.shape))
        keys = epochs[found] = fold(epochs[found], positions[found], REPLACE)
        positions = positions.copy()
        positions[found] = self.removed.others(keys, positions[found])
        return epochs, positions


def without(node: Node, ids: object, fill: str, mask_key: str) -> Node:
    """``node`` without the records with these numbers; itself, if there are none."""
    _check_place(node)
    table = _read_numbers(ids) if isinstance(ids, (str, os.PathLike)) else _array(ids)
    if not table.size:
        return node
    table = index_table(table, node.length)
    if isinstance(node, Without):
        if (fill, mask_key) != (node.removed.fill, getattr(node.transform, "mask_key", mask_key)):
            raise ChainError(f"without after .{node.stage}: both must have the same `fill`.")
        table = np.concatenate([node.removed.ids.astype(np.int64), table])
        node = node.input
    assert node.length is not None
    removed = Removed.of(table, node.length, fill)
    if len(removed.ids) == node.length:
        raise ArgumentError(f"without removes all {node.length} records.")
    if fill == "mask":
        return Without(node, MaskedRecord(removed, mask_key))
    return Without(node, EmptyRecord(removed) if fill == "empty" else Fill(removed))


def _check_place(node: Node) -> None:
    """Raises where the number of a record means another one in other epochs, or next time."""
    if node.batched or node.is_stream:
        what = "batches" if node.batched else "a stream"
        raise ChainError(
            f"without of {what}: it removes records by their number. Put it next to the source."
        )
    for below in node.below():
        if below.removed is not None and below is not node:
            raise ChainError(
                f"without above .{below.stage}: give all numbers to one .without(...)."
            )
        is_mix = isinstance(below, nodes.Mixed)
        if below.shuffle_span is not None or below.repeats_here or is_mix:
            raise ChainError(
                f"without after .{below.stage.removeprefix('Dataset.')}: the numbers of records "
                "change there. Put it next to the source."
            )


def _array(ids: object) -> Array:
    if isinstance(ids, (set, frozenset)):
        raise ArgumentTypeError(
            "`ids` must be in an order, to which later ones are appended: write sorted(...), got a "
            "set."
        )
    table = np.asarray(ids)
    if table.size and table.dtype.kind not in "iub":
        raise ArgumentTypeError(
            f"`ids` must be the numbers of records, or a file of them; got {table.dtype}. To "
            "remove records by a column, look for it once: "
            "np.flatnonzero(np.isin(doc_ids, removed))."
        )
    return table


def _read_numbers(path: str | os.PathLike[str]) -> Positions:
    found = []
    with open(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                found += [int(line)] if line.strip() else []
            except ValueError:
                raise ArgumentError(
                    f"{os.fspath(path)}, line {number}: {line.strip()[:80]!r} is not the number of "
                    "a record. The file must have one number a line."
                ) from None
    return np.array(found, np.int64)
