"""Decodes images to arrays, for all file formats: uint8[height, width, channels].

Pillow (the extra ``images``) reads every format that it knows.  JPEGs go through simplejpeg if it
is installed, which is faster and gives the same pixels.  The rules:

- gray images have one channel, colour images three, and an alpha channel is kept: 1 to 4 channels;
- palettes become RGB, or RGBA if one of their colours is transparent; CMYK and others become RGB;
- 16-bit numbers keep their upper eight bits; images of 32-bit numbers or floats are refused
  (`decode_stored` keeps palettes and all bits);
- an animation gives its first image;
- images are not rotated, whatever EXIF says, as in torchvision and TensorFlow; `decode_turned`
  does rotate them;
- a truncated JPEG is an error, where libjpeg would fill the rest with gray;
- an image has no more pixels than `most_pixels` allows.

`decode_window` decodes JPEGs at a half, a quarter or an eighth of their size, which takes less
time: most coefficients of a block are not transformed.  With simplejpeg, rows below the window are
not read either, so damage there goes unnoticed.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from loaderx.errors import ArgumentError, LoaderxError, MissingPackageError
from loaderx.sources.base import BadRecordError
from loaderx.tree import Array

if TYPE_CHECKING:
    from PIL.Image import Image

# How many pixels an image may have: a file of a hundred bytes can claim any number.
#
# ``LOADERX_IMAGE_PIXELS`` sets the maximum; by default 178,956,970, above which Pillow refuses an
# image (twice its ``MAX_IMAGE_PIXELS``; an environment variable also reaches worker processes).
# The size that a PNG claims is compared with what its bytes can hold, since Pillow makes missing
# pixels black.

IMAGE_PIXELS = "LOADERX_IMAGE_PIXELS"
_MOST_PIXELS = 178_956_970
_PNG, _IHDR = b"\x89PNG\r\n\x1a\n", struct.Struct(">IIBB")
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the kind of colour
_DENSEST = 1032  # bytes that one byte of deflate can unpack to


@cache
def most_pixels() -> int:
    """The most pixels that an image may have."""
    told = os.environ.get(IMAGE_PIXELS, "").strip()
    if not told:
        return _MOST_PIXELS
    try:
        found = int(told[:30])
    except ValueError:
        found = 0
    if found < 1:
        raise ArgumentError(f"{IMAGE_PIXELS} must be a number of pixels, got {told!r}.")
    return found


def check_pixels(data: bytes, width: int, height: int) -> None:
    """Refuses an image that is too large, or that claims more than its bytes can hold."""
    claimed = f"the image claims to have {width:,} x {height:,} pixels"
    if width * height > most_pixels():
        raise BadRecordError(
            f"{claimed}, and {most_pixels():,} are allowed. If it is right, set {IMAGE_PIXELS} to "
            "a larger number."
        )
    if data.startswith(_PNG) and len(data) >= 16 + _IHDR.size:
        width, height, bits, colour = _IHDR.unpack_from(data, 16)
        if width * height * bits * _CHANNELS.get(colour, 1) // 8 > _DENSEST * len(data):
            raise BadRecordError(f"{claimed}, more than its {len(data):,} bytes can hold.")


# Small, plain PNGs are decoded without opening them as files, which saves a quarter of the time.
#
# Pillow's own decoder makes the pixels, so they are the same.  Plain means 8 bits a channel, no
# palette, not interlaced, one chunk of pixels and only the required chunks, as TensorFlow and
# OpenCV write small images.  All other files, and damaged ones, are left to Pillow.

_HEAD = struct.Struct(">16sIIBBBBBII4s")
_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_CRC_BYTES = 4
_MOST_BYTES = 1 << 16  # Pillow gives its decoder this many at once
_SMALL_PIXELS = 1 << 18  # for larger images, opening the file hardly matters
_PNG_MODES = {0: "L", 2: "RGB", 4: "LA", 6: "RGBA"}  # by the kind of colour


def open_small_png(data: bytes, pillow: ModuleType) -> Image | None:
    """The decoded image; None if the file is anything else, or damaged."""
    if not _HEAD.size + len(_PNG_END) <= len(data) <= _MOST_BYTES or not data.startswith(_BEGIN):
        return None
    _, width, height, bits, colour, *rest, crc, length, kind = _HEAD.unpack_from(data)
    mode, end = _PNG_MODES.get(colour), _HEAD.size + length
    if mode is None or bits != 8 or any(rest) or kind != b"IDAT":
        return None
    if data[end + _CRC_BYTES :] != _PNG_END or zlib.crc32(data[12:29]) != crc:
        return None
    if (
        not 0
        < width * height
        <= min(_SMALL_PIXELS, most_pixels(), pillow.MAX_IMAGE_PIXELS or _SMALL_PIXELS)
    ):
        return None
    try:
        image: Image = pillow.frombytes(mode, (width, height), data[_HEAD.size : end], "zip", mode)
    except Exception:  # of damaged files Pillow raises almost anything
        return None
    return image


# Shortens baseline JPEGs, so that a decoder need not read the rows below a part of the image.
#
# A file says in its header how many rows it has, and a decoder stops after them.  It warns of the
# data left over, so it must be told to ignore warnings.  But then it would fill a truncated file
# with gray: hence only files with an end marker are shortened.

_JPEG_END = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_BASELINE = (0xC0, 0xC1)
_OTHER_FRAMES = {*range(0xC2, 0xD0)} - {0xC4, 0xC8, 0xCC}  # progressive, lossless, arithmetic
_BARE = {0x01, *range(0xD0, 0xDA)}  # markers without a length, which no header has
_BLOCK = 8
_LEAST_SAVED = 16  # rows


def ends_after(data: bytes, rows: int) -> bytearray | None:
    """The file, cut to the rows that decoding the first ``rows`` needs.

    The colours of a row depend on the next one, so one more row of blocks is kept: the first
    ``rows`` equal those of the whole file.  None: it cannot be cut, or that would save nothing.
    """
    try:
        found = _frame(data)
    except IndexError:  # the header is damaged, or reaches the end
        return None
    if found is None or not data.endswith(_JPEG_END):
        return None
    place, height, blocks = found
    kept = (-(-rows // blocks) + 1) * blocks
    if kept > height - _LEAST_SAVED:
        return None
    made = bytearray(data)
    made[place : place + 2] = kept.to_bytes(2, "big")
    return made


def _frame(data: bytes) -> tuple[int, int, int] | None:
    """The offset of the height, the height, and the pixel rows in a row of blocks."""
    at, frame = 2, 0
    while (mark := data[at + 1]) != _START_OF_SCAN:
        if data[at] != 0xFF or mark == 0xFF or mark in _OTHER_FRAMES or mark in _BARE:
            return None
        if mark in _BASELINE:
            frame = at
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    components = data[frame + 9]
    if not frame or data[at] != 0xFF or data[at + 4] != components:
        return None  # not interleaved: each colour component has all its rows in one piece
    tallest = max(data[frame + 11 + 3 * number] & 15 for number in range(components))
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    return frame + 5, height, _BLOCK * tallest


T = TypeVar("T")

Pixels: TypeAlias = npt.NDArray[np.uint8]


class Window(NamedTuple):
    """A part of an image decoded at a fraction of its size, in pixels of the reduced image."""

    reduction: int  # 1, 2, 4 or 8: pixels of the file per pixel, in each direction
    top: int
    left: int
    height: int
    width: int


Part: TypeAlias = "Pixels | Image"
"""A part of an image as it comes from the decoder: an array or a Pillow image."""

WindowOf: TypeAlias = Callable[[int, int, bool], Window]
"""Chooses a window from the height, the width, and whether the file can be reduced."""

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif",
    ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".avifs", ".jp2", ".j2k", ".jpx", ".tga",
    ".ico", ".icns", ".pcx", ".sgi", ".xbm", ".xpm", ".psd", ".dds", ".qoi",
)  # fmt: skip
"""The endings of image files, in lower case."""

_JPEG = b"\xff\xd8\xff"
_POSTSCRIPT = (b"%!PS", b"\xc5\xd0\xd3\xc6")  # Pillow would run Ghostscript
_MOST_SAID = 200  # characters of a decoder's message
_PLAIN = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # modes of Pillow whose bytes are the pixels
_OWN_MODES = {count: mode for mode, count in _PLAIN.items()}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_JPEG_FORMATS = ("JPEG", "MPO")  # as Pillow names them
_DEEP = re.compile(r";16[BLN]")  # 16 bits in a channel, as Pillow names it
_ORIENTATION = 0x0112  # EXIF tag
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # to Pillow's transpositions


def decode_image(data: bytes, *, channels: int | None = None, fast_dct: bool = False) -> Pixels:
    """The pixels of an encoded image; the array is new, or read-only.

    Args:
        data: the bytes of a file that Pillow knows, whatever its name was.
        channels: 1, 3 or 4 converts to gray, RGB or RGBA; None leaves what the file has.
        fast_dct: decodes JPEGs as TensorFlow does, with the same small errors.  This needs
            simplejpeg; without it pixels are exact.

    Raises:
        BadRecordError: it is not an image, or a damaged one.
    """
    check_channels(channels)
    found = _by_simplejpeg(data, channels, fast_dct=fast_dct)
    if found is not None:
        return found
    small = open_small_png(data, pillow_module())
    if small is not None:
        return _array(_converted(small, channels))
    return _with_pillow(data, lambda image: _array(_converted(image, channels)))


def decode_turned(data: bytes, *, channels: int | None = None) -> Pixels:
    """The pixels, rotated and mirrored as the EXIF orientation says."""
    check_channels(channels)
    return _with_pillow(data, lambda image: _array(_turned(image, _converted(image, channels))))


def decode_stored(data: bytes) -> Array:
    """The numbers in the file: indices of a palette, 0 and 1 of bits, 16 and 32 bits in full."""
    found = _by_simplejpeg(data, None)
    if found is not None:
        return found
    small = open_small_png(data, pillow_module())
    return _with_pillow(data, _stored) if small is None else _array(small)


def decode_window(data: bytes, channels: int, window_of: WindowOf) -> Part:
    """A part of an image.  Only JPEGs are reduced.

    Pixel (y, x) of a reduced image is the mean of a square of pixels of the file, whose first one
    is at (y, x) times the reduction.  Both decoders give the same pixels.
    """
    check_channels(channels)
    found = _by_simplejpeg(data, channels, window_of=window_of)
    if found is not None:
        return found
    return _with_pillow(data, lambda image: _windowed(image, channels, window_of))


def pixels_in(window: Window, pixels: Pixels) -> Pixels:
    _, top, left, height, width = window
    return pixels[top : top + height, left : left + width]


def image_of(part: Part, channels: int) -> Image:
    """A part as a Pillow image with these channels."""
    if not isinstance(part, np.ndarray):
        return part
    height, width, count = part.shape
    if part.strides[1:] != (count, 1) or part.strides[0] < width * count:  # mirrored, and so on
        part = np.ascontiguousarray(part)
    stride = part.strides[0]
    # Rows with the gaps between them, so that only the part itself is copied.
    flat = as_strided(part, ((height - 1) * stride + width * count,), (1,), writeable=False)
    mode = _OWN_MODES[count]
    made = pillow_module().frombytes(mode, (width, height), flat.data, "raw", mode, stride, 1)
    return _converted(made, channels)


def pixels_of(part: Part, channels: int) -> Pixels:
    """A part as an array with these channels; it may be read-only."""
    if isinstance(part, np.ndarray) and part.shape[-1] == channels:
        return part
    return _array(image_of(part, channels))


def check_channels(channels: int | None) -> None:
    if channels is not None and channels not in _MODES:
        raise ArgumentError(f"`channels` must be None, 1, 3 or 4, got {channels!r}.")


def _unknown(data: bytes) -> str:
    if not data:
        return "the image has no bytes."
    return f"it is no image that Pillow knows: {len(data)} bytes that begin with {data[:8]!r}."


def has_fast_dct() -> bool:
    """True if JPEGs can be decoded as TensorFlow does."""
    return simplejpeg_module() is not None


# JPEG -------------------------------------------------------------------------------------------


def _by_simplejpeg(
    data: bytes,
    channels: int | None,
    *,
    fast_dct: bool = False,
    window_of: WindowOf | None = None,
) -> Pixels | None:
    """None: it is not installed, this is no JPEG, or the file is left to Pillow."""
    decoder = simplejpeg_module()
    if decoder is None or channels == 4 or data[:3] != _JPEG:
        return None
    try:
        height, width, space, _ = decoder.decode_jpeg_header(data)
        if space in ("CMYK", "YCCK"):
            return None
        check_pixels(data, width, height)
        wanted = "GRAY" if (channels or (1 if space == "Gray" else 3)) == 1 else "RGB"
        if window_of is None:
            return cast(Pixels, decoder.decode_jpeg(data, wanted, fastdct=fast_dct))
        return _window_by_simplejpeg(decoder, data, wanted, window_of(height, width, True))
    except ValueError:  # it is strict: Pillow accepts some files of which libjpeg only warns
        return None


def _window_by_simplejpeg(decoder: ModuleType, data: bytes, space: str, window: Window) -> Pixels:
    times = window.reduction
    shorter = ends_after(data, (window.top + window.height) * times)
    read = data if shorter is None else shorter
    height, width, _, _ = decoder.decode_jpeg_header(read)
    # It takes the smallest of its scales (eighths) that has at least this many pixels.
    pixels = decoder.decode_jpeg(
        read,
        space,
        min_height=-(-height // times),
        min_width=-(-width // times),
        strict=shorter is None,  # else it warns of the data left over
    )
    return pixels_in(window, pixels)


# Pillow -----------------------------------------------------------------------------------------


def _with_pillow(data: bytes, work: Callable[[Image], T]) -> T:
    """Calls ``work`` with the opened image."""
    if data.startswith(_POSTSCRIPT):
        raise BadRecordError("it is PostScript, which is a program, not an image.")
    pillow = pillow_module()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            check_pixels(data, *image.size)
            return work(image)
    except (LoaderxError, Warning):  # the user may have made warnings errors
        raise
    except pillow.DecompressionBombError as error:
        raise BadRecordError(
            f"the image is larger than Pillow allows ({error}). If it is right, set {IMAGE_PIXELS} "
            "to the number of pixels that an image may have."
        ) from error
    except pillow.UnidentifiedImageError as error:
        raise BadRecordError(_unknown(data)) from error
    except Exception as error:  # of damaged files Pillow raises almost anything
        said = f"{error}"[:_MOST_SAID] or type(error).__name__
        raise BadRecordError(f"the image is damaged or cut off: {said}") from error


def _windowed(image: Image, channels: int, window_of: WindowOf) -> Part:
    reducible = image.format in _JPEG_FORMATS
    times, top, left, height, width = window_of(image.height, image.width, reducible)
    if reducible:
        # Only the first call of `draft` counts, so it also chooses the colours.
        image.draft(_MODES[channels], (image.width // times, image.height // times))
    converted = _converted(image, channels)
    return converted.crop((left, top, left + width, top + height))


def _turned(opened: Image, image: Image) -> Image:
    method = _TURNS.get(opened.getexif().get(_ORIENTATION, 1))
    return image if method is None else image.transpose(method)


def _converted(image: Image, channels: int | None) -> Image:
    """The image in the mode for these channels."""
    if channels == 1 and image.format in _JPEG_FORMATS:
        image.draft("L", None)  # decodes the stored brightness, without conversion through RGB
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = _upper_bits(image)
    mode = _MODES[channels] if channels is not None else _own_mode(image)
    if image.mode == mode:
        return image
    if image.mode in ("P", "PA") and mode == "RGB" and image.has_transparency_data:
        image = image.convert("RGBA")  # else Pillow warns
    return image.convert(mode)


def _array(image: Image) -> Pixels:
    flat = np.frombuffer(image.tobytes(), np.uint8)
    return flat.reshape(image.height, image.width, _PLAIN[image.mode])


def _stored(image: Image) -> Array:
    # How the file stores pixels, such as "RGB;16B"; no longer known once they are read.
    stored = [one[3] if isinstance(one[3], str) else f"{one[3][:1]}" for one in image.tile]
    if image.mode in _PLAIN and any(_DEEP.search(one) for one in stored):
        raise BadRecordError(
            "the image has 16 bits in each of several channels, of which Pillow reads 8. Read the "
            "bytes with decode=False, and decode them in a map."
        )
    pixels = np.asarray(image)
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    if image.mode == "I" and image.format == "PNG":  # 16 bits, in older versions of Pillow
        pixels = pixels.astype(np.uint16)
    native = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    return native.reshape(image.height, image.width, -1)


def _own_mode(image: Image) -> str:
    """The mode that an image is converted to by default."""
    mode: str = image.mode
    if mode in _PLAIN:
        return mode
    if mode in ("1", "L;2", "L;4"):
        return "L"
    if mode in ("I", "F"):
        raise BadRecordError(
            "the image has 32-bit numbers, which do not fit into uint8. Read the bytes with "
            "decode=False, and decode them in a map."
        )
    if mode in ("RGBa", "PA") or (mode == "P" and image.has_transparency_data):
        return "RGBA"
    return "LA" if mode == "La" else "RGB"


def _upper_bits(image: Image) -> Image:
    """A 16-bit gray image as an 8-bit one; Pillow's own conversion clips at 255."""
    numbers = np.asarray(image)
    return cast("Image", pillow_module().fromarray((numbers >> 8).astype(np.uint8)))


def check_decoder() -> None:
    """Raises if no decoder is installed: when images are opened, not at the first record."""
    if simplejpeg_module() is None:
        pillow_module()


@cache
def pillow_module() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "decoding images needs Pillow: pip install 'loaderx-jax[images]'. Without it, "
            "decode=False gives the bytes of the images."
        ) from error
    own = Image.MAX_IMAGE_PIXELS
    if os.environ.get(IMAGE_PIXELS) and own is not None:
        Image.MAX_IMAGE_PIXELS = max(own, most_pixels())
    return cast(ModuleType, Image)


@cache
def simplejpeg_module() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    major, minor, *_ = simplejpeg.__version_info__
    # Older versions do not distinguish warnings of libjpeg from errors.
    return cast(ModuleType, simplejpeg) if (int(major), int(minor)) >= (1, 7) else None
