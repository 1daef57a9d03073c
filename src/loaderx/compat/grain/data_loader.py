"""`DataLoader`: a source, a sampler, operations.

With no workers or one, operations run in order on `Record` objects (`loader_records`), in the
thread of the caller or in the worker.  Only the source is read ahead.  Several workers make
elements by index: the leading operations that act on single records run in the workers, and so does
a batch that follows them.

States have Grain's form.  Grain stores the last position handed out by each worker.  Here the
stream is the same for every number of workers, so a state has a single position and is written as
a state of no workers or of one worker, which mean the same.  With two or more workers Grain's
stream is different, and its state cannot be continued here.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loaderx import ArgumentError, StateError
from loaderx.compat.grain import transforms
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator, SavedIterator
from loaderx.compat.grain.loader_records import (
    AnyOperation,
    BatchToTheEnd,
    RecordsInOrder,
    Sampled,
    apply_to_records,
    data_of,
    sampler_size,
)
from loaderx.compat.grain.operations import BatchOperation
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import Element, RandomAccessDataSource, State
from loaderx.compat.grain.samplers import IndexSampler, Sampler
from loaderx.compat.grain.sharding import NoSharding, ShardOptions
from loaderx.extend import PicklingError

__all__ = ["DataLoader", "DataLoaderIterator", "load"]

T = TypeVar("T")
_VERSION = 2  # of states
_RECORD_STAGES = (transforms.Map, transforms.RandomMap, transforms.TfRandomMap, transforms.Filter)
_PLAIN_STAGES = (transforms.Map, transforms.Filter, transforms.FlatMap, transforms.Batch)
_RECORDS = 8  # records to read at once if there is no batch


class DataLoader:
    """Loads records in the order of a sampler and applies operations to them.

    Args:
        data_source: anything with a length and an index.
        sampler: the order of the records.
        operations: transformations such as `MapTransform` and `Batch`, in order.
        worker_count: the number of worker processes; None for one per core.  The stream does not
            depend on it.
        worker_buffer_size: the number of batches that a worker makes ahead.
        shard_options: the part to load; the sampler's by default.
        read_options: how records are read.
        enable_profiling: accepted, and without effect.
    """

    def __init__(
        self,
        *,
        data_source: RandomAccessDataSource[Element],
        sampler: Sampler,
        operations: Sequence[AnyOperation] = (),
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
            isinstance(one, transforms.FlatMap) for one in self._operations
        )

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """The number of worker processes, and of the batches that they make ahead."""
        return self._multiprocessing_options

    def __iter__(self) -> DataLoaderIterator[Element]:
        return DataLoaderIterator(self, None)

    def _dataset(self, start: int) -> tuple[IterDataset[Element], int]:
        """The elements from record ``start`` on, and the number of records that a step counts."""
        workers = self._multiprocessing_options.num_workers
        made, size = self._by_index(start) if workers > 1 else (self._in_order(), 1)
        return made.mp_prefetch(self._multiprocessing_options) if workers else made, size

    @property
    def _is_bare(self) -> bool:
        """Whether a batch comes first, and no operation needs the metadata of records."""
        first = self._operations[0] if self._operations else None
        is_batch = first is None or isinstance(first, transforms.Batch)
        return is_batch and _are_plain(self._operations)

    def _sampled(self) -> Sampled:
        return Sampled(self._data_source, self._sampler, self._shard_options, bare=self._is_bare)

    def _in_order(self) -> IterDataset[Element]:
        """For no workers or one: records and operations in order, as in Grain."""
        operations, ds = self._operations, self._sampled()
        batches = [one for one in operations if isinstance(one, transforms.Batch)]
        made: IterDataset[Element]
        if ds._gathers and batches and batches[0].batch_fn is None:
            made = ds.to_iter_dataset(self._read_options, allow_nones=True)
        else:
            size = batches[0].batch_size if batches else _RECORDS
            made = RecordsInOrder(ds, self._read_options, size)
        if self._is_bare:
            return made.apply(operations)  # type: ignore[arg-type]
        return data_of(apply_to_records(made, operations))

    def _by_index(self, start: int) -> tuple[IterDataset[Element], int]:
        """For several workers, which make elements by index."""
        first = list(itertools.takewhile(_is_record_stage, self._operations))
        rest = self._operations[len(first) :]
        if not _are_plain(rest):
            first, rest = self._operations, []
        size = 1
        made: Element = self._sampled().slice(slice(start, None))
        has_filter = any(isinstance(one, transforms.Filter) for one in first)
        is_batched = bool(rest) and isinstance(rest[0], transforms.Batch) and not has_filter
        if not is_batched:
            made = made.to_iter_dataset(self._read_options, allow_nones=True)
        if not self._is_bare:
            made = data_of(apply_to_records(made, first))
        if is_batched:
            batch: Element
            batch, *rest = rest
            size = batch.batch_size
            batches = BatchToTheEnd(made, size, batch.drop_remainder, batch.batch_fn)
            made = batches.to_iter_dataset(self._read_options, allow_nones=True)
        return made.apply(rest), size


def _are_plain(operations: Sequence[AnyOperation]) -> bool:
    """Whether all operations act on the data of records alone."""
    return all(isinstance(one, _PLAIN_STAGES) for one in operations)


def _is_record_stage(one: AnyOperation) -> bool:
    return isinstance(one, _RECORD_STAGES)


def _current(operation: AnyOperation) -> AnyOperation:
    """The operation; `Batch` in place of `BatchOperation`, its old equivalent."""
    if type(operation) is BatchOperation:
        return transforms.Batch(operation.batch_size, operation.drop_remainder, operation.batch_fn)
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


class DataLoaderIterator(SavedIterator[T]):
    """An iterator over batches.  Its state is JSON, as bytes."""

    _state_is_bytes = True

    def __init__(self, data_loader: DataLoader, state: State | None = None) -> None:
        self._data_loader = data_loader
        self._iterator: DatasetIterator[T]
        self._begin(0)
        if state is not None:
            self._set(state)

    def _begin(self, start: int) -> None:
        """Begins after ``start`` records."""
        dataset, self._size = self._data_loader._dataset(start)
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
            raise error.__cause__ from None  # errors from users' objects keep their type

    def get_state(self) -> bytes:
        """The position, to be given to `set_state` of a loader like this one."""
        return json.dumps(self._get(), indent=4).encode()

    def set_state(self, state: bytes) -> None:
        """Continues where the state was taken."""
        self._set(json.loads(state.decode()))

    def _get(self) -> State:
        state = self._iterator.get_state()
        loader = self._data_loader
        if loader._use_native_dataset_checkpointing:
            return state
        # A state of workers has the form of an interleave, as in Grain.
        states = state.get("iterators_in_use_states", [state])
        records = self._start + sum(one["next_index"] for one in states) * self._size
        end = sampler_size(loader._sampler) // loader._shard_options.shard_count
        return loader_state(loader, min(records, end))

    def _set(self, state: State) -> None:
        if self._data_loader._use_native_dataset_checkpointing:
            self._iterator.set_state(state)
            return
        number, start = divmod(records_before(self._data_loader, state), self._size)
        if start != self._start:  # batches begin at other records than before
            self.close()
            self._begin(start)
        self._iterator.set_state({"next_index": number})

    def start_prefetch(self) -> None:
        """Begins to read ahead now, before the first ``next``."""
        self._iterator.start_prefetch()

    def close(self) -> None:
        """Ends all work in the background."""
        self._iterator.close()

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"


class NotAStateError(StateError, KeyError):
    """A value is not a state of a loader; Grain raises a KeyError."""

    __str__ = StateError.__str__


def source_name(source: object) -> str:
    """The text that stands for a source in a state; it never contains the data."""
    if isinstance(source, (list, tuple, np.ndarray)):
        return str(type(source))
    return repr(source)


def loader_state(loader: DataLoader, records: int) -> State:
    """The state after ``records`` records of this part."""
    shard, workers = loader._shard_options, loader._multiprocessing_options.num_workers
    return {
        "version": _VERSION,
        "last_seen_indices": {"0": shard.shard_index + (records - 1) * shard.shard_count},
        "last_worker_index": -1,
        "worker_count": workers if workers < 2 else 0,  # Grain compares it
        "sampler": repr(loader._sampler),
        "data_source": source_name(loader._data_source),
    }


def records_before(loader: DataLoader, state: State) -> int:
    """The number of records of this part that were used before the state was taken."""
    if not isinstance(state, dict) or "last_seen_indices" not in state:
        raise NotAStateError(f"this is not a state of a DataLoader: {state!r}.")
    if state["worker_count"] > 1:
        raise StateError(
            f"This state was saved by Grain with worker_count={state['worker_count']}. The order "
            "there depends on the number of workers; here it is that of worker_count=0 for "
            "every number of them. Save a state with worker_count=0 or 1, or start over."
        )
    own = {"sampler": repr(loader._sampler), "source": source_name(loader._data_source)}
    saved = {"sampler": state["sampler"], "source": state["data_source"]}
    for what, name in own.items():
        if saved[what] != name:
            raise StateError(
                f"the state was saved with the {what} {saved[what]}, and this loader has {name}. "
                "Both are named by `repr`: give a class of your own a `__repr__` that stays the "
                "same."
            )
    shard, last = loader._shard_options, int(state["last_seen_indices"]["0"])
    return (last - shard.shard_index) // shard.shard_count + 1


def load(
    source: RandomAccessDataSource[Element],
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
    transformations: transforms.Transformations = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """A `DataLoader` with an `IndexSampler`, and a batch after the transformations."""
    operations = list(transformations)
    if batch_size is not None:
        operations.append(transforms.Batch(batch_size, drop_remainder=drop_remainder))
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
