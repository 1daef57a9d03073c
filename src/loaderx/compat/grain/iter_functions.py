"""Nodes of an `IterDataset` that call a function of the user's for each element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from loaderx.compat.grain.filter_check import FilterCheck
from loaderx.compat.grain.function_nodes import required_seed, spec_after
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator, get_next_index, set_next_index
from loaderx.compat.grain.protocols import Element, Spec, State
from loaderx.compat.grain.random_numbers import CountedGenerator
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
Function = Callable[..., Element]


class ParentStateIterator(DatasetIterator[T]):
    """An iterator whose position is that of its parent."""

    def __init__(self, parent: DatasetIterator[Element]) -> None:
        super().__init__(parent)
        self._pull = self._parents[0].__next__

    def get_state(self) -> State:
        """The state of the parent."""
        return self._parent.get_state()

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._parent.set_state(state)


class CountingIterator(ParentStateIterator[T]):
    """An iterator that numbers its elements; ``_key`` is the number's name in a state."""

    _key = "count"
    _count = 0

    def get_state(self) -> State:
        """The state of the parent, and the number of the next element."""
        return {"parent": self._parent.get_state(), self._key: self._count}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._parent.set_state(state["parent"])
        self._count = state[self._key]

    def _get_next_index(self) -> int:
        return self._count

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._parent, index)
        self._count = index


class FunctionIterDataset(IterDataset[T]):
    """Base of the datasets below."""

    def __init__(self, parent: IterDataset[Element], transform: object) -> None:
        super().__init__(parent)
        self._transform = transform

    @functools.cached_property
    def _transform_name(self) -> str:
        return transform_name(self._transform)

    @property
    def _element_spec(self) -> Spec:
        return spec_after(self._transform, lambda: self._parent._element_spec)

    def __str__(self) -> str:
        return f"{type(self).__name__}(transform={self._transform_name})"


@node("iter.map")
class MapIterDataset(FunctionIterDataset[T]):
    """Each element transformed."""

    def __init__(self, parent: IterDataset[Element], transform: Map | Function) -> None:
        super().__init__(parent, transform)
        self._map_fn: Function = transform.map if isinstance(transform, Map) else transform

    def __iter__(self) -> DatasetIterator[T]:
        return _MapIterator(self._parent.__iter__(), self._map_fn)


class _MapIterator(ParentStateIterator[T]):
    _ONE_FOR_ONE = True

    def __init__(self, parent: DatasetIterator[Element], function: Function) -> None:
        super().__init__(parent)
        self._function = function

    def __next__(self) -> Element:
        element = self._pull()
        return None if element is None else self._function(element)

    def _get_next_index(self) -> int:
        return get_next_index(self._parent)

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._parent, index)


@node("iter.map_with_index")
class MapWithIndexIterDataset(FunctionIterDataset[T]):
    """Each element transformed, knowing its number."""

    def __init__(self, parent: IterDataset[Element], transform: MapWithIndex | Function) -> None:
        super().__init__(parent, transform)
        self._map_fn: Function = (
            transform.map_with_index if isinstance(transform, MapWithIndex) else transform
        )

    def __iter__(self) -> DatasetIterator[T]:
        return _MapWithIndexIterator(self._parent.__iter__(), self._map_fn)


class _MapWithIndexIterator(CountingIterator[T]):
    _key = "counter"

    def __init__(self, parent: DatasetIterator[Element], function: Function) -> None:
        super().__init__(parent)
        self._function = function

    def __next__(self) -> Element:
        element = self._pull()
        if element is not None:
            element = self._function(self._count, element)
        self._count += 1
        return element


