"""MDS against MosaicML's StreamingDataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

NEEDS = ["mosaicml-streaming"]
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    from streaming import MDSWriter

    rows = 5_000 if quick else 50_000
    images = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)
    columns = {"image": "ndarray:uint8:32,32,3", "label": "int"}
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for number, image in enumerate(images):
            writer.write({"image": image, "label": number % 10})


def loaderx(folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "mds").shuffle(0).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def streaming_by_index(folder: Path) -> Iterator[int]:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(folder / "mds"), batch_size=1)
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(dataset)).tolist()
        for start in range(0, len(order) - BATCH, BATCH):
            records = [dataset[index] for index in order[start : start + BATCH]]
            yield len(np.stack([record["image"] for record in records]))


CONTENDERS = {"loaderx": loaderx, "StreamingDataset[i]": streaming_by_index}
BARS = [("loaderx", "StreamingDataset[i]", 5.0)]
