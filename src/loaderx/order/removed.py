"""Records that are removed from a dataset, looked up for thousands of positions at once.

A million of a billion take 14 MB.  To look one up in the sorted numbers takes a microsecond, so two
tables of bits are asked first: whether any removed record has the same low digits, and whether any
has the same high ones.  They have 16 to 32 bits for each, and few others pass both.
"""

from __future__ import annotations

import zlib
from functools import cached_property

import numpy as np

from loaderx.frozen import Frozen
from loaderx.order.epochs import Positions
from loaderx.order.permutation import another
from loaderx.rng import REPLACE, Keys, Numbers, fold

ATTEMPTS = 64  # at random, before one of the records that are left is chosen by its number


class Removed(Frozen):
    """Numbers of records, each once, in the order in which they were removed."""

    ids: Numbers
    length: int  # of the dataset
    fill: str  # what takes their place

    @staticmethod
    def of(ids: Positions, length: int, fill: str) -> Removed:
        """Numbers in which some may come again."""
        _, first = np.unique(ids, return_index=True)
        dtype = np.uint32 if length <= 1 << 32 else np.uint64
        return Removed(ids[np.sort(first)].astype(dtype), length, fill)

    def text(self, count: int) -> str:
        """The first ``count`` of them in a saved state: removing more appends to the others."""
        digest = zlib.crc32(self.ids[:count].astype("<u8").tobytes())
        return f"{self.fill} {count} #{digest:08x}"

    def count_in(self, text: str) -> int:
        """How many of them a saved state has; 0 if it has others."""
        count = text.partition(" ")[2].partition(" ")[0]
        number = int(count) if count.isdecimal() and len(count) < 20 else 0
        return number if self.text(number) == text else 0

    @cached_property
    def _tables(self) -> tuple[Numbers, int, int, Numbers, Numbers]:
        """The numbers, ascending; what makes high and low parts of them; the bits of both."""
        ordered, bits = np.sort(self.ids), 32 * len(self.ids)
        shift, mask = (self.length // bits).bit_length(), (1 << bits.bit_length() - 1) - 1
        high = _bits_of(ordered >> shift, self.length >> shift)
        return ordered, shift, mask, high, _bits_of(ordered & mask, mask)

    def among(self, positions: Positions) -> Positions:
        """Where in ``positions`` removed records are."""
        ordered, shift, mask, high, low = self._tables
        near = np.flatnonzero(_is_set(low, positions & mask))
        near = near[_is_set(high, positions[near] >> shift)]
        looked_for = positions[near].astype(ordered.dtype)
        places = np.searchsorted(ordered, looked_for).clip(max=len(ordered) - 1)
        found: Positions = near[ordered[places] == looked_for]
        return found

    def others(self, keys: Keys, positions: Positions) -> Positions:
        """For each of these positions another one, which is not removed, by a key.

        Removing more records changes only those that were chosen and are removed now.
        """
        found = another(keys, positions, self.length)
        left = self.among(found)
        for attempt in range(1, ATTEMPTS):
            if not left.size:
                return found
            drawn = fold(keys[left], np.array([attempt]), REPLACE)
            found[left] = another(drawn, positions[left], self.length)
            left = left[self.among(found[left])]
        numbers = (keys[left] % np.uint64(self.length - len(self.ids))).astype(np.int64)
        before = self._tables[0] - np.arange(len(self.ids))  # records that are left, before each
        found[left] = numbers + np.searchsorted(before, numbers, side="right")
        return found


def _bits_of(numbers: Numbers, last: int) -> Numbers:
    """A bit for each number up to ``last``: whether it is one of these."""
    bits = np.zeros((last >> 3) + 1, np.uint8)
    np.bitwise_or.at(bits, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))
    return bits


def _is_set(bits: Numbers, numbers: Positions) -> Numbers:
    found: Numbers = bits[numbers >> 3] >> (numbers.astype(np.uint8) & 7) & 1
    return found.view(np.bool_)
