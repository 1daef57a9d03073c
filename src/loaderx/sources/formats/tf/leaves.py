"""Leaves of records that are runs of bytes, of mapped files or of the unpacked records of a batch.

`Leaf` says where one feature of some records lies; its values are read here, all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import BadRecordError
from loaderx.sources.columns.elements import ListedArrays, PartElements, Runs
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import ALL, Located, Parts, in_places
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


class Leaf(NamedTuple):
    """One feature of some records."""

    data: PartElements  # the bytes of files, or of the records of a batch
    at: Located  # where it begins in them
    sizes: Sizes  # in bytes; negative ones are those of `example`

    def __len__(self) -> int:
        return len(self.at)

    def pick(self, places: npt.NDArray[np.intp]) -> Leaf:
        """The leaf of some of the records."""
        return Leaf(self.data, self.at.pick(places), self.sizes[places])

    def block_of(self, place: int) -> Array:
        return self.data.array_of(0 if self.at.parts is None else int(self.at.parts[place]))

    @property
    def is_plain(self) -> bool:
        """True if every value is one run of bytes."""
        return bool((self.sizes >= 0).all())

    def runs(self) -> Iterator[Runs]:
        return self.data.runs(self.at, self.at.rows + self.sizes)

    def spans(self) -> Iterator[Span]:
        """The bytes that are read for it."""
        return self.data.spans(self.at, self.at.rows + np.maximum(self.sizes, 1))


def one_block(data: Array) -> PartElements:
    """The bytes of leaves that all lie in one array."""
    return PartElements(Parts([len(data)]), ListedArrays([data]))


def missing_leaf(count: int) -> Leaf:
    """A feature that none of the records has."""
    nothing = np.zeros(count, np.int64)
    sizes = np.full(count, MISSING, np.int32)
    return Leaf(one_block(np.empty(0, np.uint8)), Located(None, nothing), sizes)


def runs(leaf: Leaf) -> Sequence[memoryview]:
    """The bytes of each record, as views."""
    found = ((one.places, one.pieces()) for one in leaf.runs())
    return cast("Sequence[memoryview]", in_places(len(leaf), found))


def texts(leaf: Leaf) -> list[bytes]:
    """The bytes of each record."""
    found = ((one.places, one.contents()) for one in leaf.runs())
    return cast("list[bytes]", in_places(len(leaf), found))


def rows(leaf: Leaf, out: Array) -> None:
    """Copies the bytes of each record into a row of ``out``; each has as many as a row."""
    for one in leaf.runs():
        one.take_rows(out)


def joined(leaf: Leaf) -> Array:
    """The bytes of all records, one after the other."""
    if not len(leaf):
        return np.empty(0, np.uint8)
    return np.frombuffer(b"".join(runs(leaf)), np.uint8)


def integers(leaf: Leaf) -> tuple[Array, Numbers]:
    """The packed varints of all records, one after the other, and their number in each record."""
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
    """The packed floats of all records, one after the other, and their number in each record."""
    if (leaf.sizes % 4).any():
        raise BadRecordError("a list of floats ends within a number")
    return joined(leaf).view("<f4").astype(np.float32, copy=False), leaf.sizes.astype(np.int64) // 4


def numbers_of(leaf: Leaf, kind: int, dtype: np.dtype[np.generic] | None = None) -> Runs:
    """The numbers of all records, however they are stored; missing ones are empty lists."""
    if leaf.is_plain:
        numbers, counts = integers(leaf) if kind == INT64 else floats(leaf)
    else:
        each = [_list_at(leaf, place, kind) for place in range(len(leaf))]
        numbers, counts = np.concatenate(each), np.array([len(one) for one in each])
    stops = np.cumsum(counts)
    data = numbers if dtype is None else numbers.astype(dtype, copy=False)
    return Runs(ALL, data, stops - counts, stops)


def lists(leaf: Leaf, kind: int) -> list[Array]:
    """The values of each record as an array of one axis; missing ones are empty."""
    if kind != BYTES:
        return numbers_of(leaf, kind).views()
    return [_list_at(leaf, place, kind) for place in range(len(leaf))]


def _list_at(leaf: Leaf, place: int, kind: int) -> Array:
    size = int(leaf.sizes[place])
    if size == DAMAGED:
        raise BadRecordError("it is not a tf.Example")
    if size == PARSED_LATE:
        data = leaf.block_of(place).data
        return as_array(values_at(data, int(leaf.at.rows[place]), kind, len(data)), kind)
    if size == MISSING:
        return as_array([], kind)
    one = leaf.pick(np.array([place]))
    if kind == BYTES:
        return as_array(list(texts(one)), kind)
    return (integers(one) if kind == INT64 else floats(one))[0]
