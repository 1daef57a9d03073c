"""Flips, and padding with a crop."""

from __future__ import annotations

import numpy as np
import pytest

import loaderx as lx
from photos import photo

DTYPES = [np.uint8, np.uint16, np.float32, np.float64, np.int32, bool]
IMAGE = photo(20, 31)


def draws(stage, count=64):
    """What a stage makes of one image, many times."""
    return [stage(IMAGE, np.random.default_rng(seed)) for seed in range(count)]


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 21)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_flips_are_numpys(dtype, shape):
    image = (np.random.default_rng(0).random(shape) * 250).astype(dtype)
    for stage, axis in (
        (lx.image.random_flip_left_right(probability=1), 1),
        (lx.image.random_flip_up_down(probability=1), 0),
    ):
        for given in (image, image[:, ::-1], np.asfortranarray(image)):
            found = stage(given, np.random.default_rng(0))
            np.testing.assert_array_equal(found, np.flip(given, axis))
            assert found.dtype == dtype
            assert found.flags.c_contiguous


@pytest.mark.parametrize("probability", [0, 0.25, 0.5, 1])
def test_the_probability(probability):
    for stage in (lx.image.random_flip_left_right, lx.image.random_flip_up_down):
        found = draws(stage(probability=probability), 400)
        share = np.mean([(one != IMAGE).any() for one in found])
        assert abs(share - probability) <= 0.1 * (0 < probability < 1)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("padding", [0, 3, (0, 5), (4, 2)])
def test_every_place_is_drawn(mode, padding):
    pads = padding if isinstance(padding, tuple) else (padding, padding)
    padded = np.pad(IMAGE, [*[(pad, pad) for pad in pads], (0, 0)], mode=mode)
    windows = {
        padded[top : top + 20, left : left + 31].tobytes()
        for top in range(2 * pads[0] + 1)
        for left in range(2 * pads[1] + 1)
    }
    found = draws(lx.image.random_pad_and_crop(padding, mode=mode), 600)
    assert {one.tobytes() for one in found} == windows
    assert all(one.shape == IMAGE.shape for one in found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lx.image.random_flip_left_right(probability=1.5), "from 0 to 1, got 1.5"),
        (
            lambda: lx.image.random_flip_up_down(p=0.5),
            r"argument .p.\. Write probability\.",
        ),
        (lambda: lx.image.random_flip_left_right(0.5), "takes 0 positional arguments"),
        (lambda: lx.image.random_pad_and_crop(-1), "`padding` must be at least 0, got -1"),
        (lambda: lx.image.random_pad_and_crop((1, 2, 3)), r"a number or \(height, width\), got"),
        (lambda: lx.image.random_pad_and_crop(4, mode="mean"), "`mode` must be one of 'constant'"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises((lx.ArgumentError, lx.ArgumentTypeError), match=message):
        call()
