"""The permutation behind Grain's shuffles, for one index and for many.

An index is encrypted (SIMON, few rounds, keys from C++'s ``std::seed_seq``) in a block of an even
number of bits, at least 16; a result beyond the length is encrypted again until it is below.
``2**16 + 1`` records (and ``2**18 + 1``, ...) do not fit their block: one record comes twice and
one never, as in Grain.

For a length far below ``2**16`` the walk is long.  `permutation` follows it for all 65,536 values
at once: composing the map with itself doubles the steps.  `Permutations` caches what is in use:
short permutations whole, long ones in blocks of consecutive positions.  Making a block for a single
index would cost a thousand times as much as that index alone.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.compat.grain.indices import Indices, Int64s, as_array

Words: TypeAlias = npt.NDArray[np.unsignedinteger]

ROUNDS = 4
_LEAST_BITS = 16
_DOUBLINGS = 6  # of the walk, before the rest of it is followed for the unfinished indices alone
_MASK = 0xFFFFFFFF


def index_shuffle(index: int, max_index: int, seed: int, rounds: int = ROUNDS) -> int:
    """The new place of an index from 0 to ``max_index``.

    >>> sorted(index_shuffle(i, max_index=4, seed=1) for i in range(5))
    [0, 1, 2, 3, 4]
    """
    if not 4 <= rounds <= 1024 or rounds % 2:
        raise ValueError(f"rounds must be an even integer between 4 and 1024, got {rounds}.")
    if not 0 <= index <= max_index:
        raise ValueError(
            f"index must be in [0, max_index], and max_index is {max_index}; got {index}."
        )
    if max_index == 0:
        return 0
    width, keys = word_bits(max_index), round_keys(seed & _MASK, rounds)
    while True:
        index = _encrypt_one(index, width, keys)
        if index <= max_index:
            return index


def permutation(seed: int, length: int) -> Int64s:
    """All of a permutation of at most 65,537 indices."""
    if length <= 1:
        return np.zeros(length, np.int64)
    if length > 1 << (_LEAST_BITS - 1):
        return shuffled(seed, length, np.arange(length, dtype=np.int64))
    step = _encrypted_16_bits(round_keys(seed & _MASK, ROUNDS))
    last = np.uint16(length - 1)
    walk = step
    for _ in range(min(_DOUBLINGS, _LEAST_BITS - length.bit_length())):
        walk = np.where(walk > last, walk.take(walk), walk)
    found = walk[:length].copy()
    unfinished = np.flatnonzero(found > last)
    while unfinished.size:
        moved = walk.take(found.take(unfinished))
        found[unfinished] = moved
        unfinished = unfinished[moved > last]
    return found.astype(np.int64)


def shuffled(seed: int, length: int, indices: Int64s) -> Int64s:
    """The new places of many indices below ``length``."""
    if length <= 1:
        return np.zeros(len(indices), np.int64)
    last, width = length - 1, word_bits(length - 1)
    keys = round_keys(seed & _MASK, ROUNDS)
    kind = np.uint32 if width <= 16 else np.uint64
    # Narrower first: an index of `2**16 + 1` records loses its highest bit in the cipher only.
    found = _encrypt_many(indices.astype(np.uint64), width, keys, kind)
    beyond = np.flatnonzero(found > last)
    while beyond.size:
        moved = _encrypt_many(found.take(beyond), width, keys, kind)
        found[beyond] = moved
        beyond = beyond[moved > last]
    return found.astype(np.int64)


def word_bits(max_index: int) -> int:
    """Half of the bits of a block."""
    bits = math.ceil(math.log2(float(max_index)))
    return max(bits + bits % 2, _LEAST_BITS) // 2


@functools.lru_cache(maxsize=64)
def round_keys(seed: int, rounds: int) -> tuple[int, ...]:
    """The numbers that C++'s ``std::seed_seq{seed}`` generates."""
    n = rounds
    x = [0x8B8B8B8B] * n
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    for k in range(n):
        r1 = 1664525 * _mixed(x[k] ^ x[(k + p) % n] ^ x[k - 1]) & _MASK
        r2 = r1 + (1 if k == 0 else k + seed if k == 1 else k)
        x[(k + p) % n] = (x[(k + p) % n] + r1) & _MASK
        x[(k + q) % n] = (x[(k + q) % n] + r2) & _MASK
        x[k] = r2 & _MASK
    for k in range(n):
        r3 = 1566083941 * _mixed((x[k] + x[(k + p) % n] + x[k - 1]) & _MASK) & _MASK
        r4 = (r3 - k) & _MASK
        x[(k + p) % n] ^= r3
        x[(k + q) % n] ^= r4
        x[k] = r4
    return tuple(x)


