"""The records of a `DataLoader`: a source in the order of a sampler, and operations on records.

As in Grain, the operations of a loader are called in the caller's thread, record by record, so they
may keep values from one record to the next.  Only the source is read ahead, in blocks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from loaderx import ArgumentTypeError
from loaderx.compat.grain import transforms
from loaderx.compat.grain.batch_nodes import BatchMapDataset
from loaderx.compat.grain.indices import Indices, Int64s, as_indices, as_ints
from loaderx.compat.grain.iter_dataset import IterDataset, IterNode
from loaderx.compat.grain.iterator import DatasetIterator, IndexedIterator, NodeIterator
from loaderx.compat.grain.map_dataset import MapDataset, MapNode
from loaderx.compat.grain.operations import Operation
from loaderx.compat.grain.options import ReadOptions
from loaderx.compat.grain.protocols import (
    Element,
    LateMetadata,
    RandomAccessDataSource,
    Record,
    RecordMetadata,
)
from loaderx.compat.grain.read_iterator import PrefetchDatasetIterator, Rows
from loaderx.compat.grain.samplers import IndexSampler, Sampler, SequentialSampler
from loaderx.compat.grain.sharding import ShardOptions
from loaderx.compat.grain.stacking import make_batch
from loaderx.sources import Lend

Records = IterDataset[Record[Element]]
AnyOperation = transforms.Transformation | Operation


class Sampled(MapNode[Element]):
    """The records of a source in the order of a sampler; their data alone if ``bare``."""

    def __init__(
        self,
        source: RandomAccessDataSource[Element],
        sampler: Sampler,
        shard_options: ShardOptions,
        *,
        bare: bool,
    ) -> None:
        super().__init__(MapDataset.source(source))
        self._source, self._sampler, self._bare = source, sampler, bare
        self._shard_options = shard_options
        self._length = sampler_size(sampler) // shard_options.shard_count
        # A sampler of this package samples in bulk, unless a subclass overrides its answers.
        getitem = getattr(type(sampler), "__getitem__", None)
        self._in_bulk = getitem in (IndexSampler.__getitem__, SequentialSampler.__getitem__)

    def _getitems(self, indices: Sequence[int] | Indices) -> list[Element]:
        return self._read(indices, self._parent._getitems)

    def outcomes(self, indices: range) -> list[Element]:
        """The same, with a `Failure` in place of each record that cannot be read."""
        return self._read(indices, self._data)

    def _read(
        self, indices: Sequence[int] | Indices, read: Callable[[Element], Sequence[Element]]
    ) -> list[Element]:
        if self._bare and self._in_bulk:
            return list(read(self._keys(self._positions(indices))))
        sampled = self._metadata(as_indices(indices))
        data = read([one.record_key for one in sampled])
        return list(data if self._bare else map(_record, sampled, data))

    def _positions(self, indices: Sequence[int] | Indices) -> Indices:
        count, first = self._shard_options.shard_count, self._shard_options.shard_index
        found = as_indices(indices)
        if isinstance(found, range):
            return range(
                found.start * count + first, found.stop * count + first, found.step * count
            )
        return found * count + first

    def _keys(self, positions: Indices) -> Int64s:
        """The records at some positions of a sampler that samples in bulk."""
        return self._sampler.record_keys(positions)  # type: ignore[attr-defined, no-any-return]

    def _metadata(self, indices: Indices) -> list[RecordMetadata]:
        positions = self._positions(indices)
        numbers = as_ints(positions)
        if not self._in_bulk:
            return [self._sampler[i] for i in numbers]
        keys, seed = self._keys(positions).tolist(), self._sampler._seed  # type: ignore[attr-defined]
        return [LateMetadata(*pair, seed) for pair in zip(numbers, keys, strict=True)]

    def _data(self, keys: Sequence[int] | Int64s) -> list[Element]:
        source = self._source
        if any(hasattr(source, name) for name in ("_getitems", "__getitems__")):
            with contextlib.suppress(Exception):  # the loop below finds the record that fails
                return list(self._parent._getitems(keys))
        found, length = list[Element](), len(source)
        for key in as_ints(keys):
            try:
                found.append(source[key % length])
            except Exception as error:
                found.append(Failure(error))
        return found

    @property
    def _gathers(self) -> bool:
        return self._bare and self._in_bulk and self._parent._gathers

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        return self._parent._gather(self._keys(self._positions(indices)), lend)


class Failure:
    """Takes the place of a record that cannot be read; its error is raised in its turn."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _record(metadata: RecordMetadata, data: Element) -> Element:
    return data if type(data) is Failure else Record(metadata, data)


def sampler_size(sampler: Sampler) -> int:
    """The number of positions; without a length it is found by bisection."""
    if hasattr(sampler, "__len__"):
        return len(sampler)  # type: ignore[arg-type]
    low, high = 0, sys.maxsize
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
        except IndexError:
            high = middle
        else:
            low = middle + 1
    return low


