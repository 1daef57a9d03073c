"""Images of one size, decoded no larger than needed."""

from __future__ import annotations

import builtins
import functools
import io

import numpy as np
import pytest

import loaderx as lx
from loaderx.image.regions import DRAWS, central_region, random_region, reduction_for
from loaderx.image.resizing import opencv_module
from loaderx.sources import images
from photos import area_resize, encoded, photo, psnr

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

PHOTO = photo(600, 800)
JPEG = encoded(PHOTO, quality=90)
SMALL = [encoded(photo(60 + n, 90 - n, n)) for n in range(6)]


@pytest.fixture(params=["simplejpeg", "Pillow"])
def jpeg_decoder(request, monkeypatch):
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
        return
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)


def records(*values):
    return lx.Dataset.from_source(
        [{"image": value, "label": number} for number, value in enumerate(values)]
    )


def only(dataset):
    return dataset[0]["image"]


def decoded(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# What comes out ---------------------------------------------------------------------------------


STAGES = {
    "random": lambda ds, size, **options: ds.random_map(
        lx.image.random_resized_crop(size, **options), seed=0
    ),
    "center": lambda ds, size, **options: ds.map(
        lx.image.center_crop(size, shorter_side=60, **options)
    ),
    "whole": lambda ds, size, **options: ds.map(lx.image.resize(size, **options)),
}
each_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)


@each_stage
@pytest.mark.parametrize("kind", ["jpeg", "png", "array"])
def test_the_result_is_new_bytes_of_one_size(stage, kind):
    value = PHOTO if kind == "array" else encoded(PHOTO, kind.upper())
    record = stage(records(value), (48, 36))[0]
    assert record["label"] == 0
    assert record["image"].shape == (48, 36, 3)
    assert record["image"].dtype == np.uint8
    record["image"] += 1  # it may be written to


@each_stage
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["gray", "colour", "cmyk", "alpha", "palette"])
def test_every_image_gets_the_channels_that_are_asked_for(stage, kind, channels):
    data = encoded_as(kind)
    assert only(stage(records(data), 32, channels=channels)).shape == (32, 32, channels)


@functools.cache
def encoded_as(kind):
    if kind == "gray":
        return encoded(PHOTO[..., 0])
    if kind == "cmyk":
        return encoded(Image.fromarray(PHOTO).convert("CMYK"))
    if kind == "alpha":
        return encoded(np.dstack([PHOTO, PHOTO[..., 0]]), "PNG")
    if kind == "palette":
        return encoded(Image.fromarray(PHOTO[:99, :99]).quantize(16), "PNG")
    return encoded(PHOTO)


@each_stage
def test_records_that_are_images_themselves(stage):
    assert stage(lx.Dataset.from_source([JPEG]), 32, key=None)[0].shape == (32, 32, 3)


@each_stage
def test_another_leaf(stage):
    record = stage(lx.Dataset.from_source([{"jpg": JPEG, "cls": 1}]), 32, key="jpg")[0]
    assert record["jpg"].shape == (32, 32, 3)
    assert record["cls"] == 1


def test_small_images_are_enlarged():
    assert only(records(encoded(photo(9, 7))).map(lx.image.resize(64))).shape == (64, 64, 3)


