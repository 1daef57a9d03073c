"""Nodes over several datasets of either kind: mix, concatenate, zip."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

from loaderx import ArgumentError
from loaderx.compat.grain.graph import DatasetNode
from loaderx.compat.grain.indices import Indices, Int64s, as_array, as_indices, as_ints, some
from loaderx.compat.grain.iter_dataset import IterDataset, IterNode
from loaderx.compat.grain.iterator import NodeIterator
from loaderx.compat.grain.map_dataset import MapDataset, MapNode
from loaderx.compat.grain.protocols import (
    AssertedError,
    DatasetSelectionMap,
    Element,
    Spec,
    State,
)
from loaderx.sources import Lend

T = TypeVar("T")
Several = Sequence[T] | Mapping[str, T]

_SCALE = 100


def whole_proportions(weights: Sequence[float] | None, count: int) -> tuple[int, ...]:
    """Weights as integers; the smallest becomes 100."""
    if not count:
        raise ArgumentError("mix needs at least one dataset.")
    if weights is None:
        return (1,) * count
    if 0 in weights:
        raise ArgumentError("a weight of 0 is not possible: leave that dataset out.")
    if len(weights) != count:
        raise AssertedError(f"there are {count} datasets to mix, and {len(weights)} weights.")
    factor = _SCALE / min(weights)
    return tuple(int(weight * factor) for weight in weights)


def choose(index: int, proportions: tuple[int, ...]) -> tuple[int, int]:
    """The dataset of an element, and its index there; each step splits one dataset off."""
    left = sum(proportions)
    low, high = index, index + 1
    for number, part in enumerate(proportions):
        next_low, next_high = low * (left - part) // left, high * (left - part) // left
        taken = high - next_high
        if low - next_low != taken:
            return number, taken - 1
        left -= part
        low, high = next_low, next_high
    raise AssertionError("one of the datasets has the element")


def choose_many(indices: Indices, proportions: tuple[int, ...]) -> tuple[Int64s, Int64s]:
    """The same for many elements."""
    total = sum(proportions)
    if not len(indices):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    most = max(indices[0], indices[-1]) if isinstance(indices, range) else indices.max(initial=0)
    if most > sys.maxsize // (2 * total):  # the products below would not fit
        pairs = [choose(index, proportions) for index in as_ints(indices)]
        return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    low = as_array(indices)
    high = low + 1
    chosen = np.full(len(low), -1, np.int64)
    inside = np.zeros(len(low), np.int64)
    left = total
    for number, part in enumerate(proportions):
        next_low, next_high = low * (left - part) // left, high * (left - part) // left
        taken = high - next_high
        found = (low - next_low != taken) & (chosen < 0)
        chosen[found] = number
        inside[found] = taken[found] - 1
        left -= part
        if left == 0:
            break
        low, high = next_low, next_high
    return chosen, inside


class SelectionWithProportionsMap(DatasetSelectionMap):
    """Elements in proportion to weights, evenly spread."""

    def __init__(
        self, parents: Sequence[MapDataset[Element]], proportions: Sequence[float] | None = None
    ) -> None:
        self._proportions = whole_proportions(proportions, len(parents))
        total = sum(self._proportions)
        # Rounded as floats, as in Grain.
        lengths = [
            len(parent) / (part / total)
            for parent, part in zip(parents, self._proportions, strict=True)
        ]
        empty = [f"index {i} ({parents[i]})" for i, length in enumerate(lengths) if length == 0]
        if empty:
            raise ValueError(
                f"a mix needs datasets with elements, and there are none in {', '.join(empty)}."
            )
        self._length = min(sys.maxsize, int(min(lengths)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return choose(index, self._proportions)

    def many(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """The same for many elements."""
        return choose_many(indices, self._proportions)

    def __repr__(self) -> str:
        proportions, length = self._proportions, self._length
        return f"SelectionWithProportionsMap(proportions={proportions}, length={length})"


class ConcatenationMap(DatasetSelectionMap):
    """One dataset after the other, in every epoch."""

    def __init__(self, parents: Sequence[MapDataset[Element]]) -> None:
        self._lengths = [len(parent) for parent in parents]
        for parent, length in zip(parents, self._lengths, strict=True):
            if length >= sys.maxsize:
                raise ValueError(f"Cannot concatenate infinite datasets: {parent} never ends.")
        self._starts = [0, *accumulate(self._lengths)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> tuple[int, int]:
        epoch, position = divmod(index, some(self._starts[-1]))
        number = bisect_right(self._starts, position) - 1
        return number, position - self._starts[number] + epoch * self._lengths[number]

    def many(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """The same for many elements."""
        epochs, positions = np.divmod(as_array(indices), some(self._starts[-1]))
        numbers = np.searchsorted(self._starts, positions, "right") - 1
        starts, lengths = np.array(self._starts), np.array(self._lengths)
        return numbers, positions - starts[numbers] + epochs * lengths[numbers]


class MixedMapDataset(MapNode[T]):
    """Elements of several datasets, as a map selects them."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(
        self,
        parents: Sequence[MapDataset[T]],
        proportions: Sequence[float] | None = None,
        selection_map: DatasetSelectionMap | None = None,
    ) -> None:
        super().__init__(parents)
        if proportions is not None and selection_map is not None:
            raise ValueError("give either weights or a selection map, not both.")
        if selection_map is None:
            selection_map = SelectionWithProportionsMap(parents, proportions)
        self._selection_map = selection_map
        self._length = len(selection_map)

    def _item(self, index: int) -> Element:
        number, inside = self._selection_map[index]
        try:
            return self._parents[number][inside]  # type: ignore[index]
        except Exception as error:
            error.add_note(f"In dataset {number} of {self}.")
            raise

    @property
    def has_own_map(self) -> bool:
        """Whether the map is one of those above, and not a user's."""
        return isinstance(self._selection_map, (SelectionWithProportionsMap, ConcatenationMap))

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        numbers, insides = self._select(indices)
        found: list[T | None] = [None] * len(numbers)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            elements = self.parents[number]._getitems(insides[places])
            for place, element in zip(places.tolist(), elements, strict=True):
                found[place] = element
        return found

    def _select(self, indices: Sequence[int] | Indices) -> tuple[Int64s, Int64s]:
        chosen = self._selection_map
        if isinstance(chosen, (SelectionWithProportionsMap, ConcatenationMap)):
            return chosen.many(as_indices(indices))
        pairs = [chosen[index] for index in as_ints(indices)]
        return np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)

    def __repr__(self) -> str:
        lengths = [len(parent) for parent in self.parents]
        return f"MixedMapDataset(parent_lengths={lengths}, selection_map={self._selection_map!r})"


