"""Records that are numbered through several parts, such as the shards of a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices

Places: TypeAlias = slice | npt.NDArray[np.intp]
"""Which of the requested records lie in a part."""


class Run(NamedTuple):
    """Consecutive records in one part."""

    part: int
    places: slice  # among the requested records
    start: int  # the number of the first in the part ...
    stop: int  # ... and of the one after the last


def is_run(indices: Indices) -> bool:
    """True if these records are consecutive."""
    count = len(indices)
    if count < 2 or indices[-1] - indices[0] != count - 1:
        return False
    return bool((indices[1:] - indices[:-1] == 1).all())


def lie_outside(starts: Indices, stops: Indices, size: Indices | int) -> bool:
    """True if a run begins or ends outside ``size`` elements, or ends before it begins.

    It tests the signs of all at once: separate comparisons would take three times as long.  If no
    start and no stop is negative, no difference overflows.
    """
    return bool(((starts | stops | (stops - starts) | (size - stops)) < 0).any())


class Parts:
    """How many records each part has, and so which part each record lies in."""

    def __init__(self, counts: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.ends = np.cumsum(self.counts)
        self.starts = self.ends - self.counts

    def __len__(self) -> int:
        """The number of records."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def split(self, indices: Indices) -> Iterator[tuple[int, Places, Indices]]:
        """Each part with some of the records: its number, their places, their numbers in it."""
        if len(self.counts) == 1:
            yield 0, slice(None), indices
            return
        numbers = np.searchsorted(self.ends, indices, side="right")
        first = int(numbers[0]) if len(numbers) else 0
        if (numbers == first).all():  # neighbours are mostly in one part
            if len(numbers):
                yield first, slice(None), indices - self.starts[first]
            return
        order = np.argsort(numbers, kind="stable")
        found = numbers[order]
        borders = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
        for start, stop in itertools.pairwise(borders):
            part, places = int(found[start]), order[start:stop]
            yield part, places, indices[places] - self.starts[part]

    def runs(self, first: int, count: int) -> list[Run]:
        """Consecutive records, part by part."""
        found, place = [], 0
        part = int(self.ends.searchsorted(first, "right"))
        while place < count:
            start = first + place - int(self.starts[part])
            stop = min(int(self.counts[part]), start + count - place)
            if stop > start:
                found.append(Run(part, slice(place, place + stop - start), start, stop))
                place += stop - start
            part += 1
        return found

    def locate(self, index: int) -> tuple[int, int]:
        """The part of a record, and its number in it."""
        part = int(self.ends.searchsorted(index, "right"))
        return part, index - int(self.starts[part])


def numbers_from(starts: Indices, lengths: Indices) -> Indices:
    """For each start, as many consecutive numbers as its length says, in one array."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: Indices = np.repeat(starts - ends + lengths, lengths) + np.arange(total)
    return found
