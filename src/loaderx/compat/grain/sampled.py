"""The records of a source in the order of a sampler: where a `DataLoader` begins."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Sequence

import numpy as np

from loaderx.compat.grain.indices import Indices, Int64s, as_array, as_indices, as_ints
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, RandomAccessDataSource
from loaderx.compat.grain.read_threads import ManyReader
from loaderx.compat.grain.records import LateMetadata, Record, RecordMetadata
from loaderx.compat.grain.samplers import IndexSampler, Sampler, SequentialSampler
from loaderx.compat.grain.sharding import ShardOptions
from loaderx.compat.grain.transforms import Filter, Map, RandomMap, TfRandomMap
from loaderx.memory import Lend

RecordStage = Map | RandomMap | TfRandomMap | Filter
Step = Callable[[Element, RecordMetadata], Element]


class _Sampled(MapDataset[Element]):
    """Positions of the stream, their records, and the metadata that the sampler gives them.

    Args:
        start: the position of element 0, counted in records of this part.
    """

    def __init__(
        self,
        source: RandomAccessDataSource[Element],
        sampler: Sampler,
        shard_options: ShardOptions,
        start: int = 0,
    ) -> None:
        super().__init__(MapDataset.source(source))
        self._source = source
        self._sampler = sampler
        self._shard_options = shard_options
        self._start = start
        self._length = max(sampler_size(sampler) // shard_options.shard_count - start, 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | builtins.slice) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _positions(self, indices: Sequence[int] | Indices) -> Indices:
        count = self._shard_options.shard_count
        first = self._start * count + self._shard_options.shard_index
        found = as_indices(indices)
        if isinstance(found, range):
            return range(
                found.start * count + first, found.stop * count + first, found.step * count
            )
        return found * count + first

    def _keys(self, indices: Sequence[int] | Indices) -> Int64s:
        """Of a sampler that samples in bulk."""
        return self._sampler.record_keys(self._positions(indices))  # type: ignore[attr-defined, no-any-return]

    def _metadata(self, indices: Sequence[int] | Indices) -> list[RecordMetadata]:
        positions = as_ints(self._positions(indices))
        if not _samples_in_bulk(self._sampler):
            return [self._sampler[i] for i in positions]
        keys, seed = self._keys(indices).tolist(), self._sampler._seed  # type: ignore[attr-defined]
        return [LateMetadata(*pair, seed) for pair in zip(positions, keys, strict=True)]


class SampledElements(_Sampled):
    """Elements after the stages of a loader that act on single records; None if filtered.

    Some sources say by StopIteration that they have no more records.  A batch that is cut short by
    that is wanted unless remainders are dropped (``keeps_short_runs``).
    """

    def __init__(
        self,
        source: RandomAccessDataSource[Element],
        sampler: Sampler,
        shard_options: ShardOptions,
        stages: Sequence[RecordStage],
        start: int = 0,
        *,
        keeps_short_runs: bool = False,
    ) -> None:
        super().__init__(source, sampler, shard_options, start)
        self._keeps_short_runs = keeps_short_runs
        self._reader = ManyReader()
        self._steps = [_step(stage) for stage in stages]
        self._keeps_all = not any(isinstance(stage, Filter) for stage in stages)

    def _getitems(self, indices: Sequence[int] | Indices) -> list[Element]:
        if not self._steps and _samples_in_bulk(self._sampler):
            return self._read(self._keys(indices))
        sampled = self._metadata(indices)
        elements = self._read(np.array([_key(one) for one in sampled], np.int64))
        return [self._run(*pair) for pair in zip(elements, sampled, strict=False)]

    def _read(self, keys: Indices) -> list[Element]:
        """Records of the source; those before the end of a source that ends by StopIteration."""
        source, found = self._source, list[Element]()
        if not self._keeps_short_runs or hasattr(source, "__getitems__"):
            return list(self._parent._getitems(keys))
        try:
            self._reader.read(source, as_ints(as_array(keys) % len(source)), found)
        except StopIteration:
            if not found:
                raise
        return found

    def _run(self, element: Element, metadata: RecordMetadata) -> Element:
        for step in self._steps:
            element = step(element, metadata)
            if element is _LeftOut:
                return None
        return element

    @property
    def _gathers(self) -> bool:
        bulk = not self._steps and _samples_in_bulk(self._sampler)
        return bulk and self._parent._gathers

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        if not self._gathers:
            return None
        return self._parent._gather(self._keys(indices), lend)


class SampledRecords(_Sampled):
    """`Record` objects with metadata, for operations that want them."""

    def _getitems(self, indices: Sequence[int] | Indices) -> list[Record[Element]]:
        sampled = self._metadata(indices)
        elements = self._parent._getitems([_key(one) for one in sampled])
        return list(map(Record, sampled, elements))

    def outcomes(self, indices: range, *, bare: bool) -> list[Element]:
        """Records, or their data alone if ``bare``; a `Failure` for one that cannot be read."""
        if bare and _samples_in_bulk(self._sampler):
            return self._data(as_ints(self._keys(indices)))
        sampled = self._metadata(indices)
        data = self._data([_key(one) for one in sampled])
        return data if bare else list(map(_record, sampled, data))

    def _data(self, keys: Sequence[int]) -> list[Element]:
        source = self._source
        if any(hasattr(source, name) for name in ("_getitems", "__getitems__")):
            with contextlib.suppress(Exception):  # which record it is, is found one by one
                return list(self._parent._getitems(keys))
        found, length = list[Element](), len(source)
        for key in keys:
            try:
                found.append(source[key % length])
            except Exception as error:
                found.append(Failure(error))
        return found


class Failure:
    """In the place of a record that cannot be read: the error, to be raised in its turn."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _record(metadata: RecordMetadata, data: Element) -> Element:
    return data if type(data) is Failure else Record(metadata, data)


class _LeftOut:
    """In the place of an element that a filter has left out: the class itself."""


def _step(stage: RecordStage) -> Step:
    match stage:
        case Map():
            map_ = stage.map
            return lambda element, metadata: map_(element)
        case RandomMap():
            random_map = stage.random_map
            return lambda element, metadata: random_map(element, metadata.rng)  # type: ignore[arg-type]
        case TfRandomMap():
            np_random_map = stage.np_random_map
            return lambda element, metadata: np_random_map(element, metadata.rng)  # type: ignore[arg-type]
        case _:
            keep = stage.filter
            return lambda element, metadata: element if keep(element) else _LeftOut


def _key(sampled: RecordMetadata) -> int:
    assert sampled.record_key is not None
    return sampled.record_key


def _samples_in_bulk(sampler: Sampler) -> bool:
    """Is it one of our samplers, and not a subclass that answers otherwise?"""
    own = (IndexSampler.__getitem__, SequentialSampler.__getitem__)
    return getattr(type(sampler), "__getitem__", None) in own


def sampler_size(sampler: Sampler) -> int:
    """The number of positions; a sampler without a length is asked where its positions end."""
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
