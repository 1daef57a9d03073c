"""Image folders read by torchvision and by loaderx."""

from __future__ import annotations

import io

import numpy as np
import pytest

from loaderx.sources import ImageFolder

pytestmark = [pytest.mark.owners, pytest.mark.foreign]

datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

NAMES = ["b/10.jpg", "b/2.jpg", "b/B.jpeg", "a/x/1.png", "a/x-y/1.png", "a/1.bmp", "a/z.JPG",
         "C/ü.webp", "C/.hidden/1.png"]  # fmt: skip


def test_the_same_order_labels_and_pixels(tmp_path):
    for number, name in enumerate(NAMES):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (9, 8, 3), np.uint8)
        image = Image.fromarray(pixels).convert("L" if number % 3 == 0 else "RGB")
        out = io.BytesIO()
        kind = {"jpg": "JPEG", "jpeg": "JPEG"}.get(name.rpartition(".")[2].lower())
        image.save(out, kind or name.rpartition(".")[2].upper())
        path.write_bytes(out.getvalue())
    (tmp_path / "C" / ".hidden" / "1.png").unlink()  # torchvision would read it
    theirs = datasets.ImageFolder(str(tmp_path))
    ours = ImageFolder(tmp_path, channels=3)
    assert list(ours.classes["label"]) == theirs.classes
    assert [ours.where(index) for index in range(len(ours))] == [path for path, _ in theirs.samples]
    for record, (image, label) in zip(ours, theirs, strict=True):
        assert record["label"] == label
        np.testing.assert_array_equal(record["image"], np.asarray(image))
