"""loaderx: this checkout."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from suite import augmented
from suite.file_workloads import (
    CENTRE,
    ROW,
    SHORTER_SIDE,
    WINDOW,
    centre_of_jpeg,
    image_folder,
    json_lines,
    tfds_folder,
    tokenise,
)
from suite.workloads import (
    FAR,
    MIXED,
    Job,
    Record,
    UnsupportedError,
    augment,
    augment_batch,
    burn,
    crop_into,
    decode,
    scale,
)

TITLE = "loaderx"
REQUIREMENTS = None
VERSIONS = ["numpy", *(["jax"] if find_spec("jax") else [])]
IN_JAX = ".shuffle().batch(n).random_map(loaderx.jax.augment(f)), f in JAX for one record"
AUGMENTED = {
    "defaults": ".shuffle().batch(n).random_map(f) in NumPy, rng.standard_normal(dtype, out)",
    "numpy": "the same, results in loaderx.empty, engine='threads', num_workers=2",
    "jax": f"{IN_JAX}, with loaderx.jax.normal, engine='threads', num_workers=1",
    "jax.random": "the same, with jax.random.normal",
}
WAYS = {
    "arrays": {"defaults": "DataLoader(dataset, batch_size=n, num_epochs=e)"},
    "transform": {
        "defaults": ".shuffle().map(f).batch(n): a call for each record",
        "best": ".shuffle().batch(n).map(f): whole batches",
    },
    "step": {
        "defaults": "NumPy batches, as they are into the step",
        "placed": "the same, sharding=jax.devices()[0]: arrays of JAX, placed ahead of the step",
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
    "remote": {
        "defaults": "Dataset.open(URL of a saved folder), .shuffle(block='source', window=1024)",
        "best": "the same, engine='threads', num_workers=4",
    },
    "resume": {"defaults": "set_state"},
    "images": {
        "defaults": ".shuffle().map(f).batch(n): a call for each record",
        "numpy": ".shuffle().batch(n).map(f), results in loaderx.empty, engine='threads', "
        "num_workers=2",
        "jax": f"{IN_JAX}, engine='threads', num_workers=1",
        "jax, 2 threads": "the same, num_workers=2",
    },
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
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


def step(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.from_arrays(image=job.load("image"), label=job.load("label"))
    options: dict[str, Any] = {}
    if job.variant == "placed":
        import jax

        options["sharding"] = jax.devices()[0]
    return run(dataset, batch_size=job.batch_size, num_epochs=job.epochs, **options)


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

    blocks = job.load("blocks")
    rounds = job.records * job.epochs // len(blocks)
    dataset = Dataset.from_arrays(x=blocks).repeat(rounds).batch(job.batch_size)
    return run(dataset, engine="processes", num_workers=1)


def images(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    arrays = {"image": job.load("image64"), "label": job.load("label64")}
    records = Dataset.from_arrays(arrays).shuffle(seed=0)
    if job.variant == "defaults":
        return run(records.map(augment).batch(job.batch_size).repeat(job.epochs))
    batches = records.batch(job.batch_size)
    if job.variant != "numpy":
        made = batches.random_map(stage_in_jax(job.workload), seed=1)
        threads = 1 if job.variant == "jax" else job.workers
        return run(made.repeat(job.epochs), **in_threads(threads))
    return run(batches.map(augment_recycled).repeat(job.epochs), **in_threads(job.workers))


def augment_recycled(batch: Record) -> Record:
    """Results in memory that is used again."""
    from loaderx import empty

    return augment_batch(batch, empty)


def in_threads(count: int) -> dict[str, Any]:
    return {"engine": "threads", "num_workers": count}


@cache
def stage_in_jax(workload: str, short_hash: bool = True) -> Any:
    """One object for all streams of the process: it is compiled once."""
    if not find_spec("jax"):
        raise UnsupportedError("jax is not installed here")
    from loaderx.jax import augment as for_batches
    from loaderx.jax import normal

    if workload == "images":
        return for_batches(augmented.images_with_jax())
    return for_batches(augmented.with_jax(workload, normal if short_hash else None))


def aug32(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    arrays = {"image": job.load(job.workload), "label": job.load(f"label_{job.workload}")}
    batches = Dataset.from_arrays(arrays).shuffle(seed=0).batch(job.batch_size)
    if job.variant.startswith("jax"):
        stage = stage_in_jax(job.workload, job.variant == "jax")
        made = batches.random_map(stage, seed=1)
        return run(made.repeat(job.epochs), **in_threads(1))
    recycled = job.variant == "numpy"
    made = batches.random_map(partial(augment_rows, job.workload, recycled), seed=1)
    return run(made.repeat(job.epochs), **(in_threads(job.workers) if recycled else {}))


aug128 = aug32


def augment_rows(workload: str, recycled: bool, batch: Record, rng: Any) -> Record:
    """The whole batch in NumPy, with the batch's generator."""
    from loaderx import empty

    new = empty if recycled else np.empty
    side, crop = augmented.CROPS[workload]
    top, left = (rng.integers(side - crop + 1) for _ in range(2))
    cut = new((len(batch["image"]), crop, crop, 3), np.uint8)
    places = np.stack([top, left, rng.random() < 0.5], axis=1)
    crop_into(cut, batch["image"], places.tolist())
    shift = rng.uniform(-augmented.BRIGHTNESS, augmented.BRIGHTNESS).astype(np.float32)
    factor = rng.uniform(1 - augmented.CONTRAST, 1 + augmented.CONTRAST).astype(np.float32)
    noise = rng.standard_normal(cut.shape[1:], np.float32, out=new(cut.shape, np.float32))
    made = augmented.adjust(cut, noise, shift, factor, new(cut.shape, np.float32))
    return {"image": made, "label": batch["label"]}


