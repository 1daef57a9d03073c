"""Normalises pixels to floats, for batches, in memory that is used again.

``(x.astype(np.float32) - mean) / std`` makes three arrays, each four times as large as the bytes,
and each read back from main memory.  Here a block of pixels is converted, multiplied and shifted
while it is in the cache, and the result is written into the memory of a dropped batch.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.image.arguments import Numbers, numbers_of
from loaderx.image.leaves import Leaves
from loaderx.memory import Array, DType, empty

_BLOCK = 32_768  # numbers; with their factors and shifts they fit into the cache of a core

Floats: TypeAlias = npt.NDArray[np.float32]


def normalize(
    mean: npt.ArrayLike = 0.0, std: npt.ArrayLike = 1.0, *, key: str | None = "image"
) -> Normalize:
    """``(pixels - mean) / std`` of float32, in a `map` after `batch`.

    Mean and standard deviation are those of pixels from 0 to 1: uint8 is divided by 255 first, and
    uint16 by 65535.  Floats are taken as they are, so they should be from 0 to 1 already: numbers
    above 10 are refused, unless `mean` or `std` is above 1.  Other integers do not say which number
    is white, and are refused.  `loaderx.jax.image.normalize` does the same in JAX.

    >>> import numpy as np, loaderx as lx
    >>> images = lx.Dataset.from_arrays(image=np.zeros((8, 32, 32, 3), np.uint8)).batch(4)
    >>> normal = lx.image.normalize(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    >>> batch = images.map(normal)[0]
    >>> batch["image"].dtype, batch["image"].shape
    (dtype('float32'), (4, 32, 32, 3))

    Inside a function of your own, call it with an array:

    >>> normal(np.zeros((32, 32, 3), np.uint8)).dtype
    dtype('float32')

    Args:
        mean: a number, or one for each channel (the last axis).
        std: likewise.
        key: the leaf that holds the pixels; None if a batch is one array.
    """
    return Normalize(mean, std, key)


class Normalize:
    """The stage that `normalize` returns."""

    __name__ = "normalize"

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike, key: str | None) -> None:
        self.mean, self.std = numbers_of("mean", mean), numbers_of("std", std)
        self._leaves = Leaves(key)
        if not (self.std > 0).all():
            raise ArgumentError(f"`std` must be above 0, got {self.std.tolist()}.")
        channels = {self.mean.size, self.std.size} - {1}
        if len(channels) > 1:
            raise ArgumentError(
                f"`mean` is for {self.mean.size} channels and `std` for {self.std.size}."
            )
        self._channels = max(channels, default=1)
        self._cached: dict[float, tuple[Floats, Floats]] = {}

    def __reduce__(self) -> tuple[type[Normalize], tuple[Numbers, Numbers, str | None]]:
        return Normalize, (self.mean, self.std, self._leaves.key)

    def __repr__(self) -> str:
        return f"normalize(mean={self.mean.tolist()}, std={self.std.tolist()})"

    def map(self, batch: object) -> object:
        """The batch with its pixels normalised."""
        return self._leaves.changed(batch, lambda pixels: (self(pixels), None))

    def __call__(self, pixels: object, out: Floats | None = None) -> Floats:
        """The pixels normalised: in ``out``, or in memory of `loaderx.empty`."""
        pixels = np.asarray(pixels)
        self._check(pixels)
        made = empty(pixels.shape, np.float32) if out is None else _checked_out(out, pixels)
        source, target = pixels.reshape(-1), made.reshape(-1)
        factor, shift = self._blocks(largest_pixel(pixels.dtype))
        length = len(factor)
        for first in range(0, target.size, length):
            block = target[first : first + length]
            block[...] = source[first : first + length]  # `multiply` would convert more slowly
            block *= factor[: block.size]
            block += shift[: block.size]
        return made

    def _blocks(self, largest: float) -> tuple[Floats, Floats]:
        """Factor and shift of each number in a block."""
        if largest not in self._cached:
            blocks = np.empty((2, _BLOCK // self._channels or 1, self._channels), np.float32)
            blocks[0], blocks[1] = 1 / (largest * self.std), -self.mean / self.std
            factor, shift = blocks.reshape(2, -1)
            self._cached[largest] = factor, shift
        return self._cached[largest]

    def _check(self, pixels: Array) -> None:
        if pixels.dtype.kind not in "uifb":
            encoded = pixels.dtype.kind in "SO"
            advice = " Decode or resize images before: lx.image.resize(...)." if encoded else ""
            raise ArgumentTypeError(
                "`normalize` takes an array of integers or floats, got "
                f"{'bytes' if pixels.dtype.kind == 'S' else pixels.dtype}.{advice}"
            )
        if self._channels > 1 and pixels.shape[-1:] != (self._channels,):
            raise ArgumentError(
                f"{self!r} is for {self._channels} channels on the last axis, and the pixels have "
                f"shape {pixels.shape}."
            )
        largest = largest_pixel(pixels.dtype)
        if pixels.dtype.kind != "f" and abs(self.mean).max() > 1:
            raise ArgumentError(
                f"{self!r} got {pixels.dtype}, which is divided by {largest:.0f} first; "
                "so `mean` and `std` must be those of pixels from 0 to 1. Divide both by it."
            )
        if pixels.dtype.kind == "f" and pixels.size and is_for_one(self.mean, self.std):
            check_brightest(pixels.dtype, float(pixels.max()))


def largest_pixel(dtype: DType) -> float:
    """The value of white: the largest number of uint8 and uint16, and 1 for floats."""
    if dtype.kind not in "iu":
        return 1.0
    if dtype not in (np.uint8, np.uint16):
        raise ArgumentTypeError(
            f"`normalize` takes uint8, uint16 or floats, got {dtype}: that does not say which "
            "number is white. Write image.astype('uint8') for pixels from 0 to 255 ('uint16' up to "
            "65535), or divide by the largest number first."
        )
    return float(np.iinfo(dtype).max)


def is_for_one(mean: npt.ArrayLike, std: npt.ArrayLike) -> bool:
    """Whether mean and standard deviation can be those of pixels from 0 to 1."""
    return bool(np.abs(np.asarray(mean)).max() <= 1 and np.asarray(std).max() <= 1)


def check_brightest(dtype: object, brightest: float) -> None:
    """Refuses floats that were not divided.

    Pixels from 0 to 1 stay below 10 even after strong augmentation, and an image from 0 to 255
    without any pixel above 10 would be all black.
    """
    if brightest > 10:
        raise ArgumentError(
            f"`normalize` takes {dtype} as it is, so pixels must be from 0 to 1, and one of them "
            f"is {brightest:.6g}. Divide them by 255 first, or hand it the uint8 image, which it "
            "divides; or give the `mean` and `std` of pixels up to 255."
        )


def _checked_out(out: Floats, pixels: Array) -> Floats:
    if out.shape != pixels.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ArgumentError(
            f"`out` must be a contiguous array of float32 of shape {pixels.shape}, got "
            f"{out.dtype} of shape {out.shape}."
        )
    return out