@node("iter.random_map")
class RandomMapIterDataset(FunctionIterDataset[T]):
    """Each element transformed with the random numbers of its number."""

    def __init__(
        self,
        parent: IterDataset[Element],
        transform: RandomMap | Callable[[Element, np.random.Generator], T],
        seed: int | None = None,
    ) -> None:
        super().__init__(parent, transform)
        self._map_fn: Function = (
            transform.random_map if isinstance(transform, RandomMap) else transform
        )
        self._seed = required_seed(self, seed)

    def __iter__(self) -> DatasetIterator[T]:
        return _RandomMapIterator(self._parent.__iter__(), self._map_fn, self._seed)


class _RandomMapIterator(CountingIterator[T]):
    _key = "index_for_rng"

    def __init__(self, parent: DatasetIterator[Element], function: Function, seed: int) -> None:
        super().__init__(parent)
        self._function = function
        self._at = CountedGenerator(seed).at

    def __next__(self) -> Element:
        element = self._pull()
        if element is not None:
            element = self._function(element, self._at(self._count))
        self._count += 1
        return element


@node("iter.filter")
class FilterIterDataset(FunctionIterDataset[T]):
    """The elements for which a function is true."""

    def __init__(self, parent: IterDataset[T], transform: Filter | Function) -> None:
        super().__init__(parent, transform)
        self._filter_fn: Function = transform.filter if isinstance(transform, Filter) else transform

    def __iter__(self) -> DatasetIterator[T]:
        is_object = isinstance(self._transform, Filter)
        name = type(self._transform).__name__ if is_object else self._transform_name
        return _FilterIterator(self._parent.__iter__(), self._filter_fn, name)

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec


class _FilterIterator(ParentStateIterator[T]):
    def __init__(self, parent: DatasetIterator[T], function: Function, name: str) -> None:
        super().__init__(parent)
        self._function = function
        self._name = name

    @functools.cached_property
    def _check(self) -> FilterCheck:
        return FilterCheck(str(self), self._ctx)  # late: options may be set above

    def __next__(self) -> T:
        pull, function, count = self._pull, self._function, self._check.count
        while True:
            element = pull()
            if function(element):
                count(1, 0)
                return element  # type: ignore[no-any-return]
            count(0, 1)

    def __str__(self) -> str:
        return f"FilterDatasetIterator(transform={self._name})"


@node("iter.flat_map")
class FlatMapIterDataset(FunctionIterDataset[T]):
    """Several elements, or none, for each element."""

    def __init__(self, parent: IterDataset[Element], transform: FlatMap) -> None:
        super().__init__(parent, transform)
        self._flat_map = transform.flat_map

    def __iter__(self) -> DatasetIterator[T]:
        return _FlatMapIterator(self._parent.__iter__(), self._flat_map)

    @property
    def _element_spec(self) -> Spec:
        raise NotImplementedError("the spec of what flat_map makes is not known.")


class _FlatMapIterator(ParentStateIterator[T]):
    """Its state is that of the parent before the element that is being handed out in parts."""

    def __init__(
        self, parent: DatasetIterator[Element], function: Callable[[Element], Sequence[T]]
    ) -> None:
        super().__init__(parent)
        self._function = function
        self._parts: Sequence[T] = ()
        self._place = 0
        self._before = self._parent.get_state()

    def __next__(self) -> T:
        while self._place >= len(self._parts):
            before = self._parent.get_state()
            self._before = before
            element = self._pull()
            self._place = 0
            self._parts = _listed(self._function(element))
        self._place += 1
        return self._parts[self._place - 1]

    def get_state(self) -> State:
        """The state of the parent, and the parts already handed out."""
        return {"parent": self._before, "next_index_in_buffer": self._place}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken; the element there is split again."""
        self._before = state["parent"]
        self._parent.set_state(state["parent"])
        self._place = state["next_index_in_buffer"]
        try:
            self._parts = _listed(self._function(self._pull()))
        except StopIteration:
            self._parts, self._place = (), 0


def _listed(parts: Iterable[T]) -> Sequence[T]:
    """A generator is run to its end: its parts are counted in states."""
    return parts if isinstance(parts, Sequence) else list(parts)
