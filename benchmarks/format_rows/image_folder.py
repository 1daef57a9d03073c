"""Image folders: JPEGs in class folders, decoded and stacked into shuffled batches."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

NEEDS = ["pillow", "simplejpeg", "grain", "datasets"]
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    place = Path(__file__).with_name("webdataset.py")
    spec = importlib.util.spec_from_file_location("webdataset_row", place)
    assert spec is not None
    assert spec.loader is not None
    row = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(row)
    for number, jpeg in enumerate(row.jpegs(512 if quick else 8192)):
        path = folder / "images" / f"class{number % 16:02}" / f"{number:08}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg)


def loaderx(folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "images").shuffle(0).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def files(folder: Path) -> list[tuple[str, int]]:
    names = sorted(os.listdir(folder / "images"))
    return [
        (str(path), label)
        for label, name in enumerate(names)
        for path in sorted((folder / "images" / name).iterdir())
    ]


class Decoded:
    """What one writes with Pillow: also the source of Grain."""

    def __init__(self, folder: Path) -> None:
        self.files = files(folder)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict:
        from PIL import Image

        path, label = self.files[index]
        with Image.open(path) as image:
            return {"image": np.asarray(image), "label": label}


def pillow(folder: Path) -> Iterator[int]:
    source = Decoded(folder)
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(source))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            records = [source[index] for index in order[start : start + BATCH].tolist()]
            batch = {name: np.stack([one[name] for one in records]) for name in records[0]}
            yield len(batch["label"])


def grain(folder: Path) -> Iterator[int]:
    import grain

    dataset = grain.MapDataset.source(Decoded(folder)).shuffle(0).repeat().batch(BATCH)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=BATCH)
    for batch in dataset.to_iter_dataset(options):
        yield len(batch["label"])


def hugging_face(folder: Path) -> Iterator[int]:
    import datasets

    datasets.disable_progress_bars()
    dataset = datasets.load_dataset(
        "imagefolder", data_dir=str(folder / "images"), cache_dir=str(folder / "hf"), split="train"
    ).with_format("numpy")
    for epoch in range(1_000):
        for batch in dataset.shuffle(seed=epoch).iter(BATCH, drop_last_batch=True):
            yield len(batch["label"])


CONTENDERS = {
    "loaderx": loaderx,
    "Pillow by hand": pillow,
    "Grain": grain,
    "Hugging Face": hugging_face,
}
BARS = [
    ("loaderx", "Pillow by hand", 1.0),
    ("loaderx", "Grain", 1.0),
    ("loaderx", "Hugging Face", 1.0),
]
