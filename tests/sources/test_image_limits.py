"""Images that claim to be large are refused before memory and time are spent on them."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from loaderx import ArgumentError
from loaderx.sources import images
from loaderx.sources import images as image_limits
from loaderx.sources.base import BadRecordError
from loaderx.sources.images import Window, decode_image, decode_turned, decode_window


@pytest.fixture
def limit(monkeypatch):
    """Sets the variable, which is read once."""

    def set_limit(value):
        monkeypatch.setenv("LOADERX_IMAGE_PIXELS", value)
        clear()

    def clear():
        image_limits.most_pixels.cache_clear()
        images.pillow_module.cache_clear()

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    yield set_limit
    monkeypatch.undo()
    clear()


def png(width, height, bits=8, colour=2, rows=b""):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def encoded(kind, width=40, height=30):
    out = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(out, kind)
    return out.getvalue()


def whole(height, width, reducible):
    return Window(1, 0, 0, height, width)


DECODERS = [decode_image, decode_turned, lambda data: decode_window(data, 3, whole)]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("data", [png(1, 60_000_000), png(7000, 7000), png(9000, 9000, 1, 0)])
def test_a_png_cannot_hold_more_than_deflate_can(decode, data):
    with pytest.raises(BadRecordError, match=r"claims to have .* pixels, more than its \d\d bytes"):
        decode(data)


def test_a_png_as_dense_as_can_be_is_decoded():
    rows = bytes(9000 * (1 + 3 * 9000 // 8))
    assert decode_image(png(9000, 9000, 1, 0, bytes(9000 * 1126))).shape == (9000, 9000, 1)
    assert decode_image(png(1000, 9000, 8, 2, rows[: 9000 * 3001])).shape == (9000, 1000, 3)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_the_limit_can_be_set(limit, decode, kind):
    data = encoded(kind)
    limit("1199")
    with pytest.raises(
        BadRecordError, match=r"40 x 30 pixels, and 1,199 are allowed.*LOADERX_IMAGE"
    ):
        decode(data)
    limit("1200")
    decode(data)


def test_a_larger_limit_than_that_of_pillow(limit, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        BadRecordError, match=r"larger than Pillow allows.*set LOADERX_IMAGE_PIXELS"
    ):
        decode_image(encoded("WEBP"))
    limit("5000")
    assert decode_image(encoded("WEBP")).shape == (30, 40, 3)


@pytest.mark.parametrize("value", ["many", "0", "-3", "1e9"])
def test_what_is_no_number(limit, value):
    limit(value)
    with pytest.raises(
        ArgumentError, match=f"LOADERX_IMAGE_PIXELS must be a number of pixels, got '{value}'"
    ):
        decode_image(encoded("BMP"))
