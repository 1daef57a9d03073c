"""Encoded images as arrays, for all file formats: uint8[height, width, channels].

Pillow (the extra ``images``) reads every format that it knows.  JPEGs go through simplejpeg where
it is installed, which is faster and gives the same pixels.  The rules:

- gray images have one channel, colour images three, and an alpha channel is kept: 1 to 4 channels;
- palettes become RGB, or RGBA if one of their colours is transparent; CMYK and others become RGB;
- of 16-bit numbers the upper eight bits are kept; images of 32-bit numbers or floats are refused;
- of an animation, the first image;
- pixels stay where they lie in the file: images are not turned, whatever EXIF says, as with
  torchvision and TensorFlow; `decode_turned` is for those who want it otherwise;
- a JPEG that is cut off is an error, where libjpeg would fill the rest with gray;
- an image has no more pixels than `image_limits` allows.

`decode_window` decodes JPEGs at a half, a quarter or an eighth of their size, which takes less
time: most coefficients of a block are not transformed.  With simplejpeg, rows below the window are
not read either, so damage there is not noticed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from loaderx.errors import ArgumentError, LoaderxError, MissingPackageError
from loaderx.sources.file_source import BadRecordError
from loaderx.sources.image_limits import IMAGE_PIXELS, check_pixels, most_pixels
from loaderx.sources.jpeg_rows import ends_after
from loaderx.sources.small_png import open_small_png

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

Pixels: TypeAlias = npt.NDArray[np.uint8]


class Window(NamedTuple):
    """A part of an image that is decoded at a fraction of its size, in pixels of the latter."""

    reduction: int  # 1, 2, 4 or 8: so many pixels of the file, in each direction, are one
    top: int
    left: int
    height: int
    width: int


Part: TypeAlias = "Pixels | Image"
"""A part of an image: as an array, or as an image of Pillow, as it comes from the decoder."""

WindowOf: TypeAlias = Callable[[int, int, bool], Window]
"""What is wanted of a file: from its height, its width, and whether it can be reduced."""

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif",
    ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".avifs", ".jp2", ".j2k", ".jpx", ".tga",
    ".ico", ".icns", ".pcx", ".sgi", ".xbm", ".xpm", ".psd", ".dds", ".qoi",
)  # fmt: skip
"""The endings of image files, in lower case."""

_JPEG = b"\xff\xd8\xff"
_POSTSCRIPT = (b"%!PS", b"\xc5\xd0\xd3\xc6")  # Pillow would run Ghostscript on it
_MOST_SAID = 200  # characters of a decoder's complaint
_PLAIN = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # modes of Pillow whose bytes are the pixels
_OWN_MODES = {count: mode for mode, count in _PLAIN.items()}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_JPEG_FORMATS = ("JPEG", "MPO")  # as Pillow names them
_ORIENTATION = 0x0112  # of EXIF
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # to the number of Pillow's transposition


def decode_image(data: bytes, *, channels: int | None = None, fast_dct: bool = False) -> Pixels:
    """The pixels of an encoded image; the array is new, or read-only.

    Args:
        data: the bytes of a file that Pillow knows, whatever its name was.
        channels: 1, 3 or 4 converts to gray, RGB or RGBA; None leaves what the file has.
        fast_dct: decodes JPEGs as TensorFlow does, with small errors that make its pixels equal.
            This needs simplejpeg; without it pixels are exact.

    Raises:
        BadRecordError: it is no image, or a damaged one.
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
    """The pixels, turned and mirrored as the EXIF orientation says."""
    check_channels(channels)
    return _with_pillow(data, lambda image: _array(_turned(image, _converted(image, channels))))


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
    """A part as an image of Pillow with these channels."""
    if not isinstance(part, np.ndarray):
        return part
    height, width, count = part.shape
    if part.strides[1:] != (count, 1) or part.strides[0] < width * count:  # mirrored, and so on
        part = np.ascontiguousarray(part)
    stride = part.strides[0]
    # One row after the other, with all between them: so only the part itself is copied.
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
    """Can JPEGs be decoded as TensorFlow does?"""
    return simplejpeg_module() is not None


# JPEG -------------------------------------------------------------------------------------------


def _by_simplejpeg(
    data: bytes,
    channels: int | None,
    *,
    fast_dct: bool = False,
    window_of: WindowOf | None = None,
) -> Pixels | None:
    """None: it is not there, this is no JPEG, or Pillow must decide what becomes of this file."""
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
    except ValueError:  # it is strict: of what libjpeg merely warns of, Pillow lets some pass
        return None


def _window_by_simplejpeg(decoder: ModuleType, data: bytes, space: str, window: Window) -> Pixels:
    times = window.reduction
    shorter = ends_after(data, (window.top + window.height) * times)
    read = data if shorter is None else shorter
    height, width, _, _ = decoder.decode_jpeg_header(read)
    # Of its scales (eighths), it takes the smallest that has as many pixels as these.
    pixels = decoder.decode_jpeg(
        read,
        space,
        min_height=-(-height // times),
        min_width=-(-width // times),
        strict=shorter is None,  # else it warns of the rows that are left over
    )
    return pixels_in(window, pixels)


# Pillow -----------------------------------------------------------------------------------------


def _with_pillow(data: bytes, work: Callable[[Image], T]) -> T:
    """What ``work`` makes of the opened image."""
    if data.startswith(_POSTSCRIPT):
        raise BadRecordError("it is PostScript, a program, and no image.")
    pillow = pillow_module()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            check_pixels(data, *image.size)
            return work(image)
    except (LoaderxError, Warning):  # a warning may be an error, if the user wants it so
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
        # Only the first call of `draft` counts, so it chooses the colours, too.
        image.draft(_MODES[channels], (image.width // times, image.height // times))
    converted = _converted(image, channels)
    return converted.crop((left, top, left + width, top + height))


def _turned(opened: Image, image: Image) -> Image:
    method = _TURNS.get(opened.getexif().get(_ORIENTATION, 1))
    return image if method is None else image.transpose(method)


def _converted(image: Image, channels: int | None) -> Image:
    """The image in the mode for these channels."""
    if channels == 1 and image.format in _JPEG_FORMATS:
        image.draft("L", None)  # the brightness is stored: no way through RGB and back
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


def _own_mode(image: Image) -> str:
    """The mode that an image is converted to if nobody asks for one."""
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
    """A gray image of 16-bit numbers as one of 8 bits; Pillow's own conversion cuts them at 255."""
    numbers = np.asarray(image)
    return cast("Image", pillow_module().fromarray((numbers >> 8).astype(np.uint8)))


def check_decoder() -> None:
    """Refuses images where nothing could decode any: when they are opened, and not at a record."""
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
    # Before, warnings of libjpeg could not be told from errors.
    return cast(ModuleType, simplejpeg) if (int(major), int(minor)) >= (1, 7) else None