def options_for_blocks(options: ReadOptions, size: int) -> ReadOptions:
    """Options for blocks: the buffer size in records becomes a number of blocks."""
    buffered = -(-options.prefetch_buffer_size // size)
    return ReadOptions(min(options.num_threads, buffered), buffered)


def block_size(options: ReadOptions, size: int) -> int:
    """The number of records, up to ``size``, to read at once so that every thread has a block."""
    if not options.num_threads or not options.prefetch_buffer_size:
        return size
    return max(1, min(size, options.prefetch_buffer_size // options.num_threads))


class _InOrderIterator(IndexedIterator[Element]):
    """Hands out the records of blocks."""

    def __init__(self, ds: RecordsInOrder) -> None:
        super().__init__()
        self._ds, self._length = ds, len(ds.records)
        self._begin(0)

    def _go_to(self, index: int) -> None:
        self._reader.close()
        self._begin(index)

    def _begin(self, index: int) -> None:
        ds = self._ds
        self._next_index = index
        self._block: list[Element] = []  # the next record last
        blocks = Rows(ds.records, index, ds.size, ds.records.outcomes)
        self._reader = PrefetchDatasetIterator(blocks, ds.read_options, allow_nones=False)

    def __next__(self) -> Element:
        self._assert_not_closed()
        if not self._block:
            self._block = next(self._reader)[::-1]
        record = self._block.pop()
        if type(record) is Failure and isinstance(record.error, StopIteration):
            self._block.append(record)  # the source has ended, and the position stays there
            raise StopIteration
        self._next_index += 1
        if type(record) is Failure:
            raise record.error
        return record

    def start_prefetch(self) -> None:
        """Begins to read."""
        self._reader.start_prefetch()

    def close(self) -> None:
        """Ends the threads that read."""
        super().close()
        self._reader.close()


class RecordsInOrder(IterDataset[Element]):
    """Records in order; up to ``size`` are read at once."""

    def __init__(self, ds: Sampled, read_options: ReadOptions, size: int) -> None:
        super().__init__(ds)
        self.records = ds
        self.size = block_size(read_options, size)
        self.read_options = options_for_blocks(read_options, self.size)

    def __iter__(self) -> DatasetIterator[Element]:
        return _InOrderIterator(self)


class BatchToTheEnd(BatchMapDataset[Element]):
    """Batches by index; a source that raises StopIteration makes the last one shorter."""

    def _item(self, index: int) -> Element:
        try:
            return super()._item(index)
        except StopIteration:
            if self._drop_remainder:
                raise
        values: list[Element] = []
        with contextlib.suppress(StopIteration):
            for row in self._rows(index):
                values.append(self._parent[row])  # noqa: PERF401 (kept if the next one fails)
        if not values:
            raise StopIteration
        return self._stacked(values)

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[Element]:
        try:
            return super()._getitems(indices)
        except StopIteration:
            return [self[index] for index in as_ints(indices)]


def apply_to_records(ds: Records, operations: Sequence[AnyOperation]) -> Records:
    """The operations, applied to the data of records."""
    for one in operations:
        ds = _apply(ds, one)
    return ds


def data_of(ds: Records) -> IterDataset[Element]:
    """The data alone."""
    return ds.map(lambda record: record.data)


def _apply(ds: Records, one: AnyOperation) -> Records:
    match one:
        case transforms.Map():
            return ds.map(_on_data(lambda data, rng: one.map(data)))
        case transforms.RandomMap():
            return ds.map(_on_data(one.random_map))
        case transforms.TfRandomMap():
            return ds.map(_on_data(one.np_random_map))
        case transforms.Filter():
            return ds.filter(lambda record: one.filter(record.data))
        case transforms.FlatMap():
            return ds.apply(_FlatMapOfRecords(one))
        case transforms.Batch():
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


class _FlatMapOfRecords(transforms.FlatMap):
    """Numbers the records that come from one record."""

    def __init__(self, transform: transforms.FlatMap) -> None:
        self._transform = transform
        self.max_fan_out = transform.max_fan_out

    def flat_map(self, element: Record[Element]) -> list[Record[Element]]:
        first = element.metadata.index * self.max_fan_out
        parts = self._transform.flat_map(element.data)
        return [Record(RecordMetadata(first + i), part) for i, part in enumerate(parts)]


class _OperationIterator(NodeIterator[Record[Element]]):
    def __init__(self, ds: _OperationIterDataset) -> None:
        super().__init__(ds)
        self._made: Iterator[Record[Element]] = ds.operation(self._parent)

    def __next__(self) -> Record[Element]:
        return next(self._made)


class _OperationIterDataset(IterNode[Record[Element]]):
    """An operation of an old program.  Its state is that of its parent."""

    _iterator = _OperationIterator

    def __init__(self, parent: Records, operation: Operation) -> None:
        super().__init__(parent)
        self.operation = operation
