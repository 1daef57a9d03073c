"""Decoders for values that only TFDS stores: encoded tensors and images, sequences, nested lists.

A sequence of values that have one shape is an array with one more axis.  Sequences in sequences are
lists of arrays, as in `tfds.data_source`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError
from loaderx.sources.decoding import image_decoder
from loaderx.sources.files.unpacking import inflated, most_unpacked
from loaderx.sources.formats.tf.decoders import (
    NO_FILL,
    Bytes,
    Decoder,
    Leaves,
    check_not_damaged,
    shaped,
)
from loaderx.sources.formats.tf.example import BYTES, INT64
from loaderx.sources.formats.tf.leaves import lists
from loaderx.sources.images import decode_image, decode_stored
from loaderx.tree import Array, ArraySpec

Shape = tuple[int | None, ...]


class DecodeValue(Protocol):
    """Makes a value of bytes."""

    shape: Shape
    dtype: np.dtype[np.generic]

    def __call__(self, data: bytes) -> object: ...


# Values -----------------------------------------------------------------------------------------


class DecodeText:
    """Text in UTF-8."""

    shape: Shape = ()
    dtype: np.dtype[np.generic] = np.dtype(object)

    def __call__(self, data: bytes) -> object:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRecordError(f"it is not text in UTF-8 ({error})") from error


class DecodeTensor:
    """The bytes of an array's elements, perhaps compressed with zlib."""

    def __init__(self, shape: Shape, dtype: np.dtype[np.generic], is_zlib: bool) -> None:
        self.shape, self.dtype, self.is_zlib = shape, dtype, is_zlib

    def __call__(self, data: bytes) -> object:
        return self.with_shape(data, self.shape)

    def with_shape(self, data: bytes, shape: Shape) -> Array:
        """The array of one record, where each has a shape of its own."""
        if self.is_zlib:
            try:
                data = self._unpacked(data, shape)
            except (zlib.error, EOFError, FileError) as error:
                raise BadRecordError(f"it is compressed, and damaged ({error})") from error
        if len(data) % self.dtype.itemsize:
            raise BadRecordError(f"{len(data)} bytes are not an array of {self.dtype}")
        return shaped("a tensor", np.frombuffer(data, self.dtype), shape)

    def _unpacked(self, data: bytes, shape: Shape) -> bytes:
        axes = [axis for axis in shape if axis is not None]
        if len(axes) < len(shape):
            return inflated(data, most_unpacked(len(data)))
        return inflated(data, math.prod(axes) * self.dtype.itemsize)


class DecodeImage:
    """Images of any format; 16 bits and floats as TFDS stores them in PNG."""

    def __init__(
        self, shape: Shape, dtype: np.dtype[np.generic], way: bool | str | None = None
    ) -> None:
        self.shape, self.dtype = shape, dtype
        channels = shape[-1] if shape[-1] in (1, 3, 4) else None
        self._decode = None if way is None else image_decoder(way, channels)

    def by(self, way: bool | str) -> DecodeImage:
        """It for a way of decoding, which needs the decoders to be installed."""
        return DecodeImage(self.shape, self.dtype, way)

    def __call__(self, data: bytes) -> object:
        pixels: Array
        if self.dtype == np.float32:  # its four bytes are the four channels
            pixels = np.ascontiguousarray(decode_image(data, channels=4)).view(np.float32)
        elif self.dtype == np.uint16:
            pixels = _deep_gray(data)
        else:
            assert self._decode is not None
            pixels = self._decode(data)
        if pixels.dtype != self.dtype:
            raise BadRecordError(f"an image of {pixels.dtype} instead of {self.dtype}")
        for axis, has in zip(self.shape, pixels.shape, strict=True):
            if axis not in (None, has):
                raise BadRecordError(f"an image of {pixels.shape} pixels instead of {self.shape}")
        return pixels


def _deep_gray(data: bytes) -> Array:
    """A gray image of 16 bits."""
    pixels = decode_stored(data)
    if pixels.shape[-1] != 1 or pixels.dtype.kind not in "ui":
        raise BadRecordError("an image of several channels instead of one of 16 bits")
    if pixels.dtype == np.uint8:
        pixels = pixels.astype(np.uint16) * 257
    return pixels.astype(np.uint16)


# Decoders ---------------------------------------------------------------------------------------


class Decoded(Bytes):
    """One value for each record, made of its bytes."""

    def __init__(self, name: str, decode: DecodeValue, fill: object = NO_FILL) -> None:
        super().__init__(name, fill)
        self._decode = decode

    @property
    def spec(self) -> ArraySpec | None:
        shape = self._decode.shape
        return None if None in shape else ArraySpec(shape, self._decode.dtype)

    def take(self, leaves: Leaves, out: Array) -> None:
        for number, value in enumerate(self.values(leaves)):
            out[number] = value

    def value(self, data: bytes) -> object:
        try:
            return self._decode(data)
        except BadRecordError as error:
            raise BadRecordError(f"{self.name!r}: {error}") from error


