"""Grain's MapDataset API.  Its absl flags are parsed before any worker starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from format_rows.parquet import grain_rows
from suite.augmented import jitted, with_numpy
from suite.file_workloads import (
    ROW,
    image_files,
    image_record,
    json_lines,
    lines_of,
    parquet_files,
    read_parquet,
    tfds_source,
    tokenise_line,
    write_array_record,
)
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
REQUIREMENTS = [
    "grain",
    "jax",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "tensorflow-datasets",
    "importlib-resources",
]
ENVIRONMENT = "grain"
VERSIONS = ["grain", "jax", "numpy"]
DEFAULTS = "source, shuffle, map, batch, to_iter_dataset(): 16 threads, 500 batches ahead"
NONE = "ReadOptions(0, 0): no threads"
INDICES = "MapDataset.range, shuffle, batch, map(one gather for the batch), ReadOptions(0, 0)"
AUGMENTED = {
    "defaults": "source, shuffle, random_map of records in NumPy, batch, to_iter_dataset()",
    "best": f"{NONE}; random_map of batches in NumPy",
    "threads": "ReadOptions(2, 8); random_map of batches in NumPy",
    "jax": "ReadOptions(2, 8); random_map of batches, a function jitted for the CPU",
}
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": NONE, "indices": INDICES},
    "transform": {
        "defaults": DEFAULTS,
        "best": f"{NONE}; the function after batch",
        "indices": f"{INDICES}, then the function",
    },
    "step": {
        "defaults": f"{DEFAULTS}; NumPy batches, as they are into the step",
        "best": f"{NONE}; the same",
        "indices": f"{INDICES}; the same",
    },
    "tokens": {"defaults": DEFAULTS, "best": NONE, "indices": INDICES},
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
        "indices": "batches of indices, map(gather and function), ReadOptions(2, 8)",
    },
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
}
CANNOT = {"remote": "its sources are files on disk, or objects of your own"}


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

    return grain.ReadOptions(threads, ahead) if job.variant != "defaults" else None


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


def of_indices(job: Job, rows: Rows, function: Any = None) -> Any:
    """A source that is asked once for a whole batch: batches of indices, then a gather.

    Sources with batched reads (`_getitems`) are a private experiment of 0.2.18, which is off.
    """
    import grain

    chain = grain.MapDataset.range(job.records).shuffle(seed=0).batch(job.batch_size)
    chain = chain.map(rows.__getitem__)
    return (chain.map(function) if function else chain).repeat(job.epochs)


def arrays(job: Job) -> Iterator[Record]:
    rows = Rows(image=job.load("image"), label=job.load("label"))
    chain = of_indices(job, rows) if job.variant == "indices" else run(job, rows)
    return iter(chain.to_iter_dataset(options(job)))


step = arrays


def transform(job: Job) -> Iterator[Record]:
    rows = Rows(image=job.load("image"), label=job.load("label"))
    if job.variant == "indices":
        return iter(of_indices(job, rows, scale).to_iter_dataset(options(job)))
    best = job.variant == "best"
    chain = run(job, rows, batch=scale) if best else run(job, rows, record=scale)
    return iter(chain.to_iter_dataset(options(job)))


def tokens(job: Job) -> Iterator[Record]:
    rows = Rows(tokens=job.open("tokens"))
    chain = of_indices(job, rows) if job.variant == "indices" else run(job, rows)
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
    if job.variant == "indices":
        chain = of_indices(job, rows, augment_batch)
    if job.variant in ("threads", "indices"):
        return iter(chain.to_iter_dataset(grain.ReadOptions(job.workers, 8)))
    return iter(chain.to_iter_dataset(options(job)))


def aug32(job: Job) -> Iterator[Record]:
    import grain

    rows = Rows(image=job.load(job.workload), label=job.load(f"label_{job.workload}"))
    chain = grain.MapDataset.source(rows).shuffle(seed=0)
    if job.variant == "defaults":
        chain = chain.random_map(partial(augment_record, job.workload), seed=1)
        return iter(chain.batch(job.batch_size).repeat(job.epochs).to_iter_dataset())
    function = partial(augment_rows, job.workload)
    if job.variant == "jax":
        function = partial(augment_in_jax, jitted(job.workload))
    chain = chain.batch(job.batch_size).random_map(function, seed=1).repeat(job.epochs)
    threads = (0, 0) if job.variant == "best" else (job.workers, 8)
    return iter(chain.to_iter_dataset(grain.ReadOptions(*threads)))


aug128 = aug32


def augment_record(workload: str, record: Record, rng: np.random.Generator) -> Record:
    one = {"image": record["image"][None], "label": record["label"]}
    return {"image": with_numpy(one, rng, workload)["image"][0], "label": record["label"]}


def augment_rows(workload: str, batch: Record, rng: np.random.Generator) -> Record:
    return with_numpy(batch, rng, workload)


def augment_in_jax(function: Any, batch: Record, rng: np.random.Generator) -> Record:
    keys = rng.integers(0, 1 << 32, (len(batch["label"]), 2), np.uint32)
    return {name: np.asarray(leaf) for name, leaf in function(keys, batch).items()}


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
    blocks = Blocks(job.load("blocks"), job.records)
    return in_workers(job, run(job, blocks, shuffle=False), 1)


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job) -> Any:
    chain = run(job, Rows(value=job.load("value")))
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


# Files --------------------------------------------------------------------------------------------

TWO_THREADS = "ReadOptions(2, 8): two threads, eight batches ahead"
WAYS |= {
    "parquet_text": {
        "defaults": "ParquetIterDataset, WindowShuffleIterDataset of 16,000, batch into lists",
        "best": f"MapDataset of the rows of read_table of pyarrow's, shuffle, batch, {NONE}",
    },
    "imagefolder": {"defaults": f"{DEFAULTS}; OpenCV", "best": f"{TWO_THREADS}; OpenCV"},
    "tfds": {
        "defaults": "MapDataset.source(tfds.data_source), ArrayRecord files, shuffle, batch",
        "best": f"the same, {TWO_THREADS}",
    },
    "jsonl_pack": {
        "defaults": "MapDataset of lines, shuffle, map(tokenise), BestFitPackIterDataset, batch",
        "best": f"{NONE}; the same, mp_prefetch(2 workers, buffer of 4)",
    },
}


def prepare(job: Job) -> None:
    if job.workload == "tfds":
        write_array_record(job)


class Table:
    """Rows of a table of pyarrow's."""

    def __init__(self, table: Any) -> None:
        self.text, self.label = table["text"], table["label"].to_numpy()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: Any) -> Record:
        return {"text": self.text[index].as_py(), "label": self.label[index]}


