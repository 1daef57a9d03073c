"""Changes of images in JAX, against plain NumPy that is given the same draws."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import loaderx as lx
from loaderx import ArgumentError, ArgumentTypeError
from loaderx.jax.image import (
    cutmix,
    mixup,
    normalize,
    random_cutout,
    random_pad_and_crop,
    random_resized_crop,
)

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own

COUNT, ROWS, COLUMNS = 12, 20, 24
DTYPES = pytest.mark.parametrize("dtype", [np.uint8, np.float32])


def images(dtype, *shape):
    x = np.random.default_rng(0).integers(0, 256, shape or (COUNT, ROWS, COLUMNS, 3), np.uint8)
    return x if dtype == np.uint8 else (x / np.float32(255)).astype(dtype)


def keys(seed=5):
    return jax.random.split(jax.random.key(seed), COUNT)


def made(f, batch, **options):
    """What the function makes of each image, compiled for the whole batch."""
    return np.asarray(jax.jit(jax.vmap(functools.partial(f, **options)))(keys(), batch))


def rounded(values, dtype):
    return np.rint(values).clip(0, 255) if dtype == np.uint8 else values


# Pad and crop.


@DTYPES
@pytest.mark.parametrize(("mode", "padding"), [("constant", 4), ("reflect", (1, 5))])
def test_pad_and_crop(dtype, mode, padding):
    batch = images(dtype)
    found = made(random_pad_and_crop, batch, padding=padding, mode=mode)
    assert found.dtype == dtype
    one, two = padding if isinstance(padding, tuple) else (padding, padding)
    corners = set()
    for image, key, cropped in zip(batch, keys(), found, strict=True):
        top, left = jax.random.randint(key, (2,), 0, np.array([2 * one + 1, 2 * two + 1])).tolist()
        padded = np.pad(image, [(one, one), (two, two), (0, 0)], mode=mode)
        assert np.array_equal(cropped, padded[top : top + ROWS, left : left + COLUMNS])
        corners.add((top, left))
    assert len(corners) > COUNT // 2


def test_no_padding_changes_nothing():
    assert np.array_equal(made(random_pad_and_crop, images(np.uint8), padding=0), images(np.uint8))


# Cutout.


@DTYPES
@pytest.mark.parametrize(("size", "value"), [(8, 0), ((3, 9), (7, 8, 9))])
def test_cutout(dtype, size, value):
    batch = images(dtype)
    found = made(random_cutout, batch, size=size, value=value)
    assert found.dtype == dtype
    height, width = size if isinstance(size, tuple) else (size, size)
    for image, key, holed in zip(batch, keys(), found, strict=True):
        row, column = jax.random.randint(key, (2,), 0, np.array([ROWS, COLUMNS])).tolist()
        top, left = row - height // 2, column - width // 2
        expected = image.copy()
        expected[max(top, 0) : top + height, max(left, 0) : left + width] = value
        assert np.array_equal(holed, expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_cutout_changes_a_rectangle(seed):
    white = jnp.full((ROWS, COLUMNS), 255, jnp.uint8)
    changed = np.asarray(jitted_cutout(jax.random.key(seed), white)) == 0
    rows, columns = changed.any(1), changed.any(0)
    assert np.array_equal(changed, rows[:, None] & columns)
    assert 3 <= rows.sum() <= 6
    assert 3 <= columns.sum() <= 6


jitted_cutout = jax.jit(functools.partial(random_cutout, size=6))


# The resized crop.


def box_of(key, scale, ratio):
    """The first of ten boxes that fits; the first one cut off, if none does."""
    for_area, for_ratio, for_corner = jax.random.split(key, 3)
    shares = np.asarray(jax.random.uniform(for_area, (10,), minval=scale[0], maxval=scale[1]))
    logs = np.log(np.float32(ratio))
    shapes = np.exp(jax.random.uniform(for_ratio, (10,), minval=logs[0], maxval=logs[1]))
    areas = ROWS * COLUMNS * shares
    boxes = [(np.sqrt(a / s), np.sqrt(a * s)) for a, s in zip(areas, shapes, strict=True)]
    fitting = [box for box in boxes if box[0] <= ROWS and box[1] <= COLUMNS]
    height, width = (fitting or boxes)[0]
    height, width = min(height, ROWS), min(width, COLUMNS)
    top, left = np.asarray(jax.random.uniform(for_corner, (2,))) * (ROWS - height, COLUMNS - width)
    return top, left, height, width


def weights_of(length, start, extent, count, antialias):
    """How much each pixel counts in each of the results: a triangle around its centre."""
    step = extent / count
    centres = start + (np.arange(count) + 0.5) * step - 0.5
    reach = max(step, 1) if antialias else 1
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(length)) / reach)
    return weights / weights.sum(1, keepdims=True)


@DTYPES
@pytest.mark.parametrize(
    ("size", "scale", "ratio", "antialias"),
    [
        (16, (0.08, 1.0), (3 / 4, 4 / 3), True),
        ((7, 30), (0.5, 1.0), (0.5, 2.0), True),
        (9, (0.9, 1.0), (3.0, 4.0), False),  # such boxes never fit
    ],
)
def test_resized_crop(dtype, size, scale, ratio, antialias):
    batch = images(dtype)
    options = {"size": size, "scale": scale, "ratio": ratio, "antialias": antialias}
    found = made(random_resized_crop, batch, **options)
    height, width = size if isinstance(size, tuple) else (size, size)
    assert found.dtype == dtype
    assert found.shape == (COUNT, height, width, 3)
    tolerance = 1 if dtype == np.uint8 else 1e-4  # a number that is rounded may be nearly a half
    for image, key, resized in zip(batch, keys(), found, strict=True):
        top, left, box_height, box_width = box_of(key, scale, ratio)
        down = weights_of(ROWS, top, box_height, height, antialias)
        across = weights_of(COLUMNS, left, box_width, width, antialias)
        expected = rounded(np.einsum("ih,hwc,jw->ijc", down, image, across), dtype)
        difference = np.abs(resized.astype(np.float64) - expected)
        assert difference.max() <= tolerance
        assert (difference > 1e-4).mean() < 0.01


def test_the_whole_image_at_its_own_size_stays():
    square = images(np.uint8, COUNT, 16, 16)
    found = made(random_resized_crop, square, size=16, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert np.array_equal(found, square)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), value=st.integers(0, 255))
def test_a_constant_image_stays_constant(seed, value):
    image = jnp.full((ROWS, COLUMNS, 1), value, jnp.uint8)
    assert (np.asarray(jitted_crop(jax.random.key(seed), image)) == value).all()


jitted_crop = jax.jit(functools.partial(random_resized_crop, size=11))


def test_filters_that_overshoot_are_clipped():
    sharp = np.zeros((COUNT, ROWS, COLUMNS, 1), np.uint8)
    sharp[:, ::7] = 255
    found = made(random_resized_crop, sharp, size=40, method="cubic").astype(np.int64)
    floats = made(random_resized_crop, sharp.astype(np.float32), size=40, method="cubic")
    assert floats.min() < -1
    assert floats.max() > 256
    assert np.abs(found - floats.clip(0, 255)).max() < 0.51


# Normalise.


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_normalize(dtype):
    batch = images(np.uint8).astype(dtype) if dtype == np.uint16 else images(dtype)
    mean, std = np.array([0.4, 0.5, 0.1]), np.array([0.2, 0.3, 0.1])
    largest = 1 if dtype == np.float32 else np.iinfo(dtype).max
    found = jax.jit(normalize)(batch, mean, std)
    assert found.dtype == np.float32
    assert np.allclose(found, (batch / largest - mean) / std, rtol=1e-5, atol=1e-5)
    assert np.allclose(found, lx.image.normalize(mean, std)(batch), rtol=1e-5, atol=1e-5)


def test_normalize_makes_other_dtypes():
    assert normalize(images(np.uint8), 0.5, dtype=jnp.bfloat16).dtype == jnp.bfloat16


# Mixing the rows of a batch.


def one_hot():
    return np.eye(10, dtype=np.float32)[np.arange(COUNT) % 10]


def mix(weight, values):
    weight = np.asarray(weight).reshape(-1, *[1] * (values.ndim - 1))
    return weight * values + (1 - weight) * np.roll(values, 1, axis=0)


@DTYPES
def test_mixup(dtype):
    batch = images(dtype)
    key = jax.random.key(3)
    found, labels = jax.jit(functools.partial(mixup, alpha=0.4))(key, batch, one_hot())
    weight = jax.random.beta(key, 0.4, 0.4, (COUNT,))
    difference = np.abs(np.asarray(found, np.float64) - rounded(mix(weight, batch), dtype))
    assert found.dtype == dtype
    assert difference.max() <= (1 if dtype == np.uint8 else 1e-6)
    assert (difference > 1e-6).mean() < 0.01
    assert np.allclose(labels, mix(weight, one_hot()), atol=1e-6)


@DTYPES
def test_cutmix(dtype):
    batch = images(dtype)
    key = jax.random.key(3)
    found, labels = jax.jit(cutmix)(key, batch, one_hot())
    for_share, for_centre = jax.random.split(key)
    cuts = np.sqrt(1 - np.asarray(jax.random.beta(for_share, 1.0, 1.0, (COUNT,))))
    centres = np.asarray(jax.random.randint(for_centre, (COUNT, 2), 0, np.array([ROWS, COLUMNS])))
    expected, kept = batch.copy(), np.ones(COUNT)
    for number, (cut, (row, column)) in enumerate(zip(cuts, centres, strict=True)):
        height, width = int(np.rint(cut * ROWS)), int(np.rint(cut * COLUMNS))
        top, left = row - height // 2, column - width // 2
        box = np.s_[max(top, 0) : top + height, max(left, 0) : left + width]
        expected[number][box] = batch[number - 1][box]
        kept[number] = 1 - batch[number, ..., 0][box].size / (ROWS * COLUMNS)
    assert found.dtype == dtype
    assert np.array_equal(found, expected)
    assert np.allclose(labels, mix(kept, one_hot()), atol=1e-6)


@pytest.mark.parametrize("mixing", [mixup, cutmix])
def test_mixing_is_the_same_on_several_devices(mixing):
    rows = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data"))
    batch = (images(np.uint8), one_hot())
    key = jax.random.key(0)
    alone = jax.jit(mixing)(key, *batch)
    spread = jax.jit(mixing)(key, *jax.device_put(batch, rows))
    assert np.array_equal(alone[0], spread[0])
    assert np.allclose(alone[1], spread[1], atol=1e-6)


# Arguments.

KEY = jax.random.key(0)
IMAGE = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: random_cutout(KEY, images(np.uint8), 4),
            r"must be one image, .* got shape \(12, 20, 24, 3\)\. For a batch, write jax\.vmap, or",
        ),
        (lambda: random_pad_and_crop(KEY, IMAGE, -1), "`padding` must be at least 0, got -1"),
        (lambda: random_cutout(KEY, IMAGE, 0), "`size` must be at least 1, got 0"),
        (lambda: random_resized_crop(KEY, IMAGE, 4, scale=(1.0, 0.5)), "`scale` must be the least"),
        (lambda: random_resized_crop(KEY, IMAGE, 4, ratio=(0.0, 1.0)), "`ratio` must be the least"),
        (lambda: normalize(IMAGE, 127.5, 60.0), "are those of pixels from 0 to 1, got mean=127.5"),
        (lambda: mixup(KEY, IMAGE, IMAGE * 1.0, alpha=0.0), r"`alpha` must be above 0, got 0\.0"),
        (lambda: cutmix(KEY, IMAGE, np.zeros((2, 3))), "one label for each image, got 8 images"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_labels_that_are_numbers_of_classes():
    with pytest.raises(ArgumentTypeError, match=r"got int32\. Write jax\.nn\.one_hot\(label, clas"):
        mixup(KEY, images(np.uint8), np.zeros(COUNT, np.int32))


def test_a_size_that_is_no_number():
    with pytest.raises(ArgumentTypeError, match="`size` must be an integer, got 'large'"):
        random_resized_crop(KEY, IMAGE, "large")
