"""Operations of a `DataLoader` on `Record` objects: for those that want the metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.operations import Operation
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.records import Record, RecordMetadata
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.transforms import (
    Batch,
    Filter,
    FlatMap,
    Map,
    RandomMap,
    TfRandomMap,
    Transformation,
)
from loaderx.errors import ArgumentTypeError

Records = IterDataset[Record[Element]]


def apply_to_records(ds: Records, operations: Sequence[Transformation | Operation]) -> Records:
    """The operations, applied to the data of records."""
    for one in operations:
        ds = _apply(ds, one)
    return ds


def data_of(ds: Records) -> IterDataset[Element]:
    """The data alone."""
    return ds.map(lambda record: record.data)


def _apply(ds: Records, one: Transformation | Operation) -> Records:
    match one:
        case Map():
            return ds.map(_on_data(lambda data, rng: one.map(data)))
        case RandomMap():
            return ds.map(_on_data(one.random_map))
        case TfRandomMap():
            return ds.map(_on_data(one.np_random_map))
        case Filter():
            return ds.filter(lambda record: one.filter(record.data))
        case FlatMap():
            return ds.apply(_FlatMapOfRecords(one))
        case Batch():
            batch_fn = one.batch_fn or make_batch
            return ds.batch(
                one.batch_size,
                drop_remainder=one.drop_remainder,
                batch_fn=lambda records: _batch(records, batch_fn),
            )
        case _ if callable(one):
            return _OperationIterDataset(ds, one)
    raise ArgumentTypeError(
        f"{one!r} is not an operation of a DataLoader: derive it from MapTransform, "
        "RandomMapTransform or FilterTransform, or use Batch."
    )


def _on_data(function: Callable[..., Element]) -> Callable[[Record[Element]], Record[Element]]:
    return lambda record: Record(record.metadata, function(record.data, record.metadata.rng))


def _batch(
    records: Sequence[Record[Element]], batch_fn: Callable[[Sequence[Element]], Element]
) -> Record[Element]:
    data = batch_fn([record.data for record in records])
    return Record(records[-1].metadata.remove_record_key(), data)


class _FlatMapOfRecords(FlatMap):
    """Numbers the records that come from one record."""

    def __init__(self, transform: FlatMap) -> None:
        self._transform = transform
        self.max_fan_out = transform.max_fan_out

    def flat_map(self, element: Record[Element]) -> list[Record[Element]]:
        first = element.metadata.index * self.max_fan_out
        parts = self._transform.flat_map(element.data)
        return [Record(RecordMetadata(first + i), part) for i, part in enumerate(parts)]


class _OperationIterDataset(IterDataset[Record[Element]]):
    """An operation of an old program.  Its state is that of what it reads from."""

    def __init__(self, parent: Records, operation: Operation) -> None:
        super().__init__(parent)
        self._operation = operation

    def __iter__(self) -> DatasetIterator[Record[Element]]:
        return _OperationIterator(self._parent.__iter__(), self._operation)


class _OperationIterator(DatasetIterator[Record[Element]]):
    def __init__(self, parent: DatasetIterator[Record[Element]], operation: Operation) -> None:
        super().__init__(parent)
        self._made: Iterator[Record[Element]] = operation(parent)

    def __next__(self) -> Record[Element]:
        return next(self._made)

    def get_state(self) -> State:
        return self._parent.get_state()

    def set_state(self, state: State) -> None:
        self._parent.set_state(state)
