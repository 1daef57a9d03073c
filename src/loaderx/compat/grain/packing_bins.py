"""The choice of a bin for each record of a packed batch, and the contents of the bins.

First fit and best fit run once for every record, so neither looks at all bins:

- *First fit*: the first bin with room for ``n`` is the first whose *running maximum* of room
  reaches ``n``.  Running maxima are sorted, so one bisection finds it.
- *Best fit*: the fullest bin with room for ``n`` is the first of the bins sorted by room.

With several features a bin must have room in each of them.  Then first fit begins a search where
those bisections end, and best fit compares arrays over all bins at once.

Values are copied into the bins immediately, since the user may change a record afterwards.  Segment
numbers and positions depend on lengths alone, and are written for all bins together at the end.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.stacking import Array

Lengths = tuple[int, ...]
Span = tuple[int, int, int]  # first cell, number of cells, segment
Segments = tuple[NDArray[np.int32], NDArray[np.int32]]
_FULL = -1  # the room of a bin that may take no more records, not even empty ones


class Bins(Protocol):
    """Finds a bin for each record."""

    def place(self, lengths: Lengths) -> int:
        """The bin for a record with these lengths; -1 if no bin has room."""
        ...

    def set_room(self, number: int, room: Lengths) -> None:
        """Records the room that is left in a bin."""
        ...


class FirstFitBins:
    """The first bin that has room, when one feature is packed."""

    def __init__(self, capacity: int, count: int) -> None:
        self._count = count
        self._room = [capacity] * count
        self._largest = [capacity] * count  # running maxima

    def place(self, lengths: Lengths) -> int:
        found = bisect_left(self._largest, lengths[0])
        return found if found < self._count else -1

    def set_room(self, number: int, room: Lengths) -> None:
        left, largest = self._room, self._largest
        left[number] = room[0]
        highest = largest[number - 1] if number else -1
        for place in range(number, self._count):
            if left[place] > highest:
                highest = left[place]
            if largest[place] == highest:
                break  # the maxima from here on depend on another bin, and do not change
            largest[place] = highest


class FirstFitManyBins:
    """The first bin that has room in every feature."""

    def __init__(self, capacities: Lengths, count: int) -> None:
        self._count = count
        self._features = [FirstFitBins(capacity, count) for capacity in capacities]
        self._room = [capacities] * count

    def place(self, lengths: Lengths) -> int:
        found = 0
        for feature, length in zip(self._features, lengths, strict=True):
            first = feature.place((length,))
            if first < 0:
                return -1
            found = max(found, first)
        for number in range(found, self._count):
            if all(map(operator.ge, self._room[number], lengths)):
                return number
        return -1

    def set_room(self, number: int, room: Lengths) -> None:
        self._room[number] = room
        for feature, left in zip(self._features, room, strict=True):
            feature.set_room(number, (left,))


class BestFitBins:
    """The fullest bin that has room, when one feature is packed."""

    def __init__(self, capacity: int, count: int) -> None:
        self._count = count
        self._room = [capacity] * count
        self._sorted = [(capacity, number) for number in range(count)]

    def place(self, lengths: Lengths) -> int:
        found = bisect_left(self._sorted, (lengths[0], -1))
        return self._sorted[found][1] if found < self._count else -1

    def set_room(self, number: int, room: Lengths) -> None:
        del self._sorted[bisect_left(self._sorted, (self._room[number], number))]
        self._room[number] = room[0]
        insort(self._sorted, (room[0], number))


class BestFitManyBins:
    """The bin with most cells in use, all features together, that has room in each of them."""

    def __init__(self, capacities: Lengths, count: int) -> None:
        self._capacities = sum(capacities)
        self._room = np.repeat(np.array(capacities, np.int64)[:, None], count, axis=1)
        self._used = np.zeros(count, np.int64)

    def place(self, lengths: Lengths) -> int:
        fits = np.all(self._room >= np.array(lengths)[:, None], axis=0)
        if not fits.any():
            return -1
        return int(np.argmax(np.where(fits, self._used, -1)))

    def set_room(self, number: int, room: Lengths) -> None:
        self._room[:, number] = room
        self._used[number] = self._capacities - sum(room)


def first_fit(capacities: Lengths, count: int) -> Bins:
    if len(capacities) == 1:
        return FirstFitBins(capacities[0], count)
    return FirstFitManyBins(capacities, count)


def best_fit(capacities: Lengths, count: int) -> Bins:
    if len(capacities) == 1:
        return BestFitBins(capacities[0], count)
    return BestFitManyBins(capacities, count)


class PackedFeature:
    """The cells of one feature in all bins, and the place of each record."""

    def __init__(
        self, value: Element, *, bins: int, length: int, padding: Element, alignment: int
    ) -> None:
        self.length = length
        self._alignment = alignment
        self._used = [0] * bins
        self._spans: list[Span] = []
        shape = (bins, length, *np.shape(value)[1:])
        dtype = _dtype(value)
        self.values: Array = (
            np.zeros(shape, dtype) if padding is None else np.full(shape, padding, dtype)
        )

    def add(self, value: Element, length: int, number: int, segment: int) -> int:
        """Copies a record's value to the end of a bin, and returns the room left there."""
        start = self._used[number]
        used = start + length
        self.values[number, start:used] = value
        self._spans.append((number * self.length + start, length, segment))
        if self._alignment > 1:
            used = -(-used // self._alignment) * self._alignment
        self._used[number] = used
        return self.length - used

    def segments(self, bins: int) -> Segments:
        """The segments of all bins."""
        segment_ids, positions = segments_of(sorted(self._spans), bins * self.length)
        return segment_ids.reshape(bins, -1), positions.reshape(bins, -1)


def segments_of(spans: Sequence[Span], cells: int) -> Segments:
    """Segment numbers from 1 and positions inside each record; 0 in empty cells."""
    array = np.array(spans, np.int64).reshape(-1, 3)
    # Gaps and records alternate: gap, record, gap, record, ..., gap.
    edges = np.empty(2 * len(array) + 2, np.int64)
    edges[0], edges[-1] = 0, cells
    edges[1:-1:2] = array[:, 0]
    edges[2:-1:2] = array[:, 0] + array[:, 1]
    sizes = edges[1:] - edges[:-1]
    numbers = np.zeros(len(sizes), np.int32)
    numbers[1::2] = array[:, 2]
    segment_ids = numbers.repeat(sizes)
    positions = np.arange(cells, dtype=np.int32)
    positions -= edges[:-1].astype(np.int32).repeat(sizes)
    positions *= segment_ids > 0
    return segment_ids, positions


def length_of(value: Element) -> int:
    """The number of cells that a value takes."""
    if type(value) is np.ndarray:
        return value.shape[0] if value.ndim else 1
    return 1 if np.ndim(value) == 0 else len(value)


def _dtype(value: Element) -> np.dtype[np.generic]:
    return np.dtype(np.int64) if isinstance(value, int) else np.asarray(value).dtype


class PackedBatch:
    """Bins that are being filled.

    Args:
        values: a record's values, one for each feature: they give dtypes and shapes.
        lengths: the number of cells of a bin, for each feature.
        paddings: the value of empty cells (None: 0), for each feature.
        alignments: records begin at multiples of this number, for each feature.
        most: the largest number of records in a bin; None for any number.
    """

    def __init__(
        self,
        values: Sequence[Element],
        *,
        bins: Bins,
        count: int,
        lengths: Lengths,
        paddings: Sequence[Element],
        alignments: Lengths,
        most: int | None,
    ) -> None:
        self._bins = bins
        self._most = most
        self._records = [0] * count
        self._full = (_FULL,) * len(lengths)
        self.in_use = 0
        self.features = [
            PackedFeature(value, bins=count, length=length, padding=padding, alignment=alignment)
            for value, length, padding, alignment in zip(
                values, lengths, paddings, alignments, strict=True
            )
        ]

    def add(self, values: Sequence[Element], lengths: Lengths) -> int:
        """Puts a record into a bin and returns the bin's number; -1 if no bin has room."""
        number = self._bins.place(lengths)
        if number < 0:
            return number
        self._records[number] = segment = self._records[number] + 1
        if segment == 1:
            self.in_use += 1
        room = [
            feature.add(value, length, number, segment)
            for feature, value, length in zip(self.features, values, lengths, strict=True)
        ]
        self._bins.set_room(number, self._full if segment == self._most else tuple(room))
        return number
