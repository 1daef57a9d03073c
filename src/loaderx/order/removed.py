"""Records that are removed from a dataset, looked up for thousands of positions at once.

A million of a billion take 16 MB.  One bit stands for each run of ``2**shift`` positions, and says
whether one of them is removed.  There are 32 to 64 bits for each removed record, so few positions
must be looked up in the sorted numbers, which is slow.
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
    def _table(self) -> tuple[Numbers, int, Numbers]:
        """The numbers, ascending; the bits of a position that one bit stands for; and all bits."""
        ordered = np.sort(self.ids)
        shift = (self.length // (64 * len(ordered))).bit_length()
        bits, runs = np.zeros((self.length >> shift + 3) + 1, np.uint8), ordered >> shift
        np.bitwise_or.at(bits, runs >> 3, np.left_shift(1, runs & 7).astype(np.uint8))
        return ordered, shift, bits

    def among(self, positions: Positions) -> Positions:
        """Where in ``positions`` removed records are."""
        ordered, shift, bits = self._table
        runs = positions >> shift
        is_near = bits[runs >> 3] >> (runs.astype(np.uint8) & 7) & 1
        near = np.flatnonzero(is_near.view(np.bool_))
        if not shift or not near.size:
            return near
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
        before = self._table[0] - np.arange(len(self.ids))  # records that are left, before each
        found[left] = numbers + np.searchsorted(before, numbers, side="right")
        return found
