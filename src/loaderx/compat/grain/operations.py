"""Operations of old programs: callables that make an iterator of records from another.

`DataLoader` still takes them, and operations of users' own that look alike.  New programs derive
from `MapTransform` and its like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.records import Record, RecordMetadata
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.trees import StructureError
from loaderx.errors import ArgumentError, ArgumentTypeError, RecordError, one_line

Records = Iterator[Record[Element]]


class Operation(Protocol):
    """Anything that makes records from records."""

    def __call__(self, input_iterator: Records) -> Records: ...


@dataclass
class MapOperation:
    """Applies a function to the data of each record."""

    map_function: Callable[[Element], Element]

    def __call__(self, input_iterator: Records) -> Records:
        for record in input_iterator:
            try:
                data = self.map_function(record.data)
            except Exception as error:
                raise _failure("map function", record, error) from error
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class RandomMapOperation:
    """Applies a function to the data and the generator of each record."""

    random_map_function: Callable[[Element, np.random.Generator], Element]

    def __call__(self, input_iterator: Records) -> Records:
        for record in input_iterator:
            try:
                data = self.random_map_function(record.data, record.metadata.rng)  # type: ignore[arg-type]
            except Exception as error:
                raise _failure("random map function", record, error) from error
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class FilterOperation:
    """Keeps the records for whose data a function is true."""

    condition_function: Callable[[Element], bool]

    def __call__(self, input_iterator: Records) -> Records:
        for record in input_iterator:
            try:
                keep = self.condition_function(record.data)
            except Exception as error:
                raise _failure("condition function", record, error) from error
            if keep:
                yield Record(record.metadata.remove_record_key(), record.data)


@dataclass
class BatchOperation:
    """Stacks the data of ``batch_size`` records, or gives their list to ``batch_fn``."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Element]], Element] | None = None

    def __post_init__(self) -> None:
        if self.batch_size <= 0:
            raise ArgumentError(f"`batch_size` must be at least 1, got {self.batch_size}.")
        if self.batch_fn is None:
            self.batch_fn = _stack

    def __call__(self, input_iterator: Records) -> Records:
        held: list[Element] = []
        metadata: RecordMetadata | None = None
        for record in input_iterator:
            metadata = record.metadata
            held.append(record.data)
            if len(held) == self.batch_size:
                yield self._batch(held, metadata)
                held = []
        if held and metadata is not None and not self.drop_remainder:
            yield self._batch(held, metadata)

    def _batch(self, held: list[Element], metadata: RecordMetadata) -> Record[Element]:
        assert self.batch_fn is not None
        return Record(metadata.remove_record_key(), self.batch_fn(held))

    def disable_deprecation_message(self) -> None:
        """Does nothing: there is no such message."""


def _stack(elements: Sequence[Element]) -> Element:
    try:
        return make_batch(elements)
    except ValueError as error:
        if isinstance(error.__cause__, StructureError):
            raise ArgumentTypeError(
                f"the records of a batch have different structures. {error}"
            ) from error
        raise


class OperationError(RecordError, ValueError):
    """A function of an operation failed."""


def _failure(what: str, record: Record[Element], error: Exception) -> OperationError:
    index = record.metadata.index
    reason = one_line(error)
    return OperationError(
        f"the {what} failed for record {index}: {reason}", index=index, reason=reason
    )
