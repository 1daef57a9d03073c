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
    text, *lines, numbers = repr(shown).splitlines()
    assert (text, numbers) == ("text  object[20]", "n     int32[20]   from 0 to 19")
    assert lines == [f"  {('a <b> ' * 30)[:73]}..."] * 8
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
    with pytest.raises(ArgumentTypeError, match="there is nothing to show: there is no leaf in it"):
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


def test_masks_and_boxes_of_records():
    image = np.full((80, 100, 3), 200, np.uint8)
    mask = np.zeros((80, 100), np.int32)
    mask[:40] = 1
    boxes = [np.array([[10, 20, 60, 70]]), np.array([[0.1, 0.25, 0.6, 0.875], [0, 0, 1, 1]])]
    records = [{"image": image, "mask": mask, "boxes": boxes[n]} for n in range(2)]
    shown = Dataset.from_source(records).show()
    sheet = picture(shown)
    left, top = 8, 8
    assert sheet[top + 70, left + 35].tolist() != [200, 200, 200]  # the edge of the box
    assert sheet[top + 45, left + 35].tolist() == [200, 200, 200]  # inside
    beside = left + 102
    assert sheet[top + 10, beside + 50].tolist() != sheet[top + 70, beside + 50].tolist()
    second = 8 + 202 + 8
    assert sheet[top + 70, second + 35].tolist() != [200, 200, 200]
    assert repr(shown).splitlines() == [
        "image  uint8[2,80,100,3]  from 200 to 200",
        "mask   int32[2,80,100]    from 0 to 1",
        "boxes  object[2]          int64[1,4], float64[2,4]",
    ]


def test_sound_is_drawn_as_its_wave():
    times = np.arange(4000)
    loud = np.sin(times / 5).astype(np.float32)
    quiet = np.concatenate([loud[:2000], np.zeros(2000, np.float32)])
    sheet = picture(Dataset.from_source([{"audio": loud}, {"audio": quiet}]).show())
    dark = (sheet == 70).all(axis=2)
    first, second = dark[:, 8:208], dark[:, 216:416]
    assert first[:, :100].sum() == pytest.approx(first[:, 100:].sum(), rel=0.05)
    assert second[:, :100].sum() > 5 * second[:, 100:].sum()


def test_packed_rows():
    dataset = Dataset.from_source([{"t": np.arange(n)} for n in (30, 8, 40)])
    lines = repr(dataset.pack({"t": 40}, strategy="first_fit").batch(2).show()).splitlines()
    assert lines[1] == f"  {'1' * 30}{'2' * 8}..  2 records, 2 of 40 padding"
    assert lines[2] == f"  {'1' * 40}  1 records, 0 of 40 padding"


def test_datasets_and_loaders():
    dataset = Dataset.range(9).map(lambda i: {"x": i, "text": f"<b>{i}</b>"})
    assert dataset.head(2) == [{"x": 0, "text": "<b>0</b>"}, {"x": 1, "text": "<b>1</b>"}]
    assert len(dataset.head(100)) == 9
    assert [batch["x"].tolist() for batch in dataset.batch(4).head(1)] == [[0, 1, 2, 3]]
    assert [int(x) for x in Dataset.range(9).filter(lambda x: x % 2 == 1).head(2)] == [1, 3]
    expected = "x     int64[2]   0, 1\ntext  object[2]  <b>0</b>, <b>1</b>"
    assert repr(dataset.show(2)) == repr(lx.show(dataset, most=2)) == expected
    loader = lx.DataLoader(dataset.batch(4))
    assert repr(loader.show()) == repr(lx.show(loader)) == repr(dataset.batch(4).show())
    assert repr(lx.show(loader)).startswith("x     int64[4]   0, 1, 2, 3\n")
    with pytest.raises(ArgumentError, match="there is nothing to show: the stream is empty"):
        Dataset.range(9).filter(lambda x: False).show()
    with pytest.raises(ArgumentError, match="`n` must be at least 1, got 0"):
        dataset.head(0)
    for each in (dataset, dataset.batch(4), loader):
        with pytest.raises(ArgumentError, match="`n` must be at least 1, got -1"):
            each.show(-1)


def test_the_classes_of_a_dataset_are_named(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    dataset = Dataset.open(tmp_path)
    assert repr(dataset.show()).splitlines()[1] == "label  int64[2]        cat, dog"
    assert repr(lx.show(dataset, classes={"label": ("a", "b")})).endswith("a, b")
    assert lx.show(dataset.batch(2)).png == dataset.batch(2).show().png
