"""NumPy files: `Dataset.open` against indexing the mapped array by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

NEEDS: list[str] = []
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    rows = 5_000 if quick else 100_000
    images = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)
    np.savez(folder / "cifar.npz", image=images, label=np.arange(rows) % 10)


def loaderx(folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "cifar.npz").shuffle(0).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def numpy_by_hand(folder: Path) -> Iterator[int]:
    from loaderx.sources.files.arrays import open_arrays

    arrays = open_arrays(folder / "cifar.npz")
    rows = len(arrays["label"])
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(rows)
        for start in range(0, rows - BATCH, BATCH):
            chosen = order[start : start + BATCH]
            batch = {name: array[chosen] for name, array in arrays.items()}
            yield len(batch["label"])


def kept(folder: Path, path: Path | None = None) -> Iterator[int]:
    """The second epoch and those after it, of records that a function has made."""
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "cifar.npz").map(dict).cache(path)
    for _ in dataset.batch(BATCH):
        pass
    with DataLoader(dataset.shuffle(0).repeat().batch(BATCH), engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def kept_in_folder(folder: Path) -> Iterator[int]:
    yield from kept(folder, folder / "kept")


def in_memory(folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    with np.load(folder / "cifar.npz") as arrays:
        dataset = Dataset.from_arrays(dict(arrays))
    with DataLoader(dataset.shuffle(0).repeat().batch(BATCH), engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


CONTENDERS = {
    "loaderx": loaderx,
    "numpy": numpy_by_hand,
    "from_arrays": in_memory,
    "cache()": kept,
    "cache(path)": kept_in_folder,
}
BARS = [
    ("loaderx", "numpy", 0.9),
    ("cache()", "from_arrays", 0.9),
    ("cache(path)", "from_arrays", 0.9),
]
