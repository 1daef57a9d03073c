"""Small PNGs are decoded as Pillow decodes files, or left to it."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest

from loaderx.sources.base import BadRecordError
from loaderx.sources.images import decode_image, open_small_png, pillow_module

pytest.importorskip("PIL")


def pixels(height, width, channels, seed=0):
    steps = np.random.default_rng(seed).integers(-9, 10, (height, width, channels))
    return np.clip(128 + np.cumsum(steps, 1), 0, 255).astype(np.uint8)


def png(array, **options):
    made = pillow_module().fromarray(array[..., 0] if array.shape[2] == 1 else array)
    file = io.BytesIO()
    made.save(file, "PNG", **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def found_or_refused(data, channels=None):
    try:
        return decode_image(data, channels=channels).tolist()
    except BadRecordError as error:
        return str(error)


@pytest.fixture
def both_ways(monkeypatch):
    """What comes of a file with and without the short way."""

    def found(data, channels=None):
        short = found_or_refused(data, channels)
        with monkeypatch.context() as patch:
            patch.setattr("loaderx.sources.images.open_small_png", lambda *_: None)
            return short, found_or_refused(data, channels)

    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (32, 32), (50, 1)])
def test_plain_files(size, count, both_ways):
    array = pixels(*size, count)
    data = png(array)
    assert open_small_png(data, pillow_module()) is not None
    assert decode_image(data).tolist() == array.tolist()
    for channels in (None, 1, 3, 4):
        short, general = both_ways(data, channels)
        assert short == general


def test_other_files_are_left_to_pillow(both_ways):
    array = pixels(9, 9, 3)
    data = png(array)
    text = data[:33] + chunk(b"tEXt", b"a\0b") + data[33:]
    clear = data[:33] + chunk(b"tRNS", b"\0\1\0\2\0\3") + data[33:]
    image = pillow_module().fromarray(array)
    others = [
        text,
        clear,
        data + b"x",
        data[:-12],
        data[:20],
        b"",
        b"\x89PNG",
        png(pixels(300, 300, 3)),
    ]
    for mode in ("P", "1"):
        file = io.BytesIO()
        image.convert(mode).save(file, "PNG")
        others.append(file.getvalue())
    for other in others:
        assert open_small_png(other, pillow_module()) is None
        short, general = both_ways(other)
        assert short == general


def test_damage_is_found_alike(both_ways):
    data = png(pixels(4, 4, 3))
    for place in range(len(data)):
        for bits in (0xFF, 1):
            damaged = data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
            short, general = both_ways(damaged)
            assert short == general, (place, bits)


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_pixels_that_are_cut_off(kept, both_ways):
    data = png(pixels(16, 16, 3))
    whole = data[41:-16]
    cut = data[:33] + chunk(b"IDAT", whole[:kept]) + data[-12:]
    assert open_small_png(cut, pillow_module()) is None
    short, general = both_ways(cut)
    assert short == general
    assert "cut off" in short


def test_the_limit_of_pillow_holds(monkeypatch):
    data = png(pixels(9, 9, 3))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 80)
    assert open_small_png(data, pillow_module()) is None
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", None)
    assert open_small_png(data, pillow_module()) is not None


def test_a_size_that_the_file_cannot_have(both_ways):
    data = png(pixels(4, 4, 3))
    for size in ((0, 4), (4, 0), (1 << 31, 1 << 31), (400, 400), (4, 5), (5, 4), (4, 3)):
        head = struct.pack(">II", *size) + data[24:29]
        other = data[:8] + chunk(b"IHDR", head) + data[33:]
        short, general = both_ways(other)
        assert short == general
