"""Operations of old programs: callables that make an iterator of records from another.

`DataLoader` still takes them, and users' operations of the same form.  New programs derive from
`MapTransform` and the other transformations.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from loaderx import ArgumentError, ArgumentTypeError, RecordError, StackError
from loaderx.compat.grain.packing_bins import Lengths, PackedBatch, first_fit
from loaderx.compat.grain.protocols import Element, Record, RecordMetadata
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.trees import StructureError, flatten, unflatten_as

Records = Iterator[Record[Element]]
Packed = Record[tuple[Element, Element, Element]]


class Operation(Protocol):
    """Anything that makes records from records."""

    def __call__(self, input_iterator: Records) -> Records: ...


class _OnEachRecord(abc.ABC):
    """Calls a function with the data of each record."""

    _noun: ClassVar[str]  # the name of the function in messages

    def __call__(self, input_iterator: Records) -> Records:
        for record in input_iterator:
            try:
                is_kept, data = self._made(record)
            except Exception as error:
                index, reason = record.metadata.index, f"{type(error).__name__}: {error}"
                raise OperationError(
                    f"the {self._noun} failed for record {index}: {reason}",
                    index=index,
                    reason=reason,
                ) from error
            if is_kept:
                yield Record(record.metadata.remove_record_key(), data)

    @abc.abstractmethod
    def _made(self, record: Record[Element]) -> tuple[bool, Element]:
        """Whether the record is kept, and its data."""


@dataclass
class MapOperation(_OnEachRecord):
    """Applies a function to the data of each record."""

    map_function: Callable[[Element], Element]
    _noun = "map function"

    def _made(self, record: Record[Element]) -> tuple[bool, Element]:
        return True, self.map_function(record.data)


@dataclass
class RandomMapOperation(_OnEachRecord):
    """Applies a function to the data and the generator of each record."""

    random_map_function: Callable[[Element, np.random.Generator], Element]
    _noun = "random map function"

    def _made(self, record: Record[Element]) -> tuple[bool, Element]:
        return True, self.random_map_function(record.data, record.metadata.rng)  # type: ignore[arg-type]


@dataclass
class FilterOperation(_OnEachRecord):
    """Keeps the records for whose data a function is true."""

    condition_function: Callable[[Element], bool]
    _noun = "condition function"

    def _made(self, record: Record[Element]) -> tuple[bool, Element]:
        return self.condition_function(record.data), record.data


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


@dataclass
class PackAndBatchOperation:
    """Packs records into ``batch_size`` rows.

    The data of a result is a tuple of three trees like `length_struct`: the packed values, the
    number of the record in its row (from 1), and the position in the record.

    Args:
        length_struct: the length of a row, for each feature.
        batch_size: the number of rows.
        max_sequences_per_bin: the largest number of records in a row.
    """

    length_struct: Element
    batch_size: int
    max_sequences_per_bin: int | None = None
    _cur_batch: PackedBatch | None = field(default=None, repr=False)

    def __call__(self, input_iterator: Iterator[Record[Element]]) -> Iterator[Packed]:
        lengths = tuple(int(n) for n in flatten(self.length_struct))
        last: RecordMetadata | None = None
        for record in input_iterator:
            values = flatten(record.data)
            sizes = tuple(map(len, values))
            self._check(sizes, lengths)
            if self._cur_batch is None:
                self._cur_batch = self._empty(values, lengths)
            if self._cur_batch.add(values, sizes) < 0:
                if last is not None:
                    yield self._packed(self._cur_batch, last)
                self._cur_batch = self._empty(values, lengths)
                self._cur_batch.add(values, sizes)
            last = record.metadata.remove_record_key()
        if self._cur_batch is not None and last is not None:
            yield self._packed(self._cur_batch, last)

    def _check(self, sizes: Lengths, lengths: Lengths) -> None:
        if len(sizes) != len(lengths):
            raise StackError(
                f"a record has {len(sizes)} features, and `length_struct` has {len(lengths)}."
            )
        if any(size > length for size, length in zip(sizes, lengths, strict=True)):
            raise StackError(
                f"a record of lengths {sizes} does not fit into a row of lengths {lengths}: cut "
                "records before they are packed."
            )

    def _empty(self, values: list[Element], lengths: Lengths) -> PackedBatch:
        return PackedBatch(
            values,
            bins=first_fit(lengths, self.batch_size),
            count=self.batch_size,
            lengths=lengths,
            paddings=(None,) * len(lengths),
            alignments=(1,) * len(lengths),
            most=self.max_sequences_per_bin,
        )

    def _packed(self, batch: PackedBatch, metadata: RecordMetadata) -> Packed:
        segments = [feature.segments(self.batch_size) for feature in batch.features]
        trees = (
            [feature.values for feature in batch.features],
            [segment_ids for segment_ids, _ in segments],
            [positions for _, positions in segments],
        )
        values, segment_ids, positions = (unflatten_as(self.length_struct, tree) for tree in trees)
        return Record(metadata, (values, segment_ids, positions))
