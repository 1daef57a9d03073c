"""Grain's MapDataset API.  Its absl flags are parsed before any worker starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.workloads import (
    BLOCKS,
    Array,
    Job,
    Record,
    augment,
    augment_batch,
    burn,
    decode,
    scale,
)

TITLE = "Grain MapDataset"
REQUIREMENTS = ["grain", "jax", "numpy", "opencv-python-headless"]
ENVIRONMENT = "grain"
VERSIONS = ["grain", "jax", "numpy"]
DEFAULTS = "source, shuffle, map, batch, to_iter_dataset(): 16 threads, 500 batches ahead"
NONE = "ReadOptions(0, 0): no threads"
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": NONE},
    "transform": {"defaults": DEFAULTS, "best": f"{NONE}; the function after batch"},
    "tokens": {"defaults": DEFAULTS, "best": NONE},
    "jpeg": {"defaults": DEFAULTS, "best": "ReadOptions(2, 8): two threads, eight batches ahead"},
    "gil": {
        "defaults": "mp_prefetch(2 workers)",
        "best": f"{NONE}; mp_prefetch(2 workers, buffer of 4)",
    },
    "transport": {
        "defaults": "mp_prefetch(1 worker)",
        "best": f"{NONE}; mp_prefetch(1 worker, buffer of 4)",
    },
    "resume": {"defaults": "set_state", "best": f"set_state; {NONE}"},
    "images": {
        "defaults": DEFAULTS,
        "best": f"{NONE}; the function after batch",
        "threads": "ReadOptions(2, 8); the function after batch",
    },
}
CANNOT: dict[str, str] = {}


def begin() -> None:
    import grain  # noqa: F401
    from absl import flags

    flags.FLAGS(["benchmark"])


def note() -> str:
    return ""


class Rows:
    """A random access source of records."""

    def __init__(self, **arrays: Array) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: Any) -> Record:
        return {name: array[index] for name, array in self.arrays.items()}

    def __repr__(self) -> str:  # it becomes part of a checkpoint
        return "Rows"


class Blocks(Rows):
    def __init__(self, blocks: Array, count: int) -> None:
        super().__init__(x=blocks)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Record:
        return {"x": self.arrays["x"][index % BLOCKS]}


def options(job: Job, threads: int = 0, ahead: int = 0) -> Any:
    import grain

    return grain.ReadOptions(threads, ahead) if job.variant == "best" else None


def run(job: Job, source: Any, record: Any = None, batch: Any = None, shuffle: bool = True) -> Any:
    import grain

    chain = grain.MapDataset.source(source)
    if shuffle:
        chain = chain.shuffle(seed=0)
    if record:
        chain = chain.map(record)
    chain = chain.batch(job.batch_size)
    if batch:
        chain = chain.map(batch)
    return chain.repeat(job.epochs)


def arrays(job: Job) -> Iterator[Record]:
    chain = run(job, Rows(image=job.load("image"), label=job.load("label")))
    return iter(chain.to_iter_dataset(options(job)))


def transform(job: Job) -> Iterator[Record]:
    rows = Rows(image=job.load("image"), label=job.load("label"))
    best = job.variant == "best"
    chain = run(job, rows, batch=scale) if best else run(job, rows, record=scale)
    return iter(chain.to_iter_dataset(options(job)))


def tokens(job: Job) -> Iterator[Record]:
    chain = run(job, Rows(tokens=job.open("tokens")))
    return iter(chain.to_iter_dataset(options(job)))


def jpeg(job: Job) -> Iterator[Record]:
    chain = run(job, job.paths(), record=decode)
    return iter(chain.to_iter_dataset(options(job, job.workers, 8)))


def images(job: Job) -> Iterator[Record]:
    import grain

    rows = Rows(image=job.load("image64"), label=job.load("label64"))
    if job.variant == "defaults":
        return iter(run(job, rows, record=augment).to_iter_dataset())
    chain = run(job, rows, batch=augment_batch)
    if job.variant == "threads":
        return iter(chain.to_iter_dataset(grain.ReadOptions(job.workers, 8)))
    return iter(chain.to_iter_dataset(options(job)))


def in_workers(job: Job, chain: Any, workers: int) -> Iterator[Record]:
    import grain

    ahead = 4 if job.variant == "best" else 1
    workers_options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=ahead
    )
    return iter(chain.to_iter_dataset(options(job)).mp_prefetch(workers_options))


def gil(job: Job) -> Iterator[Record]:
    return in_workers(job, run(job, range(job.records), record=burn), job.workers)


def transport(job: Job) -> Iterator[Record]:
    blocks = Blocks(np.load(job.data / "blocks.npy"), job.records)
    return in_workers(job, run(job, blocks, shuffle=False), 1)


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job) -> Any:
    chain = run(job, Rows(value=np.arange(job.records, dtype=np.int32)))
    return iter(chain.to_iter_dataset(options(job)))


def save(job: Job, step: int, folder: Path) -> None:
    import grain

    iterator = stream(job)
    grain.experimental.set_next_index(iterator, step)
    (folder / "state.json").write_text(json.dumps(iterator.get_state()))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    iterator = stream(job)
    iterator.set_state(json.loads((folder / "state.json").read_text()))
    return iterator  # type: ignore[no-any-return]
