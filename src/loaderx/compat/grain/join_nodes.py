"""Nodes over several datasets: mix, concatenate, zip."""

from __future__ import annotations

import builtins
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

from loaderx.compat.grain.indices import Indices, Int64s, as_array, as_indices, as_ints, some
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.proportions import choose, choose_many, whole_proportions
from loaderx.compat.grain.protocols import DatasetSelectionMap, Element, Spec
from loaderx.compat.grain.registry import node
from loaderx.memory import Lend

T = TypeVar("T")


class SelectionWithProportionsMap(DatasetSelectionMap):
    """Elements in proportion to weights, evenly spread."""

    def __init__(
        self, parents: Sequence[MapDataset[Element]], proportions: Sequence[float] | None = None
    ) -> None:
        self._proportions = whole_proportions(proportions, len(parents))
        total = sum(self._proportions)
        # With the rounding of floats, as in Grain.
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


@node("map.mix")
class MixedMapDataset(MapDataset[T]):
    """Elements of several datasets, as a map selects them."""

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

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        number, inside = self._selection_map[index]
        try:
            return self._parents[number][inside]  # type: ignore[index]
        except Exception as error:
            error.add_note(f"In dataset {number} of {self}.")
            raise

    @property
    def has_own_map(self) -> bool:
        """Is the map one of those above, and not the user's?"""
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

    @property
    def _element_spec(self) -> Spec:
        return self.parents[0]._element_spec

    def __repr__(self) -> str:
        lengths = [len(parent) for parent in self.parents]
        return f"MixedMapDataset(parent_lengths={lengths}, selection_map={self._selection_map!r})"

    def __str__(self) -> str:
        return f"MixedMapDataset[{len(self._parents)} parents]"


@node("map.concatenate")
class ConcatenateMapDataset(MixedMapDataset[T]):
    """One dataset after the other."""

    def __init__(self, parents: Sequence[MapDataset[T]]) -> None:
        super().__init__(parents, selection_map=ConcatenationMap(parents))


class ZipMapDataset(MapDataset[T]):
    """Tuples of the elements of several datasets of one length."""

    def __init__(self, parents: Sequence[MapDataset[Element]]) -> None:
        super().__init__(parents)
        lengths = [len(parent) for parent in self.parents]
        if not lengths:
            raise ValueError("zip needs at least one dataset.")
        if len(set(lengths)) > 1:
            raise ValueError(f"zip needs datasets of one length, got {lengths}.")
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        return tuple([parent[index] for parent in self.parents])

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[Element]:
        return list(zip(*[parent._getitems(indices) for parent in self.parents], strict=True))

    @property
    def _gathers(self) -> bool:
        return all(parent._gathers for parent in self.parents)

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        found = tuple([parent._gather(indices, lend) for parent in self.parents])
        return None if any(part is None for part in found) else found

    @property
    def _element_spec(self) -> Spec:
        return tuple(parent._element_spec for parent in self.parents)

    def __str__(self) -> str:
        return f"ZipMapDataset(parents={self._parents})"