class ConcatenateMapDataset(MixedMapDataset[T]):
    """One dataset after the other."""

    def __init__(self, parents: Sequence[MapDataset[T]]) -> None:
        super().__init__(parents, selection_map=ConcatenationMap(parents))


def _values(several: Several[T]) -> list[T]:
    """The values; those of a mapping in the order of its keys, as in Grain."""
    if isinstance(several, Mapping):
        return [several[key] for key in sorted(several)]
    return list(several)


class _MixIterator(NodeIterator[T]):
    def __init__(self, ds: MixedIterDataset[T]) -> None:
        super().__init__(ds)
        self._keys = ds._keys
        self._index = 0
        self._stop = False

    def __next__(self) -> T:
        if self._stop:
            raise StopIteration
        number, _ = choose(self._index, self._ds._proportions)
        self._index += 1
        try:
            return next(self._parents[number])  # type: ignore[no-any-return]
        except Exception as error:
            self._stop = True
            error.add_note(f"In dataset {number} of {self}.")
            raise

    def get_state(self) -> State:
        """The states of the parents, by name if they have names."""
        states = [parent.get_state() for parent in self._parents]
        by_name = states if self._keys is None else dict(zip(self._keys, states, strict=True))
        return {"parents": by_name, "index": self._index, "stop": self._stop}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken; a parent that is not in the state starts over."""
        states = state["parents"]
        if self._keys is not None:
            states = [states.get(key) for key in self._keys]
        for parent, one in zip(self._parents, states, strict=False):
            if one is not None:
                parent.set_state(one)
        self._index, self._stop = state["index"], state["stop"]

    def __str__(self) -> str:
        return f"MixedDatasetIterator([{len(self._parents)} parents])"


class MixedIterDataset(IterNode[T]):
    """Elements of several datasets in proportion, until the first of them ends."""

    _MUTATES_ELEMENT_SPEC = False
    _iterator = _MixIterator

    def __init__(
        self,
        parents: Several[IterDataset[T]],
        proportions: Several[float] | None = None,
    ) -> None:
        super().__init__(_values(parents))
        self._keys = sorted(parents) if isinstance(parents, Mapping) else None
        if proportions is not None and isinstance(proportions, Mapping) != bool(self._keys):
            raise ValueError("datasets and weights must both be mappings, or both be sequences.")
        if isinstance(proportions, Mapping) and sorted(proportions) != self._keys:
            raise ValueError(
                f"the weights have the keys {sorted(proportions)}, the datasets {self._keys}."
            )
        weights = None if proportions is None else _values(proportions)
        self._proportions = whole_proportions(weights, len(self._parents))


class ZipNode(DatasetNode):
    """Common base of both kinds: at least one parent, and the specs of all parents."""

    def __init__(self, parents: Sequence[DatasetNode]) -> None:
        super().__init__(parents)
        if not self._parents:
            raise ValueError("zip needs at least one dataset.")

    @property
    def _element_spec(self) -> Spec:
        return tuple(parent._element_spec for parent in self._parents)


class ZipMapDataset(ZipNode, MapNode[T]):
    """Tuples of the elements of several datasets of one length."""

    _shown = ("parents",)

    def __init__(self, parents: Sequence[MapDataset[Element]]) -> None:
        super().__init__(parents)
        lengths = [len(parent) for parent in self.parents]
        if len(set(lengths)) > 1:
            raise ValueError(f"zip needs datasets of one length, got {lengths}.")
        self._length = lengths[0]

    def _item(self, index: int) -> Element:
        return tuple([parent[index] for parent in self.parents])

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[Element]:
        return list(zip(*[parent._getitems(indices) for parent in self.parents], strict=True))

    @property
    def _gathers(self) -> bool:
        return all(parent._gathers for parent in self.parents)

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        found = tuple([parent._gather(indices, lend) for parent in self.parents])
        return None if any(part is None for part in found) else found


class _ZipIterator(NodeIterator[T]):
    def __next__(self) -> Element:
        found = []
        for number, parent in enumerate(self._parents):
            try:
                found.append(next(parent))
            except StopIteration:
                if self._ds._strict:
                    self._check_ends(number)
                raise
        return tuple(found)

    def _check_ends(self, number: int) -> None:
        """One parent has ended: raises if another has not."""
        before = "argument 1" if number == 1 else f"arguments 1-{number}"
        if number:
            raise ValueError(f"ZipIterDataset argument {number + 1} is shorter than {before}")
        for other, parent in enumerate(self._parents[1:], 1):
            try:
                next(parent)
            except StopIteration:
                continue
            before = "argument 1" if other == 1 else f"arguments 1-{other}"
            raise ValueError(f"ZipIterDataset argument {other + 1} is longer than {before}")

    def get_state(self) -> State:
        """The states of the parents."""
        return {"parents": [parent.get_state() for parent in self._parents]}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        for parent, one in zip(self._parents, state["parents"], strict=True):
            parent.set_state(one)


class ZipIterDataset(ZipNode, IterNode[T]):
    """Tuples of the elements of several datasets, which must end together if ``strict``."""

    _shown = ("parents", "strict")
    _iterator = _ZipIterator

    def __init__(self, parents: Sequence[IterDataset[Element]], *, strict: bool = True) -> None:
        super().__init__(parents)
        self._strict = strict
