"""How well an order mixes, and what a row of it costs: loaderx beside buffers.

    python benchmarks/shuffle_quality.py [--records N]

A buffer of B records is what tf.data's `shuffle(B)` and Hugging Face's streaming `shuffle` have: it
is filled, then a record drawn from it is handed out and the next one takes its place.  Hugging Face
(datasets 5) also reads shards in random order, up to ten at a time.  Both are simulated here,
after their documentation; orders that the libraries themselves gave had the same figures.

For an order of N records in batches of 256, three figures:

correlation   of a record's place in the order with its place in the data; 0 if all is mixed, 1 if
              nothing is.
moved         how far a record has moved, in thirds of N: 1 if all is mixed.
neighbours    how often two records of a batch were less than N / 100 apart in the data, relative to
              a random order: 1 if all is mixed, 50 if the data come as they are.
"""

from __future__ import annotations

import argparse
import random
from time import perf_counter

import numpy as np

from loaderx import Dataset
from loaderx.rng import ROOT

BATCH = 256
ROWS = 32_768  # whose addresses are resolved at once, as a loader does it


def buffered(records: list[int], size: int, seed: int = 0) -> list[int]:
    """The order of a shuffle buffer."""
    draw = random.Random(seed).randrange
    buffer, order = records[:size], []
    for record in records[size:]:
        place = draw(size)
        order.append(buffer[place])
        buffer[place] = record
    random.Random(seed).shuffle(buffer)
    return order + buffer


def in_shards(count: int, shards: int, at_a_time: int = 10, seed: int = 0) -> list[int]:
    """Records of equal shards that come in random order, a record of each of some in turn."""
    cuts = np.arange(count).reshape(shards, -1)
    random.Random(seed).shuffle(rows := list(cuts))
    lanes = [np.concatenate(rows[number::at_a_time]) for number in range(at_a_time)]
    return [int(record) for record in np.stack(lanes, 1).reshape(-1)]


def quality(order: list[int]) -> tuple[float, float, float]:
    found = np.array(order)
    count = len(found)
    correlation = float(np.corrcoef(found, np.arange(count))[0, 1])
    moved = float(np.abs(found - np.arange(count)).mean() / (count / 3))
    batches = found[: count // BATCH * BATCH].reshape(-1, BATCH)
    near, width = 0.0, count / 100
    for batch in batches:
        ordered = np.sort(batch)
        reach = np.searchsorted(ordered, ordered + width) - np.arange(BATCH) - 1
        near += reach.sum() / (BATCH * (BATCH - 1) / 2)
    expected = 1 - (1 - 1 / 100) ** 2  # two random records are so close
    return correlation, moved, near / len(batches) / expected


def ns_per_row(dataset: Dataset) -> float:
    """What it takes to find a row, in bulk."""
    move = dataset._node.move(0)
    positions = np.arange(ROWS) + len(dataset) // 3
    move.steps(ROOT, positions)
    best = 1.0
    for _ in range(20):
        begun = perf_counter()
        move.steps(ROOT, positions)
        best = min(best, perf_counter() - begun)
    return best / ROWS * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    count = parser.parse_args().records
    data, records = Dataset.range(count), list(range(count))
    ours = {
        "shuffle()": data.shuffle(0),
        "shuffle(window=10_000)": data.shuffle(0, window=10_000),
        "shuffle(block=1000)": data.shuffle(0, block=1000),
        "shuffle(block=1000, window=10_000)": data.shuffle(0, block=1000, window=10_000),
        "shuffle(block=1000, window=50_000)": data.shuffle(0, block=1000, window=50_000),
        "shuffle(block=100, window=10_000)": data.shuffle(0, block=100, window=10_000),
    }
    theirs = {
        "tf.data, buffer 10,000": buffered(records, 10_000),
        "Hugging Face, 1 shard, buffer 10,000": buffered(records, 10_000, 1),
        "Hugging Face, 20 shards, buffer 10,000": buffered(in_shards(count, 20), 10_000),
        "Hugging Face, 100 shards, buffer 10,000": buffered(in_shards(count, 100), 10_000),
    }
    print(f"{count:,} records\n\n| order | correlation | moved | neighbours | ns a row |")
    print("|---|--:|--:|--:|--:|")
    for name, dataset in ours.items():
        order = [x for batch in dataset.batch(ROWS) for x in batch.tolist()]
        assert sorted(order) == records
        figures = " | ".join(f"{figure:.2f}" for figure in quality(order))
        print(f"| `{name}` | {figures} | {ns_per_row(dataset):.0f} |")
    for name, order in theirs.items():
        assert sorted(order) == records
        figures = " | ".join(f"{figure:.2f}" for figure in quality(order))
        print(f"| {name} | {figures} | |")
    far = Dataset.range(10**12 + 77).shuffle(0, block=256, window=256 * 512)
    print(f"\nof 10^12 records, block=256, window=131,072: {ns_per_row(far):.0f} ns a row")


if __name__ == "__main__":
    main()
