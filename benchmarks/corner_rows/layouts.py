"""Arrays that do not lie in memory row after row, beside NumPy's own indexing of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corner_rows import Corner, Side, inline
from loaderx import Dataset

Array = np.ndarray[Any, Any]
BATCH = 128


def by_hand(arrays: dict[str, Array]) -> Side:
    """What a user would write: a permutation, and fancy indexing."""

    def side() -> Iterator[dict[str, Array]]:
        rng, count = np.random.default_rng(0), len(next(iter(arrays.values())))
        while True:
            order = rng.permutation(count)
            for start in range(0, count - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                yield {name: array[chosen] for name, array in arrays.items()}

    return side


def shuffled(dataset: Dataset[Any]) -> Side:
    return inline(dataset.shuffle(seed=0).repeat().batch(BATCH))


def of_arrays(make: Callable[[int], Array]) -> Callable[[int, Path], tuple[Side, Side]]:
    def sides(size: int, _: Path) -> tuple[Side, Side]:
        array = make(size)
        return shuffled(Dataset.from_arrays(x=array)), by_hand({"x": array})

    return sides


def cifar(size: int) -> Array:
    """As the tutorials load it: channels first in the file, last in the array."""
    return np.ones((size, 3072), np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def contiguous(size: int) -> Array:
    return np.ones((size, 32, 32, 3), np.uint8)


def backwards(size: int) -> Array:
    return np.ones((size, 28, 28), np.uint8)[::-1]


def crop(size: int) -> Array:
    return np.ones((size, 32, 32), np.uint8)[:, 2:30, 2:30]


def columns(size: int) -> Array:
    return np.ones((size, 100), np.float32)[:, :-1]


def fortran(size: int) -> Array:
    return np.asfortranarray(np.ones((size, 100), np.float32))


def field(size: int) -> Array:
    return np.ones(size, [("a", "i1"), ("b", "<f4", (16,))])["b"]


def windows(size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(np.arange(size + 255, dtype=np.float32), 256)


ARRAYS = (contiguous, cifar, backwards, crop, columns, fortran, field, windows)


def fortran_npy(size: int, folder: Path) -> tuple[Side, Side]:
    path = folder / "x.npy"
    np.save(path, fortran(size))
    array = np.load(path, mmap_mode="r")
    return shuffled(Dataset.open(path)), by_hand({"x": array})


def npz(size: int, folder: Path) -> tuple[Side, Side]:
    """Members of a zip begin anywhere, so numbers are not aligned."""
    path = folder / "x.npz"
    np.savez(path, x=np.ones((size, 16), np.float32), y=np.arange(size))
    with np.load(path) as members:
        arrays = {name: members[name] for name in members.files}
    return shuffled(Dataset.open(path)), by_hand(arrays)


REASONS = {
    cifar: "batches are C-contiguous; x[i] leaves the channels first, and np.ascontiguousarray of "
    "it costs three times ours"
}

CORNERS = [
    *(
        Corner(
            f"layout_{make.__name__}",
            of_arrays(make),
            (1_000, 50_000),
            reason=REASONS.get(make, ""),
        )
        for make in ARRAYS
    ),
    Corner("layout_fortran_npy", fortran_npy, (1_000, 50_000)),
    Corner("layout_npz", npz, (1_000, 50_000)),
]
