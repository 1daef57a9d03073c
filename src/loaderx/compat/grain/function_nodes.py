"""Nodes of both kinds that call a user's function for each element.

The function is given directly, or as the method of a transformation.  None, which stands for an
element that a filter has left out, passes through all of these nodes.
"""

from __future__ import annotations

import abc
import builtins
import functools
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from loaderx.compat.grain import transforms
from loaderx.compat.grain.graph import DatasetNode
from loaderx.compat.grain.indices import Indices, as_ints
from loaderx.compat.grain.iter_dataset import IterNode
from loaderx.compat.grain.iterator import NodeIterator, NumberingIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, Spec, State


class CountedGenerator:
    """A generator that can be set to an index."""

    __slots__ = ("_bits", "_counter", "_state", "rng")

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(seed)
        self.rng = np.random.Generator(self._bits)
        self._counter: npt.NDArray[np.uint64] = np.zeros(4, np.uint64)
        key = self._bits.state["state"]["key"]
        # Kept and set again, since reading the state takes longer than setting it.
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(self, index: int) -> np.random.Generator:
        """The generator in its initial state for an index."""
        self._counter[3] = index
        self._bits.state = self._state  # type: ignore[assignment]
        return self.rng


T = TypeVar("T")


class FunctionNode(DatasetNode):
    """Common base of both kinds: the function, its name, and the spec of its results."""

    _kind: ClassVar[abc.ABCMeta]  # the class of transformations that have the function as method

    def __init__(self, parent: DatasetNode, transform: Element) -> None:
        super().__init__(parent)
        self._transform = transform
        (method,) = self._kind.__abstractmethods__
        is_object = isinstance(transform, self._kind)
        self._function: Callable[..., Element] = (
            getattr(transform, method) if is_object else transform
        )

    @functools.cached_property
    def _transform_name(self) -> str:
        return transforms.transform_name(self._transform)

    @property
    def _element_spec(self) -> Spec:
        if not self._MUTATES_ELEMENT_SPEC:
            return super()._element_spec
        if hasattr(self._transform, "output_spec"):
            return self._transform.output_spec(self._parents[0]._element_spec)
        raise ValueError(
            f"{self._transform_name} does not implement `output_spec`, so the spec of its "
            "results is not known. Give it a method `output_spec(self, input_spec)`, which takes "
            "and returns a tree of ShapeDtypeStruct."
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}(transform={self._transform_name})"


class FunctionMapDataset(FunctionNode, MapDataset[T]):
    """Elements by index; `_one` makes each of them from its index and the parent's element."""

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        element = self._parents[0][index]  # type: ignore[index]
        return None if element is None else self._one(index, element)

    def _one(self, index: int, element: Element) -> Element:
        return self._function(index, element)

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        elements, one = self._parent._getitems(indices), self._one
        return [
            None if element is None else one(index, element)
            for index, element in zip(as_ints(indices), elements, strict=True)
        ]


class FunctionIterator(NodeIterator[T]):
    """Base of the iterators below."""

    def __init__(self, ds: Element) -> None:
        super().__init__(ds)
        self._function = ds._function


class MapMapDataset(FunctionMapDataset[T]):
    """Each element transformed."""

    _kind = transforms.Map

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        element = self._parents[0][index]  # type: ignore[index]
        return None if element is None else self._function(element)

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        function = self._function
        found = self._parent._getitems(indices)
        return [None if element is None else function(element) for element in found]


class _MapIterator(FunctionIterator[T]):
    _ONE_FOR_ONE = True

    def __next__(self) -> Element:
        element = self._pull()
        return None if element is None else self._function(element)


class MapIterDataset(FunctionNode, IterNode[T]):
    """Each element transformed."""

    _kind = transforms.Map
    _iterator = _MapIterator


class MapWithIndexMapDataset(FunctionMapDataset[T]):
    """Each element transformed, together with its index."""

    _kind = transforms.MapWithIndex


class _NumberedIterator(FunctionIterator[T], NumberingIterator[T]):
    """Elements in order; `_one` makes each of them from its number and the parent's element."""

    def __next__(self) -> Element:
        element = self._pull()
        if element is not None:
            element = self._one(self._count, element)
        self._count += 1
        return element

    def _one(self, number: int, element: Element) -> Element:
        return self._function(number, element)


class _MapWithIndexIterator(_NumberedIterator[T]):
    _key = "counter"


class MapWithIndexIterDataset(FunctionNode, IterNode[T]):
    """Each element transformed, together with its number."""

    _kind = transforms.MapWithIndex
    _iterator = _MapWithIndexIterator


class _Random(FunctionNode):
    """Common base with a seed: the given one, or else that of the pipeline."""

    _kind = transforms.RandomMap

    def __init__(
        self,
        parent: DatasetNode,
        transform: transforms.RandomMap | Callable[[Element, np.random.Generator], Element],
        seed: int | None = None,
    ) -> None:
        super().__init__(parent, transform)
        found = self._default_seed if seed is None else seed
        if found is None:
            raise ValueError(
                "`random_map` requires a seed: write ds.seed(n) below it, or random_map(f, seed=n)."
            )
        self._seed = found
        self._free: list[CountedGenerator] = []  # several threads may draw at once

    def _generator(self) -> CountedGenerator:
        """A generator that is not in use; the caller returns it to `_free`."""
        try:
            return self._free.pop()
        except IndexError:
            return CountedGenerator(self._seed)


