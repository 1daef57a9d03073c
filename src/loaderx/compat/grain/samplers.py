"""Samplers: which record comes when."""

from __future__ import annotations

import sys
from typing import Protocol

import numpy as np

from loaderx.compat.grain.indices import Indices, Int64s, as_array
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.records import RecordMetadata, generator
from loaderx.compat.grain.sharding import NoSharding, ShardOptions, even_split
from loaderx.compat.grain.stacking import buffers
from loaderx.errors import ArgumentError, ArgumentTypeError, PositionError

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]


class Sampler(Protocol):
    """Says for each position of the stream which record it has."""

    def __getitem__(self, index: int) -> RecordMetadata:
        """The record at a position; IndexError after the last."""
        ...


class SequentialSampler:
    """Every record once, in order."""

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
        seed: int | None = None,
    ) -> None:
        _check_records(num_records)
        self._num_records = num_records
        self._shard_options = shard_options
        rest = num_records % shard_options.shard_count if shard_options.drop_remainder else 0
        self._max_index = num_records - rest
        self._seed = seed

    def __len__(self) -> int:
        return self._max_index

    def __repr__(self) -> str:
        return (
            f"SequentialSampler(num_records={self._num_records}, "
            f"shard_options={self._shard_options!r})"
        )

    def __getitem__(self, index: int) -> RecordMetadata:
        _check_index(index, self._max_index)
        return RecordMetadata(index, index, _generator(self._seed, index))

    def record_keys(self, indices: Indices) -> Int64s:
        """The records at these positions, without generators."""
        return as_array(indices)


class IndexSampler:
    """Records of this part, in order or shuffled, for some epochs or without end.

    Args:
        num_records: the number of records in the source.
        shard_options: the part to read.  Each part is a run of consecutive records, and is shuffled
            on its own.
        shuffle: whether each epoch has a new order.
        num_epochs: None for no end.
        seed: of the orders, and of the generators that random maps get.
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 (frozen)
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        _check_records(num_records)
        if num_epochs is not None and num_epochs <= 0:
            raise ArgumentError(f"`num_epochs` must be at least 1 or None, got {num_epochs}.")
        _check_seed(seed, shuffle)
        self._num_records = num_records
        self._shard_options = shard_options
        self._shuffle = shuffle
        self._num_epochs = num_epochs
        self._seed = seed
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

    def __len__(self) -> int:
        return sys.maxsize if self._max_index is None else self._max_index

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records}, "
            f"shard_options={self._shard_options!r}, shuffle={self._shuffle}, "
            f"num_epochs={self._num_epochs}, seed={self._seed})"
        )

    def __getitem__(self, index: int) -> RecordMetadata:
        _check_index(index, self._max_index)
        key = self._keys[index // self._shard_options.shard_count]
        return RecordMetadata(index, key, _generator(self._seed, index))

    def record_keys(self, indices: Indices) -> Int64s:
        """The records at these positions, without generators."""
        count = self._shard_options.shard_count
        if isinstance(indices, range) and indices.step == count:
            first = indices.start // count
            places: Indices = range(first, first + len(indices))  # regular: costs nothing
        else:
            places = as_array(indices) // count
        keys: Int64s = self._keys._gather(places, buffers.lend)
        return keys


def _check_records(num_records: int) -> None:
    if num_records <= 0:
        raise ArgumentError(f"`num_records` must be at least 1, got {num_records}.")


def _check_seed(seed: int | None, shuffle: bool) -> None:
    if shuffle and seed is None:
        raise ArgumentError("`shuffle=True` needs a seed: pass `seed=0`, or another number.")
    if seed is None:
        return
    if not isinstance(seed, int):
        raise ArgumentTypeError(f"`seed` must be an int, got {type(seed).__name__}.")
    if seed < 0 or seed.bit_length() > 32:
        raise ArgumentError(f"`seed` must be from 0 to 2**32 - 1, got {seed}.")


def _check_index(index: int, end: int | None) -> None:
    if index < 0 or (end is not None and index >= end):
        raise PositionError(f"a sampler has positions from 0 to {end} (excluded), got {index}.")


def _generator(seed: int | None, index: int) -> np.random.Generator | None:
    return None if seed is None else generator(seed, index)
