"""Batches as a person sees them."""

from __future__ import annotations

import builtins
import io

import numpy as np
import pytest
from PIL import Image

import loaderx as lx
from loaderx import ArgumentError, ArgumentTypeError, Dataset, MissingPackageError
from loaderx.demo import DIGITS


def picture(shown):
    return np.asarray(Image.open(io.BytesIO(shown.png)).convert("RGB"))


def test_digits_with_their_labels():
    shown = lx.show(Dataset.open(DIGITS).batch(12)[0], most=9)
    sheet = picture(shown)
    assert sheet.shape[0] >= 3 * 72
    assert sheet.shape[1] >= 3 * 72
    assert shown._repr_png_() == shown.png
    assert "data:image/png;base64" in shown._repr_html_()


def test_pixels_are_those_of_the_image():
    image = np.zeros((1, 72, 72, 3), np.uint8)
    image[0, :, :36] = (255, 0, 0)
    sheet = picture(lx.show({"x": image}))
    assert sheet[8 + 36, 8 + 10].tolist() == [255, 0, 0]
    assert sheet[8 + 36, 8 + 50].tolist() == [0, 0, 0]


def test_dark_bytes_are_brightened():
    image = np.zeros((1, 72, 72), np.uint8)
    image[0, 36:] = 16
    sheet = picture(lx.show(image))
    assert sheet[8 + 10, 8 + 10].tolist() == [0, 0, 0]
    assert sheet[8 + 50, 8 + 10].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 8, 8), bool),
        np.linspace(0, 1, 128).reshape(2, 8, 8),
        np.linspace(-2, 3, 2 * 192).reshape(2, 8, 8, 3).astype(np.float32),
        np.zeros((2, 300, 200, 4), np.uint8),
        np.zeros((8, 9, 3), np.uint8),
        [np.zeros((8, 8, 3), np.uint8), np.zeros((90, 20, 3), np.uint8)],
    ],
    ids=["bool", "floats", "normalised", "large", "one record", "several sizes"],
)
def test_kinds_of_images(images):
    assert picture(lx.show({"image": images, "label": np.arange(2)})).ndim == 3


def test_the_names_of_classes():
    batch = {"x": np.zeros(3, np.float32), "label": np.array([1, 0, 5])}
    text = repr(lx.show(batch, classes={"label": ("cat", "dog")}))
    assert text.splitlines() == ["x      float32[3]  0, 0, 0", "label  int64[3]    dog, cat, 5"]


def test_the_first_of_many_names():
    text = repr(lx.show({"label": np.arange(20) % 2}, classes={"label": ("cat", "dog")}))
    assert text == "label  int64[20]  cat, dog, cat, dog, cat, dog, cat, dog, ..."


def test_text_and_numbers():
    records = [{"text": "a <b> " * 30, "n": i} for i in range(20)]
    shown = lx.show(Dataset.from_source(records).batch(20)[0])
    assert "from 0 to 19" in repr(shown)
    assert "..., " in repr(shown)
    assert "&lt;b&gt;" in shown._repr_html_()
    assert shown._repr_png_() is None


def test_save(tmp_path):
    lx.show(np.zeros((2, 8, 8), np.uint8)).save(tmp_path / "batch.png")
    with Image.open(tmp_path / "batch.png") as image:
        assert image.size[0] > 2 * 72


def test_without_images(tmp_path):
    with pytest.raises(ArgumentError, match=r"no images in this batch: .*\n.*int64\[3\]"):
        lx.show({"x": np.arange(3)}).save(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_nothing_to_show():
    with pytest.raises(ArgumentTypeError, match="nothing to show in {}"):
        lx.show({})


def test_a_picture_needs_pillow(monkeypatch):
    def refuse(name, *more, **options):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *more, **options)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[images\]'"):
        _ = lx.show(np.zeros((2, 8, 8))).png