class RandomMapMapDataset(_Random, FunctionMapDataset[T]):
    """Each element transformed with the random numbers of its index."""

    def _one(self, index: int, element: Element) -> Element:
        counted = self._generator()
        made = self._function(element, counted.at(index))
        self._free.append(counted)
        return made

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        elements, function = self._parent._getitems(indices), self._function
        counted = self._generator()
        at = counted.at
        made = [
            None if element is None else function(element, at(index))
            for index, element in zip(as_ints(indices), elements, strict=True)
        ]
        self._free.append(counted)
        return made


class _RandomMapIterator(_NumberedIterator[T]):
    _key = "index_for_rng"

    def __init__(self, ds: RandomMapIterDataset[T]) -> None:
        super().__init__(ds)
        self._at = CountedGenerator(ds._seed).at

    def _one(self, number: int, element: Element) -> Element:
        return self._function(element, self._at(number))


class RandomMapIterDataset(_Random, IterNode[T]):
    """Each element transformed with random numbers that its position determines."""

    _iterator = _RandomMapIterator


class FilterMapDataset(FunctionMapDataset[T]):
    """None in place of elements that are left out."""

    _MUTATES_ELEMENT_SPEC = False
    _kind = transforms.Filter

    def _one(self, index: int, element: Element) -> Element:
        return element if self._function(element) else None


class _FilterIterator(FunctionIterator[T]):
    def __next__(self) -> T:
        pull, function, count = self._pull, self._function, self._filter_check.count
        while True:
            element = pull()
            if function(element):
                count(1, 0)
                return element  # type: ignore[no-any-return]
            count(0, 1)

    def __str__(self) -> str:
        transform = self._ds._transform
        is_object = isinstance(transform, transforms.Filter)
        name = type(transform).__name__ if is_object else self._ds._transform_name
        return f"FilterDatasetIterator(transform={name})"


class FilterIterDataset(FunctionNode, IterNode[T]):
    """The elements for which a function is true."""

    _MUTATES_ELEMENT_SPEC = False
    _kind = transforms.Filter
    _iterator = _FilterIterator


class _FlatMap(FunctionNode):
    """Several elements, or none, for each element."""

    _kind = transforms.FlatMap

    def _parts(self, element: Element) -> Sequence[Element]:
        """The elements made from one, as a sequence: states count them."""
        parts = self._function(element)
        return parts if isinstance(parts, Sequence) else list(parts)

    @property
    def _element_spec(self) -> Spec:
        raise NotImplementedError("the spec of the elements that flat_map makes is not known.")


class FlatMapMapDataset(_FlatMap, FunctionMapDataset[T]):
    """``max_fan_out`` places for each element, with None in the places that are not filled."""

    def __len__(self) -> int:
        fan_out = self._transform.max_fan_out
        if len(self._parent) >= sys.maxsize / fan_out:
            return sys.maxsize
        return fan_out * len(self._parent)  # type: ignore[no-any-return]

    def __getitem__(self, index: builtins.slice | int) -> Element:
        return self.slice(index) if isinstance(index, slice) else self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        """Splits each element of the parent once, even if several of its parts are read."""
        found: list[T | None] = []
        have: int | None = None
        parts: Sequence[T] = ()
        for index in as_ints(indices):
            parent_index, place = divmod(index, self._transform.max_fan_out)
            if parent_index != have:
                element = self._parent[parent_index]
                have, parts = parent_index, [] if element is None else self._few_parts(element)
            found.append(parts[place] if place < len(parts) else None)
        return found

    def _few_parts(self, element: Element) -> Sequence[T]:
        parts, most = self._parts(element), self._transform.max_fan_out
        if len(parts) > most:
            raise ValueError(
                f"{self._transform_name} made {len(parts)} elements of one; that exceeds its max "
                f"fan-out of {most}. Raise max_fan_out; above 100, split the records beforehand "
                "instead."
            )
        return parts


class _FlatMapIterator(NodeIterator[T]):
    """Its state is that of the parent before the element whose parts are being handed out."""

    def __init__(self, ds: FlatMapIterDataset[T]) -> None:
        super().__init__(ds)
        self._parts: Sequence[T] = ()
        self._place = 0
        self._before = self._parent.get_state()

    def __next__(self) -> T:
        while self._place >= len(self._parts):
            before = self._parent.get_state()
            self._before = before
            element = self._pull()
            self._place = 0
            self._parts = self._ds._parts(element)
        self._place += 1
        return self._parts[self._place - 1]

    def get_state(self) -> State:
        """The state of the parent, and the parts already handed out."""
        return {"parent": self._before, "next_index_in_buffer": self._place}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken; the element there is split again."""
        self._before = state["parent"]
        self._parent.set_state(state["parent"])
        self._place = state["next_index_in_buffer"]
        try:
            self._parts = self._ds._parts(self._pull())
        except StopIteration:
            self._parts, self._place = (), 0


class FlatMapIterDataset(_FlatMap, IterNode[T]):
    """Several elements, or none, for each element."""

    _iterator = _FlatMapIterator
