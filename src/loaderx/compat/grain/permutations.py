"""Permutations of one length, kept while they are in use.

Short ones are made whole, long ones in blocks of consecutive positions: made for a single index,
they would cost a thousand times as much.
"""

from __future__ import annotations

import contextlib

import numpy as np

from loaderx.compat.grain.index_shuffle import index_shuffle, permutation, shuffled
from loaderx.compat.grain.indices import Indices, Int64s, as_array

_WHOLE = 65_537
_BLOCK = 16_384
_KEPT = 4


class Permutations:
    """Permutations by seed of the indices below ``length``."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._block = length if length <= _WHOLE else _BLOCK
        self._tables: dict[tuple[int, int], Int64s] = {}
        self._last = -2  # the position that was asked for alone

    def __getstate__(self) -> int:
        return self._length

    def __setstate__(self, length: int) -> None:
        self.__init__(length)  # type: ignore[misc]

    def one(self, seed: int, position: int) -> int:
        """Where a position goes."""
        number, inside = divmod(position, self._block)
        table = self._tables.get((seed, number))
        if table is None:
            follows, self._last = position == self._last + 1, position
            # The walk of a short one is long; a long one is asked in order, or here and there.
            if self._length > _WHOLE and not follows:
                return index_shuffle(position, self._length - 1, seed)
            table = self._table(seed, number)
        return int(table[inside])

    def many(self, seed: int, positions: Indices) -> Int64s:
        """Where many positions go."""
        if isinstance(positions, range) and positions:
            number = positions[0] // self._block
            if positions[-1] // self._block == number:
                return _part(self._table(seed, number), positions, number * self._block)
        array = as_array(positions)
        if not array.size or self._length <= _WHOLE:
            return self._table(seed, 0).take(array)
        first, last = int(array.min()) // self._block, int(array.max()) // self._block
        if last - first > 1:
            return shuffled(seed, self._length, array)
        tables = [self._table(seed, number) for number in range(first, last + 1)]
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        return table.take(array - first * self._block)

    def _table(self, seed: int, number: int) -> Int64s:
        table = self._tables.get((seed, number))
        if table is None:
            table = self._made(seed, number)
            while len(self._tables) >= _KEPT:
                # Another thread may be here as well.
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):
                    del self._tables[next(iter(self._tables))]
            self._tables[seed, number] = table
        return table

    def _made(self, seed: int, number: int) -> Int64s:
        if self._length <= _WHOLE:
            return permutation(seed, self._length)
        first = number * self._block
        positions = np.arange(first, min(first + self._block, self._length), dtype=np.int64)
        return shuffled(seed, self._length, positions)


def _part(table: Int64s, positions: range, first: int) -> Int64s:
    start, stop, step = positions.start - first, positions.stop - first, positions.step
    if step > 0:
        return table[start:stop:step]
    return table[start : (stop if stop >= 0 else None) : step]
