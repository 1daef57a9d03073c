"""JPEGs that end earlier."""

from __future__ import annotations

import io

import numpy as np
import pytest

from loaderx.sources import images
from loaderx.sources.images import Window, decode_window, ends_after, pixels_of
from photos import encoded, photo

pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")
simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")

PHOTO = photo(211, 160)
KINDS = {
    "4:2:0": {},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "restarts": {"restart_marker_rows": 2},
    "own tables": {"optimize": True},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("gray", [False, True])
def test_the_rows_that_are_kept_are_those_of_the_whole_file(options, gray, monkeypatch):
    data = encoded(PHOTO[..., 0] if gray else PHOTO, **options)
    windows = [
        Window(times, top, 1, height, 9)
        for times in (1, 2, 4)
        for top, height in ((0, 1), (3, 13), (7, 25))
    ]
    assert all(ends_after(data, one.reduction * (one.top + one.height)) for one in windows)
    found = [pixels_of(decode_window(data, 3, lambda *_, one=one: one), 3) for one in windows]
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)  # Pillow decodes all of it
    for one, pixels in zip(windows, found):
        whole = pixels_of(decode_window(data, 3, lambda *_, one=one: one), 3)
        np.testing.assert_array_equal(pixels, whole)


def test_fewer_rows_are_decoded():
    shorter = ends_after(encoded(PHOTO), 20)
    height, width, *_ = simplejpeg.decode_jpeg_header(shorter)
    assert (height, width) == (48, 160)  # two rows of blocks, and one more


@pytest.mark.parametrize(
    "data",
    [
        encoded(PHOTO, progressive=True),
        encoded(PHOTO, "PNG"),
        encoded(PHOTO)[:-2],
        encoded(PHOTO) + b"more",
        encoded(PHOTO)[:100] + b"\xff\xd9",
        b"",
        b"\xff\xd8\xff\xd9",
    ],
    ids=["progressive", "png", "no end", "more", "no scan", "nothing", "empty"],
)
def test_what_cannot_be_cut(data):
    assert ends_after(data, 20) is None


def test_what_would_save_nothing():
    data = encoded(PHOTO)
    assert ends_after(data, 160) is not None
    assert ends_after(data, 190) is None
    assert ends_after(data, 211) is None


def test_damaged_headers_do_no_harm():
    data, rng = encoded(PHOTO), np.random.default_rng(0)
    start = data.index(b"\xff\xda")
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(2, start + 10)] ^= 1 << rng.integers(8)
        ends_after(bytes(damaged), 20)


def test_a_jpeg_that_is_cut_off_is_refused_wherever_it_is_cut():
    noise = np.random.default_rng(1).integers(0, 256, (200, 64, 3), np.uint8)
    data = encoded(noise)
    for kept in (0.9, 0.5, 0.2):
        with pytest.raises(images.BadRecordError, match="damaged or cut off"):
            decode_window(data[: int(len(data) * kept)], 3, lambda *_: Window(1, 0, 0, 20, 20))


def test_pillow_reads_it_too():
    from PIL import Image

    shorter = ends_after(encoded(PHOTO), 20)
    with Image.open(io.BytesIO(shorter)) as image:
        assert image.size == (160, 48)
