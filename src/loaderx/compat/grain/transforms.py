"""Transformations: classes to derive from, and `Batch`."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias, Union

import numpy as np

from loaderx.compat.grain.protocols import DatasetSelectionMap, Element

__all__ = [
    "Batch",
    "DatasetSelectionMap",
    "Filter",
    "FlatMap",
    "Map",
    "MapWithIndex",
    "RandomMap",
    "TfRandomMap",
    "Transformation",
    "Transformations",
]


def __dir__() -> list[str]:
    return __all__


class _FromFunction(abc.ABC):  # noqa: B024 (each subclass below has an abstract method)
    """``Map(f)``, as some tutorials write it: short for a subclass with ``f`` as its method."""

    def __new__(cls, *args: Element, **kwargs: Element) -> Self:
        """An instance; a class below that is given a function makes a subclass first."""
        if _FromFunction in cls.__bases__ and len(args) == 1 and callable(args[0]) and not kwargs:
            methods = dict.fromkeys(cls.__abstractmethods__, staticmethod(args[0]))
            cls = type(cls.__name__, (cls,), {**methods, "__init__": _ignore_function})
        return super().__new__(cls)


def _ignore_function(self: object, function: object) -> None:
    """Ignores the function, which is a method of the class already."""


class Map(_FromFunction):
    """One element for each element.  ``Map(f)`` is short for a subclass with ``f`` as `map`."""

    @abc.abstractmethod
    def map(self, element: Element) -> Element:
        """The element that takes the place of ``element``."""


class RandomMap(_FromFunction):
    """One element for each element, with random numbers."""

    @abc.abstractmethod
    def random_map(self, element: Element, rng: np.random.Generator) -> Element:
        """The element that takes the place of ``element``; draw from ``rng`` only."""


class MapWithIndex(_FromFunction):
    """One element for each element, given its index."""

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Element) -> Element:
        """The element that takes the place of ``element``."""


class TfRandomMap(abc.ABC):
    """Like `RandomMap`, for functions that are also written for tf.data."""

    @abc.abstractmethod
    def np_random_map(self, element: Element, rng: np.random.Generator) -> Element:
        """The element that takes the place of ``element``."""


class Filter(_FromFunction):
    """Keeps some elements."""

    @abc.abstractmethod
    def filter(self, element: Element) -> bool:
        """True to keep the element."""


class FlatMap(abc.ABC):
    """Several elements, at most ``max_fan_out``, for each element."""

    max_fan_out: int

    @abc.abstractmethod
    def flat_map(self, element: Element) -> Sequence[Element]:
        """The elements that take the place of ``element``."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Stacks ``batch_size`` elements, or gives their list to ``batch_fn``."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Element]], Element] | None = None


Transformation: TypeAlias = Union[  # noqa: UP007 (programs ask for its arguments)
    Batch, Map, RandomMap, TfRandomMap, Filter, FlatMap, MapWithIndex
]
Transformations: TypeAlias = Sequence[Transformation]
OneOrMore: TypeAlias = Transformation | Transformations


def transform_name(transform: object) -> str:
    """A name for messages: a class, or a function with the place where it was defined."""
    if isinstance(transform, (Batch, Map, RandomMap, MapWithIndex, TfRandomMap, Filter, FlatMap)):
        kind = type(transform)
        is_plain = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
        return kind.__name__ if is_plain else str(transform)
    name = getattr(transform, "__name__", None) or repr(transform)
    try:
        file = inspect.getsourcefile(transform)  # type: ignore[arg-type]
        line = inspect.getsourcelines(transform)[1]  # type: ignore[arg-type]
    except (OSError, TypeError):  # built in, or typed at a prompt
        return name
    if file is None:
        return name
    parts = file.split("/")
    return f"{name} @ {'/'.join(['...', *parts[-3:]]) if len(parts) >= 3 else file}:{line}"