@pytest.mark.usefixtures("jpeg_decoder")
def test_the_region_is_what_the_draws_say():
    """By hand: the same random numbers, the whole image, and Pillow."""
    ds = records(JPEG).random_map(lambda record, rng: {"draws": rng.random(DRAWS)}, seed=5)
    region = random_region(ds[0]["draws"].tolist(), 600, 800, (0.3, 0.5), (1.0, 2.0))
    crop = lx.image.random_resized_crop((300, 400), scale=(0.3, 0.5), ratio=(1.0, 2.0))
    assert reduction_for(region, (300, 400)) == 1
    box = (region.left, region.top, region.left + region.width, region.top + region.height)
    by_hand = Image.fromarray(decoded(JPEG)).crop(box).resize((400, 300), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(only(records(JPEG).random_map(crop, seed=5)), by_hand)
    np.testing.assert_array_equal(only(records(decoded(JPEG)).random_map(crop, seed=5)), by_hand)


def test_center_crop_is_resize_and_cut():
    with Image.open(io.BytesIO(JPEG)) as image:
        resized = image.resize((640, 480), Image.Resampling.BILINEAR)
    by_hand = np.asarray(resized)[40:440, 120:520]
    found = only(records(JPEG).map(lx.image.center_crop(400, shorter_side=480)))
    np.testing.assert_array_equal(found[2:-2, 2:-2], by_hand[2:-2, 2:-2])


# Only what is needed ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", [60, 120, 250, 299, 301])
def test_both_decoders_give_the_same_pixels(side, monkeypatch):
    pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    first = only(records(JPEG).map(lx.image.resize(side)))
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)
    np.testing.assert_array_equal(first, only(records(JPEG).map(lx.image.resize(side))))


def test_both_decoders_draw_the_same_regions(monkeypatch):
    pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    ds = records(*SMALL).random_map(lx.image.random_resized_crop(20), seed=1).batch(6)
    first = ds[0]["image"]
    monkeypatch.setattr(images, "simplejpeg_module", lambda: None)
    np.testing.assert_array_equal(first, ds[0]["image"])


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("side", [60, 64, 100, 128, 160, 224])
def test_a_reduced_image_looks_like_the_whole_one(side):
    """Measured: 30.8 to 51 dB; exact fractions are best."""
    data = encoded(photo(512, 640), quality=90)
    region = central_region(512, 640, (side, side), side)  # at multiples of 8 pixels
    assert reduction_for(region, (side, side)) > 1
    crop = lx.image.center_crop(side, shorter_side=side)
    reduced = only(records(data).map(crop))
    assert psnr(reduced, area_resize(decoded(data), region, (side, side))) > 29


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_reduced_image_is_not_shifted(corner):
    """A bright quarter stays where it is, also where sides are no multiples of the reduction."""
    pixels = np.zeros((401, 403, 3), np.uint8)
    rows, columns = (slice(None, 200) if at == 0 else slice(201, None) for at in corner)
    pixels[rows, columns] = 255
    found = only(records(encoded(pixels)).map(lx.image.resize(50)))
    expected = area_resize(pixels, (0, 0, 401, 403), (50, 50))
    assert abs(found.astype(float) - expected).mean() < 4


# One stream, whatever runs it -------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines_give_the_same_bytes(engine):
    ds = records(*SMALL).shuffle(seed=0).random_map(lx.image.random_resized_crop(20)).batch(2)
    with lx.DataLoader(ds, engine=engine, num_workers=2) as loader:
        for found, expected in zip(loader, ds, strict=True):
            np.testing.assert_array_equal(found["image"], expected["image"])


def test_a_chain_shows_its_stages():
    ds = records(JPEG).random_map(lx.image.random_resized_crop(20))
    assert ".random_map(random_resized_crop)" in repr(ds)
    assert repr(lx.image.random_resized_crop(20)) == "random_resized_crop(20)"
    assert repr(lx.image.center_crop((20, 30), shorter_side=40)) == "center_crop((20, 30))"
    assert repr(lx.image.resize(20)) == "resize(20)"


def test_apply_takes_them():
    stages = [lx.image.random_resized_crop(40), lx.image.resize(20)]
    assert only(records(JPEG).apply(stages)).shape == (20, 20, 3)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("jpeg_decoder")
@pytest.mark.parametrize("kept", [0.9, 0.5, 0.01])
def test_a_damaged_jpeg_names_its_record(kept):
    ds = records(JPEG, JPEG[: int(len(JPEG) * kept)]).map(lx.image.resize(32))
    with pytest.raises(lx.RecordError, match=r"map\(resize\) failed on record 1: .*damaged or cut"):
        ds[1]
    replaced = ds.on_error("replace").batch(2)[0]["image"]
    np.testing.assert_array_equal(replaced[0], replaced[1])


