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
from scipy.special import betaincinv  # jax needs scipy

import loaderx as lx
from loaderx import ArgumentError, ArgumentTypeError
from loaderx.jax.image import (
    cutmix,
    mixup,
    normalize,
    random_cutout,
    random_flip_left_right,
    random_flip_up_down,
    random_pad_and_crop,
    random_resized_crop,
)

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own

COUNT, ROWS, COLUMNS = 12, 20, 24
KEY = None  # arguments are checked before it is used
IMAGE = np.zeros((8, 8, 3), np.uint8)


def images(dtype, *shape):
    x = np.random.default_rng(0).integers(0, 256, shape or (COUNT, ROWS, COLUMNS, 3), np.uint8)
    return x if dtype == np.uint8 else (x / np.float32(255)).astype(dtype)


def keys(seed=5):
    return jax.random.split(jax.random.key(seed), COUNT)


def made(f, **options):
    """Batches of bytes and of floats, with what the function makes of each image; compiled once."""
    f = functools.partial(f, **options)
    batches = images(np.uint8), images(np.float32)
    both = jax.vmap(lambda key, *pair: [f(key, image) for image in pair])
    for batch, found in zip(batches, jax.jit(both)(keys(), *batches), strict=True):
        assert found.dtype == batch.dtype
        yield batch, np.asarray(found)


def uniform(key, *shape):
    return np.asarray(jax.random.uniform(key, shape))


def integers(draws, *stops):
    return [int(draw * np.float32(stop)) for draw, stop in zip(draws, stops, strict=True)]


# Pad and crop.


@pytest.mark.parametrize(("mode", "padding"), [("constant", 4), ("reflect", (1, 5))])
def test_pad_and_crop(mode, padding):
    one, two = padding if isinstance(padding, tuple) else (padding, padding)
    for batch, found in made(random_pad_and_crop, padding=padding, mode=mode):
        corners = set()
        for image, key, cropped in zip(batch, keys(), found, strict=True):
            top, left = integers(uniform(key, 2), 2 * one + 1, 2 * two + 1)
            padded = np.pad(image, [(one, one), (two, two), (0, 0)], mode=mode)
            assert np.array_equal(cropped, padded[top : top + ROWS, left : left + COLUMNS])
            corners.add((top, left))
        assert len(corners) > COUNT // 2


# Cutout.


@pytest.mark.parametrize(("flip", "axis"), [(random_flip_left_right, 1), (random_flip_up_down, 0)])
def test_flips(flip, axis):
    for probability in (0.5, 1, 0):
        draws = [jax.random.bernoulli(key, float(probability)) for key in keys()]
        for batch, found in made(flip, probability=probability):
            for image, flipped, draw in zip(batch, found, draws, strict=True):
                np.testing.assert_array_equal(flipped, np.flip(image, axis) if draw else image)


@pytest.mark.parametrize(("size", "value"), [(8, 0), ((3, 9), (7, 8, 9))])
def test_cutout(size, value):
    height, width = size if isinstance(size, tuple) else (size, size)
    for batch, found in made(random_cutout, size=size, value=value):
        for image, key, holed in zip(batch, keys(), found, strict=True):
            row, column = integers(uniform(key, 2), ROWS, COLUMNS)
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
    draws = uniform(key, 22)
    areas = ROWS * COLUMNS * (scale[0] + (scale[1] - scale[0]) * draws[:10])
    logs = np.log(ratio)
    shapes = np.exp(logs[0] + (logs[1] - logs[0]) * draws[10:20])
    boxes = [(np.sqrt(a / s), np.sqrt(a * s)) for a, s in zip(areas, shapes, strict=True)]
    fitting = [box for box in boxes if box[0] <= ROWS and box[1] <= COLUMNS]
    height, width = (fitting or boxes)[0]
    height, width = min(height, ROWS), min(width, COLUMNS)
    top, left = draws[20:] * (ROWS - height, COLUMNS - width)
    return top, left, height, width


