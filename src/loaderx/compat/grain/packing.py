"""`FirstFitPackIterDataset` and `BestFitPackIterDataset`: several records in one row.

Bins are filled until no bin has room for the next record.  Then all bins are handed out one at a
time, in shuffled order, and that record begins the next bins.  A state is the parent's state before
the first record in the bins and the number of bins handed out; restoring it fills the bins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loaderx import ArgumentError, ChainError, StackError, StateError
from loaderx.compat.grain.iter_dataset import IterDataset, IterNode
from loaderx.compat.grain.iterator import NodeIterator
from loaderx.compat.grain.packing_bins import (
    Bins,
    Lengths,
    PackedBatch,
    best_fit,
    first_fit,
    length_of,
)
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.trees import map_structure

Rows = dict[str, "NDArray[np.generic] | Rows"]
Path = tuple[str, ...]
Features = Mapping[str, Element]


class PackingDatasetIterator(NodeIterator[Rows]):
    """Hands out the rows of one packed batch after the other."""

    def __init__(self, ds: PackIterDataset) -> None:
        super().__init__(ds)
        self._plan = ds
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
        """Whether `take_rows` can give a batch."""
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
        """Reads records until one does not fit, or the parent ends."""
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
        if not plan.shuffles_bins:
            return list(range(count))
        # The number of rows before these bins, which is the same after a restore.
        rng = np.random.default_rng(plan.bins_seed + self._counter - self._next_row)
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


def _packed_rows(
    bins: PackedBatch, lists: Sequence[Mapping[str, list[object]]], plan: PackIterDataset
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
    """The mean of the different groups in a row, without 0, which is padding."""
    groups = np.unique(row)
    count = np.count_nonzero(groups)
    return float(np.sum(groups) / count) if count else 0.0


class PackIterDataset(IterNode[Rows]):
    """Packs records into bins; the subclasses choose the bin of a record.

    Args:
        parent: the dataset whose records are packed.
        length_struct: the length of a bin for each feature; other features are dropped.
        num_packing_bins: the number of bins that are filled at a time.
        seed: of the order in which bins are handed out.
        shuffle_bins: whether bins are handed out in random order.
        shuffle_bins_group_by_feature: the feature by which rows are ordered first.
        meta_features: features without segments and positions.  Those that `length_struct` does
            not name come as a list with one entry for each record in the bin.
        pack_alignment_struct: records begin at multiples of these numbers.
        padding_struct: the value of empty cells for each feature.
        max_sequences_per_bin: the largest number of records in a bin.
    """

    _iterator = PackingDatasetIterator
    _make_bins: Callable[[Lengths, int], Bins]

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
        if max_sequences_per_bin is not None and max_sequences_per_bin <= 0:
            raise ArgumentError(
                f"`max_sequences_per_bin` must be at least 1, or None; got {max_sequences_per_bin}."
            )
        if not isinstance(length_struct, Mapping):
            raise ArgumentError(
                "`length_struct` must be a dict of lengths by the name of the feature, got "
                f"{length_struct!r}."
            )
        self.count, self.most = num_packing_bins, max_sequences_per_bin
        self.bins_seed, self.shuffles_bins = seed, shuffle_bins
        self.group_by = shuffle_bins_group_by_feature
        self.paths = paths = tuple(_paths(length_struct))
        is_flat = max(map(len, paths)) == 1
        self.names = tuple(path[0] for path in paths) if is_flat else None  # used if not None
        self.lengths = tuple(int(n) for n in _matching(paths, length_struct, 0))
        self.paddings = _matching(paths, padding_struct, None)
        self.alignments = tuple(int(n) for n in _matching(paths, pack_alignment_struct, 1))
        self.meta = frozenset(meta_features)
        # Features that are not packed but collected, record by record.
        self.lists = tuple(name for name in meta_features if name not in length_struct)

    def values(self, element: Features) -> list[Element]:
        """The values of a record, feature by feature."""
        try:
            if self.names is not None:
                return [element[name] for name in self.names]
            return [_at(element, path) for path in self.paths]
        except (KeyError, TypeError, IndexError) as error:
            wanted = ", ".join(".".join(path) for path in self.paths)
            raise StackError(
                f"cannot pack: a record has {_names(element)}, and `length_struct` asks for "
                f"{wanted}. Add what is missing in .map(), or remove it from `length_struct`."
            ) from error

    def measured(self, values: Sequence[Element]) -> Lengths:
        """The number of cells that each value takes."""
        lengths = tuple(map(length_of, values))
        for length, most in zip(lengths, self.lengths, strict=True):
            if length > most:
                raise StackError(self._too_long(lengths))
        return lengths

    def _too_long(self, lengths: Lengths) -> str:
        found = [
            f"{'.'.join(path)} has {n} of {most}"
            for path, n, most in zip(self.paths, lengths, self.lengths, strict=True)
            if n > most
        ]
        return (
            f"cannot pack a record that is longer than a bin: {', '.join(found)}. Cut records "
            "before they are packed, for instance in .map()."
        )

    def empty(self, values: Sequence[Element]) -> PackedBatch:
        """Empty bins for records like this one."""
        return PackedBatch(
            values,
            bins=type(self)._make_bins(self.lengths, self.count),
            count=self.count,
            lengths=self.lengths,
            paddings=self.paddings,
            alignments=self.alignments,
            most=self.most,
        )


def _paths(tree: Features, above: Path = ()) -> Iterator[Path]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _paths(value, (*above, name))
        else:
            yield (*above, name)


def _at(tree: Features, path: Path) -> Element:
    value: Element = tree
    for name in path:
        value = value[name]
    return value


def _matching(
    paths: Sequence[Path], tree: Features | None, default: Element
) -> tuple[Element, ...]:
    if tree is None:
        return (default,) * len(paths)
    return tuple(_at(tree, path) for path in paths)


def _names(element: Element) -> str:
    if isinstance(element, Mapping):
        return ", ".join(map(str, element))
    return f"no names (it is a {type(element).__name__})"


class FirstFitPackIterDataset(PackIterDataset):
    """Puts each record into the first bin that has room for it."""

    _make_bins = staticmethod(first_fit)


class BestFitPackIterDataset(PackIterDataset):
    """Puts each record into the fullest bin that has room for it."""

    _make_bins = staticmethod(best_fit)
