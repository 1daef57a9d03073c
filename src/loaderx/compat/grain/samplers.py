"""Samplers: the order of the records."""

from __future__ import annotations

import sys
from typing import ClassVar, Protocol

from loaderx import ArgumentError, ArgumentTypeError, PositionError
from loaderx.compat.grain.indices import Indices, Int64s, as_array
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import RecordMetadata, generator
from loaderx.compat.grain.sharding import NoSharding, ShardOptions, even_split
from loaderx.compat.grain.stacking import buffers

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]


def __dir__() -> list[str]:
    return __all__


class Sampler(Protocol):
    """Maps each position of the stream to a record."""

    def __getitem__(self, index: int) -> RecordMetadata:
        """The record at a position; IndexError after the last."""
        ...


class _OwnSampler:
    """Common base of both samplers; `record_keys` gives the records at many positions."""

    # The parts of `repr`, which is stored in states.
    _name: ClassVar[str]
    _shown: ClassVar[tuple[str, ...]]
    _max_index: int | None

    def __init__(self, num_records: int, shard_options: ShardOptions, seed: int | None) -> None:
        if num_records <= 0:
            raise ArgumentError(f"`num_records` must be at least 1, got {num_records}.")
        self._num_records = num_records
        self._shard_options = shard_options
        self._seed = seed

    def __len__(self) -> int:
        return sys.maxsize if self._max_index is None else self._max_index

    def __getitem__(self, index: int) -> RecordMetadata:
        end = self._max_index
        if index < 0 or (end is not None and index >= end):
            raise PositionError(f"a sampler has positions from 0 to {end} (excluded), got {index}.")
        rng = None if self._seed is None else generator(self._seed, index)
        return RecordMetadata(index, self._record_key(index), rng)

    def _record_key(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, '_' + name)!r}" for name in self._shown)
        return f"{self._name}({shown})"


class SequentialSampler(_OwnSampler):
    """Every record once, in order."""

    _name, _shown = "SequentialSampler", ("num_records", "shard_options")

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
        seed: int | None = None,
    ) -> None:
        super().__init__(num_records, shard_options, seed)
        rest = num_records % shard_options.shard_count if shard_options.drop_remainder else 0
        self._max_index = num_records - rest

    def record_keys(self, indices: Indices) -> Int64s:
        """The records at these positions, without generators."""
        return as_array(indices)


class IndexSampler(_OwnSampler):
    """Records of one part, in order or shuffled, for some epochs or endlessly.

    Args:
        num_records: the number of records in the source.
        shard_options: the part to read.  Each part is a run of consecutive records, and is shuffled
            separately.
        shuffle: whether each epoch has a new order.
        num_epochs: the number of epochs; None for an endless stream.
        seed: the seed of the orders, and of the generators for random maps.
    """

    _name = "IndexSampler"
    _shown = ("num_records", "shard_options", "shuffle", "num_epochs", "seed")

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_records, shard_options, seed)
        if num_epochs is not None and num_epochs <= 0:
            raise ArgumentError(f"`num_epochs` must be at least 1 or None, got {num_epochs}.")
        _check_seed(seed, shuffle)
        self._shuffle = shuffle
        self._num_epochs = num_epochs
        self._keys = MapDataset.range(num_records)
        if not isinstance(shard_options, NoSharding):
            self._keys = self._keys.slice(slice(*even_split(num_records, shard_options)))
        if shuffle:
            self._keys = self._keys.shuffle(seed=seed)
        self._max_index = self._last(num_epochs)

    def _last(self, num_epochs: int | None) -> int | None:
        if num_epochs is None:
            return None
        last = num_epochs * self._num_records
        if self._shard_options.drop_remainder:
            last = min(last, len(self._keys) * self._shard_options.shard_count * num_epochs)
        return last

    def _record_key(self, index: int) -> int:
        return self._keys[index // self._shard_options.shard_count]  # type: ignore[return-value]

    def record_keys(self, indices: Indices) -> Int64s:
        """The records at these positions, without generators."""
        count = self._shard_options.shard_count
        if isinstance(indices, range) and indices.step == count:
            first = indices.start // count
            places: Indices = range(first, first + len(indices))  # a range costs nothing
        else:
            places = as_array(indices) // count
        keys: Int64s = self._keys._gather(places, buffers.lend)
        return keys


def _check_seed(seed: int | None, shuffle: bool) -> None:
    if shuffle and seed is None:
        raise ArgumentError("`shuffle=True` needs a seed: pass `seed=0`, or another number.")
    if seed is None:
        return
    if not isinstance(seed, int):
        raise ArgumentTypeError(f"`seed` must be an int, got {type(seed).__name__}.")
    if seed < 0 or seed.bit_length() > 32:
        raise ArgumentError(f"`seed` must be from 0 to 2**32 - 1, got {seed}.")
