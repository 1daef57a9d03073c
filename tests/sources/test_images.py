"""Encoded images as arrays."""

from __future__ import annotations

import builtins
import contextlib
import io
import struct
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from loaderx import ArgumentError, Dataset, FileError, MissingPackageError
from loaderx.sources import images
from loaderx.sources.base import BadRecordError
from loaderx.sources.images import (
    Window,
    decode_image,
    decode_stored,
    decode_window,
    has_fast_dct,
    pixels_of,
)

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

COLOUR = np.random.default_rng(0).integers(0, 256, (11, 7, 3), np.uint8)
SMOOTH = np.add.outer(np.arange(40), np.arange(56))[..., None].repeat(3, 2).astype(np.uint8)
SMOOTH[..., 1] = 255 - SMOOTH[..., 1]
GRAY = COLOUR[..., 0]


def encoded(array, kind="PNG", mode=None, **options):
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, kind, **options)
    return out.getvalue()


@pytest.fixture(params=["simplejpeg", "Pillow"])
def jpeg_decoder(request, monkeypatch):
    """Every test of JPEGs runs with both decoders."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
        return
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)


# What comes out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA"])
def test_formats_without_loss(kind):
    found = decode_image(encoded(COLOUR, kind))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, COLOUR)


def test_gray_has_one_channel():
    np.testing.assert_array_equal(decode_image(encoded(GRAY)), GRAY[..., None])


def test_one_bit_images_are_black_and_white():
    bits = GRAY > 127
    found = decode_image(encoded(Image.fromarray(bits)))
    np.testing.assert_array_equal(found, np.where(bits, 255, 0)[..., None])


def test_alpha_is_kept():
    rgba = np.dstack([COLOUR, GRAY])
    np.testing.assert_array_equal(decode_image(encoded(rgba)), rgba)
    gray_alpha = np.dstack([GRAY, COLOUR[..., 1]])
    found = decode_image(encoded(Image.fromarray(rgba).convert("LA")))
    assert found.shape == gray_alpha.shape


def test_a_palette_becomes_its_colours():
    image = Image.fromarray(COLOUR).quantize(16)
    np.testing.assert_array_equal(decode_image(encoded(image)), np.asarray(image.convert("RGB")))
    np.testing.assert_array_equal(
        decode_image(encoded(image, "GIF")), np.asarray(image.convert("RGB"))
    )


def test_a_palette_with_a_transparent_colour_has_alpha():
    image = Image.fromarray(COLOUR).quantize(16)
    data = encoded(image, transparency=3)
    found = decode_image(data)
    assert found.shape == (11, 7, 4)
    np.testing.assert_array_equal(found[..., 3] == 0, np.asarray(image) == 3)
    assert decode_image(data, channels=3).shape == (11, 7, 3)
    several = encoded(image, transparency=bytes(range(16)))  # with RGB asked for, Pillow warns
    assert decode_image(several, channels=3).shape == (11, 7, 3)


def test_of_16_bits_the_upper_8_are_kept():
    numbers = np.arange(0, 65536, 1000, np.uint16).reshape(6, 11)
    found = decode_image(encoded(Image.fromarray(numbers)))
    np.testing.assert_array_equal(found[..., 0], numbers >> 8)
    found = decode_image(encoded(Image.fromarray(numbers), "TIFF"))
    np.testing.assert_array_equal(found[..., 0], numbers >> 8)


def test_16_bit_colours_keep_the_upper_8():
    numbers = np.arange(0, 65536, 1000, np.uint16)[:60].reshape(4, 5, 3)
    found = decode_image(png_of_16_bits(numbers))
    np.testing.assert_array_equal(found, numbers >> 8)


STORED = {
    "palette": (Image.fromarray(COLOUR).quantize(16), np.uint8),
    "bits": (Image.fromarray(GRAY > 127), np.uint8),
    "16 bits": (Image.fromarray(GRAY.astype(np.uint16) * 257), np.uint16),
    "gray": (Image.fromarray(GRAY), np.uint8),
    "colours": (Image.fromarray(COLOUR), np.uint8),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("name", STORED)
def test_numbers_as_stored(name, kind):
    image, dtype = STORED[name]
    found = decode_stored(encoded(image, kind))
    assert found.dtype == dtype
    assert found.ndim == 3
    np.testing.assert_array_equal(found, np.asarray(image).reshape(found.shape))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bits_as_stored(dtype):
    numbers = np.arange(12, dtype=dtype).reshape(3, 4) * 70_000
    found = decode_stored(encoded(Image.fromarray(numbers), "TIFF"))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[..., 0], numbers)


def test_big_endian_numbers_become_those_of_this_machine():
    numbers = (np.arange(12, dtype=np.uint16) * 5000).reshape(3, 4)
    found = decode_stored(encoded(Image.frombytes("I;16B", (4, 3), numbers.astype(">u2")), "TIFF"))
    assert found.dtype == np.uint16
    assert found.dtype.isnative
    np.testing.assert_array_equal(found[..., 0], numbers)


def test_jpegs_as_stored_are_as_decoded(jpeg_decoder):
    for data in (encoded(SMOOTH, "JPEG"), encoded(SMOOTH[..., 0], "JPEG")):
        np.testing.assert_array_equal(decode_stored(data), decode_image(data))
    assert decode_stored(encoded(SMOOTH, "JPEG", "CMYK")).shape == (*SMOOTH.shape[:2], 4)


def test_16_bit_colours_are_refused_as_stored():
    numbers = np.arange(0, 65536, 1000, np.uint16)[:60].reshape(4, 5, 3)
    with pytest.raises(
        BadRecordError, match="16 bits in each of several channels, of which Pillow"
    ):
        decode_stored(png_of_16_bits(numbers))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("name", STORED)
def test_damaged_bytes_as_stored_are_bad_records(name, kind):
    data, draw = encoded(STORED[name][0], kind), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(data[: draw.integers(len(data))] if draw.random() < 0.3 else data)
        for place in draw.integers(max(len(damaged), 1), size=3) if damaged else ():
            damaged[place] = draw.integers(256)
        with contextlib.suppress(BadRecordError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged metadata
            assert decode_stored(bytes(damaged)).ndim == 3


@pytest.mark.parametrize("data", [b"", b"none", encoded(GRAY)[:40]])
def test_damage_as_stored(data):
    with pytest.raises(BadRecordError, match="no bytes|no image that Pillow|damaged or cut off"):
        decode_stored(data)


def png_of_16_bits(numbers):
    """Pillow reads these, but does not write them."""
    height, width, _ = numbers.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in numbers)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_of_32_bits_are_refused(dtype):
    data = encoded(Image.fromarray(GRAY.astype(dtype)), "TIFF")
    with pytest.raises(FileError, match="32-bit numbers.*decode=False"):
        decode_image(data)


def test_the_first_image_of_an_animation():
    frames = [Image.fromarray(COLOUR).quantize(64), Image.fromarray(255 - COLOUR).quantize(64)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode_image(data)[..., :3], np.asarray(frames[0].convert("RGB")))


def test_channels_on_demand():
    assert decode_image(encoded(GRAY), channels=3).shape == (11, 7, 3)
    assert decode_image(encoded(COLOUR), channels=1).shape == (11, 7, 1)
    assert decode_image(encoded(COLOUR), channels=4).shape == (11, 7, 4)
    with pytest.raises(ArgumentError, match="`channels` must be None, 1, 3 or 4, got 2"):
        decode_image(encoded(COLOUR), channels=2)


# JPEG -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg(options):
    data = encoded(SMOOTH, "JPEG", quality=90, **options)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode_image(data), expected)


@pytest.mark.usefixtures("jpeg_decoder")
def test_gray_jpeg():
    data = encoded(SMOOTH[..., 0], "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode_image(data), expected[..., None])
    np.testing.assert_array_equal(decode_image(data, channels=3), expected[..., None].repeat(3, 2))


@pytest.mark.usefixtures("jpeg_decoder")
def test_cmyk_jpeg_becomes_rgb():
    data = encoded(SMOOTH, "JPEG", mode="CMYK")
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data), expected)


@pytest.mark.usefixtures("jpeg_decoder")
def test_jpeg_channels():
    data = encoded(SMOOTH, "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        image.draft("L", None)
        gray = np.asarray(image)
    np.testing.assert_array_equal(decode_image(data, channels=1), gray[..., None])
    rgba = decode_image(data, channels=4)
    np.testing.assert_array_equal(rgba[..., :3], decode_image(data))
    assert (rgba[..., 3] == 255).all()


@pytest.mark.usefixtures("jpeg_decoder")
def test_exif_turns_nothing():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    turned, plain = encoded(SMOOTH, "JPEG", exif=exif), encoded(SMOOTH, "JPEG")
    np.testing.assert_array_equal(decode_image(turned), decode_image(plain))


@pytest.mark.usefixtures("jpeg_decoder")
def test_a_jpeg_named_otherwise():
    """The bytes decide, not the name: there is none here."""
    assert decode_image(encoded(SMOOTH, "JPEG")).shape == SMOOTH.shape
    assert decode_image(encoded(SMOOTH, "PNG")).shape == SMOOTH.shape


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("kept", [0.99, 0.9, 0.5, 0.1, 0.01])
def test_a_jpeg_that_is_cut_off_is_an_error(kept):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(noise, "JPEG")
    with pytest.raises(FileError, match="damaged or cut off"):
        decode_image(data[: int(len(data) * kept)])


@pytest.mark.usefixtures("jpeg_decoder")
def test_bytes_after_a_jpeg_do_no_harm():
    data = encoded(SMOOTH, "JPEG")
    np.testing.assert_array_equal(decode_image(data + b"\0" * 50), decode_image(data))


def test_damaged_jpegs_are_read_or_refused_by_both_decoders_alike(monkeypatch):
    pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    rng = np.random.default_rng(2)
    whole = encoded(SMOOTH, "JPEG")
    damaged = []
    for _ in range(200):
        data = bytearray(whole)
        data[rng.integers(3, len(data))] ^= 1 << rng.integers(8)
        damaged.append(bytes(data))
    first = [decoded_or_refused(data) for data in damaged]
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)
    for one, data in zip(first, damaged):
        other = decoded_or_refused(data)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


def decoded_or_refused(data):
    try:
        return decode_image(data)
    except FileError:
        return None


def test_fast_dct_differs_by_little():
    pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    assert has_fast_dct()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(noise, "JPEG", quality=90)
    exact = decode_image(data).astype(int)
    fast = decode_image(data, fast_dct=True).astype(int)
    assert 0 < abs(exact - fast).max() <= 16


# Reduced ----------------------------------------------------------------------------------------


def reduced(data, channels, times, asked=None):
    """All of an image, at a fraction of its size."""

    def window_of(height, width, reducible):
        if asked is not None:
            asked.append((height, width, reducible))
        given = times if reducible else 1
        return Window(given, 0, 0, -(-height // given), -(-width // given))

    return pixels_of(decode_window(data, channels, window_of), channels)


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("times", [1, 2, 4, 8])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_reduced_jpeg_has_a_fraction_of_the_pixels(times, channels):
    pixels = np.add.outer(np.arange(0, 250, 2), np.arange(90))[..., None].repeat(3, 2)
    pixels = (pixels // 2).astype(np.uint8)
    made = reduced(encoded(pixels, "JPEG"), channels, times)
    assert made.shape == (-(-125 // times), -(-90 // times), channels)
    expected = pixels[:120, :88].reshape(120 // times, times, 88 // times, times, 3).mean((1, 3))
    parts = made[: 120 // times, : 88 // times]
    assert abs(parts[..., : min(channels, 3)] - expected[..., : min(channels, 3)]).max() < 5


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_window_is_a_part_of_the_reduced_image(times):
    data = encoded(SMOOTH, "JPEG")
    image = reduced(data, 3, times)
    part = decode_window(data, 3, lambda *_: Window(times, 2, 3, 5, 4))
    np.testing.assert_array_equal(pixels_of(part, 3), image[2:7, 3:7])


@pytest.mark.usefixtures("jpeg_decoder")
def test_the_size_of_a_file_decides_how_much_it_is_reduced():
    asked = []
    reduced(encoded(SMOOTH, "JPEG"), 3, 2, asked)
    assert asked == [(40, 56, True)]


def test_other_formats_are_not_reduced():
    asked = []
    image = reduced(encoded(COLOUR), 3, 8, asked)
    assert asked == [(11, 7, False)]
    np.testing.assert_array_equal(image, COLOUR)


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("kept", [0.99, 0.5, 0.01])
def test_a_cut_off_jpeg_is_an_error_at_every_size(kept):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(noise, "JPEG")
    with pytest.raises(FileError, match="damaged or cut off"):
        reduced(data[: int(len(data) * kept)], 3, 4)


# What is refused --------------------------------------------------------------------------------


def test_what_is_no_image():
    with pytest.raises(FileError, match=r"no image that Pillow knows: 5 bytes .*b'hello'"):
        decode_image(b"hello")
    with pytest.raises(FileError, match="has no bytes"):
        decode_image(b"")


def test_postscript_is_not_run():
    with pytest.raises(FileError, match="PostScript, which is a program"):
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")


@pytest.mark.filterwarnings("ignore")  # of Pillow, about tags of TIFF files
@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_damage_is_a_file_error(kind):
    """Whatever Pillow raises; some damage goes unnoticed."""
    whole = encoded(COLOUR, kind)
    rng = np.random.default_rng(3)
    for _ in range(100):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), 3):
            data[at] ^= 1 << rng.integers(8)
        if rng.random() < 0.5:
            del data[rng.integers(len(data)) :]
        decoded_or_refused(bytes(data))


def test_a_cut_off_png_is_an_error():
    data = encoded(COLOUR)
    with pytest.raises(FileError, match="damaged or cut off"):
        decode_image(data[: len(data) // 2])


@pytest.fixture
def no_decoder(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.partition(".")[0] in ("PIL", "simplejpeg"):
            raise ImportError(name)
        return real(name, *rest, **options)

    images.pillow_module.cache_clear()
    images.simplejpeg_module.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    yield
    images.pillow_module.cache_clear()
    images.simplejpeg_module.cache_clear()


DATA = Path(__file__).parents[1] / "files"
MISSING = pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[images\]'")


def test_without_pillow(no_decoder):
    with MISSING:
        decode_image(b"\xff\xd8\xff\xe0")


@pytest.mark.parametrize("kind", ["folder", "tar", "mds", "tfds"])
def test_without_pillow_images_are_refused_when_they_are_opened(tmp_path, kind, no_decoder):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    split = None
    if kind == "folder":
        path = tmp_path
    elif kind == "tar":
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(tmp_path / "a" / "1.jpg", "1.jpg")
    elif kind == "mds":
        path = DATA / "mds" / "mixed"
    else:
        path, split = DATA / "tfds" / "tfrecord" / "kinds", "train"
    with MISSING:
        Dataset.open(path, split=split)
    assert len(Dataset.open(path, split=split, decode=False))
