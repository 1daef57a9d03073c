"""How many pixels an image may have: a file of a hundred bytes can claim any number.

``LOADERX_IMAGE_PIXELS`` sets the most that is decoded; by default 178,956,970, from which on Pillow
refuses an image (its ``MAX_IMAGE_PIXELS``, of which this is the double, is not known to worker
processes, where an environment variable is).  What a PNG claims is compared with what its bytes can
hold, since Pillow takes pixels that are missing for black ones.
"""

from __future__ import annotations

import os
import struct
from functools import cache

from loaderx.errors import ArgumentError
from loaderx.sources.file_source import BadRecordError

IMAGE_PIXELS = "LOADERX_IMAGE_PIXELS"
_MOST_PIXELS = 178_956_970
_PNG, _IHDR = b"\x89PNG\r\n\x1a\n", struct.Struct(">IIBB")
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the kind of colour
_DENSEST = 1032  # bytes that one byte of deflate can stand for


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
