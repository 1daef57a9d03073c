"""Very many datasets as one, beside a loop that looks each row up in its array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corner_rows import Corner, Side, inline
from loaderx import Dataset

BATCH = 128
ROWS = 100_000  # in all parts

Parts = list[dict[str, np.ndarray[Any, Any]]]
Join = Callable[[list[Dataset[Any]]], Dataset[Any]]


def arrays(count: int) -> Parts:
    rows = ROWS // count
    x = np.ones((count, rows, 16), np.float32)
    return [{"x": x[i], "y": np.arange(rows)} for i in range(count)]


def by_hand(parts: Parts) -> Side:
    def side() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        rng, starts = np.random.default_rng(0), np.cumsum([0, *[len(part["y"]) for part in parts]])
        while True:
            order = rng.permutation(starts[-1])
            for start in range(0, len(order) - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                which = np.searchsorted(starts, chosen, side="right") - 1
                places = list(zip(which.tolist(), (chosen - starts[which]).tolist(), strict=True))
                yield {
                    "x": np.stack([parts[part]["x"][row] for part, row in places]),
                    "y": np.array([parts[part]["y"][row] for part, row in places]),
                }

    return side


def shuffled(join: Join) -> Callable[[int, Path], tuple[Side, Side]]:
    def sides(count: int, _: Path) -> tuple[Side, Side]:
        parts = arrays(count)
        joined = join([Dataset.from_arrays(**part) for part in parts])
        return inline(joined.shuffle(seed=0).repeat().batch(BATCH)), by_hand(parts)

    return sides


def first_batch(count: int, _: Path) -> tuple[Side, Side]:
    parts = arrays(count)

    def ours() -> Iterator[Any]:
        joined = Dataset.concatenate([Dataset.from_arrays(**part) for part in parts])
        yield from inline(joined.shuffle(seed=0).repeat().batch(BATCH))()

    return ours, by_hand(parts)


def single(count: int, _: Path) -> tuple[Side, Side]:
    """Elements by number."""
    parts = arrays(count)
    joined = Dataset.concatenate([Dataset.from_arrays(**part) for part in parts])
    starts = np.cumsum([0, *[len(part["y"]) for part in parts]])
    numbers = np.random.default_rng(0).integers(0, starts[-1], 10_000).tolist()

    def ours() -> Iterator[Any]:
        for number in numbers:
            record = joined[number]
            yield record["x"]

    def plain() -> Iterator[Any]:
        for number in numbers:
            part = int(np.searchsorted(starts, number, side="right")) - 1
            yield parts[part]["x"][number - starts[part]].copy()

    return ours, plain


def mix_to_the_end(count: int, _: Path) -> tuple[Side, Side]:
    """Each phase of the mix has an order of its own."""
    lengths = np.random.default_rng(0).integers(100, 2_000, count).tolist()
    weights = np.random.default_rng(1).random(count).tolist()
    parts = [{"x": np.ones((n, 4), np.float32), "y": np.arange(n)} for n in lengths]
    sources = [Dataset.from_arrays(**part) for part in parts]

    def ours() -> Iterator[Any]:
        yield from inline(Dataset.mix(sources, weights, stop="all_exhausted").batch(BATCH))()

    return ours, by_hand(parts)


PER_DATASET = "each dataset is described, checked and has its place in a state: 80 µs"

CORNERS = [
    # 2,048 batches are under three epochs; what comes before the first of them has its own row.
    Corner("concatenate", shuffled(Dataset.concatenate), (100, 10_000), 2_048),
    Corner("mix", shuffled(Dataset.mix), (100, 1_000)),
    Corner("concatenate_first", first_batch, (100, 10_000), 1, PER_DATASET),
    Corner("concatenate_single", single, (100, 10_000), 256, "resolving one row takes NumPy calls"),
    Corner(
        "mix_to_the_end", mix_to_the_end, (10, 100), 1, "the order of all phases is worked out once"
    ),
]
