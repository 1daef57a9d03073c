"""A record with what a sampler says about it."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """The position in the stream, the index in the source, and the generator of a record."""

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without the index in the source: after a batch there is none."""
        if self.record_key is None:
            return self
        return dataclasses.replace(self, record_key=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng})"


class LateMetadata(RecordMetadata):
    """Its generator costs more than most functions, and is made when it is asked for."""

    __slots__ = ("_rng", "_seed")

    def __init__(self, index: int, record_key: int, seed: int | None) -> None:
        self.index, self.record_key = index, record_key
        self._seed = seed
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator | None:  # type: ignore[override]
        """Of this position in the stream."""
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