def test_another_key_says_which_leaves_there_are():
    with pytest.raises(lx.RecordError, match="no leaf 'jpg' but 'image', 'label': choose one with"):
        records(JPEG).map(lx.image.resize(32, key="jpg"))[0]
    with pytest.raises(
        lx.RecordError, match="must be dicts with a leaf 'image', this one is bytes"
    ):
        lx.Dataset.from_source([JPEG]).map(lx.image.resize(32))[0]


def test_a_batch_has_the_crops_of_its_records():
    crop = lx.image.random_resized_crop(32)
    for given in ((JPEG, JPEG), (PHOTO, PHOTO)):
        found = records(*given).batch(2).random_map(crop, seed=0)[0]["image"]
        expected = records(*given).random_map(crop, seed=0).batch(2)[0]["image"]
        np.testing.assert_array_equal(found, expected)
        assert (found[0] != found[1]).any()


def test_which_method_they_are_for():
    crop = lx.image.random_resized_crop(32)
    with pytest.raises(lx.ArgumentTypeError, match=r"Write \.random_map\(random_resized_crop"):
        records(JPEG).map(crop)
    with pytest.raises(lx.ArgumentTypeError, match=r"Write \.map\(resize\(\.\.\.\)\)\."):
        records(JPEG).random_map(lx.image.resize(32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lx.image.resize(32.5), r"`size` must be an integer, got 32.5 \(float\)"),
        (lambda: lx.image.resize("32"), r"`size` must be an integer, got '32' \(str\)"),
        (lambda: lx.image.resize((32,)), r"`size` must be a number or \(height, width\), got"),
        (lambda: lx.image.resize((32, 0)), "`size` must be at least 1, got 0"),
        (lambda: lx.image.resize(32, channels=2), "`channels` must be 1, 3 or 4, got 2"),
        (lambda: lx.image.resize(32, key=0), r"`key` must be a string, got 0"),
        (lambda: lx.image.resize(32, antialias=True), "resized with antialiasing"),
        (lambda: lx.image.resize(32, method="cubic"), "`method` must be one of 'area', 'bilinear'"),
        (lambda: lx.image.center_crop(32), "missing .* 'shorter_side'"),
        (lambda: lx.image.center_crop(32, shorter_side=31), "at least .* 32, got 31"),
        (lambda: lx.image.random_resized_crop(32, scale=0.5), "`scale` must be two numbers"),
        (lambda: lx.image.random_resized_crop(32, scale=(0, 1)), "`scale` .* above 0"),
        (lambda: lx.image.random_resized_crop(32, scale=(0.5, 2)), "at most 1, shares of the area"),
        (lambda: lx.image.random_resized_crop(32, ratio=(2, 1)), "`ratio` .* the smallest first"),
        (lambda: lx.image.random_resized_crop(32, (0.1, 1)), "takes 1 positional argument"),
    ],
)
def test_wrong_arguments_fail_at_once(call, message):
    with pytest.raises((lx.ArgumentError, lx.ArgumentTypeError), match=message):
        call()


def test_other_libraries_names_say_what_to_write():
    with pytest.raises(
        AttributeError, match=r"no attribute 'CenterCrop'. Write center_crop\(224, "
    ):
        lx.image.CenterCrop  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'loaderx.image' has no attribute 'blur'$"):
        lx.image.blur  # noqa: B018


@pytest.mark.parametrize(
    ("package", "module", "options", "extra"),
    [
        ("PIL", images.pillow_module, {}, "images"),
        ("cv2", opencv_module, {"method": "area"}, "opencv"),
    ],
)
def test_a_missing_package_is_named_at_once(package, module, options, extra, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **given):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **given)

    module.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        with pytest.raises(lx.MissingPackageError, match=rf"pip install 'loaderx-jax\[{extra}\]'"):
            lx.image.resize(32, **options)
    finally:
        module.cache_clear()
