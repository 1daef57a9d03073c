"""Resizing by OpenCV."""

from __future__ import annotations

import numpy as np
import pytest

import loaderx as lx
from photos import area_resize, encoded, photo, psnr

pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")
pytest.importorskip("cv2", reason="OpenCV (the extra opencv) is not installed")

PHOTO = photo(300, 400)


def resized(value, size, **options):
    ds = lx.Dataset.from_source([value]).map(lx.image.resize(size, key=None, **options))
    return ds[0]


@pytest.mark.parametrize("size", [(20, 20), (70, 70), (150, 200), (170, 230), (240, 300)])
def test_area_is_near_to_means_of_areas(size):
    expected = area_resize(PHOTO, (0, 0, 300, 400), size)
    assert psnr(resized(PHOTO, size, method="area"), expected) > 33


@pytest.mark.parametrize("size", [(300, 400), (450, 600), (600, 401)])
def test_enlarged_images_are_those_of_pillow(size):
    one, other = (resized(PHOTO, size, method=name) for name in ("area", "bilinear"))
    assert abs(one.astype(int) - other).max() <= 2


@pytest.mark.parametrize("value", [PHOTO, encoded(PHOTO), encoded(PHOTO, "PNG"), PHOTO[..., 0]])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [40, 200, 500])
def test_every_image_gets_its_size_and_channels(value, channels, size):
    found = resized(value, size, channels=channels, method="area")
    assert found.shape == (size, size, channels)
    assert found.dtype == np.uint8
    found += 1  # it may be written to


def test_a_part_of_a_jpeg():
    crop = lx.image.center_crop(100, shorter_side=120, key=None, method="area")
    found = lx.Dataset.from_source([encoded(PHOTO, quality=95)]).map(crop)[0]
    whole_pixels = (26, 76, 250, 250)  # of the reduced image: an even number in the file
    assert psnr(found, area_resize(PHOTO, whole_pixels, (100, 100))) > 30


@pytest.mark.parametrize("times", [3, 6])
def test_bilinear_is_that_of_pillow_with_a_gap(times):
    """What is four times too large is reduced first, as `docs/images.md` says."""
    pillow = pytest.importorskip("PIL.Image")
    size = 300 // times, 400 // times
    method, image = pillow.Resampling.BILINEAR, pillow.fromarray(PHOTO)
    found = resized(PHOTO, size)
    assert np.array_equal(found, np.asarray(image.resize(size[::-1], method, reducing_gap=2.0)))
    assert np.array_equal(found, np.asarray(image.resize(size[::-1], method))) == (times < 4)
