"""loaderx: this checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.workloads import Job, Record, augment, augment_batch, burn, decode, scale

TITLE = "loaderx"
REQUIREMENTS = None
VERSIONS = ["numpy"]
WAYS = {
    "arrays": {"defaults": "DataLoader(dataset, batch_size=n, num_epochs=e)"},
    "transform": {
        "defaults": ".shuffle().map(f).batch(n): a call for each record",
        "best": ".shuffle().batch(n).map(f): whole batches",
    },
    "tokens": {"defaults": "from_arrays(np.memmap), shuffled"},
    "jpeg": {
        "defaults": "from_source(paths).map(decode).batch(n)",
        "best": "the same, engine='threads', num_workers=2",
    },
    "gil": {
        "defaults": "engine='auto', which has to find out that it needs processes; 8 s",
        "best": "engine='processes', num_workers=2",
    },
    "transport": {"best": "engine='processes', num_workers=1"},
    "resume": {"defaults": "set_state"},
    "images": {
        "defaults": ".shuffle().map(f).batch(n): a call for each record",
        "best": ".shuffle().batch(n).map(f), engine='threads', num_workers=2",
    },
}
CANNOT: dict[str, str] = {}
SECONDS = {"gil": {"defaults": 8.0}}

_chosen = ""


def begin() -> None:
    import loaderx  # noqa: F401


def note() -> str:
    return _chosen


def run(dataset: Any, **options: Any) -> Iterator[Record]:
    """All batches, and a note of the engine that ran in the end."""
    from loaderx import DataLoader

    global _chosen
    with DataLoader(dataset, **options) as loader:
        yield from loader
        _chosen = f"engine {loader.stats().engine}"


def arrays(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.from_arrays(image=job.load("image"), label=job.load("label"))
    return run(dataset, batch_size=job.batch_size, num_epochs=job.epochs)


def transform(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    records = Dataset.from_arrays(image=job.load("image"), label=job.load("label")).shuffle(seed=0)
    if job.variant == "best":
        return run(records.batch(job.batch_size).map(scale).repeat(job.epochs))
    return run(records.map(scale).batch(job.batch_size).repeat(job.epochs))


def tokens(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.from_arrays(tokens=job.open("tokens"))
    return run(dataset, batch_size=job.batch_size, num_epochs=job.epochs)


def jpeg(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    files = Dataset.from_source(job.paths()).shuffle(seed=0).map(decode)
    options = {"engine": "threads", "num_workers": job.workers} if job.variant == "best" else {}
    return run(files.batch(job.batch_size).repeat(job.epochs), **options)


def gil(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    numbers = Dataset.range(job.records).shuffle(seed=0).map(burn)
    options = {"engine": "processes", "num_workers": job.workers} if job.variant == "best" else {}
    return run(numbers.batch(job.batch_size).repeat(job.epochs), **options)


def transport(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    blocks = np.load(job.data / "blocks.npy")
    rounds = job.records * job.epochs // len(blocks)
    dataset = Dataset.from_arrays(x=blocks).repeat(rounds).batch(job.batch_size)
    return run(dataset, engine="processes", num_workers=1)


def images(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    arrays = {"image": job.load("image64"), "label": job.load("label64")}
    records = Dataset.from_arrays(arrays).shuffle(seed=0)
    if job.variant == "best":
        batches = records.batch(job.batch_size).map(augment_batch).repeat(job.epochs)
        return run(batches, engine="threads", num_workers=job.workers)
    return run(records.map(augment).batch(job.batch_size).repeat(job.epochs))


# Resuming -----------------------------------------------------------------------------------------


def loader(job: Job) -> Any:
    from loaderx import DataLoader, Dataset

    values = np.arange(job.records, dtype=np.int32)
    return DataLoader(Dataset.from_arrays(value=values).shuffle(seed=0).batch(job.batch_size))


def stream(job: Job) -> Iterator[Record]:
    return iter(loader(job))


def save(job: Job, step: int, folder: Path) -> None:
    iterator = iter(loader(job))
    iterator.seek(step)
    (folder / "state.json").write_text(json.dumps(iterator.get_state()))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    iterator: Any = iter(loader(job))
    iterator.set_state(json.loads((folder / "state.json").read_text()))
    return iterator  # type: ignore[no-any-return]
