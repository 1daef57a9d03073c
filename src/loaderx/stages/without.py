"""without: records are removed, and all others keep their places.

A removed record is never read.  Its position is moved to that of another record; with fill="mask"
and fill="empty", zeros of the same types then take the place of what was read there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
from loaderx.reading.trails import Find, Found, Sought, Traced, Trail, found_in_tables
from loaderx.rng import REPLACE, Keys, fold
from loaderx.stages import nodes
from loaderx.stages.select import index_table
from loaderx.tree import Array, ArraySpec, Leaf, Tree, as_array, flatten, map_leaves


class Fill(Transform):
    """Zeros, or nothing, in the place of each removed record."""

    removed: Removed
    mask_key: str

    needs = "positions"
    is_cheap = True

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        if self.removed.fill == "mask" and isinstance(below, dict):
            return {**below, self.mask_key: ArraySpec(rows, np.dtype(np.bool_))}
        if self.removed.fill == "empty":
            return map_leaves(
                lambda leaf: ArraySpec((None,) * bool(leaf.shape) + leaf.shape[1:], leaf.dtype),
                below,
            )
        return below if self.removed.fill == "replace" else None

    def on_records(self, records: list[object], extra: Positions, fail: Fail) -> list[object]:
        return list(self.on_each(iter(records), extra, fail))

    def on_each(self, records: Iterator[object], extra: Positions, fail: Fail) -> Iterator[object]:
        removed = set(self.removed.among(extra).tolist())
        for place, record in enumerate(records):
            if self.removed.fill == "empty" and not any(map(_has_length, flatten(record)[0])):
                raise ChainError(
                    "without(fill='empty') needs records with a leaf that can be empty, as texts "
                    'and tokens can. Write fill="replace", or "mask".'
                )
            made = map_leaves(self._nothing, record) if place in removed else record
            if self.removed.fill == "mask":
                made = add_leaf(made, self.mask_key, np.array(place not in removed), "without")
            yield made

    def _nothing(self, leaf: Leaf) -> Leaf:
        made = type(leaf)() if isinstance(leaf, (str, bytes)) else np.zeros_like(as_array(leaf))
        return made[:0] if self.removed.fill == "empty" and np.ndim(made) else made

    def on_batch(self, batch: Tree, extra: Positions, fail: Fail) -> Tree:
        mask, removed = np.ones(len(extra), np.bool_), self.removed.among(extra)
        if removed.size:
            mask[removed] = False
            batch = map_leaves(lambda column: _with_zeros(column, removed), batch)
        return add_leaf(batch, self.mask_key, aligned(mask), "without")


def _has_length(leaf: Leaf) -> bool:
    return isinstance(leaf, (str, bytes)) or as_array(leaf).ndim > 0


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
        stacked = request.stacked and self.removed.fill != "empty"
        made = below = self.input.record_operator(request.replace(stacked=stacked))
        if self.removed.fill != "replace":
            made = FilledRecords(
                self.stage, below, self.transform, stacked=stacked, seed=0, ordinal=0
            )
        move = ReplaceRemoved(self.removed)
        move.shown = self.stage
        below.moves.insert(0, move)
        return made


class FilledRecords(ApplyToRecords):
    """Records with nothing in the place of removed ones, which are made of no record."""

    transform: Fill

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        removed = self.transform.removed.among(trail.positions)
        return super().below(trail.pick(np.delete(np.arange(len(trail.positions)), removed)))

    def find_below(self, sought: Sought) -> Found:
        found = super().find_below(sought)
        removed = self.transform.removed.among(found.positions)
        return found.pick(np.delete(np.arange(len(found.positions)), removed))


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

    def find(self, sought: Sought, below: Find) -> Found:
        """Where records are in their own places, and where they replace others."""
        found = below(sought.within(self.limits_below(sought.limits)))
        kept = np.delete(np.arange(len(found.positions)), self.removed.among(found.positions))
        own = found.pick(kept).at(found.positions[kept], sought.limits)
        ids = self.removed.ids.astype(np.int64)
        others = found_in_tables(found, sought, lambda epoch, _: (ids, self.steps(epoch, ids)[1]))
        return Found(*map(np.concatenate, zip(own, others, strict=True)))


def without(node: Node, ids: object, fill: str, mask_key: str) -> Node:
    """``node`` without the records with these numbers; itself, if there are none."""
    for below in node.below():
        moves = below.shuffle_span is not None or isinstance(below, nodes.Mixed)
        if moves or below.batched or below.is_stream or below.repeats_here or below.removed:
            raise ChainError(
                f"without after .{below.stage.removeprefix('Dataset.')}: it removes records by "
                "their numbers, which must always mean the same ones. Put it next to the source, "
                "once, with all numbers."
            )
    table = _numbers_of(ids)
    if not table.size:
        return node
    table = index_table(table, node.length)
    assert node.length is not None
    removed = Removed.of(table, node.length, fill)
    if len(removed.ids) == node.length:
        raise ArgumentError(f"without removes all {node.length} records.")
    return Without(node, Fill(removed, mask_key))


def _numbers_of(ids: object) -> Array:
    if isinstance(ids, (str, os.PathLike)):
        try:
            return np.array(Path(ids).read_text().split(), np.int64)
        except ValueError as error:
            raise ArgumentError(
                f"{os.fspath(ids)} must have the number of a record on each line: {error}."
            ) from None
    table = np.asarray(ids)
    if table.size and table.dtype.kind not in "iub":
        raise ArgumentTypeError(
            "`ids` must be the numbers of records, in a list, an array or a text file; got "
            f"{type(ids).__name__}. Find records by a column first, once: "
            "np.flatnonzero(np.isin(doc_ids, removed))."
        )
    return table