def lists_of_text(rows: Any) -> Record:
    labels = np.array([row["label"] for row in rows], np.int32)
    return {"text": [row["text"] for row in rows], "label": labels}


def parquet_text(job: Job) -> Iterator[Record]:
    import grain

    if job.variant == "defaults":
        for _ in range(job.epochs):
            yield from grain_rows(parquet_files(job)).batch(job.batch_size, batch_fn=lists_of_text)
        return
    chain = grain.MapDataset.source(Table(read_parquet(job))).shuffle(seed=0)
    chain = chain.batch(job.batch_size, batch_fn=lists_of_text).repeat(job.epochs)
    yield from chain.to_iter_dataset(options(job))


def imagefolder(job: Job) -> Iterator[Record]:
    chain = run(job, image_files(job), record=image_record)
    return iter(chain.to_iter_dataset(options(job, job.workers, 8)))


def tfds(job: Job) -> Iterator[Record]:
    chain = run(job, tfds_source(job))
    return iter(chain.to_iter_dataset(options(job, job.workers, 8)))


BINS = 64  # rows that are filled at a time


def tokens_of_line(line: bytes) -> Record:
    return {"tokens": tokenise_line(line)}


def jsonl_pack(job: Job) -> Iterator[Record]:
    import grain
    from grain.experimental import BestFitPackIterDataset

    lines = grain.MapDataset.source(lines_of(json_lines(job))).shuffle(seed=0)
    tokens = lines.map(tokens_of_line).repeat(job.epochs).to_iter_dataset(options(job))
    packed = BestFitPackIterDataset(
        tokens, length_struct={"tokens": ROW}, num_packing_bins=BINS
    ).batch(job.batch_size)
    if job.variant == "best":
        packed = packed.mp_prefetch(grain.MultiprocessingOptions(job.workers, 4))
    return iter(packed)
