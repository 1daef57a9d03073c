"""What users' own objects look like: elements, states, sources, selection maps, specs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy.typing as npt

from loaderx.errors import ArgumentError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Element: TypeAlias = Any
"""An element of a dataset: whatever a source gives or a function returns."""

State: TypeAlias = dict[str, Any]
"""The state of an iterator: a dict of numbers, for JSON."""

Spec: TypeAlias = Any
"""A tree of `ShapeDtypeStruct`."""


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes; None where one is not known."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the numbers."""


@dataclasses.dataclass(slots=True, frozen=True)
class ShapeDtypeStruct:
    """Shape and dtype of an array."""

    shape: tuple[int | None, ...]
    dtype: npt.DTypeLike


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """A source of records: anything with a length and an index."""

    def __len__(self) -> int:
        """The number of records."""

    def __getitem__(self, index: int) -> T_co:
        """The record at an index from 0 to the length less 1."""


@runtime_checkable
class BatchedReads(Protocol[T_co]):
    """A source that reads many records at once."""

    def _getitems(self, indices: Sequence[int]) -> Sequence[T_co]:
        """The records at these indices, in their order."""


class DatasetSelectionMap(abc.ABC):
    """Which of several datasets an index belongs to, and the index in that dataset."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The length of the dataset that is selected from the others."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """The number of the dataset, and the index in it."""


class AssertedError(ArgumentError, AssertionError):
    """What Grain asserts."""
