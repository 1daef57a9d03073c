"""jax-dataloader, with its own "jax" backend.

Version 0.1.4 does not run without torch: a type annotation that is checked at run time names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.augmented import with_numpy
from suite.workloads import Array, Job, Record, augment_batch, decode, scale, stack

TITLE = "jax-dataloader"
REQUIREMENTS = [
    "jax-dataloader",
    "jax",
    "torch==2.13.0",
    "numpy",
    "opencv-python-headless",
]
VERSIONS = ["jax-dataloader", "jax", "numpy"]
OWN = "a Dataset of its own that makes whole batches"
WAYS = {
    "arrays": {"defaults": "ArrayDataset, backend 'jax', shuffle=True"},
    "transform": {"defaults": OWN},
    "step": {"defaults": "ArrayDataset, backend 'jax', shuffle=True; its batches into the step"},
    "tokens": {"defaults": "ArrayDataset of the memory map"},
    "jpeg": {"defaults": f"{OWN}; no workers"},
    "resume": {"defaults": "no state: read and throw away up to the position"},
    "images": {"defaults": OWN},
    "aug32": {"defaults": f"{OWN}, in NumPy"},
    "aug128": {"defaults": f"{OWN}, in NumPy"},
}
NO_WORKERS = "no workers of its own; its 'pytorch' backend is torch's DataLoader"
NO_READERS = "no readers of files; arrays in memory are measured in the other workloads"
CANNOT = {
    "gil": NO_WORKERS,
    "transport": NO_WORKERS,
    **dict.fromkeys(("parquet_text", "imagefolder", "tfds", "jsonl_pack", "remote"), NO_READERS),
}


def begin() -> None:
    import jax_dataloader  # noqa: F401


def warm(job: Job) -> None:
    """JAX compiles the permutation for every number of records."""
    import jax

    jax.random.permutation(jax.random.key(0), np.arange(job.records)).block_until_ready()


def note() -> str:
    return ""


def of_arrays(job: Job, **arrays: Array) -> Iterator[Record]:
    import jax_dataloader as jdl

    loader = jdl.DataLoader(
        jdl.ArrayDataset(*arrays.values()),
        backend="jax",
        batch_size=job.batch_size,
        shuffle=True,
    )
    for _ in range(job.epochs):
        for batch in loader:
            yield dict(zip(arrays, batch, strict=True))


def of_batches(job: Job, make: Any) -> Iterator[Record]:
    """A dataset is asked for all indices of a batch at once."""
    import jax_dataloader as jdl

    class Made(jdl.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return job.records

        def __getitem__(self, index: Array) -> Record:
            return make(index)  # type: ignore[no-any-return]

    loader = jdl.DataLoader(Made(), backend="jax", batch_size=job.batch_size, shuffle=True)
    for _ in range(job.epochs):
        yield from loader


def arrays(job: Job) -> Iterator[Record]:
    return of_arrays(job, image=job.load("image"), label=job.load("label"))


step = arrays


def transform(job: Job) -> Iterator[Record]:
    x, y = job.load("image"), job.load("label")
    return of_batches(job, lambda ix: scale({"image": x[ix], "label": y[ix]}))


def tokens(job: Job) -> Iterator[Record]:
    return of_arrays(job, tokens=job.open("tokens"))


def images(job: Job) -> Iterator[Record]:
    x, y = job.load("image64"), job.load("label64")
    return of_batches(job, lambda ix: augment_batch({"image": x[ix], "label": y[ix]}))


def aug32(job: Job) -> Iterator[Record]:
    x, y = job.load(job.workload), job.load(f"label_{job.workload}")
    rng = np.random.default_rng(1)
    return of_batches(
        job, lambda ix: with_numpy({"image": x[ix], "label": y[ix]}, rng, job.workload)
    )


aug128 = aug32


def jpeg(job: Job) -> Iterator[Record]:
    paths = job.paths()
    return of_batches(job, lambda ix: stack([decode(paths[i]) for i in ix]))


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job) -> Iterator[Record]:
    return of_arrays(job, value=job.load("value"))


def save(job: Job, step: int, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"seed": 42, "step": step}))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    batches = stream(job)
    for _ in range(json.loads((folder / "state.json").read_text())["step"]):
        next(batches)
    return batches
