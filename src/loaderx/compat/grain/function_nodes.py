"""Nodes that call a function of the user's for each element; None passes through all of them."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from loaderx.compat.grain.indices import Indices, as_ints
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, Spec
from loaderx.compat.grain.random_numbers import RngPool
from loaderx.compat.grain.registry import node
from loaderx.compat.grain.transforms import (
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    transform_name,
)

T = TypeVar("T")


@runtime_checkable
class HasOutputSpec(Protocol):
    """A transformation that says what it makes of a spec."""

    def output_spec(self, input_spec: Spec) -> Spec:
        """The spec of its elements."""


def spec_after(transform: object, input_spec: Callable[[], Spec]) -> Spec:
    """The spec of what a transformation makes; an error if it does not say."""
    if isinstance(transform, HasOutputSpec):
        return transform.output_spec(input_spec())
    name = transform_name(transform)
    raise ValueError(
        f"{name} does not implement `output_spec`, so what it makes is not known. Give it a method "
        "`output_spec(self, input_spec)`, which takes and returns a tree of ShapeDtypeStruct."
    )


class FunctionNode(MapDataset[T]):
    """Base of the nodes below."""

    def __init__(self, parent: MapDataset[Element], transform: object) -> None:
        super().__init__(parent)
        self._transform = transform

    @functools.cached_property
    def _transform_name(self) -> str:
        return transform_name(self._transform)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        element = self._parents[0][index]  # type: ignore[index]
        return None if element is None else self._one(index, element)

    def _one(self, index: int, element: Element) -> Element:
        raise NotImplementedError

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        elements, one = self._parent._getitems(indices), self._one
        return [
            None if element is None else one(index, element)
            for index, element in zip(as_ints(indices), elements, strict=True)
        ]

    @property
    def _element_spec(self) -> Spec:
        return spec_after(self._transform, lambda: self._parent._element_spec)

    def __str__(self) -> str:
        return f"{type(self).__name__}(transform={self._transform_name})"


@node("map.map")
class MapMapDataset(FunctionNode[T]):
    """Each element transformed."""

    def __init__(self, parent: MapDataset[Element], transform: Map | Callable[..., T]) -> None:
        super().__init__(parent, transform)
        self._map_fn = transform.map if isinstance(transform, Map) else transform

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        element = self._parents[0][index]  # type: ignore[index]
        return None if element is None else self._map_fn(element)

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        function = self._map_fn
        found = self._parent._getitems(indices)
        return [None if element is None else function(element) for element in found]


@node("map.map_with_index")
class MapWithIndexMapDataset(FunctionNode[T]):
    """Each element transformed, knowing its index."""

    def __init__(
        self, parent: MapDataset[Element], transform: MapWithIndex | Callable[..., T]
    ) -> None:
        super().__init__(parent, transform)
        self._map_fn = (
            transform.map_with_index if isinstance(transform, MapWithIndex) else transform
        )

    def _one(self, index: int, element: Element) -> Element:
        return self._map_fn(index, element)


@node("map.random_map")
class RandomMapMapDataset(FunctionNode[T]):
    """Each element transformed with the random numbers of its index."""

    def __init__(
        self,
        parent: MapDataset[Element],
        transform: RandomMap | Callable[[Element, np.random.Generator], T],
        seed: int | None = None,
    ) -> None:
        super().__init__(parent, transform)
        self._map_fn = transform.random_map if isinstance(transform, RandomMap) else transform
        self._rng_pool = RngPool(required_seed(self, seed))

    def _one(self, index: int, element: Element) -> Element:
        counted = self._rng_pool.take()
        made = self._map_fn(element, counted.at(index))
        self._rng_pool.give_back(counted)
        return made

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        elements, function = self._parent._getitems(indices), self._map_fn
        counted = self._rng_pool.take()
        at = counted.at
        made = [
            None if element is None else function(element, at(index))
            for index, element in zip(as_ints(indices), elements, strict=True)
        ]
        self._rng_pool.give_back(counted)
        return made


def required_seed(ds: MapDataset[Element] | Element, seed: int | None) -> int:
    """A seed that was given, or else that of the pipeline."""
    found = ds._default_seed if seed is None else seed
    if found is None:
        raise ValueError(
            "`random_map` requires a seed: write ds.seed(n) below it, or random_map(f, seed=n)."
        )
    return found


@node("map.filter")
class FilterMapDataset(FunctionNode[T]):
    """None in place of elements that are left out."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: MapDataset[T], transform: Filter | Callable[[T], bool]) -> None:
        super().__init__(parent, transform)
        self._filter_fn = transform.filter if isinstance(transform, Filter) else transform

    def _one(self, index: int, element: Element) -> Element:
        return element if self._filter_fn(element) else None

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec


@node("map.flat_map")
class FlatMapMapDataset(FunctionNode[T]):
    """``max_fan_out`` places for each element, None in those that are not filled."""

    def __init__(self, parent: MapDataset[Element], transform: FlatMap) -> None:
        super().__init__(parent, transform)
        self._flat_map = transform

    def __len__(self) -> int:
        fan_out = self._flat_map.max_fan_out
        if len(self._parent) >= sys.maxsize / fan_out:
            return sys.maxsize
        return fan_out * len(self._parent)

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        parent_index, place = divmod(index, self._flat_map.max_fan_out)
        element = self._parent[parent_index]
        parts = () if element is None else self._parts(element)
        return parts[place] if place < len(parts) else None

    def _parts(self, element: Element) -> Sequence[T]:
        parts = self._flat_map.flat_map(element)
        parts = parts if isinstance(parts, Sequence) else list(parts)
        if len(parts) > self._flat_map.max_fan_out:
            raise ValueError(
                f"{self._transform_name} made {len(parts)} elements of one; that exceeds its max "
                f"fan-out of {self._flat_map.max_fan_out}. Raise max_fan_out; above 100, split "
                "the records beforehand instead."
            )
        return parts

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        """Each element of the parent is split once, however many of its parts are asked for."""
        found: list[T | None] = []
        have: int | None = None
        parts: Sequence[T] = ()
        for index in as_ints(indices):
            parent_index, place = divmod(index, self._flat_map.max_fan_out)
            if parent_index != have:
                element = self._parent[parent_index]
                have, parts = parent_index, [] if element is None else self._parts(element)
            found.append(parts[place] if place < len(parts) else None)
        return found

    @property
    def _element_spec(self) -> Spec:
        raise NotImplementedError("the spec of what flat_map makes is not known.")
