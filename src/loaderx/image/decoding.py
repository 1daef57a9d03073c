"""An image as records hold it: bytes of a file, or pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderx.errors import ArgumentTypeError, check_bool
from loaderx.sources.images import (
    Part,
    Pixels,
    WindowOf,
    decode_image,
    decode_stored,
    decode_turned,
    decode_window,
    pixels_in,
)
from loaderx.tree import Array

_BYTES = (bytes, bytearray, memoryview)
_MOST_CHANNELS = 4


def decode(data: bytes, *, channels: int | None = 3, exif: bool = False) -> Pixels:
    """The pixels of an encoded image, ``uint8[height, width, channels]``.

    >>> import io, loaderx as lx
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (4, 2), 255).save(file, "PNG")
    >>> lx.image.decode(file.getvalue()).shape
    (2, 4, 3)

    Args:
        data: the bytes of an image file.
        channels: 1, 3 or 4 gives gray, RGB or RGBA; None leaves what the file has.
        exif: True turns the image upright, as its EXIF orientation says.  Everything else in
            loaderx leaves pixels where they lie in the file, as torchvision and TensorFlow do.
    """
    if not isinstance(data, _BYTES):
        raise ArgumentTypeError(
            f"`decode` takes the bytes of an image file, got {described(data)}."
        )
    if check_bool("exif", exif):
        return decode_turned(bytes(data), channels=channels)
    return decode_image(bytes(data), channels=channels)


def open_window(value: object, channels: int, window_of: WindowOf) -> Part:
    """The part of a leaf's image that ``window_of`` asks for.

    Args:
        value: the bytes of an image file, or pixels of 1 to 4 channels.
        channels: those that a file is decoded to; pixels are left as they are.
        window_of: the part, and how much smaller it may be decoded; only JPEGs can be.
    """
    data = _file_in(value)
    if data is not None:
        return decode_window(data, channels, window_of)
    pixels = np.asarray(value)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if not _is_image(pixels):
        raise ArgumentTypeError(
            f"an image is the bytes of its file, or uint8[height, width, channels] with 1 to 4 "
            f"channels; this one is {described(value)}.{_advice(value)}"
        )
    return pixels_in(window_of(pixels.shape[0], pixels.shape[1], False), pixels)


def _file_in(value: object) -> bytes | None:
    """The bytes of an image file; None if the value is something else."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8:
        return value.tobytes()  # as some formats have it
    return bytes(value) if isinstance(value, _BYTES) else None


def mask_of(name: str, value: object) -> Array:
    """A mask as its file or array has it: 16 bits and floats stay, a palette's indices, too."""
    data = _file_in(value)
    return array_of(value, f"the mask {name!r}") if data is None else decode_stored(data)


def array_of(value: object, what: str = "the image") -> Array:
    """Pixels that are decoded already, of any dtype of numbers."""
    pixels = np.asarray(value)
    if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "biuf" or not pixels.size:
        advice = _advice(value)
        if _file_in(value) is not None:
            advice = " Put this stage after a crop, or after a .map() with lx.image.decode."
        raise ArgumentTypeError(
            f"{what} must be an array [height, width] or [height, width, channels] here, and is "
            f"{described(value)}.{advice}"
        )
    return pixels


def colours_of(value: object, dtypes: Sequence[str]) -> tuple[Array, int]:
    """Gray or RGB pixels of these dtypes (in any order of bytes), and their channels."""
    pixels = array_of(value)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if channels not in (1, 3) or pixels.dtype.str[1:] not in dtypes:
        takes = "uint8, uint16, or floats from 0 to 1" if "f4" in dtypes else "uint8"
        raise ArgumentTypeError(
            f"this stage takes gray or RGB images of {takes}, got {described(value)}. Put it "
            "before the stage that makes other numbers of them."
        )
    return pixels, channels


def _is_image(pixels: Array) -> bool:
    fits = pixels.ndim == 3 and 1 <= pixels.shape[-1] <= _MOST_CHANNELS
    return fits and pixels.dtype == np.uint8 and pixels.size > 0


def described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return f"{repr(value)[:60]} ({type(value).__name__})"


def _advice(value: object) -> str:
    if isinstance(value, str):
        return " If it is a path, read the file in a .map() before: Path(path).read_bytes()."
    if isinstance(value, np.ndarray) and (value.ndim == 4 or value.dtype == object):
        return " Put the stage before .batch(...): it works on records."
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return " Crop the bytes, and make floats of them after it."
    return ""
