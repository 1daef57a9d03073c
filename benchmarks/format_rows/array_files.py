"""HDF5 and safetensors against the same rows in an ``.npy``, and against their own libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

NEEDS = ["h5py", "safetensors"]
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    import h5py
    from safetensors.numpy import save_file

    rows = 5_000 if quick else 100_000
    images = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)
    labels = np.arange(rows) % 10
    (folder / "npy").mkdir(exist_ok=True)
    np.save(folder / "npy" / "image.npy", images)
    np.save(folder / "npy" / "label.npy", labels)
    with h5py.File(folder / "cifar.h5", "w") as file:
        file["image"], file["label"] = images, labels
    save_file({"image": images, "label": labels}, folder / "cifar.safetensors")


def _loaderx(path: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    with DataLoader(Dataset.open(path).shuffle(0).repeat().batch(BATCH), engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def _orders(rows: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(rows)
        for start in range(0, rows - BATCH, BATCH):
            yield order[start : start + BATCH]


def npy(folder: Path) -> Iterator[int]:
    return _loaderx(folder / "npy")


def hdf5(folder: Path) -> Iterator[int]:
    return _loaderx(folder / "cifar.h5")


def safetensors(folder: Path) -> Iterator[int]:
    return _loaderx(folder / "cifar.safetensors")


def h5py_by_hand(folder: Path) -> Iterator[int]:
    import h5py

    with h5py.File(folder / "cifar.h5") as file:
        images, labels = file["image"], file["label"]
        for chosen in _orders(len(labels)):
            chosen.sort()
            yield len(images[chosen]) and len(labels[chosen])


def get_slice(folder: Path) -> Iterator[int]:
    from safetensors import safe_open

    with safe_open(folder / "cifar.safetensors", "np") as file:
        images, labels = file.get_slice("image"), file.get_slice("label")
        for chosen in _orders(labels.get_shape()[0]):
            rows = chosen.tolist()
            batch = np.stack([images[row] for row in rows])
            yield len(batch) and len([labels[row : row + 1] for row in rows])


CONTENDERS = {
    "loaderx .npy": npy,
    "loaderx HDF5": hdf5,
    "loaderx safetensors": safetensors,
    "h5py, ascending": h5py_by_hand,
    "safetensors get_slice": get_slice,
}
BARS = [("loaderx HDF5", "loaderx .npy", 0.8), ("loaderx safetensors", "loaderx .npy", 0.8)]
