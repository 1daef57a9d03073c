"""Streams, samples and chosen indices, beside the loop by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corner_rows import Corner, Side, inline
from loaderx import Dataset

BATCH = 128


def children(count: int, _: Path) -> tuple[Side, Side]:
    """The first batch of a `flat_map` that makes many records of one."""
    row = np.ones(100, np.float32)

    def many(_: Any) -> list[Any]:
        return [{"x": row}] * count

    dataset = Dataset.range(100_000).flat_map(many).batch(BATCH)

    def plain() -> Iterator[Any]:
        found: list[Any] = []
        for number in range(100_000):
            found += many(number)
            while len(found) >= BATCH:
                yield {"x": np.stack([record["x"] for record in found[:BATCH]])}
                del found[:BATCH]

    return inline(dataset), plain


def small_epochs(count: int, _: Path) -> tuple[Side, Side]:
    """A stream over few records: a batch is an epoch."""
    records = [{"x": i} for i in range(count)]

    def is_kept(record: Any) -> bool:
        return bool(record["x"] >= 0)

    dataset = Dataset.from_source(records).filter(is_kept)

    def plain() -> Iterator[Any]:
        while True:
            kept = [record["x"] for record in records if is_kept(record)]
            yield {"x": np.array(kept, np.int32)}

    return inline(dataset.batch(count).repeat()), plain


def sample(count: int, _: Path) -> tuple[Side, Side]:
    """The first batch of a weighted sample, beside NumPy's draw for one batch."""
    weights, numbers = np.random.default_rng(0).random(count), Dataset.range(count)

    def ours() -> Iterator[Any]:
        yield from inline(numbers.sample(weights, seed=0).batch(BATCH))()

    def plain() -> Iterator[Any]:
        rng, chances = np.random.default_rng(0), weights / weights.sum()
        while True:
            yield rng.choice(count, BATCH, p=chances)

    return ours, plain


def chosen(count: int, _: Path) -> tuple[Side, Side]:
    """The first batch of a dataset that is indexed by a permutation."""
    table, numbers = np.random.default_rng(0).permutation(count), Dataset.range(count)

    def ours() -> Iterator[Any]:
        yield from inline(numbers[table].batch(BATCH))()

    def plain() -> Iterator[Any]:
        for start in range(0, count - BATCH + 1, BATCH):
            yield table[start : start + BATCH].copy()

    return ours, plain


CORNERS = [
    Corner(
        "flat_map_children", children, (10, 1_000), 1, "64 records are made first; 1 with window=1"
    ),
    Corner(
        "small_epochs", small_epochs, (5, 10), 256, "an epoch is four units or more, 70 µs each"
    ),
    Corner("sample_first", sample, (100_000, 10_000_000), 1, "a table is made, for all batches"),
    Corner(
        "chosen_first", chosen, (100_000, 10_000_000), 1, "entries that come twice are looked for"
    ),
]
