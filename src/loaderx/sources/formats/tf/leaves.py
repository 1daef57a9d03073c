"""Leaves of records that are runs of bytes in several blocks of memory, and how they are read.

A block is a mapped file, or the unpacked records of a batch.  `Leaf` says where one feature of some
records lies; the rest of its values are read here, of all records at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import BadRecordError
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.formats.tf.example import (
    BYTES,
    DAMAGED,
    INT64,
    MISSING,
    PARSED_LATE,
    as_array,
    values_at,
)
from loaderx.tree import Array

Numbers: TypeAlias = npt.NDArray[np.int64]
Sizes: TypeAlias = npt.NDArray[np.int32]
Blocks: TypeAlias = Callable[[int], Array]

_FEW = 16  # records in a block: for fewer, one indexed copy for each block does not pay


class Leaf(NamedTuple):
    """One feature of some records."""

    blocks: Blocks
    numbers: list[int] | None  # the block of each record; None: all lie in block 0
    at: Numbers
    sizes: Sizes  # in bytes; negative ones are those of `example`

    def __len__(self) -> int:
        return len(self.at)

    def pick(self, places: npt.NDArray[np.intp]) -> Leaf:
        """The leaf of some of the records."""
        numbers = self.numbers and [self.numbers[place] for place in places.tolist()]
        return Leaf(self.blocks, numbers, self.at[places], self.sizes[places])

    def block_of(self, place: int) -> Array:
        return self.blocks(0 if self.numbers is None else self.numbers[place])

    @property
    def is_plain(self) -> bool:
        """Is every value one run of bytes?"""
        return bool((self.sizes >= 0).all())


class OneBlock:
    """The `Blocks` of leaves that all lie in one."""

    def __init__(self, data: Array) -> None:
        self._data = data

    def __call__(self, number: int) -> Array:
        return self._data


def missing_leaf(count: int) -> Leaf:
    """A feature that none of the records has."""
    return Leaf(_no_block, None, np.zeros(count, np.int64), np.full(count, MISSING, np.int32))


def _no_block(number: int) -> Array:
    raise AssertionError("a missing feature has no bytes")


def runs(leaf: Leaf) -> list[memoryview]:
    """The bytes of each record, as views."""
    starts, stops = leaf.at.tolist(), (leaf.at + leaf.sizes).tolist()
    if leaf.numbers is None:
        data = leaf.blocks(0).data
        return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
    maps = {number: leaf.blocks(number).data for number in set(leaf.numbers)}
    return [
        maps[number][start:stop]
        for number, start, stop in zip(leaf.numbers, starts, stops, strict=True)
    ]


def texts(leaf: Leaf) -> list[bytes]:
    """The bytes of each record."""
    starts, stops = leaf.at.tolist(), (leaf.at + leaf.sizes).tolist()
    if leaf.numbers is None:
        data = leaf.blocks(0).data
        return [bytes(data[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return list(map(bytes, runs(leaf)))


def rows(leaf: Leaf, out: Array) -> None:
    """Copies the bytes of each record into a row of ``out``; each has as many as a row."""
    if leaf.numbers is None:
        gather_rows(leaf.blocks(0), leaf.at, out)
        return
    several = set(leaf.numbers)
    if len(several) * _FEW <= len(leaf):
        numbers = np.array(leaf.numbers)
        for number in several:
            places = np.flatnonzero(numbers == number)
            some = np.empty((len(places), *out.shape[1:]), out.dtype)
            gather_rows(leaf.blocks(number), leaf.at[places], some)
            out[places] = some
        return
    flat = out.reshape(len(out), -1).view(np.uint8).reshape(-1)
    np.concatenate([np.frombuffer(run, np.uint8) for run in runs(leaf)], out=flat)


def joined(leaf: Leaf) -> Array:
    """The bytes of all records, one after the other."""
    if not len(leaf):
        return np.empty(0, np.uint8)
    return np.frombuffer(b"".join(runs(leaf)), np.uint8)


def integers(leaf: Leaf) -> tuple[Array, Numbers]:
    """The packed varints of all records, one after the other, and how many each record has."""
    sizes = leaf.sizes.astype(np.int64)
    if len(sizes) and (sizes == 1).all():  # small numbers, such as labels
        found = np.empty((len(leaf), 1), np.uint8)
        rows(leaf, found)
        if (found < 128).all():
            return found[:, 0].astype(np.int64), sizes
    data = joined(leaf)
    is_last = data < 128
    ends = np.flatnonzero(is_last)
    borders = np.cumsum(sizes)
    filled = borders[sizes > 0]
    if len(filled) and not is_last[filled - 1].all():
        raise BadRecordError("a number is cut off")
    counts = np.diff(np.searchsorted(ends, borders), prepend=0)
    return decode_varints(data, ends), counts


def decode_varints(data: Array, ends: Numbers) -> Array:
    """The numbers of a run of varints, each of which ends at one of ``ends``."""
    if len(ends) == len(data):  # all numbers are below 128
        return data.astype(np.int64)
    starts = np.empty(len(ends), np.int64)
    starts[:1], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts
    longest = int(lengths.max()) + 1
    if longest > 10:
        raise BadRecordError("a number has more than ten bytes")
    found = (data[starts] & 127).astype(np.uint64)
    longer = np.flatnonzero(lengths)
    for place in range(1, longest):
        byte = data[starts[longer] + place] & 127
        found[longer] |= byte.astype(np.uint64) << np.uint64(7 * place)
        longer = longer[lengths[longer] > place]
    return found.view(np.int64)


def floats(leaf: Leaf) -> tuple[Array, Numbers]:
    """The packed floats of all records, one after the other, and how many each record has."""
    if (leaf.sizes % 4).any():
        raise BadRecordError("a list of floats has a part of one")
    return joined(leaf).view("<f4").astype(np.float32, copy=False), leaf.sizes.astype(np.int64) // 4


def lists(leaf: Leaf, kind: int) -> list[Array]:
    """The values of each record as an array of one axis, however they are stored.

    Missing ones are empty.
    """
    if leaf.is_plain and kind != BYTES:
        numbers, counts = integers(leaf) if kind == INT64 else floats(leaf)
        stops = np.cumsum(counts).tolist()
        return [numbers[stop - count : stop] for stop, count in zip(stops, counts.tolist())]  # noqa: B905 (a hot path)
    return [_list_at(leaf, place, kind) for place in range(len(leaf))]


def _list_at(leaf: Leaf, place: int, kind: int) -> Array:
    size = int(leaf.sizes[place])
    if size == DAMAGED:
        raise BadRecordError("it is no tf.Example")
    if size == PARSED_LATE:
        data = leaf.block_of(place).data
        return as_array(values_at(data, int(leaf.at[place]), kind, len(data)), kind)
    if size == MISSING:
        return as_array([], kind)
    one = leaf.pick(np.array([place]))
    if kind == BYTES:
        return as_array(list(texts(one)), kind)
    return (integers(one) if kind == INT64 else floats(one))[0]