def _mixed(value: int) -> int:
    return value ^ value >> 27


def _encrypt_one(value: int, width: int, keys: tuple[int, ...]) -> int:
    mask = (1 << width) - 1
    left, right = value >> width & mask, value & mask
    for number in range(0, len(keys), 2):
        left ^= _feistel_one(right, width, mask) ^ keys[number] & mask
        right ^= _feistel_one(left, width, mask) ^ keys[number + 1] & mask
    return left << width | right


def _feistel_one(x: int, width: int, mask: int) -> int:
    by_1, by_8, by_2 = (x << n | x >> (width - n) for n in (1, 8, 2))
    return (by_1 & by_8 ^ by_2) & mask


def _encrypt_many(
    values: npt.NDArray[np.uint64],
    width: int,
    keys: tuple[int, ...],
    kind: type[np.unsignedinteger],
) -> npt.NDArray[np.uint64]:
    mask = kind((1 << width) - 1)
    left = (values >> np.uint64(width)).astype(kind) & mask
    right = values.astype(kind) & mask
    for number in range(0, len(keys), 2):
        left ^= _feistel(right, kind(width), mask) ^ kind(keys[number]) & mask
        right ^= _feistel(left, kind(width), mask) ^ kind(keys[number + 1]) & mask
    high, low = left.astype(np.uint64), right.astype(np.uint64)
    joined: npt.NDArray[np.uint64] = high << np.uint64(width) | low
    return joined


def _feistel(x: Words, width: np.unsignedinteger, mask: np.unsignedinteger) -> Words:
    kind = type(width)
    by_8 = x << kind(8) | x >> width - kind(8)
    by_2 = x << kind(2) | x >> width - kind(2)
    by_1 = x << kind(1) | x >> width - kind(1)
    mixed: Words = (by_1 & by_8 ^ by_2) & mask
    return mixed


def _encrypted_16_bits(keys: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    """All 65,536 blocks encrypted: two words of 8 bits each, so the rounds are tables."""
    word = np.arange(256, dtype=np.uint8)
    # A word of 8 bits, rotated by 8, is the word itself.
    table = (word << 1 | word >> 7) & word ^ (word << 2 | word >> 6)
    left = np.repeat(word, 256)
    right = np.tile(word, 256)
    for number in range(0, len(keys), 2):
        left ^= table.take(right) ^ np.uint8(keys[number] & 0xFF)
        right ^= table.take(left) ^ np.uint8(keys[number + 1] & 0xFF)
    return left.astype(np.uint16) << np.uint16(8) | right


_WHOLE = 65_537
_BLOCK = 16_384
_KEPT = 4


class Permutations:
    """Permutations by seed of the indices below ``length``."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._block = length if length <= _WHOLE else _BLOCK
        self._tables: dict[tuple[int, int], Int64s] = {}
        self._last = -2  # the last position that was read alone

    def __getstate__(self) -> int:
        return self._length

    def __setstate__(self, length: int) -> None:
        self.__init__(length)  # type: ignore[misc]

    def one(self, seed: int, position: int) -> int:
        """The new place of a position."""
        number, inside = divmod(position, self._block)
        table = self._tables.get((seed, number))
        if table is None:
            follows, self._last = position == self._last + 1, position
            # In a short permutation the walk of one index is long, so a table always pays.  In a
            # long one it pays if positions are read in order.
            if self._length > _WHOLE and not follows:
                return index_shuffle(position, self._length - 1, seed)
            table = self._table(seed, number)
        return int(table[inside])

    def many(self, seed: int, positions: Indices) -> Int64s:
        """The new places of many positions."""
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
                # Another thread may delete an entry at the same time.
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