def weights_of(length, start, extent, count, antialias):
    """How much each pixel counts in each of the results: a triangle around its centre."""
    step = extent / count
    centres = start + (np.arange(count) + 0.5) * step - 0.5
    reach = max(step, 1) if antialias else 1
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(length)) / reach)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("size", "scale", "ratio", "antialias"),
    [
        (9, (0.08, 1.0), (3 / 4, 4 / 3), True),
        ((7, 30), (0.9, 1.0), (3.0, 4.0), False),  # such boxes never fit
    ],
)
def test_resized_crop(size, scale, ratio, antialias):
    height, width = size if isinstance(size, tuple) else (size, size)
    options = {"size": size, "scale": scale, "ratio": ratio, "antialias": antialias}
    for batch, found in made(random_resized_crop, **options):
        assert found.shape == (COUNT, height, width, 3)
        for image, key, resized in zip(batch, keys(), found, strict=True):
            top, left, box_height, box_width = box_of(key, scale, ratio)
            down = weights_of(ROWS, top, box_height, height, antialias)
            across = weights_of(COLUMNS, left, box_width, width, antialias)
            assert_near(resized, np.einsum("ih,hwc,jw->ijc", down, image, across), 1e-4)


def assert_near(found, expected, tolerance):
    """Numbers are near; integers are the same, or one more or less where they were rounded."""
    is_rounded = found.dtype == np.uint8
    expected = np.rint(expected).clip(0, 255) if is_rounded else expected
    difference = np.abs(found.astype(np.float64) - expected)
    assert difference.max() <= (1 if is_rounded else tolerance)
    assert (difference > tolerance).mean() < 0.01


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), value=st.integers(0, 255))
def test_a_constant_image_stays_constant(seed, value):
    image = jnp.full((ROWS, COLUMNS, 1), value, jnp.uint8)
    assert (np.asarray(jitted_crop(jax.random.key(seed), image)) == value).all()


jitted_crop = jax.jit(functools.partial(random_resized_crop, size=11))


def test_filters_that_overshoot_are_clipped():
    sharp = np.zeros((8, 8), np.uint8)
    sharp[::3] = 255
    options = {"size": 16, "scale": (1.0, 1.0), "ratio": (1.0, 1.0), "method": "cubic"}
    crop = functools.partial(random_resized_crop, **options)
    found = jax.jit(crop)(jax.random.key(0), sharp)
    floats = np.asarray(jax.image.resize(sharp.astype(np.float32), (16, 16), "cubic"))
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


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint32])
def test_normalize_refuses_integers_that_do_not_say_what_is_white(dtype):
    image = np.full((2, 2, 3), 100, dtype)
    for call in (normalize, jax.jit(normalize), lx.image.normalize()):
        with pytest.raises(ArgumentTypeError, match="takes uint8, uint16 or floats, got u?int"):
            call(image)


def test_normalize_takes_true_for_white():
    image = np.array([[[False], [True]]])
    assert normalize(image, 0.5, 0.5).tolist() == [[[-1.0], [1.0]]]
    assert lx.image.normalize(0.5, 0.5)(image).tolist() == [[[-1.0], [1.0]]]


def test_normalize_refuses_floats_that_were_not_divided():
    image = np.full((2, 2, 3), 255, np.float32)
    for call in (normalize, lx.image.normalize(0.5, 0.25)):
        with pytest.raises(ArgumentError, match=r"must be from 0 to 1, and one of them is 255\."):
            call(image)
    assert float(normalize(image, 0, 255).max()) == 1


def test_normalize_makes_other_dtypes():
    assert normalize(images(np.uint8), 0.5, dtype=jnp.bfloat16).dtype == jnp.bfloat16


# Mixing the rows of a batch.


def one_hot():
    return np.eye(10, dtype=np.float32)[np.arange(COUNT) % 10]


def mix(weight, values):
    weight = np.asarray(weight).reshape(-1, *[1] * (values.ndim - 1))
    return weight * values + (1 - weight) * np.roll(values, 1, axis=0)


def beta(draws, alpha):
    return betaincinv(alpha, alpha, draws.astype(np.float64))


def test_weights_have_the_beta_distribution():
    count, key, alphas = 200, jax.random.key(1), (0.1, 0.4, 8.0)
    images, labels = np.zeros((count, 1)), np.eye(count, dtype=np.float32)
    mixing = jax.jit(lambda *batch: [mixup(key, *batch, alpha=alpha)[1] for alpha in alphas])
    for alpha, mixed in zip(alphas, mixing(images, labels), strict=True):
        assert np.allclose(np.diagonal(mixed), beta(uniform(key, count), alpha), atol=1e-4)


