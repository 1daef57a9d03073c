"""Random permutations that take no memory: position in, position out, for any length.

Up to 1,024 records the order is an argsort of hashed keys.  Above that it is a Feistel network.  A
position is written as (high, low), with low a power of two near the root of the length and ``high <
a``, the fewest that cover it.  In turn, low is XORed with a hash of high, and a hash of low is
added to high modulo ``a``.  Each round can be undone, so the whole is a permutation of a * 2**low
positions, hardly more than there are records; the few results beyond the length are sent through
again ("cycle walking") until they fall inside.  Short lengths use short words: half the bytes take
half the time.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from loaderx.rng import Keys, mix64

VERSION = 3  # of the order: part of every saved state, raised when any order changes
ROUNDS = 6  # 4 are measurably biased
_SMALL = 1024  # up to this length the order is an argsort
_FEW = 6
_GOLDEN = np.array([0x9E3779B97F4A7C15], np.uint64)
_STEPS = np.arange(1, 4 * ROUNDS, 2, dtype=np.uint64)[:, None] * np.array(
    [0xD1342543DE82EF95], np.uint64
)

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Word: TypeAlias = type[np.uint16] | type[np.uint32] | type[np.uint64]
Words: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]


def permute(positions: Positions, length: int, keys: Keys, *, undo: bool = False) -> Positions:
    """Where each position lands in the order that its key names; with ``undo``, what lands there.

    ``keys`` has one entry per position, or a single one for all.
    """
    if length <= 1:
        return positions
    if keys.size > 1:
        borders = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        if borders.size <= _FEW:  # long runs of one key: each is cheaper alone
            ends = [0, *borders.tolist(), len(keys)]
            return np.concatenate(
                [
                    permute(positions[start:stop], length, keys[start : start + 1], undo=undo)
                    for start, stop in pairwise(ends)
                ]
            )
    if length <= _SMALL:
        return _by_sorting(positions, length, keys, undo)
    return _by_feistel(positions, length, keys, undo)


def _by_sorting(positions: Positions, length: int, keys: Keys, undo: bool) -> Positions:
    counter = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
    if keys.size == 1:
        order = np.argsort(mix64(counter + keys), kind="stable")
        return (np.argsort(order) if undo else order)[positions]
    out = np.empty_like(positions)
    unique, which = np.unique(keys, return_inverse=True)
    at_once = max(1, (1 << 18) // length)  # orders made at once: bounds the memory
    for start in range(0, len(unique), at_once):
        orders = np.argsort(mix64(unique[start : start + at_once, None] + counter), axis=1)
        if undo:
            orders = np.argsort(orders, axis=1)
        mine = np.flatnonzero((which >= start) & (which < start + at_once))
        out[mine] = orders[which[mine] - start, positions[mine]]
    return out


def _by_feistel(positions: Positions, length: int, keys: Keys, undo: bool) -> Positions:
    kind = _word(length)
    rounds = _rounds(keys, kind)
    out = _encrypt(positions.astype(kind), length, rounds, kind, undo)
    outside = np.flatnonzero(out >= length)
    if outside.size and keys.size == 1 and length <= 1 << 24 and not undo:
        out[outside] = _landing(length, int(keys[0]))[out[outside] - length]
    else:
        _walk(out, outside, length, rounds, kind, undo)
    return out.astype(np.int64)


def _word(length: int) -> Word:
    """The shortest word that holds the products of `_encrypt`."""
    return np.uint16 if length <= 1 << 16 else np.uint32 if length <= 1 << 24 else np.uint64


def _rounds(keys: Keys, kind: Word) -> Words:
    """The keys of all rounds: two per round, the high bits of hashed words."""
    words = mix64(keys + _STEPS)
    return (words >> np.uint64(64 - 8 * np.dtype(kind).itemsize)).astype(kind)


def _walk(
    out: Words, outside: Positions, length: int, rounds: Words, kind: Word, undo: bool
) -> None:
    """Sends positions beyond the length through again, until they are inside."""
    while outside.size:
        part = rounds if rounds.shape[1] == 1 else rounds[:, outside]
        again = _encrypt(out[outside], length, part, kind, undo)
        out[outside] = again
        outside = outside[again >= length]


@lru_cache(maxsize=8)
def _landing(length: int, key: int) -> Words:
    """Where the few positions beyond the length end up: at most 4,096, the same for all blocks."""
    low_bits = (length - 1).bit_length() // 2
    kind = _word(length)
    begun = np.arange(length, -(-length >> low_bits) << low_bits, dtype=kind)
    out = begun.copy()
    rounds = _rounds(np.array([key], np.uint64), kind)
    outside = np.arange(len(out))
    while outside.size:
        again = _encrypt(out[outside], length, rounds, kind)
        out[outside] = again
        # Positions that form a cycle beyond the length are never reached from inside.
        outside = outside[(again >= length) & (again != begun[outside])]
    return out


def _encrypt(values: Words, length: int, keys: Words, kind: Word, undo: bool = False) -> Words:
    """One pass of the network, or with ``undo`` one pass back; overwrites ``values``."""
    low_bits = (length - 1).bit_length() // 2
    highs = kind(-(-length >> low_bits))
    half_width = kind(4 * values.itemsize)
    to_low = kind(8 * values.itemsize - low_bits)
    high: Words = values >> kind(low_bits)
    low = np.bitwise_and(values, kind((1 << low_bits) - 1), out=values)
    hashed, scratch = np.empty_like(low), np.empty_like(low)
    rounds = range(0, 2 * ROUNDS, 2)
    for number in reversed(rounds) if undo else rounds:
        is_even = number % 4 == 0
        _hash(high if is_even else low, keys[number], keys[number + 1], hashed, scratch)
        if is_even:
            hashed >>= to_low
            low ^= hashed
            continue
        hashed >>= half_width  # scaled into 0 ... highs - 1, and added modulo highs
        hashed *= highs
        hashed >>= half_width
        if undo:
            np.subtract(highs, hashed, out=hashed)
        high += hashed
        np.subtract(high, highs, out=scratch)  # wraps to a huge number where it was smaller
        np.minimum(high, scratch, out=high)
    high <<= kind(low_bits)
    high |= low
    return high


def _hash(half: Words, key: Words, other_key: Words, out: Words, scratch: Words) -> None:
    """(half + key) * (half XOR other_key): a hash whose *high* bits are good."""
    np.add(half, key, out=scratch)
    np.bitwise_xor(half, other_key, out=out)
    out *= scratch


def another(drawn: Keys, positions: Positions, length: int) -> Positions:
    """For each position another one of ``length``, by a random number."""
    away = (drawn % np.uint64(length - 1)).astype(np.int64) + 1
    return (positions + away) % length
