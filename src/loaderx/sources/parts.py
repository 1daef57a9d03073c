"""Records that are numbered through several parts, such as the shards of a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices

Places: TypeAlias = slice | npt.NDArray[np.intp]
"""Which of the records that were asked for lie in a part."""


class Parts:
    """How many records each part has, and so where each record lies."""

    def __init__(self, counts: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.ends = np.cumsum(self.counts)
        self.starts = self.ends - self.counts

    def __len__(self) -> int:
        """The number of records."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def split(self, indices: Indices) -> Iterator[tuple[int, Places, Indices]]:
        """Each part that has some of the records: its number, their places, their numbers in it."""
        if len(self.counts) == 1:
            yield 0, slice(None), indices
            return
        numbers = np.searchsorted(self.ends, indices, side="right")
        first = int(numbers[0]) if len(numbers) else 0
        if (numbers == first).all():  # neighbours mostly lie together
            if len(numbers):
                yield first, slice(None), indices - self.starts[first]
            return
        order = np.argsort(numbers, kind="stable")
        found = numbers[order]
        borders = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
        for start, stop in itertools.pairwise(borders):
            part, places = int(found[start]), order[start:stop]
            yield part, places, indices[places] - self.starts[part]

    def locate(self, index: int) -> tuple[int, int]:
        """The part of a record, and its number in it."""
        part = int(np.searchsorted(self.ends, index, side="right"))
        return part, index - int(self.starts[part])