# Files behind URLs --------------------------------------------------------------------------------


def prepare(job: Job) -> None:
    """A saved folder, its parts as large as the files of the others."""
    from loaderx import Dataset

    if job.workload != "remote":
        return
    folder = job.data / "remote" / "saved"
    shutil.rmtree(folder, ignore_errors=True)
    parts = list(job.parts())
    arrays = {
        "x": np.concatenate([data for _, data, _ in parts]),
        "label": np.concatenate([labels for _, _, labels in parts]),
    }
    Dataset.from_arrays(arrays).save(folder, part_bytes=job.part_rows() * (FAR + 4))


def remote(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    with tempfile.TemporaryDirectory() as cache:
        dataset = Dataset.open(f"{job.url}/saved/", cache=cache)
        dataset = dataset.shuffle(seed=0, block="source", window=MIXED).batch(job.batch_size)
        yield from run(dataset, **(in_threads(4) if job.variant == "best" else {}))


# Resuming -----------------------------------------------------------------------------------------


def loader(job: Job) -> Any:
    from loaderx import DataLoader, Dataset

    values = job.load("value")
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


# Files --------------------------------------------------------------------------------------------

WAYS |= {
    "parquet_text": {
        "defaults": "Dataset.open(folder).shuffle().batch(n): a copy in the cache, made once",
        "no copy": "cache=False, shuffle(window=16_000, block='source'): decoded row groups are "
        "kept in memory",
    },
    "imagefolder": {
        "defaults": "Dataset.open(folder, decode=False).shuffle().map(center_crop).batch(n)",
        "best": "the same, method='area' (antialiased), engine='threads', num_workers=2",
        "opencv": "the same with the function of those that run OpenCV by hand, not antialiased",
    },
    "tfds": {
        "defaults": "Dataset.open(folder).shuffle().batch(n), TFRecord files",
        "best": "the same, engine='threads', num_workers=2",
        "cached": "Dataset.open(folder).cache().shuffle().batch(n), engine='inline': decoded once",
    },
    "jsonl_pack": {
        "defaults": "Dataset.open(file).shuffle().map(tokenise).pack().batch(n): a copy in the "
        "cache, made once",
        "best": "the same, engine='processes', num_workers=2",
        "no copy": "the same as best, cache=False: JSON is parsed in every epoch",
    },
}
OWN_DECODER = {"imagefolder": ("defaults", "best", "opencv")}


def copies(job: Job) -> Any:
    """Where indexes and copies are kept: made before the clock, when a file is first opened."""
    return False if job.variant == "no copy" else job.data / "loaderx"


def parquet_text(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.open(job.data / "parquet_text" / "text", split="train", cache=copies(job))
    if job.variant == "no copy":
        shuffled = dataset.shuffle(0, window=16_000, block="source")
    else:
        shuffled = dataset.shuffle(0)
    return run(shuffled.batch(job.batch_size).repeat(job.epochs))


def imagefolder(job: Job) -> Iterator[Record]:
    import loaderx as lx

    best = job.variant != "defaults"
    centre: Any = lx.image.center_crop(
        CENTRE, shorter_side=SHORTER_SIDE, method="area" if best else "bilinear"
    )
    if job.variant == "opencv":
        centre = centre_by_hand
    dataset = lx.Dataset.open(image_folder(job), decode=False, cache=copies(job))
    batches = dataset.shuffle(0).map(centre).batch(job.batch_size)
    return run(batches.repeat(job.epochs), **(in_threads(job.workers) if best else {}))


def centre_by_hand(record: Record) -> Record:
    return {**record, "image": centre_of_jpeg(np.frombuffer(record["image"], np.uint8))}


def tfds(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.open(tfds_folder(job, "tfrecord"), cache=copies(job))
    if job.variant == "cached":
        cached = dataset.cache().shuffle(0).batch(job.batch_size)
        return run(cached.repeat(job.epochs), engine="inline")
    batches = dataset.shuffle(0).batch(job.batch_size).repeat(job.epochs)
    return run(batches, **(in_threads(job.workers) if job.variant == "best" else {}))


def tokenise_record(record: Record) -> Record:
    return {"tokens": tokenise(record["text"])}


def jsonl_pack(job: Job) -> Iterator[Record]:
    from loaderx import Dataset

    dataset = Dataset.open(json_lines(job), columns=["text"], cache=copies(job)).shuffle(0)
    packed = dataset.map(tokenise_record).pack({"tokens": ROW}, window=WINDOW)
    options = {} if job.variant == "defaults" else {"engine": "processes", "num_workers": 2}
    return run(packed.batch(job.batch_size).repeat(job.epochs), **options)