def mixed_both(f, key):
    """Batches of bytes and of floats, with what they and their labels become."""
    batches = images(np.uint8), images(np.float32)
    both = jax.jit(lambda *batches: [f(key, batch, one_hot()) for batch in batches])
    for batch, (found, labels) in zip(batches, both(*batches), strict=True):
        assert found.dtype == batch.dtype
        yield batch, np.asarray(found), labels


def test_mixup():
    key = jax.random.key(3)
    weight = beta(uniform(key, COUNT), 0.4)
    for batch, found, labels in mixed_both(functools.partial(mixup, alpha=0.4), key):
        assert_near(found, mix(weight, batch), 1e-5)
        assert np.allclose(labels, mix(weight, one_hot()), atol=1e-5)


def cut_and_mixed(key, batch):
    draws = uniform(key, COUNT, 3)
    cuts = np.sqrt(1 - beta(draws[:, 0], 1.0))
    expected, kept = batch.copy(), np.ones(COUNT)
    for number, (cut, pair) in enumerate(zip(cuts, draws[:, 1:], strict=True)):
        row, column = integers(pair, ROWS, COLUMNS)
        height, width = int(np.rint(cut * ROWS)), int(np.rint(cut * COLUMNS))
        top, left = row - height // 2, column - width // 2
        box = np.s_[max(top, 0) : top + height, max(left, 0) : left + width]
        expected[number][box] = batch[number - 1][box]
        kept[number] = 1 - batch[number, ..., 0][box].size / (ROWS * COLUMNS)
    return expected, mix(kept, one_hot())


def test_cutmix():
    key = jax.random.key(3)
    for batch, found, labels in mixed_both(cutmix, key):
        expected, expected_labels = cut_and_mixed(key, batch)
        assert np.array_equal(found, expected)
        assert np.allclose(labels, expected_labels, atol=1e-6)


def test_mixing_is_the_same_on_several_devices():
    """A row comes from another device where the batch is cut."""
    rows = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data"))
    batch, key = images(np.uint8), jax.random.key(0)
    found, labels = jax.jit(cutmix)(key, *jax.device_put((batch, one_hot()), rows))
    expected, expected_labels = cut_and_mixed(key, batch)
    assert np.array_equal(found, expected)
    assert np.allclose(labels, expected_labels, atol=1e-6)


# Arguments.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: random_cutout(KEY, images(np.uint8), 4),
            r"must be one image, .* got shape \(12, 20, 24, 3\)\. For a batch, write jax\.vmap, or",
        ),
        (lambda: random_pad_and_crop(KEY, IMAGE, -1), "`padding` must be at least 0, got -1"),
        (
            lambda: random_resized_crop(KEY, IMAGE, 4, scale=0.5),
            r"two numbers above 0, the smallest first, got 0\.5\.",
        ),
        (lambda: random_cutout(KEY, IMAGE, (1, 2, 3)), r"\(height, width\), got \(1, 2, 3\)\."),
        (lambda: random_cutout(KEY, IMAGE, 0), "`size` must be at least 1, got 0"),
        (
            lambda: random_flip_up_down(KEY, IMAGE, probability=2),
            "`probability` must be a number from 0 to 1, got 2",
        ),
        (lambda: random_resized_crop(KEY, IMAGE, 4, scale=(1.0, 0.5)), "`scale` must be two n"),
        (lambda: random_resized_crop(KEY, IMAGE, 4, ratio=(0.0, 1.0)), "`ratio` must be two n"),
        (lambda: normalize(IMAGE, 127.5, 60.0), "divides uint8 by 255 first, .*got mean=127.5"),
        (lambda: mixup(KEY, IMAGE, IMAGE * 1.0, alpha=0.0), r"`alpha` must be above 0, got 0\.0"),
        (lambda: cutmix(KEY, IMAGE, np.zeros((2, 3))), "one label for each image, got 8 images"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        call()


def test_labels_that_are_numbers_of_classes():
    with pytest.raises(ArgumentTypeError, match=r"got int32\. Write jax\.nn\.one_hot\(label, clas"):
        mixup(KEY, images(np.uint8), np.zeros(COUNT, np.int32))


def test_a_size_that_is_no_number():
    with pytest.raises(ArgumentTypeError, match="`size` must be an integer, got 'large'"):
        random_resized_crop(KEY, IMAGE, "large")
