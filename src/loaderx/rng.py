"""Addressed randomness: a draw is a hash of the place where it is used, not of earlier draws.

Keys are arrays of uint64, one per row (or one for all rows, shape ``(1,)``).  Two ingredients:

``mix64``
    The SplitMix64 finaliser, a bijection on 64 bits in which every input bit reaches every output
    bit.
``fold``
    A key and a number make a new key.  Each use has its own ``tag``, so that the keys of epochs,
    rows and shuffles never collide, and neither do keys like ``seed + index``.

Keys stay in arrays because NumPy *scalar* uint64 arithmetic warns on overflow.  Users get one of
two generators: a `numpy.random.Generator` per record, or a `BatchGenerator`, which gives one draw
per record of a batch in one vectorised call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, check_int

if TYPE_CHECKING:
    import numpy.typing as npt
    from numpy.random import PCG64, Generator

Numbers: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]
Bound: TypeAlias = float | Numbers
Keys: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Keys32: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]
Size: TypeAlias = SupportsIndex | Sequence[SupportsIndex | EllipsisType] | None
"""The shape of one record's draw; a leading ``...`` stands for the records."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_U64 = np.array([_GOLDEN], np.uint64)
_MUL1 = np.array([0xBF58476D1CE4E5B9], np.uint64)
_MUL2 = np.array([0x94D049BB133111EB], np.uint64)
_S27, _S30, _S31 = (np.array([shift], np.uint64) for shift in (27, 30, 31))

EPOCH, ROW, BRANCH, STAGE, ORDER, PART, REPLACE, CHILD, PIECE, MANY, BLOCK = (
    0xA5A5_0000_0000_0000 + tag for tag in range(1, 12)
)
FEW = 128  # numbers that a record draws at once by hashing; NumPy's own generators make more
ROOT: Keys = np.zeros(1, np.uint64)
ROOT.flags.writeable = False


def mix64(keys: Keys) -> Keys:
    """The SplitMix64 finaliser, in place; returns its argument."""
    scratch = keys >> _S30
    keys ^= scratch
    keys *= _MUL1
    np.right_shift(keys, _S27, out=scratch)
    keys ^= scratch
    keys *= _MUL2
    np.right_shift(keys, _S31, out=scratch)
    keys ^= scratch
    return keys


def mix_int(value: int) -> int:
    """`mix64` of one Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def fold_int(key: int, value: int, tag: int) -> int:
    """`fold` of Python integers."""
    return mix_int(mix_int(key ^ tag) + _GOLDEN * ((value + 1) & _MASK))


def fold(keys: Keys, values: Numbers, tag: int) -> Keys:
    """New keys from keys and numbers; both may have one entry that stands for every row."""
    if keys.size == 1 and values.size == 1:  # Python is ten times as fast as NumPy on one number
        return np.array([fold_int(int(keys[0]), int(values[0]), tag)], np.uint64)
    head = mix64(keys ^ np.array([tag], np.uint64))
    tail = (values.astype(np.uint64) + np.array([1], np.uint64)) * _GOLDEN_U64
    return mix64(tail + head)


def stage_keys(rows: Keys, seed: int, ordinal: int) -> Keys:
    """The keys of one random stage, from the keys of its rows."""
    return fold(rows, np.array([fold_int(seed, ordinal, STAGE)], np.uint64), STAGE)


def key_words(keys: Keys, count: int) -> Keys:
    """``count`` random words per key, shape ``(n, count)``."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN_U64
    return mix64(keys[:, None] + steps)


class _Words:
    """A seed sequence of random words, which go to the bit generator unchanged."""

    __slots__ = ("words",)

    def __init__(self, words: Keys) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> Numbers:
        if n_words == len(self.words) and np.dtype(dtype) == np.uint64:
            return self.words
        more: Numbers = key_words(self.words[:1].copy(), n_words)[0].astype(dtype)
        return more


@cache
def _parts() -> tuple[type[Generator], type[PCG64]]:
    """NumPy's generator classes, imported when they are first needed: that takes a while."""
    from numpy.random import PCG64, Generator
    from numpy.random.bit_generator import ISeedSequence

    ISeedSequence.register(_Words)
    return Generator, PCG64


def record_generators(keys: Keys) -> Iterator[np.random.Generator]:
    """One `numpy.random.Generator` per key."""
    generator, pcg = _parts()
    for words in key_words(keys, 4):
        # `_Words` is registered as a seed sequence, which type checkers do not see.
        yield generator(pcg(_Words(words)))  # type: ignore[arg-type]


