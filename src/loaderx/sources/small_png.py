"""Small, plain PNGs, decoded without opening them as files, which saves a quarter of their time.

Pillow's own decoder makes the pixels, so they are the same.  Plain means 8 bits a channel, no
palette, not interlaced, one chunk of pixels and no chunk besides the required ones: TensorFlow and
OpenCV write small images so.  All other files, and damaged ones, are left to Pillow.
"""

from __future__ import annotations

import struct
import zlib
from types import ModuleType
from typing import TYPE_CHECKING

from loaderx.sources.image_limits import most_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

_HEAD = struct.Struct(">16sIIBBBBBII4s")
_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END = b"\0\0\0\0IEND\xaeB`\x82"
_CRC_BYTES = 4
_MOST_BYTES = 1 << 16  # Pillow gives so many to its decoder at once
_MOST_PIXELS = 1 << 18  # for more, opening the file is a small part of it all
_MODES = {0: "L", 2: "RGB", 4: "LA", 6: "RGBA"}  # by the kind of colour


def open_small_png(data: bytes, pillow: ModuleType) -> Image | None:
    """The decoded image; None if this is something else, or damaged."""
    if not _HEAD.size + len(_END) <= len(data) <= _MOST_BYTES or not data.startswith(_BEGIN):
        return None
    _, width, height, bits, colour, *rest, crc, length, kind = _HEAD.unpack_from(data)
    mode, end = _MODES.get(colour), _HEAD.size + length
    if mode is None or bits != 8 or any(rest) or kind != b"IDAT":
        return None
    if data[end + _CRC_BYTES :] != _END or zlib.crc32(data[12:29]) != crc:
        return None
    if (
        not 0
        < width * height
        <= min(_MOST_PIXELS, most_pixels(), pillow.MAX_IMAGE_PIXELS or _MOST_PIXELS)
    ):
        return None
    try:
        image: Image = pillow.frombytes(mode, (width, height), data[_HEAD.size : end], "zip", mode)
    except Exception:  # of damaged files Pillow raises almost anything
        return None
    return image
