"""The records of a source in the order of a sampler: where a `DataLoader` begins."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence

import numpy as np

from loaderx.compat.grain.indices import Indices, as_array, as_indices, as_ints
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, RandomAccessDataSource
from loaderx.compat.grain.records import Record, RecordMetadata
from loaderx.compat.grain.samplers import IndexSampler, Sampler, SequentialSampler
from loaderx.compat.grain.sharding import ShardOptions
from loaderx.compat.grain.transforms import Filter, Map, RandomMap, TfRandomMap
from loaderx.memory import Lend

RecordStage = Map | RandomMap | TfRandomMap | Filter
Generator = np.random.Generator
# Gives the element, or None if it is left out.  A generator costs more than most functions, so it
# is made when the first stage asks for it; all random stages of a record share it.
Step = Callable[[Element, Callable[[], Generator | None]], Element]


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
        self._steps = [_step(stage) for stage in stages]
        self._keeps_all = not any(isinstance(stage, Filter) for stage in stages)

    def _getitems(self, indices: Sequence[int] | Indices) -> list[Element]:
        positions = self._positions(indices)
        sampler = self._sampler
        seed: int | None = None
        if not (in_bulk := _samples_in_bulk(sampler)):
            sampled = [sampler[i] for i in as_ints(positions)]
            keys = np.array([_key(one) for one in sampled], np.int64)
        else:
            keys = sampler.record_keys(positions)  # type: ignore[attr-defined]
            seed = sampler._seed  # type: ignore[attr-defined]
        elements = self._read(keys)
        if not self._steps:
            return elements
        for place, position in enumerate(as_ints(positions)[: len(elements)]):
            if in_bulk:
                draw = _Draw(None if seed is None else seed + position)
            else:
                draw = _Draw(None, sampled[place].rng)
            elements[place] = self._run(elements[place], draw)
        return elements

    def _read(self, keys: Indices) -> list[Element]:
        """Records of the source; those before the end of a source that ends by StopIteration."""
        source, found = self._source, list[Element]()
        if not self._keeps_short_runs or hasattr(source, "__getitems__"):
            return list(self._parent._getitems(keys))
        try:
            for key in as_ints(as_array(keys) % len(source)):
                found.append(source[key])
        except StopIteration:
            if not found:
                raise
        return found

    def _run(self, element: Element, draw: _Draw) -> Element:
        for step in self._steps:
            element = step(element, draw)
            if element is None:
                return None
        return element

    @property
    def _gathers(self) -> bool:
        bulk = not self._steps and _samples_in_bulk(self._sampler)
        return bulk and self._parent._gathers

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        if not self._gathers:
            return None
        keys = self._sampler.record_keys(self._positions(indices))  # type: ignore[attr-defined]
        return self._parent._gather(keys, lend)


class SampledRecords(_Sampled):
    """`Record` objects with metadata, for operations that want them."""

    def _getitems(self, indices: Sequence[int] | Indices) -> list[Record[Element]]:
        sampled = [self._sampler[i] for i in as_ints(self._positions(indices))]
        elements = self._parent._getitems([_key(one) for one in sampled])
        return [Record(one, element) for one, element in zip(sampled, elements, strict=True)]


class _Draw:
    """The generator of one record, made when it is wanted."""

    __slots__ = ("_key", "_rng")

    def __init__(self, key: int | None, rng: Generator | None = None) -> None:
        self._key = key
        self._rng = rng

    def __call__(self) -> Generator | None:
        if self._rng is None and self._key is not None:
            self._rng = np.random.Generator(np.random.Philox(key=self._key))
        return self._rng


def _step(stage: RecordStage) -> Step:
    match stage:
        case Map():
            map_ = stage.map
            return lambda element, draw: map_(element)
        case RandomMap():
            random_map = stage.random_map
            return lambda element, draw: random_map(element, draw())  # type: ignore[arg-type]
        case TfRandomMap():
            np_random_map = stage.np_random_map
            return lambda element, draw: np_random_map(element, draw())  # type: ignore[arg-type]
        case _:
            keep = stage.filter
            return lambda element, draw: element if keep(element) else None


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
