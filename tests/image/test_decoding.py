"""`decode`, and the images that records hold."""

from __future__ import annotations

import io

import numpy as np
import pytest

import loaderx as lx
from loaderx.image.decoding import open_window
from loaderx.image.regions import whole, window_for
from loaderx.sources.images import Window, image_of, pixels_of
from photos import encoded, photo

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow (the extra images) is not installed")

PHOTO = photo(24, 40)
GRAY = PHOTO[..., 0]


def all_of_it(height, width, reducible):
    return window_for(whole(height, width), (height, width), (height, width), reducible)


def test_decode_gives_three_channels():
    np.testing.assert_array_equal(lx.image.decode(encoded(PHOTO, "PNG")), PHOTO)
    found = lx.image.decode(encoded(GRAY, "PNG"))
    np.testing.assert_array_equal(found, GRAY[..., None].repeat(3, 2))


def test_decode_gives_other_channels_on_demand():
    assert lx.image.decode(encoded(GRAY, "PNG"), channels=None).shape == (24, 40, 1)
    assert lx.image.decode(encoded(PHOTO, "PNG"), channels=4).shape == (24, 40, 4)
    with pytest.raises(lx.ArgumentError, match="`channels` must be None, 1, 3 or 4, got 2"):
        lx.image.decode(encoded(PHOTO, "PNG"), channels=2)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_only_on_demand(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data, plain = encoded(PHOTO, kind, exif=exif), encoded(PHOTO, kind)
    np.testing.assert_array_equal(lx.image.decode(data), lx.image.decode(plain))
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(lx.image.decode(data, exif=True), upright)
    np.testing.assert_array_equal(lx.image.decode(plain, exif=True), lx.image.decode(plain))


def test_decode_takes_bytes():
    data = encoded(PHOTO, "PNG")
    np.testing.assert_array_equal(lx.image.decode(memoryview(data)), PHOTO)
    with pytest.raises(
        lx.ArgumentTypeError, match=r"the bytes of an image file, got 'a.png' \(str"
    ):
        lx.image.decode("a.png")
    with pytest.raises(lx.FileError, match="no image that Pillow knows: 5 bytes"):
        lx.image.decode(b"a.png")


@pytest.mark.parametrize(
    "value",
    [
        encoded(PHOTO, "PNG"),
        memoryview(encoded(PHOTO, "PNG")),
        np.frombuffer(encoded(PHOTO, "PNG"), np.uint8),
        PHOTO,
        Image.fromarray(PHOTO),
    ],
    ids=["bytes", "memoryview", "array of bytes", "pixels", "Pillow"],
)
def test_images_that_records_may_hold(value):
    part = open_window(value, 3, all_of_it)
    np.testing.assert_array_equal(pixels_of(part, 3), PHOTO)


@pytest.mark.parametrize(
    ("value", "channels", "expected"),
    [
        (GRAY, 3, np.dstack([GRAY] * 3)),
        (GRAY[..., None], 1, GRAY),
        (np.dstack([PHOTO, GRAY]), 3, PHOTO),
        (np.dstack([GRAY, GRAY]), 1, GRAY),
        (PHOTO, 4, np.dstack([PHOTO, np.full_like(GRAY, 255)])),
    ],
)
def test_channels_of_pixels_are_converted(value, channels, expected):
    part = open_window(value, channels, all_of_it)
    np.testing.assert_array_equal(np.asarray(image_of(part, channels)), expected)
    np.testing.assert_array_equal(np.squeeze(pixels_of(part, channels)), expected)


@pytest.mark.parametrize(
    "value",
    [encoded(PHOTO, "PNG"), PHOTO, PHOTO[:, ::-1].copy()[:, ::-1], PHOTO[::-1].copy()[::-1]],
)
def test_a_part_of_an_image(value):
    part = open_window(value, 3, lambda *_: Window(1, 2, 5, 7, 9))
    np.testing.assert_array_equal(np.asarray(image_of(part, 3)), PHOTO[2:9, 5:14])
    np.testing.assert_array_equal(pixels_of(part, 3), PHOTO[2:9, 5:14])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a/b.jpg", r"'a/b.jpg' \(str\). If it is a path, read the file in a .map\(\) before"),
        (PHOTO / 255, r"float64\[24, 40, 3\]. Crop the bytes, and make floats of them after it"),
        (PHOTO[None], r"uint8\[1, 24, 40, 3\]. Put the stage before .batch"),
        (np.array([b"a", b"b"], object), r"object\[2\]. Put the stage before .batch"),
        (PHOTO.transpose(2, 0, 1), r"uint8\[3, 24, 40\]"),
        (PHOTO[:0], r"uint8\[0, 40, 3\]"),
        (7, r"7 \(int\)"),
    ],
)
def test_what_is_no_image(value, message):
    with pytest.raises(
        lx.ArgumentTypeError, match=r"an image is the bytes .*this one is " + message
    ):
        open_window(value, 3, all_of_it)
