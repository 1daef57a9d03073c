"""Grain's DataLoader API.  Its absl flags are parsed before any worker starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite.workloads import Job, Record, augment, augment_batch, burn, decode, scale

from contenders.grain_map import REQUIREMENTS, Blocks, Rows, begin, note

__all__ = ["REQUIREMENTS", "begin", "note"]

TITLE = "Grain DataLoader"
ENVIRONMENT = "grain"
VERSIONS = ["grain", "jax", "numpy"]
DEFAULTS = "IndexSampler, operations, worker_count=0: 16 threads, 500 records ahead"
NONE = "ReadOptions(0, 0): no threads"
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": NONE},
    "transform": {"defaults": DEFAULTS, "best": f"{NONE}; the function after Batch"},
    "tokens": {"defaults": DEFAULTS, "best": NONE},
    "jpeg": {
        "defaults": DEFAULTS,
        "best": "ReadOptions(2, 128)",
        "workers": f"{NONE}; worker_count=2, worker_buffer_size=4",
    },
    "gil": {
        "defaults": "worker_count=2",
        "best": f"{NONE}; worker_count=2, worker_buffer_size=4",
    },
    "transport": {
        "defaults": "worker_count=1",
        "best": f"{NONE}; worker_count=1, worker_buffer_size=4",
    },
    "resume": {"defaults": "set_state", "best": f"set_state; {NONE}"},
    "images": {"defaults": DEFAULTS, "best": f"{NONE}; the function after Batch"},
}
FASTER = "measured with its MapDataset, which is faster"
CANNOT = {
    **dict.fromkeys(
        ("step", "aug32", "aug128", "parquet_text", "imagefolder", "tfds", "jsonl_pack"), FASTER
    ),
    "remote": "its sources are files on disk, or objects of your own",
}


def mapped(function: Any) -> Any:
    import grain

    class Mapped(grain.transforms.Map):  # type: ignore[misc]
        def map(self, element: Any) -> Any:
            return function(element)

        def __repr__(self) -> str:  # it becomes part of a checkpoint
            return str(function.__name__)

    return Mapped()


def run(
    job: Job,
    source: Any,
    record: Any = None,
    batch: Any = None,
    shuffle: bool = True,
    workers: int = 0,
    threads: int = 0,
    ahead: int = 0,
) -> Any:
    import grain

    tuned = job.variant != "defaults"
    sampler = grain.samplers.IndexSampler(
        num_records=len(source),
        num_epochs=job.epochs,
        shuffle=shuffle,
        shard_options=grain.sharding.NoSharding(),
        seed=0,
    )
    operations = [mapped(record)] if record else []
    operations.append(grain.transforms.Batch(job.batch_size))
    if batch:
        operations.append(mapped(batch))
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=workers,
        worker_buffer_size=4 if tuned and workers else 1,
        read_options=grain.ReadOptions(threads, ahead) if tuned else None,
    )


def arrays(job: Job) -> Iterator[Record]:
    return iter(run(job, Rows(image=job.load("image"), label=job.load("label"))))


def transform(job: Job) -> Iterator[Record]:
    rows = Rows(image=job.load("image"), label=job.load("label"))
    best = job.variant == "best"
    return iter(run(job, rows, batch=scale) if best else run(job, rows, record=scale))


def tokens(job: Job) -> Iterator[Record]:
    return iter(run(job, Rows(tokens=job.open("tokens"))))


def jpeg(job: Job) -> Iterator[Record]:
    if job.variant == "workers":
        return iter(run(job, job.paths(), record=decode, workers=job.workers))
    return iter(run(job, job.paths(), record=decode, threads=job.workers, ahead=128))


def images(job: Job) -> Iterator[Record]:
    rows = Rows(image=job.load("image64"), label=job.load("label64"))
    best = job.variant == "best"
    return iter(run(job, rows, batch=augment_batch) if best else run(job, rows, record=augment))


def gil(job: Job) -> Iterator[Record]:
    return iter(run(job, range(job.records), record=burn, workers=job.workers))


def transport(job: Job) -> Iterator[Record]:
    blocks = Blocks(job.load("blocks"), job.records)
    return iter(run(job, blocks, shuffle=False, workers=1))


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job) -> Any:
    return iter(run(job, Rows(value=job.load("value"))))


def save(job: Job, step: int, folder: Path) -> None:
    """The state is text that counts records: that of the first step, with the number replaced."""
    iterator = stream(job)
    next(iterator)
    state = json.loads(iterator.get_state())
    assert state["last_seen_indices"] == {"0": job.batch_size - 1}
    state["last_seen_indices"] = {"0": step * job.batch_size - 1}
    (folder / "state.json").write_text(json.dumps(state, indent=4))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    iterator = stream(job)
    iterator.set_state((folder / "state.json").read_bytes())
    return iterator  # type: ignore[no-any-return]