class BatchGenerator:
    """Random numbers for a batch: each call gives every record one independent draw.

    `size` is the shape of the draw of *one* record, so results have shape ``(records, *size)``.
    A record's numbers depend on its own key and on how many numbers it has drawn here before, not
    on the batch that it is in.  Floats are float32, so that a float32 image stays one: for float64
    write ``dtype=np.float64``.  (The `numpy.random.Generator` of a single record gives NumPy's
    float64.)

    >>> rng = BatchGenerator(np.arange(4, dtype=np.uint64))
    >>> rng.random().shape, rng.integers(0, 5, size=2).shape
    ((4,), (4, 2))

    With NumPy one would write ``size=x.shape``, or ``size=len(x)``.  Here that would be a draw of
    shape ``(records, records, ...)``, so a size that begins with the number of records is an error.
    It is not taken for the whole shape, since a size of 32 would then mean something else in a
    batch of 32, in a short last batch, or on two hosts.  A leading ``...`` stands for the records
    and is never ambiguous: 4 by 4 numbers for each of 4 records are

    >>> rng.random(size=(..., 4, 4)).shape
    (4, 4, 4)

    A short last batch is not checked, so that a constant size does not fail at the end of an epoch.
    Nor are runs of records whose number varies (``batched=True`` in a stream or a mix), which would
    equal a constant by chance, nor a single record, where both meanings of a size that begins with
    1 differ only by an axis of length 1.
    """

    __slots__ = ("_drawn", "_full", "_generators", "_keys")

    def __init__(self, keys: Keys, full: int | None = 0) -> None:
        self._keys = keys
        self._full = full  # rows of a full batch; None: the number varies
        self._drawn = 0
        self._generators: list[np.random.Generator] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"BatchGenerator({len(self)} records)"

    if not TYPE_CHECKING:  # a type checker would believe that every name exists

        def __getattr__(self, name):
            offered = "random, uniform, integers, standard_normal and normal"
            raise AttributeError(
                f"the generator of a batch has no {name!r}. It offers {offered}, one draw per "
                "record; before .batch(...), random_map gets a full numpy.random.Generator."
            )

    def _shape(self, size: Size) -> tuple[int, ...]:
        """The shape of one record's draw."""
        if size is None:
            return ()
        axes: list[object] = list(size) if isinstance(size, (tuple, list)) else [size]
        explicit = isinstance(size, (tuple, list)) and axes[:1] == [...]
        shape = tuple(check_int("size", axis, least=0) for axis in axes[explicit:])
        # Not in a short batch: size=2 must not fail at the end of an epoch of 1002 records.
        is_full = self._full is not None and len(self) >= max(2, self._full)
        if is_full and not explicit and shape and shape[0] == len(self):
            rest = f"write size={shape[1:]}" if shape[1:] else "leave `size` out"
            raise ArgumentError(
                f"`size` is the shape of one record's draw: size={shape} for {len(self)} records "
                f"would give numbers of shape {(len(self), *shape)}. If its first length counts "
                f"the records, {rest}, since they come first by themselves. If each record needs "
                f"numbers of shape {shape}, write size=(..., {str(shape)[1:-1].rstrip(',')})."
            )
        return shape

    @property
    def full_rows(self) -> int:
        """The rows of a full batch; where that varies, the next power of two."""
        if self._full is None:
            return 1 << (len(self) - 1).bit_length() if len(self) else 0
        return max(self._full, len(self))

    def key_data(self) -> Keys32:
        """Key data for `jax.random.wrap_key_data`, shape ``(records, 2)``.

        `Dataset.random_keys` in the same place gives the same.
        """
        return key_words(self._keys, 1).view(np.uint32)

    def generators(self) -> list[np.random.Generator]:
        """A generator for each record, the one that it has before `batch`: each goes on by itself.

        They take some microseconds to make, so `random` and the others are for many small records.
        """
        self._generators = self._generators or list(record_generators(self._keys))
        return self._generators

    def _take(self, size: Size) -> tuple[tuple[int, ...], int]:
        """The shape of one record's draw, and how many numbers it has drawn before."""
        shape, before = self._shape(size), self._drawn
        self._drawn += math.prod(shape)
        return shape, before

    def _words(self, shape: tuple[int, ...], before: int) -> Keys:
        counters = np.arange(before + 1, before + math.prod(shape) + 1, dtype=np.uint64)
        words = mix64(self._keys[:, None] + counters * _GOLDEN_U64)
        return words.reshape(len(self._keys), *shape)

    def _rows(self, out: Numbers, before: int) -> Iterator[tuple[np.random.Generator, Numbers]]:
        """The place of every record in ``out``, and a generator of its own to fill it."""
        keys = fold(self._keys, np.array([before]), MANY)
        return zip(record_generators(keys), out, strict=True)

    def _out(self, shape: tuple[int, ...], dtype: npt.DTypeLike, out: Numbers | None) -> Numbers:
        """``out``, checked, or a new array."""
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float64):
            raise ArgumentError(f"`dtype` must be float32 or float64, got {kind}.")
        whole = (len(self), *shape)
        if out is None:
            return np.empty(whole, kind)
        if out.dtype != kind or out.shape != whole or not out.flags.c_contiguous:
            raise ArgumentError(
                f"`out` must be a contiguous array of {kind} and of shape {whole}; it is of "
                f"{out.dtype} and of shape {out.shape}."
            )
        return out

    def random(
        self, size: Size = (), dtype: npt.DTypeLike = np.float32, out: Numbers | None = None
    ) -> Numbers:
        """Uniform floats in [0, 1)."""
        shape, before = self._take(size)
        made = self._out(shape, dtype, out)
        if math.prod(shape) > FEW:
            for generator, row in self._rows(made, before):
                generator.random(dtype=made.dtype.type, out=row)
        else:
            bits = 24 if made.dtype == np.float32 else 53
            words = self._words(shape, before)
            words >>= np.uint64(64 - bits)
            np.multiply(words, made.dtype.type(2.0**-bits), out=made, casting="unsafe")
        return made

    def uniform(
        self,
        low: Bound = 0.0,
        high: Bound = 1.0,
        size: Size = (),
        dtype: npt.DTypeLike = np.float32,
    ) -> Numbers:
        """Uniform floats in [low, high)."""
        draws = self.random(size, dtype)
        _check_bounds("`low` and `high`", low, high, draws.shape)
        draws *= np.asarray(np.subtract(high, low), draws.dtype)
        draws += np.asarray(low, draws.dtype)
        if np.all(np.less(low, high)):  # sums are rounded, sometimes up to `high`
            least, most = np.asarray(low, draws.dtype), np.asarray(high, draws.dtype)
            np.minimum(draws, np.nextafter(most, least), out=draws)
        return draws

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Size = (),
        dtype: npt.DTypeLike = np.int64,
    ) -> Numbers:
        """Integers in [low, high), or in [0, low)."""
        low = check_int("low", low)
        low, high = (0, low) if high is None else (low, check_int("high", high))
        span = high - low
        if not 0 < span <= 1 << 32:
            raise ArgumentError(
                f"`integers` needs low < high and a range of at most 2**32, got [{low}, {high})."
            )
        limits = np.iinfo(dtype)
        if low < limits.min or high - 1 > limits.max:
            raise ArgumentError(f"[{low}, {high}) does not fit into {np.dtype(dtype)}.")
        shape, before = self._take(size)
        if math.prod(shape) > FEW:
            made = np.empty((len(self), *shape), dtype)
            for generator, row in self._rows(made, before):
                row[...] = generator.integers(low, high, shape, made.dtype.type)
            return made
        words = self._words(shape, before) >> np.uint64(32)
        words *= np.uint64(span)
        words >>= np.uint64(32)
        return (words.astype(np.int64) + low).astype(dtype)

    def standard_normal(
        self, size: Size = (), dtype: npt.DTypeLike = np.float32, out: Numbers | None = None
    ) -> Numbers:
        """Normal floats of mean 0 and deviation 1."""
        shape, before = self._take(size)
        made = self._out(shape, dtype, out)
        if math.prod(shape) > FEW:
            for generator, row in self._rows(made, before):
                generator.standard_normal(dtype=made.dtype.type, out=row)
            return made
        self._drawn = before
        uniform, other = self.random(size, np.float64), self.random(size, np.float64)
        radius = np.sqrt(-2.0 * np.log1p(-uniform))  # Box-Muller: two uniform numbers make one
        np.multiply(radius, np.cos(2.0 * np.pi * other), out=made, casting="unsafe")
        return made

    def normal(
        self,
        loc: Bound = 0.0,
        scale: Bound = 1.0,
        size: Size = (),
        dtype: npt.DTypeLike = np.float32,
    ) -> Numbers:
        """Normal floats of mean ``loc`` and deviation ``scale``."""
        draws = self.standard_normal(size, dtype)
        _check_bounds("`loc` and `scale`", loc, scale, draws.shape)
        draws *= np.asarray(scale, draws.dtype)
        draws += np.asarray(loc, draws.dtype)
        return draws


def _check_bounds(names: str, one: Bound, other: Bound, shape: tuple[int, ...]) -> None:
    """Arrays must not broadcast the draws to another shape, or draws would be used twice."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return
    shapes = np.shape(one), np.shape(other)
    try:
        fits = np.broadcast_shapes(*shapes, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"{names} of shapes {shapes[0]} and {shapes[1]} do not fit draws of shape {shape}. "
            "Draw with numbers, or say the shape of one record's draw in `size`."
        )
