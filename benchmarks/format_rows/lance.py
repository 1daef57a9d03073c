"""Lance after the copy against `take` of its library; without a copy, against a scan in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

NEEDS = ["pylance"]
BATCH = 128
COLUMNS = {"images": "image", "text": "text"}


def write(folder: Path, quick: bool) -> None:
    import lance
    import pyarrow as pa

    rng, rows = np.random.default_rng(0), 5_000 if quick else 100_000
    images = rng.integers(0, 256, (rows, 3072), np.uint8)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 3072)
    tables = {"images": pa.table({"image": fixed, "label": np.arange(rows) % 10})}
    words = np.array([rng.bytes(4).hex()[: int(n)] for n in rng.integers(2, 8, 5000)])
    texts = [" ".join(words[rng.integers(0, 5000, 250)]) for _ in range(rows)]
    tables["text"] = pa.table({"text": texts})
    for name, table in tables.items():
        lance.write_dataset(table, folder / f"{name}.lance", max_rows_per_file=rows // 4)


def loaderx(name: str, folder: Path, *, copied: bool = True) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    # By default all decoded blocks would be kept, and nothing decoded after the first epoch.
    os.environ["LOADERX_CHUNK_BYTES"] = str(1 << 28)
    dataset = Dataset.open(folder / f"{name}.lance", cache=None if copied else False)
    shuffle = {} if copied else {"block": "source", "window": 16_000}
    dataset = dataset.shuffle(0, **shuffle).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch[COLUMNS[name]])


def take(name: str, folder: Path) -> Iterator[int]:
    import lance

    dataset, rng = lance.dataset(folder / f"{name}.lance"), np.random.default_rng(0)
    while True:
        order = rng.permutation(dataset.count_rows())
        for start, stop in pairwise(range(0, len(order), BATCH)):
            column = dataset.take(order[start:stop])[COLUMNS[name]].combine_chunks()
            if name == "text":
                yield len(column.to_pylist())
            else:
                yield len(column.flatten().to_numpy().reshape(-1, 3072))


def scan(name: str, folder: Path) -> Iterator[int]:
    import lance

    dataset = lance.dataset(folder / f"{name}.lance")
    while True:
        for batch in dataset.to_batches(batch_size=BATCH):
            yield len(batch)


CONTENDERS: dict[str, Callable[[Path], Iterator[int]]] = {}
for _name in COLUMNS:
    CONTENDERS[f"loaderx {_name}"] = partial(loaderx, _name)
    CONTENDERS[f"lance.take {_name}"] = partial(take, _name)
    CONTENDERS[f"loaderx {_name}, no copy, blocks"] = partial(loaderx, _name, copied=False)
    CONTENDERS[f"lance {_name}, scan in order"] = partial(scan, _name)

BARS = [
    ("loaderx images", "lance.take images", 20),
    ("loaderx text", "lance.take text", 20),
    ("loaderx images, no copy, blocks", "lance.take images", 5),
    ("loaderx text, no copy, blocks", "lance.take text", 5),
]
