"""WebDataset: tar files of JPEGs, their bytes in shuffled order and in sequence, and decoded."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

NEEDS = ["webdataset", "pillow", "simplejpeg"]
BATCH = 256
SHARD = 1024


def write(folder: Path, quick: bool) -> None:
    import webdataset

    pattern = str(folder / "shard-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=SHARD, verbose=0) as writer:
        for number, jpeg in enumerate(jpegs(512 if quick else 8192)):
            writer.write({"__key__": f"{number:08}", "jpg": jpeg, "cls": number % 1000})


def jpegs(count: int) -> Iterator[bytes]:
    """Images of 300 x 400 that have about 62 KB each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (8, 75, 100, 3), np.uint8)
    for number in range(count):
        rough = np.roll(base[number % 8], number, (0, 1)).repeat(4, 0).repeat(4, 1)
        noise = rng.integers(0, 24, (300, 400, 1), np.uint8)
        out = io.BytesIO()
        Image.fromarray(rough // 2 + noise).save(out, "JPEG", quality=88)
        yield out.getvalue()


def loaderx(folder: Path) -> Iterator[int]:
    return batches_of_loaderx(folder, shuffled=True, decode=False)


def loaderx_in_sequence(folder: Path) -> Iterator[int]:
    return batches_of_loaderx(folder, shuffled=False, decode=False)


def loaderx_decoded(folder: Path) -> Iterator[int]:
    return batches_of_loaderx(folder, shuffled=True, decode=True)


def batches_of_loaderx(folder: Path, *, shuffled: bool, decode: bool) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "*.tar", decode=decode)
    if shuffled:
        dataset = dataset.shuffle(0)
    with DataLoader(dataset.repeat().batch(BATCH), engine="inline") as loader:
        for batch in loader:
            yield len(batch["cls"])


def webdataset(folder: Path) -> Iterator[int]:
    return batches_of(pipeline(folder).shuffle(1000))


def webdataset_in_sequence(folder: Path) -> Iterator[int]:
    return batches_of(pipeline(folder))


def webdataset_decoded(folder: Path) -> Iterator[int]:
    return batches_of(pipeline(folder).shuffle(1000).decode("rgb8"), stacked=True)


def pipeline(folder: Path) -> Iterable[dict]:
    import webdataset

    paths = sorted(map(str, folder.glob("*.tar")))
    return webdataset.WebDataset(paths, shardshuffle=False).repeat()


def batches_of(samples: Iterable[dict], *, stacked: bool = False) -> Iterator[int]:
    batch = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == BATCH:
            if stacked:
                np.stack([one["jpg"] for one in batch])
            yield BATCH
            batch = []


CONTENDERS = {
    "loaderx": loaderx,
    "webdataset": webdataset,
    "loaderx in sequence": loaderx_in_sequence,
    "webdataset in sequence": webdataset_in_sequence,
    "loaderx decoded": loaderx_decoded,
    "webdataset decoded": webdataset_decoded,
}
BARS = [
    ("loaderx", "webdataset", 3.0),
    ("loaderx in sequence", "webdataset in sequence", 1.0),
    ("loaderx decoded", "webdataset decoded", 1.0),
]
