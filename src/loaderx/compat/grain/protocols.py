"""The types of users' objects: elements, states, sources, selection maps, specs, records."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from loaderx import ArgumentError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Element: TypeAlias = Any
"""An element of a dataset: any object that a source gives or a function returns."""

State: TypeAlias = dict[str, Any]
"""The state of an iterator: a dict of numbers, for JSON."""

Spec: TypeAlias = Any
"""A tree of `ShapeDtypeStruct`."""


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes; None for a size that is not known."""

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


class DatasetSelectionMap(abc.ABC):
    """Maps an index to one of several datasets and an index in that dataset."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The length of the dataset that is selected from the others."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """The number of the dataset, and the index in it."""


class AssertedError(ArgumentError, AssertionError):
    """An error where Grain has an assertion."""


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """The position in the stream, the index in the source, and the generator of a record."""

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without the index in the source, which a batch does not have."""
        if self.record_key is None:
            return self
        return dataclasses.replace(self, record_key=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng})"


class LateMetadata(RecordMetadata):
    """Makes its generator, which costs more than most functions, at first use."""

    __slots__ = ("_rng", "_seed")

    def __init__(self, index: int, record_key: int, seed: int | None) -> None:
        self.index, self.record_key = index, record_key
        self._seed = seed
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator | None:  # type: ignore[override]
        """The generator of this position in the stream."""
        if self._rng is None and self._seed is not None:
            self._rng = generator(self._seed, self.index)
        return self._rng

    def remove_record_key(self) -> RecordMetadata:
        """The same without the index in the source."""
        return RecordMetadata(self.index, None, self.rng)

    def __reduce__(self) -> tuple[object, ...]:
        if self._rng is not None:  # it may have been used
            return RecordMetadata, (self.index, self.record_key, self._rng)
        return LateMetadata, (self.index, self.record_key, self._seed)


def generator(seed: int, index: int) -> np.random.Generator:
    """The random numbers of a record."""
    return np.random.Generator(np.random.Philox(key=seed + index))


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """Data with its metadata."""

    metadata: RecordMetadata
    data: T
