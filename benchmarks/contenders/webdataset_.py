"""WebDataset: tar files, streamed through `curl`; only where files are behind URLs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from suite.workloads import MIXED, Job, Record

TITLE = "WebDataset"
REQUIREMENTS = ["webdataset", "torch==2.13.0", "numpy"]
VERSIONS = ["webdataset", "torch", "numpy"]
PIPELINE = "WebDataset(URLs, shardshuffle), shuffle(buffer), batched(n)"
WAYS = {
    "remote": {
        "defaults": PIPELINE,
        "best": f"{PIPELINE} in WebLoader(num_workers=4)",
    }
}
CANNOT: dict[str, str] = {}


def begin() -> None:
    import webdataset  # noqa: F401


def note() -> str:
    return ""


def prepare(job: Job) -> None:
    import webdataset as wds

    folder = job.data / "remote" / "tar"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, rows, labels in job.parts():
        with wds.TarWriter(str(folder / f"{name}.tar")) as writer:
            for row, label in zip(rows, labels.tolist(), strict=True):
                writer.write({"__key__": f"{label:08}", "bin": row.tobytes(), "cls": label})


def collated(records: list[tuple[bytes, bytes]]) -> Record:
    data, labels = zip(*records, strict=True)
    return {
        "x": np.stack([np.frombuffer(one, np.uint8) for one in data]),
        "label": np.array([int(label) for label in labels], np.int32),
    }


def remote(job: Job) -> Iterator[Record]:
    import webdataset as wds

    workers = 4 if job.variant == "best" else 0
    urls = [f"{job.url}/tar/{name}" for name in job.part_names("tar")]
    buffer = MIXED // max(1, workers)  # each worker has one
    dataset: Any = wds.WebDataset(urls, shardshuffle=len(urls), seed=0)
    dataset = dataset.shuffle(buffer).to_tuple("bin", "cls")
    dataset = dataset.batched(job.batch_size, collation_fn=collated)
    if workers:
        dataset = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    for batch in dataset:
        yield {name: np.asarray(leaf) for name, leaf in batch.items()}
