"""`FirstFitPackIterDataset` and `BestFitPackIterDataset`: several records in one row.

Bins are filled until a record finds no room.  Then all of them are handed out, one at a time
and in shuffled order, and that record begins the next bins.  A state is the parent's state
before the first record in the bins, and how many were handed out: restoring fills them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.packing_bins import PackedBatch, best_fit, first_fit
from loaderx.compat.grain.packing_plan import Features, MakeBins, PackingPlan, packing_plan
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.trees import map_structure
from loaderx.errors import ArgumentError, ChainError, StateError

Rows = dict[str, "NDArray[np.generic] | Rows"]


class PackingDatasetIterator(DatasetIterator[Rows]):
    """Hands out the rows of one packed batch after the other."""

    def __init__(self, parent: DatasetIterator[Element], plan: PackingPlan) -> None:
        super().__init__(parent)
        self._plan = plan
        self._size: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._bins: PackedBatch | None = None  # being filled
        self._lists: list[dict[str, list[object]]] = []
        self._rows: Rows | None = None  # being handed out
        self._order: list[int] = []
        self._state_before = self._parent.get_state()  # of the first record in `_rows`
        self._state_after: State = {}  # of the first record that is not in `_rows`
        self._next_row = 0
        self._counter = 0

    def __next__(self) -> Rows:
        if self._rows is None:
            self._fill()
        rows, row = self._rows, self._order[self._next_row]
        assert rows is not None
        self._advance(1)
        return _row(rows, row)

    @property
    def gathers(self) -> bool:
        """Can `take_rows` give a batch?"""
        return self._plan.names is not None and not self._plan.lists

    def take_rows(self, count: int, drop_remainder: bool) -> Rows:
        """The next rows stacked, for a batch above: one gather for each feature."""
        parts: list[Rows] = []
        left = count
        while left:
            try:
                if self._rows is None:
                    self._fill()
            except StopIteration:
                if drop_remainder or not parts:
                    raise
                break
            rows, chosen = self._rows, self._order[self._next_row : self._next_row + left]
            assert rows is not None
            parts.append({name: np.asarray(values)[chosen] for name, values in rows.items()})
            left -= len(chosen)
            self._advance(len(chosen))
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _advance(self, count: int) -> None:
        self._next_row += count
        self._counter += count
        if self._next_row >= len(self._order):
            self._rows = None
            self._state_before = self._state_after
            self._next_row = 0

    def _fill(self) -> None:
        """Reads records until one finds no room, or the parent ends."""
        while True:
            before = self._parent.get_state()
            try:
                element = next(self._parent)
            except StopIteration:
                if self._bins is None:
                    raise
                self._close_bins(before)
                return
            values = self._plan.values(element)
            if not self._add(element, values):
                self._close_bins(before)
                self._add(element, values)
                return

    def _add(self, element: Features, values: Sequence[Element]) -> bool:
        plan = self._plan
        if self._bins is None:
            self._bins = plan.empty(values)
            self._lists = [{name: [] for name in plan.lists} for _ in range(plan.count)]
            self._size = self._bins.nbytes
        number = self._bins.add(values, plan.measured(values))
        if number < 0:
            return False
        for name in plan.lists:
            if name in element:
                self._lists[number][name].append(element[name])
        return True

    def _close_bins(self, state_after: State) -> None:
        assert self._bins is not None
        self._rows = _packed_rows(self._bins, self._lists, self._plan)
        self._order = self._shuffled(self._bins.in_use, self._rows)
        self._state_after = state_after
        self._bins = None

    def _shuffled(self, count: int, rows: Rows) -> list[int]:
        plan = self._plan
        if not plan.shuffle:
            return list(range(count))
        # The number of rows before these ones: bins filled again after a restore have the same.
        rng = np.random.default_rng(plan.seed + self._counter - self._next_row)
        order: list[int] = rng.permuted(range(count)).tolist()
        if plan.group_by is None:
            return order
        groups = [_mean_group(row) for row in np.asarray(rows[plan.group_by])]
        return [i for _, _, i in sorted(zip(groups, order, range(count), strict=True))]

    def get_state(self) -> State:
        return {
            "parent": self._state_before,
            "next_row": self._next_row,
            "counter": self._counter,
        }

    def set_state(self, state: State) -> None:
        next_row, counter = state["next_row"], state["counter"]
        if not isinstance(next_row, int) or not isinstance(counter, int):
            raise StateError(f"`next_row` and `counter` must be integers, got {state!r}.")
        self._parent.set_state(state["parent"])
        self._reset()
        self._next_row = next_row
        self._counter = counter

    def get_packed_batch_size_bytes(self) -> int:
        if self._size is None:
            raise ArgumentError("The size is known after the first record: call next() first.")
        return self._size


def _packed_rows(
    bins: PackedBatch, lists: Sequence[Mapping[str, list[object]]], plan: PackingPlan
) -> Rows:
    """All features of the bins in use, with segments and positions."""
    count = bins.in_use
    rows: Rows = {}
    added: Rows = {}
    for path, feature in zip(plan.paths, bins.features, strict=True):
        _put(rows, path, feature.values[:count])
        name = path[0]
        if name in plan.meta:
            continue
        if len(path) > 1:
            raise ChainError(
                f"cannot make segment ids for '{name}', which is a dict of features. Name it in "
                "`meta_features`, or flatten it in .map()."
            )
        segment_ids, positions = feature.segments(count)
        added[f"{name}_segment_ids"] = segment_ids
        added[f"{name}_positions"] = positions
    for name in plan.lists:
        column = np.empty(count, object)
        for number in range(count):
            column[number] = lists[number][name]
        rows[name] = column
    in_order: Rows = map_structure(lambda values: values, rows | added)
    return in_order


def _put(rows: Rows, path: Sequence[str], values: NDArray[np.generic]) -> None:
    for name in path[:-1]:
        inner = rows.setdefault(name, {})
        assert isinstance(inner, dict)
        rows = inner
    rows[path[-1]] = values


def _row(rows: Rows, number: int) -> Rows:
    return {
        name: _row(value, number) if isinstance(value, dict) else value[number]
        for name, value in rows.items()
    }


def _mean_group(row: NDArray[np.generic]) -> float:
    """The mean of the different groups in a row; 0 is padding and counts for nothing."""
    groups = np.unique(row)
    count = np.count_nonzero(groups)
    return float(np.sum(groups) / count) if count else 0.0


class PackIterDataset(IterDataset[Rows]):
    """Packs records into bins; the subclasses say which bin a record goes to.

    Args:
        parent: the dataset whose records are packed.
        length_struct: the length of a bin for each feature; others are dropped.
        num_packing_bins: the number of bins that are filled at a time.
        seed: of the order in which bins are handed out.
        shuffle_bins: whether bins are handed out in random order.
        shuffle_bins_group_by_feature: rows are ordered by this feature first.
        meta_features: features without segments and positions.  Those that `length_struct` does
            not name come as a list with one entry for each record in the bin.
        pack_alignment_struct: records begin at multiples of these numbers.
        padding_struct: the value of empty cells for each feature.
        max_sequences_per_bin: the largest number of records in a bin.
    """

    _make_bins: MakeBins

    def __init__(
        self,
        parent: IterDataset[Element],
        *,
        length_struct: Features,
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Features | None = None,
        padding_struct: Features | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        super().__init__(parent)
        self._plan = packing_plan(
            type(self)._make_bins,
            length_struct=length_struct,
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )

    def __iter__(self) -> DatasetIterator[Rows]:
        return PackingDatasetIterator(self._parent.__iter__(), self._plan)


class FirstFitPackIterDataset(PackIterDataset):
    """Puts each record into the first bin that has room for it."""

    _make_bins = staticmethod(first_fit)


class BestFitPackIterDataset(PackIterDataset):
    """Puts each record into the fullest bin that has room for it."""

    _make_bins = staticmethod(best_fit)
