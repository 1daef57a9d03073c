"""`DataLoader`: a source, a sampler, operations.

Operations run in order, in one thread, on `Record` objects (`loader_read`): that of the caller, or
of the worker.  Only the source is read ahead.  Several workers make elements of any place: what
acts on single records comes first and runs in bulk there (`SampledElements`), and so does the
batch that follows, if nothing was filtered.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeVar

from loaderx.compat.grain.checkpoint_files import Directory, read_state, write_state
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.loader_read import RecordsIterDataset, options_for_blocks
from loaderx.compat.grain.loader_records import apply_to_records, data_of
from loaderx.compat.grain.loader_state import loader_state, records_before
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.operations import BatchOperation, Operation
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import Element, RandomAccessDataSource, State
from loaderx.compat.grain.sampled import SampledElements, SampledRecords, sampler_size
from loaderx.compat.grain.samplers import IndexSampler, Sampler
from loaderx.compat.grain.sharding import NoSharding, ShardOptions
from loaderx.compat.grain.transforms import (
    Batch,
    Filter,
    FlatMap,
    Map,
    RandomMap,
    TfRandomMap,
    Transformation,
    Transformations,
)
from loaderx.engines.processes.pickling import PicklingError
from loaderx.errors import ArgumentError

__all__ = ["DataLoader", "DataLoaderIterator", "load"]

T = TypeVar("T")
_RECORD_STAGES = (Map, RandomMap, TfRandomMap, Filter)
_PLAIN_STAGES = (Map, Filter, FlatMap, Batch)
_RECORDS = 8  # to read at once where no batch says how many


class DataLoader:
    """Loads records in the order of a sampler and applies operations to them.

    Args:
        data_source: anything with a length and an index.
        sampler: which record comes when.
        operations: transformations such as `MapTransform` and `Batch`, in order.
        worker_count: worker processes; None for one a core.  The stream is the same for every
            number of them.
        worker_buffer_size: batches that a worker makes ahead.
        shard_options: the part to load; the sampler's by default.
        read_options: how records are read.
        enable_profiling: accepted, and without effect.
    """

    def __init__(
        self,
        *,
        data_source: RandomAccessDataSource[Element],
        sampler: Sampler,
        operations: Sequence[Transformation | Operation] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
    ) -> None:
        if worker_count is None:
            worker_count = os.cpu_count() or 1
        if worker_count < 0:
            raise ArgumentError(f"`worker_count` must be 0 or more, got {worker_count}.")
        if worker_buffer_size < 0:
            raise ArgumentError(
                f"`worker_buffer_size` must be 0 or more, got {worker_buffer_size}."
            )
        self._data_source = data_source
        self._sampler = sampler
        self._operations = [_current(one) for one in operations]
        self._read_options = read_options or ReadOptions()
        self._multiprocessing_options = MultiprocessingOptions(
            num_workers=int(worker_count),
            per_worker_buffer_size=worker_buffer_size,
            enable_profiling=enable_profiling,
        )
        self._shard_options = _shard(shard_options, sampler)
        self._use_native_dataset_checkpointing = any(
            isinstance(one, FlatMap) for one in self._operations
        )

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """The number of worker processes, and what they make ahead."""
        return self._multiprocessing_options

    def __iter__(self) -> DataLoaderIterator[Element]:
        return DataLoaderIterator(self, None)

    def _dataset_from(self, start: int) -> tuple[IterDataset[Element], int]:
        """The elements after so many records, and the number of records in each element."""
        workers = self._multiprocessing_options.num_workers
        ds = SampledElements(self._data_source, self._sampler, self._shard_options, (), start)
        batch = self._operations[0] if self._operations else None
        is_stacked = isinstance(batch, Batch) and batch.batch_fn is None
        if workers > 1 or (is_stacked and ds._gathers and self._are_plain(self._operations)):
            made, size = self._by_index(start)
        else:
            made, size = self._in_order(), 1
        if workers > 0:
            made = made.mp_prefetch(self._multiprocessing_options)
        return made, size

    def _in_order(self) -> IterDataset[Element]:
        """Records and operations, one after the other as Grain has them."""
        operations = self._operations
        batch_sizes = [one.batch_size for one in operations if isinstance(one, Batch)]
        # Before a batch the metadata of records is not missed, if nothing above asks for it.
        bare = not operations or (bool(batch_sizes) and isinstance(operations[0], Batch))
        bare = bare and self._are_plain(operations)
        records = SampledRecords(self._data_source, self._sampler, self._shard_options)
        made: IterDataset[Element] = RecordsIterDataset(
            records, self._read_options, next(iter(batch_sizes), _RECORDS), bare=bare
        )
        if bare:
            return made.apply(operations)  # type: ignore[arg-type]
        return data_of(apply_to_records(made, operations))

    def _by_index(self, start: int) -> tuple[IterDataset[Element], int]:
        """For several workers, which make elements of any place; and for rows of arrays."""
        first = list(itertools.takewhile(_is_record_stage, self._operations))
        rest = self._operations[len(first) :]
        options = self._read_options
        if not self._are_plain(rest):
            records = SampledRecords(self._data_source, self._sampler, self._shard_options, start)
            made = records.to_iter_dataset(options)
            return data_of(apply_to_records(made, self._operations)), 1
        batch = rest[0] if rest else None
        ds: MapDataset[Element] = SampledElements(
            self._data_source,
            self._sampler,
            self._shard_options,
            first,  # type: ignore[arg-type]
            start,
            keeps_short_runs=isinstance(batch, Batch) and not batch.drop_remainder,
        )
        size = 1
        has_filter = any(isinstance(one, Filter) for one in first)
        if isinstance(batch, Batch) and not has_filter:
            size, rest = batch.batch_size, rest[1:]
            ds = ds.batch(size, drop_remainder=batch.drop_remainder, batch_fn=batch.batch_fn)
            if self._multiprocessing_options.num_workers < 2:
                options = options_for_blocks(options, size)
        return ds.to_iter_dataset(options, allow_nones=not has_filter).apply(rest), size  # type: ignore[arg-type]

    @staticmethod
    def _are_plain(operations: Sequence[Transformation | Operation]) -> bool:
        """Do they act on data alone?"""
        return all(isinstance(one, _PLAIN_STAGES) for one in operations)


def _is_record_stage(one: Transformation | Operation) -> bool:
    return isinstance(one, _RECORD_STAGES)


def _current(operation: Transformation | Operation) -> Transformation | Operation:
    """`Batch` in place of the old operation, which does the same."""
    if type(operation) is BatchOperation:
        return Batch(operation.batch_size, operation.drop_remainder, operation.batch_fn)
    return operation


def _shard(given: ShardOptions | None, sampler: Sampler) -> ShardOptions:
    if given is not None:
        return given
    found = getattr(sampler, "_shard_options", None)
    if isinstance(found, ShardOptions):
        return found
    raise ArgumentError(
        "The loader does not know its part of the data: pass `shard_options=NoSharding()`, or the "
        "part that this process reads."
    )


class DataLoaderIterator(Iterator[T]):
    """An iterator over batches.  Its state is JSON, as bytes."""

    def __init__(self, data_loader: DataLoader, state: State | None = None) -> None:
        self._data_loader = data_loader
        self._iterator: DatasetIterator[T]
        self._begin(0)
        if state is not None:
            self._set(state)

    def _begin(self, start: int) -> None:
        """Begins after so many records."""
        dataset, self._size = self._data_loader._dataset_from(start)
        self._start = start
        self._iterator = dataset.__iter__()

    def __iter__(self) -> DataLoaderIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self._iterator)
        except PicklingError as error:
            if error.__cause__ is None:
                raise
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None  # errors of users' own objects keep their type

    def get_state(self) -> bytes:
        """The position, to be given to `set_state` of a loader like this one."""
        return json.dumps(self._get(), indent=4).encode()

    def set_state(self, state: bytes) -> None:
        """Goes on where the state was taken."""
        self._set(json.loads(state.decode()))

    def _get(self) -> State:
        state = self._iterator.get_state()
        loader = self._data_loader
        if loader._use_native_dataset_checkpointing:
            return state
        # Of workers, Grain has it as an interleave.
        states = state.get("iterators_in_use_states", [state])
        records = self._start + sum(one["next_index"] for one in states) * self._size
        end = sampler_size(loader._sampler) // loader._shard_options.shard_count
        return loader_state(
            min(records, end),
            loader._shard_options,
            loader._sampler,
            loader._data_source,
            loader._multiprocessing_options.num_workers,
        )

    def _set(self, state: State) -> None:
        loader = self._data_loader
        if loader._use_native_dataset_checkpointing:
            self._iterator.set_state(state)
            return
        records = records_before(state, loader._shard_options, loader._sampler, loader._data_source)
        number, start = divmod(records, self._size)
        if start != self._start:  # batches begin at other records than before
            self.close()
            self._begin(start)
        self._iterator.set_state({"next_index": number})

    def start_prefetch(self) -> None:
        """Begins to read ahead now, before the first ``next``."""
        self._iterator.start_prefetch()

    def close(self) -> None:
        """Ends what runs in the background."""
        self._iterator.close()

    async def save(self, directory: Directory) -> Awaitable[None]:
        """Takes the state now, and returns the task that writes it: for Orbax."""
        return write_state(directory, self.get_state().decode())

    async def load(self, directory: Directory) -> Awaitable[None]:
        """Returns the task that reads the state and sets it: for Orbax."""
        return read_state(directory, lambda text: self.set_state(text.encode()))

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"


def load(
    source: RandomAccessDataSource[Element],
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
    transformations: Transformations = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """A `DataLoader` with an `IndexSampler`, and a batch after the transformations."""
    operations = list(transformations)
    if batch_size is not None:
        operations.append(Batch(batch_size, drop_remainder=drop_remainder))
    sampler = IndexSampler(
        num_records=len(source),
        shard_options=shard_options,
        shuffle=shuffle,
        num_epochs=num_epochs,
        seed=seed,
    )
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=read_options,
    )