class DecodedSequence(Decoder):
    """Several values for each record, each made of its own bytes; they are stacked."""

    def __init__(self, name: str, decode: DecodeValue, length: int | None) -> None:
        self.name, self.features, self._decode, self._length = name, (name,), decode, length

    @property
    def spec(self) -> ArraySpec | None:
        shape = (self._length, *self._decode.shape)
        return None if None in shape else ArraySpec(shape, self._decode.dtype)

    def values(self, leaves: Leaves) -> Sequence[object]:
        leaf = leaves[self.name]
        check_not_damaged(leaf)
        return [self._stacked(one.tolist()) for one in lists(leaf, BYTES)]

    def _stacked(self, found: list[bytes]) -> Array:
        if self._length not in (None, len(found)):
            raise BadRecordError(f"{self.name!r} has {len(found)} values, not {self._length}")
        return stacked(self.name, list(map(self._decode, found)), self._decode)


def stacked(name: str, values: list[object], decode: DecodeValue) -> Array:
    """Values of one shape as one array."""
    if decode.dtype == np.dtype(object):
        found = np.empty(len(values), object)
        found[:] = values
        return found
    if not values:
        return np.empty((0, *(axis or 0 for axis in decode.shape)), decode.dtype)
    arrays = [np.asarray(value) for value in values]
    if any(one.shape != arrays[0].shape for one in arrays):
        shapes = sorted({one.shape for one in arrays})
        raise BadRecordError(f"{name!r} is a sequence of arrays of different shapes, {shapes}")
    return np.stack(arrays)


class Dynamic(Decoder):
    """Tensors of which more than one axis is open: each has its shape beside it."""

    def __init__(self, name: str, decode: DecodeTensor, is_sequence: bool) -> None:
        self.name, self._decode, self._is_sequence = name, decode, is_sequence
        self._shape, self._value = f"{name}/shape", f"{name}/value"
        self.features = (self._shape, self._value)

    def values(self, leaves: Leaves) -> Sequence[object]:
        for name in self.features:
            check_not_damaged(leaves[name])
        shapes, values = lists(leaves[self._shape], INT64), lists(leaves[self._value], BYTES)
        return [self._one(*pair) for pair in zip(shapes, values, strict=True)]

    def _one(self, shape: Array, values: Array) -> object:
        axes = len(self._decode.shape)
        if len(shape) != axes * len(values) or not (self._is_sequence or len(values) == 1):
            raise BadRecordError(f"{self.name!r} has {len(values)} values and {len(shape)} axes")
        found = [
            self._tensor(one, value)
            for one, value in zip(shape.reshape(-1, axes).tolist(), values.tolist(), strict=True)
        ]
        return stacked(self.name, list(found), self._decode) if self._is_sequence else found[0]

    def _tensor(self, shape: list[int], data: bytes) -> Array:
        for axis, want in zip(shape, self._decode.shape, strict=True):
            if axis < 0 or want not in (None, axis):
                raise BadRecordError(f"{self.name!r} has the shape {shape}")
        return self._decode.with_shape(data, tuple(shape))


class Nested(Decoder):
    """Sequences in sequences: lists of arrays."""

    def __init__(
        self,
        name: str,
        kind: int,
        lengths: tuple[int | None, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        decode: DecodeValue | None,
    ) -> None:
        self.name, self._kind, self._lengths = name, kind, lengths
        self._shape, self._dtype, self._decode = shape, dtype, decode
        self._flat = f"{name}/ragged_flat_values"
        self._rows = [f"{name}/ragged_row_lengths_{k}" for k in range(len(lengths) - 1)]
        self.features = (self._flat, *self._rows)

    def values(self, leaves: Leaves) -> Sequence[object]:
        for name in self.features:
            check_not_damaged(leaves[name])
        flat = lists(leaves[self._flat], self._kind)
        lengths = [lists(leaves[name], INT64) for name in self._rows]
        return [self._one(*each) for each in zip(flat, *lengths, strict=True)]

    def _one(self, flat: Array, *lengths: Array) -> object:
        found: Array | list[object]
        if self._decode is not None:
            decoded: list[object] = list(map(self._decode, flat.tolist()))
            found = stacked(self.name, decoded, self._decode)
        elif self._kind == BYTES:
            found = flat
        else:
            found = shaped(self.name, flat.astype(self._dtype, copy=False), (None, *self._shape))
        for rows in reversed(lengths):
            if (rows < 0).any() or int(rows.sum()) != len(found):
                raise BadRecordError(f"the lengths of the lists in {self.name!r} are wrong")
            stops = np.cumsum(rows).tolist()
            found = [
                found[stop - row : stop] for stop, row in zip(stops, rows.tolist(), strict=True)
            ]
        return list(found)
