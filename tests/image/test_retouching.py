"""Changes of an image alone, against plain NumPy; `tests/owners` has torchvision beside them."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest

import loaderx as lx
from loaderx.image.retouching import operations
from photos import photo

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

IMAGE = photo(20, 31)
GRAY = np.array([0.299, 0.587, 0.114])


def made(stage, image=IMAGE, seed=0):
    return stage(image, np.random.default_rng(seed))


# Colour jitter ----------------------------------------------------------------------------------


def by_hand(name, amount, pixels):
    """Pixels from 0 to 1."""
    gray = pixels @ GRAY
    if name == "hue":
        return np.apply_along_axis(turned, -1, pixels, amount)
    other = {"brightness": 0.0, "contrast": gray.mean(), "saturation": gray[..., None]}[name]
    return np.clip(amount * pixels + (1 - amount) * other, 0, 1)


def turned(colour, turn):
    hue, saturation, value = colorsys.rgb_to_hsv(*colour)
    return colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)


AMOUNTS = [
    *[
        (name, amount)
        for name in ("brightness", "contrast", "saturation")
        for amount in (0, 0.6, 2)
    ],
    *[("hue", turn) for turn in (-0.5, -0.2, 0.1, 0.45)],
]


@pytest.mark.parametrize(("name", "amount"), AMOUNTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_jitter_is_the_textbook(name, amount, dtype):
    image = IMAGE.copy()
    image[:3] = np.arange(3 * 31).reshape(3, 31, 1)  # gray has no hue
    image[3, :4] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 255]]
    white = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1.0
    given = (image / 255 * white).astype(dtype)
    found = made(lx.image.color_jitter(**{name: (amount, amount)}), given)
    expected = by_hand(name, amount, given / white) * white
    assert found.dtype == dtype
    assert np.abs(found - expected).max() <= (0.501 if dtype == np.uint8 else 1e-4 * white)


def test_jitter_of_gray_images():
    jitter = lx.image.color_jitter(0.5, 0.5, 0.5, 0.5)
    for gray in (IMAGE[..., 0], IMAGE[..., :1]):
        found = made(jitter, gray)
        assert found.shape == gray.shape
        assert (found != gray).any()
    only = lx.image.color_jitter(saturation=0.9, hue=0.5)
    np.testing.assert_array_equal(made(only, IMAGE[..., 0]), IMAGE[..., 0])


def test_jitter_draws_orders_and_amounts():
    white = np.ones((4, 4, 3), np.float64)
    jitter = lx.image.color_jitter(brightness=(0.2, 0.6))
    factors = np.array([made(jitter, white, seed)[0, 0, 0] for seed in range(500)])
    assert 0.2 <= factors.min() < 0.21
    assert 0.59 < factors.max() <= 0.6
    assert abs(factors.mean() - 0.4) < 0.02
    both = lx.image.color_jitter((2, 2), (0.5, 0.5))
    results = {made(both, IMAGE, seed).tobytes() for seed in range(20)}
    assert len(results) == 2  # brightness first, or contrast first
    assert (made(lx.image.color_jitter(), IMAGE) == IMAGE).all()


def test_jitter_of_a_number_is_a_range_on_both_sides():
    for amount, low, high in ((0.4, 0.6, 1.4), (1.5, 0, 2.5)):
        image = np.full((2, 2, 3), 0.4)
        found = [made(lx.image.color_jitter(amount), image, seed)[0, 0, 0] for seed in range(300)]
        assert low * 0.4 <= min(found) <= max(found) <= high * 0.4
        assert max(found) - min(found) > 0.9 * (high - low) * 0.4


# RandAugment ------------------------------------------------------------------------------------


def test_as_many_operations_as_asked_for():
    np.testing.assert_array_equal(made(lx.image.rand_augment(0)), IMAGE)
    pale = IMAGE // 2 + 30  # so that every operation changes it
    one = {made(lx.image.rand_augment(1, 20), pale, seed).tobytes() for seed in range(500)}
    # Nine have a sign; identity, posterizing, solarizing, autocontrast and equalizing have none.
    assert len(one) == 2 * 9 + 5
    two = {made(lx.image.rand_augment(2, 20), seed=seed).tobytes() for seed in range(500)}
    assert len(two) > 100


def test_operations():
    image = Image.fromarray(IMAGE)

    def apply(operation):
        return lambda by: np.asarray(operation(image, by))

    identity, shear_x, shear_y, right, down, turn, *others = map(apply, operations())
    bright, colour, contrast, sharp, posterize, solarize, auto, equalize = others
    np.testing.assert_array_equal(identity(1), IMAGE)
    for still in (shear_x, shear_y, right, down, turn, bright, colour, contrast, sharp):
        np.testing.assert_array_equal(still(0), IMAGE)
    columns = int(150 / 331 * 31)
    np.testing.assert_array_equal(right(1)[:, columns:], IMAGE[:, :-columns])
    assert (right(1)[:, :columns] == 0).all()
    rows = int(150 / 331 * 20)
    np.testing.assert_array_equal(down(-1)[:-rows], IMAGE[rows:])
    np.testing.assert_array_equal(shear_x(1)[-1, :-6], IMAGE[-1, 6:])  # 0.3 of 19.5 rows
    np.testing.assert_array_equal(shear_y(-1)[9:, -1], IMAGE[: 20 - 9, -1])  # 0.3 of 30.5
    assert turn(1)[0, 0].tolist() == [0, 0, 0]
    for found, name, amount in (
        (bright(1), "brightness", 1.9),
        (colour(-1), "saturation", 0.1),
        (contrast(0.5), "contrast", 1.45),
    ):
        expected = by_hand(name, amount, IMAGE / 255) * 255
        assert np.abs(found - expected).max() < 2
    weights = np.ones((3, 3))
    weights[1, 1] = 5
    places = np.ndindex(3, 3)
    flat = sum(weights[y, x] / 13 * IMAGE[y : y + 18, x : x + 29] for y, x in places)
    expected = np.clip(flat + 0.1 * (IMAGE[1:-1, 1:-1] - flat), 0, 255)
    assert np.abs(sharp(-1)[1:-1, 1:-1] - expected).max() < 2
    np.testing.assert_array_equal(posterize(-1), IMAGE & 0b1111_0000)
    np.testing.assert_array_equal(posterize(0.3), IMAGE & 0b1111_1110)
    np.testing.assert_array_equal(solarize(-0.5), np.where(IMAGE < 127.5, IMAGE, 255 - IMAGE))
    low, high = IMAGE.min((0, 1)), IMAGE.max((0, 1))
    assert np.abs(auto(1) - (IMAGE - low) * (255 / (high - low))).max() <= 1
    ranks = np.searchsorted(np.sort(IMAGE[..., 0], None), IMAGE[..., 0])
    assert np.abs(equalize(1)[..., 0] - ranks * (255 / 620)).max() < 50  # of few pixels


def test_gray_images():
    for seed in range(40):
        assert made(lx.image.rand_augment(), IMAGE[..., 0], seed).shape == (20, 31)
        assert made(lx.image.rand_augment(), IMAGE[..., :1], seed).shape == (20, 31, 1)


# Erasing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("value", [0, 7, (1, 2, 3)])
def test_an_erased_part_is_a_rectangle(dtype, value):
    white = np.full((40, 50, 3), 99, dtype)
    erasing = lx.image.random_erasing(probability=1, scale=(0.1, 0.2), ratio=(0.5, 2), value=value)
    places = set()
    for seed in range(100):
        found = made(erasing, white, seed)
        rows, columns = np.nonzero((found != 99).any(-1))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert height * width == len(rows)
        assert 0.08 <= height * width / 2000 <= 0.22
        assert 0.4 <= width / height <= 2.3
        assert (found[rows, columns] == value).all()
        places.add((rows[0], columns[0]))
    assert len(places) > 80


def test_erasing_with_noise():
    for dtype, low, high in ((np.uint8, 0, 255), (np.uint16, 0, 65535), (np.float32, -9, 9)):
        flat = np.full((60, 60), 100, dtype)
        found = made(lx.image.random_erasing(probability=1, value="random"), flat)
        noise = found[found != 100]
        assert noise.size > 60
        assert low <= noise.min() < np.median(noise) < noise.max() <= high
        assert len(np.unique(noise)) > 20


def test_the_probability():
    erasing = lx.image.random_erasing(probability=0.25)
    share = np.mean([(made(erasing, seed=seed) != IMAGE).any() for seed in range(400)])
    assert abs(share - 0.25) < 0.08


def test_no_part_of_that_shape():
    """Where ten tries do not fit, nothing is erased: never the whole image."""
    flat = np.full((2, 400, 3), 5, np.uint8)
    erasing = lx.image.random_erasing(probability=1, scale=(0.3, 0.3), ratio=(0.5, 0.5))
    assert (made(erasing, flat) == 5).all()


def erased(value):
    return made(lx.image.random_erasing(probability=1, value=value))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lx.image.color_jitter(-0.1), r"numbers from 0 on, the smallest first, got \(1\.1"),
        (
            lambda: lx.image.color_jitter("a"),
            "`brightness` must be two numbers from 0",
        ),
        (lambda: lx.image.color_jitter(contrast=(-1, 1)), "`contrast` must be .* from 0 on"),
        (lambda: lx.image.color_jitter(hue=0.6), r"from -0\.5 to 0\.5, .*, got \(-0\.6, 0\.6\)"),
        (lambda: lx.image.color_jitter(size=1), "It takes brightness, contrast, saturation, hue"),
        (lambda: lx.image.rand_augment(2, 31), r"`magnitude` must be at most 30, got 31\."),
        (lambda: lx.image.rand_augment(-1), "`num_ops` must be at least 0, got -1"),
        (lambda: lx.image.rand_augment(interpolation=2), "rand_augment.*interpolation"),
        (lambda: lx.image.random_erasing(value="noise"), "`value` must be a number, or one for"),
        (lambda: lx.image.random_erasing(scale=(0.1, 2)), "at most 1, shares of the area"),
        (
            lambda: erased((1, 2)),
            r"value=\[1\.0, 2\.0\], and the pixels are uint8\[20, 31, 3\]",
        ),
        (lambda: erased(300), r"value=300\.0, .* must be a number of that dtype, or one for each"),
        (
            lambda: erased((0.485, 0.456, 0.406)),
            r"value=\[0\.485, 0\.456, 0\.406\], and the",
        ),
        (lambda: made(lx.image.rand_augment(), IMAGE / 255), "gray or RGB images of uint8, got fl"),
        (lambda: made(lx.image.color_jitter(), IMAGE[..., :2]), r"uint8\[20, 31, 2\]\. Put it bef"),
        (lambda: lx.image.RandAugment, r"Write rand_augment\(num_ops=2, magnitude=9\)"),
        (lambda: lx.image.MixUp, r"call loaderx\.jax\.image\.mixup in the training step"),
    ],
)
def test_wrong_arguments(call, message):
    kinds = lx.ArgumentError, lx.ArgumentTypeError, AttributeError
    with pytest.raises(kinds, match=message):
        call()


def test_jitter_refuses_numbers_whose_white_is_not_known():
    jitter = lx.image.color_jitter(0.4)
    with pytest.raises(lx.ArgumentError, match=r"floats from 0 to 1, and a pixel is 200: divide"):
        made(jitter, np.full((2, 2), 200, np.float32))
    with pytest.raises(lx.ArgumentTypeError, match=r"of uint8, uint16, or floats .* got uint32"):
        made(jitter, np.full((2, 2), 2**32 - 1, np.uint32))
    big_endian = made(jitter, (IMAGE * np.uint16(257)).astype(">u2"))
    np.testing.assert_array_equal(big_endian, made(jitter, IMAGE * np.uint16(257)))
