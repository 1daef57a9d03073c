"""Blocks of consecutive records in random order, and the windows that consist of whole blocks.

Blocks of one size take no memory.  All of them are full but the last, which holds the rest.  The
full ones are permuted, and the short one is inserted at a place of its own draw.  It splits the
positions into those before, in and behind it, and a formula serves each of the three.  Blocks of
different sizes (the row groups of files) are permuted once an epoch, and a table says where each of
them begins.

A window is made of whole blocks: those that begin within one stretch of ``window`` positions.  So
no two windows need the same block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.order.permutation import permute
from loaderx.rng import BLOCK, Keys, fold

Positions = npt.NDArray[np.int64]

_KEPT_EPOCHS = 4  # tables to keep: workers may be on both sides of an epoch's end


class Windows(NamedTuple):
    """The window of each position."""

    number: Positions
    start: Positions  # its first position
    size: Positions


class Blocks:
    """The base.  ``keys`` name the order: one for each position, or a single one for all."""

    least = 1  # the smallest window
    largest: int  # the largest block

    def find(self, keys: Keys, positions: Positions) -> Positions:
        """Where the records at these positions of the order lie."""
        raise NotImplementedError

    def places(self, keys: Keys, records: Positions) -> Positions:
        """The positions in the order that these records have: the inverse of `find`."""
        raise NotImplementedError

    def windows(self, keys: Keys, positions: Positions, window: int) -> Windows:
        """The windows that positions of the order lie in."""
        raise NotImplementedError

    def bounds(self, key: Keys, number: int, window: int) -> tuple[int, int]:
        """Where a window begins and ends; it may be empty."""
        raise NotImplementedError


class EqualBlocks(Blocks):
    """Blocks of one size, except for a short last one; at least one block is full."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size
        self.least = self.largest = size
        self.full, self.rest = divmod(length, size)

    def find(self, keys: Keys, positions: Positions) -> Positions:
        if not self.rest:
            return self._find_full(keys, positions)
        begin = self._short(keys)
        is_behind = positions >= begin + self.rest
        is_short = (positions >= begin) & ~is_behind
        # Positions in the short block get some place here, which is overwritten below.
        among_full = np.minimum(positions - self.rest * is_behind, self.full * self.size - 1)
        found = self._find_full(keys, among_full)
        return np.where(is_short, self.full * self.size + positions - begin, found)

    def _find_full(self, keys: Keys, positions: Positions) -> Positions:
        blocks, inside = np.divmod(positions, self.size)
        return self._permuted(blocks, keys) * self.size + inside

    def places(self, keys: Keys, records: Positions) -> Positions:
        blocks, inside = np.divmod(records, self.size)
        is_short = blocks == self.full
        full = permute(np.where(is_short, 0, blocks), self.full, keys, undo=True)
        found: Positions = full * self.size + inside
        if self.rest:
            begin = self._short(keys)
            found = np.where(is_short, begin + inside, found + self.rest * (found >= begin))
        return found

    def _permuted(self, blocks: Positions, keys: Keys) -> Positions:
        first, last = int(blocks.min()), int(blocks.max())
        if keys.size == 1 and last - first < blocks.size:  # few blocks for many rows
            return permute(np.arange(first, last + 1), self.full, keys)[blocks - first]
        return permute(blocks, self.full, keys)

    def _short(self, keys: Keys) -> Positions:
        """Where the short block begins."""
        drawn = fold(keys, np.array([self.full]), BLOCK) % np.uint64(self.full + 1)
        return drawn.astype(np.int64) * self.size

    def windows(self, keys: Keys, positions: Positions, window: int) -> Windows:
        """``window`` is a multiple of the size."""
        if self.rest:
            with_short = self._short(keys) // window  # the window that has the short block
            is_behind = positions >= (with_short + 1) * window + self.rest
            number = np.where(
                is_behind,
                (positions - self.rest) // window,
                np.minimum(positions // window, with_short),
            )
            start = number * window + self.rest * is_behind
            size = window + self.rest * (number == with_short)
        else:
            number = positions // window
            start, size = number * window, np.array([window])
        return Windows(number, start, np.minimum(size, self.length - start))

    def bounds(self, key: Keys, number: int, window: int) -> tuple[int, int]:
        with_short = int(self._short(key)[0]) // window
        start = number * window + self.rest * (number > with_short)
        stop = (number + 1) * window + self.rest * (number >= with_short)
        return min(start, self.length), min(stop, self.length)


class _Epoch(NamedTuple):
    """Blocks in the order of one epoch."""

    order: Positions  # the blocks, in order
    starts: Positions  # the position at which each of them begins


class UnequalBlocks(Blocks):
    """Blocks that begin at ``starts``, whose last entry is the number of records; none is empty."""

    def __init__(self, starts: Positions) -> None:
        self.starts = starts
        self.largest = int(np.diff(starts).max(initial=1))
        self._epochs: dict[int, _Epoch] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epochs": {}}

    def find(self, keys: Keys, positions: Positions) -> Positions:
        if keys.size > 1:
            return _by_epoch(self.find, keys, positions)
        epoch = self._epoch(int(keys[0]))
        places = np.searchsorted(epoch.starts, positions, side="right") - 1
        found: Positions = self.starts[epoch.order[places]] + positions - epoch.starts[places]
        return found

    def places(self, keys: Keys, records: Positions) -> Positions:
        if keys.size > 1:
            return _by_epoch(self.places, keys, records)
        epoch = self._epoch(int(keys[0]))
        blocks = np.searchsorted(self.starts, records, side="right") - 1
        found: Positions = epoch.starts[np.argsort(epoch.order)[blocks]]
        return found + records - self.starts[blocks]

    def _epoch(self, key: int) -> _Epoch:
        known = self._epochs.get(key)
        if known is None:
            count = len(self.starts) - 1
            order = permute(np.arange(count), count, np.array([key], np.uint64))
            ends = np.cumsum((self.starts[1:] - self.starts[:-1])[order])
            known = _Epoch(order, np.concatenate([np.zeros(1, np.int64), ends[:-1]]))
            # Another dict, since threads may be reading this one.
            kept = list(self._epochs.items())[1 - _KEPT_EPOCHS :]
            self._epochs = {**dict(kept), key: known}
        return known

    def windows(self, keys: Keys, positions: Positions, window: int) -> Windows:
        if keys.size > 1:
            found = np.empty((3, len(positions)), np.int64)
            for key in np.unique(keys):
                chosen = np.flatnonzero(keys == key)
                one = np.array([key], np.uint64)
                found[:, chosen] = self.windows(one, positions[chosen], window)
            return Windows(*found)
        number, start, size = self._all_windows(keys, window)
        which = np.searchsorted(start, positions, side="right") - 1
        return Windows(number[which], start[which], size[which])

    def _all_windows(self, key: Keys, window: int) -> Windows:
        """All windows of an epoch that are not empty, in order."""
        starts = self._epoch(int(key[0])).starts
        numbers = starts // window
        first = np.flatnonzero(np.diff(numbers, prepend=-1))  # the first block of each
        begins = starts[first]
        return Windows(numbers[first], begins, np.diff(begins, append=self.starts[-1]))

    def bounds(self, key: Keys, number: int, window: int) -> tuple[int, int]:
        windows = self._all_windows(key, window)
        place = int(np.searchsorted(windows.number, number))
        if place == len(windows.number) or windows.number[place] != number:
            return 0, 0  # a block of an earlier window covers it
        start = int(windows.start[place])
        return start, start + int(windows.size[place])


def _by_epoch(
    find: Callable[[Keys, Positions], Positions], keys: Keys, positions: Positions
) -> Positions:
    found = np.empty_like(positions)
    for key in np.unique(keys):
        chosen = np.flatnonzero(keys == key)
        found[chosen] = find(np.array([key], np.uint64), positions[chosen])
    return found


def shuffle_inside(
    inside: Positions, sizes: Positions, keys: Keys, *, undo: bool = False
) -> Positions:
    """Where each place in a window lands, or with ``undo`` what lands there.

    Windows may differ in size, and each has a key.
    """
    found = np.unique(sizes)
    if len(found) == 1:
        return permute(inside, int(found[0]), keys, undo=undo)
    out = np.empty_like(inside)
    for size in found.tolist():
        chosen = np.flatnonzero(sizes == size)
        out[chosen] = permute(inside[chosen], size, keys[chosen], undo=undo)
    return out
