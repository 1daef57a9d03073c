"""Which part of an image is wanted, and how small it may be decoded."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx.image.regions import (
    DRAWS,
    Region,
    central_region,
    random_region,
    reduction_for,
    whole,
    window_for,
)

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def draws(seed):
    return np.random.default_rng(seed).random(DRAWS).tolist()


@pytest.mark.parametrize(("height", "width"), [(450, 500), (1200, 1600), (64, 48), (5, 7)])
def test_random_regions_are_parts_of_the_image_in_whole_pixels(height, width):
    for seed in range(200):
        region = random_region(draws(seed), height, width, AREA, RATIO)
        assert all(value == int(value) for value in region)
        assert 0 <= region.top <= height - region.height
        assert 0 <= region.left <= width - region.width
        assert region.height >= 1
        assert region.width >= 1


def test_area_and_ratio_of_random_regions_fill_their_ranges():
    regions = [random_region(draws(seed), 1000, 1000, AREA, RATIO) for seed in range(2000)]
    shares = np.array([one.height * one.width / 1e6 for one in regions])
    ratios = np.array([one.width / one.height for one in regions])
    assert 0.079 < shares.min() < 0.085
    assert 0.95 < shares.max() <= 1.001
    assert 0.745 < ratios.min() < 0.76
    assert 1.31 < ratios.max() < 1.34
    assert abs(np.log(ratios).mean()) < 0.02  # wide and tall ones are as frequent
    assert abs(np.mean([one.top / (1001 - one.height) for one in regions]) - 0.5) < 0.02


def test_where_no_try_fits_it_is_the_middle():
    """No part of a strip has a width of three quarters of its height and half of the area."""
    assert random_region(draws(0), 100, 1000, (0.5, 1.0), (3 / 4, 1.0)) == Region(0, 450, 100, 100)
    assert random_region(draws(0), 1000, 100, (0.5, 1.0), (2.0, 3.0)) == Region(475, 0, 50, 100)


def test_regions_depend_on_the_draws_and_the_size_alone():
    assert random_region(draws(3), 90, 80, AREA, RATIO) == random_region(
        draws(3), 90, 80, AREA, RATIO
    )


def test_the_middle_is_what_remains_of_the_shorter_side():
    assert central_region(512, 640, (224, 224), 256) == Region(32, 96, 448, 448)
    assert central_region(640, 512, (224, 224), 224) == Region(64, 0, 512, 512)
    assert central_region(128, 256, (224, 112), 256) == Region(8, 100, 112, 56)


def test_a_wide_size_that_is_not_in_the_image_is_shrunk():
    """Of a square of 256, 128 rows and 512 columns cannot be cut."""
    assert central_region(256, 256, (128, 512), 256) == Region(96, 0, 64, 256)


def test_all_of_it():
    assert whole(3, 4) == Region(0, 0, 3, 4)


@pytest.mark.parametrize(
    ("height", "width", "size", "times"),
    [
        (447, 900, (224, 224), 1),
        (448, 448, (224, 224), 2),
        (895, 5000, (224, 224), 2),
        (896, 896, (224, 224), 4),
        (1792, 1792, (224, 224), 8),
        (9999, 9999, (224, 224), 8),
        (448, 223, (224, 100), 2),
        (7, 7, (1, 1), 1),  # too small for the scales of decoders
        (8, 8, (1, 1), 8),
    ],
)
def test_the_reduction_leaves_as_many_pixels_as_are_asked_for(height, width, size, times):
    assert reduction_for(Region(1, 2, height, width), size) == times


def test_a_window_has_the_pixels_of_a_region():
    region = Region(10, 21, 100, 203)
    assert window_for(region, (50, 50), (300, 400), False) == (1, 10, 21, 100, 203)
    assert window_for(region, (50, 50), (300, 400), True) == (2, 5, 11, 50, 101)


def test_what_is_shifted_by_half_a_pixel_keeps_its_length():
    assert window_for(Region(1, 3, 100, 100), (50, 50), (300, 400), True) == (2, 1, 2, 50, 50)


def test_a_window_is_within_the_image_and_not_empty():
    assert window_for(whole(101, 99), (20, 20), (101, 99), True) == (4, 0, 0, 25, 25)
    assert window_for(Region(0.2, 99.7, 0.1, 0.3), (1, 1), (100, 100), True) == (1, 0, 99, 1, 1)
    assert window_for(Region(2.5, 0, 97.50000001, 100), (9, 9), (100, 100), False)[3] == 97
