"""Records that are numbered through several parts, such as the shards of a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices

Places: TypeAlias = slice | npt.NDArray[np.intp]
"""Which of the requested records lie in a part."""

ALL = slice(None)


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


def lie_outside(starts: Indices, stops: Indices, size: Indices | np.int64 | int) -> bool:
    """True if a run begins or ends outside ``size`` elements, or ends before it begins.

    It tests the signs of all at once: separate comparisons would take three times as long.  If no
    start and no stop is negative, no difference overflows.
    """
    return bool(((starts | stops | (stops - starts) | (size - stops)) < 0).any())


class Located:
    """Records, or items of lists: by the number of their part, and by their row in it.

    All columns of a batch share it, and so what it finds out about the parts.
    """

    __slots__ = ("_groups", "parts", "rows", "runs")

    def __init__(
        self,
        parts: Indices | None,
        rows: Indices,
        runs: list[Run] | None = None,
        groups: dict[int, list[tuple[int, Places]]] | None = None,
    ) -> None:
        """
        Args:
            parts: None if all lie in part 0.
            rows: the number of each in its part.
            runs: records that follow each other, part by part; None for others.
            groups: those of other rows in the same parts.
        """
        self.parts, self.rows, self.runs = parts, rows, runs
        self._groups = {} if groups is None else groups

    def __len__(self) -> int:
        return len(self.rows)

    def moved(self, rows: Indices) -> Located:
        """Other rows of the same parts."""
        return Located(self.parts, rows, None, self._groups)

    def pick(self, places: Places) -> Located:
        """Some of them."""
        return Located(None if self.parts is None else self.parts[places], self.rows[places])

    def each(self, of_parts: npt.NDArray[np.int64]) -> Indices | np.int64:
        """What an array has for the part of each of them; one number if all lie in part 0."""
        return of_parts[0] if self.parts is None else of_parts[self.parts]

    def groups(self, group_of: Indices | None = None) -> list[tuple[int, Places]]:
        """Each part that has some of them, and their places; or each group of parts."""
        found = self._groups.get(id(group_of))  # columns hold these arrays, so ids are not reused
        if found is None:
            parts = self.parts
            if not len(self.rows):
                found = []
            elif parts is None:
                found = [(0 if group_of is None else int(group_of[0]), ALL)]
            else:
                found = grouped(parts if group_of is None else group_of[parts])
            self._groups[id(group_of)] = found
        return found


def grouped(numbers: Indices) -> list[tuple[int, Places]]:
    """Each number that is there, and the places where it is."""
    first = int(numbers[0])
    if (numbers == first).all():  # neighbours mostly lie together
        return [(first, ALL)]
    order = np.argsort(numbers, kind="stable")
    found = numbers[order]
    borders = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
    return [(int(found[start]), order[start:stop]) for start, stop in itertools.pairwise(borders)]


def in_places(count: int, found: Iterable[tuple[Places, Sequence[object]]]) -> Sequence[object]:
    """Values that were found group by group, in the order in which they were asked for."""
    values: list[object] = [None] * count
    for places, some in found:
        if isinstance(places, slice):
            return some
        for place, value in zip(places.tolist(), some, strict=True):
            values[place] = value
    return values


class Parts:
    """How many records each part has, and so which part each record lies in."""

    def __init__(self, counts: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.ends = np.cumsum(self.counts)
        self.starts = self.ends - self.counts

    def __len__(self) -> int:
        """The number of records."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def at(self, indices: Indices) -> Located:
        """Where records lie."""
        runs = self.runs(int(indices[0]), len(indices)) if is_run(indices) else None
        if len(self.counts) == 1:
            return Located(None, indices, runs)
        numbers = self.ends.searchsorted(indices, "right")
        return Located(numbers, indices - self.starts[numbers], runs)

    def split(self, indices: Indices) -> Iterator[tuple[int, Places, Indices]]:
        """Each part with some of the records: its number, their places, their numbers in it."""
        at = self.at(indices)
        for part, places in at.groups():
            yield part, places, at.rows[places]

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
