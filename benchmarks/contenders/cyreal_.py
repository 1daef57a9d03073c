"""cyreal: the data on the device, one compiled function for the order, the gather, all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from suite.augmented import images_with_jax
from suite.workloads import INVERSE, Job, Record, decode

TITLE = "cyreal"
REQUIREMENTS = ["cyreal", "jax", "numpy", "opencv-python-headless"]
VERSIONS = ["cyreal", "jax", "numpy"]
NEXT = "ArraySource(ordering='shuffle'), BatchTransform, jax.jit(loader.next)"
WAYS = {
    "arrays": {"defaults": NEXT},
    "transform": {"defaults": f"{NEXT}, MapTransform of whole batches"},
    "step": {"defaults": f"{NEXT}; its batches into the step"},
    "tokens": {"defaults": f"{NEXT}, the rows copied to the device"},
    "jpeg": {"defaults": "DiskSource, whose function decodes a record; no workers"},
    "images": {"defaults": f"{NEXT}, MapTransform, vmapped"},
}
NO_WORKERS = "no workers"
NO_KEYS = "functions of MapTransform get no random key"
CANNOT = {
    "resume": "its state is a pytree that can be saved, but a step copies the order of all records "
    "once for each record: hours, up to 90 % of 10 million",
    "gil": NO_WORKERS,
    "transport": NO_WORKERS,
    "remote": "no reader of files behind URLs",
    "aug32": NO_KEYS,
    "aug128": NO_KEYS,
    **dict.fromkeys(("parquet_text", "imagefolder", "tfds", "jsonl_pack"), "no readers of files"),
}


def begin() -> None:
    import cyreal.loader  # noqa: F401


def note() -> str:
    return ""


def warm(job: Job) -> None:
    """It compiles a function for every number of records."""
    for _ in islice(globals()[job.workload](replace(job, epochs=1)), 1):
        pass


_made: dict[tuple[str, int], tuple[Any, Any]] = {}


def made(job: Job, source: Callable[[], Any], *stages: Any) -> tuple[Any, Any]:
    """The loader and its compiled function, made once for a number of records."""
    import jax
    from cyreal.loader import DataLoader
    from cyreal.transforms import BatchTransform

    key = (job.workload, job.records)
    if key not in _made:
        loader = DataLoader([source(), BatchTransform(batch_size=job.batch_size), *stages])
        _made[key] = loader, jax.jit(loader.next)
    return _made[key]


def of_arrays(job: Job, *names: str) -> Callable[[], Any]:
    def source() -> Any:
        import jax
        from cyreal.sources import ArraySource

        load = job.open if names == ("tokens",) else job.load
        data = {name.removesuffix("64"): load(name) for name in names}
        return ArraySource(jax.device_put(data), ordering="shuffle")

    return source


def run(job: Job, source: Callable[[], Any], *stages: Any) -> Iterator[Record]:
    """All epochs.

    A batch that would be short is filled up from the next epoch, which is its default; padding
    (``pad_last_batch``) takes longer.  So only the very last one is cut.
    """
    import jax

    loader, following = made(job, source, *stages)
    state = loader.init_state(jax.random.key(0))
    total = job.records * job.epochs
    for start in range(0, total, job.batch_size):
        batch, state, _ = following(state)
        left = total - start
        if left < job.batch_size:
            batch = {name: leaf[:left] for name, leaf in batch.items()}
        yield batch


def arrays(job: Job) -> Iterator[Record]:
    return run(job, of_arrays(job, "image", "label"))


step = arrays


def transform(job: Job) -> Iterator[Record]:
    from cyreal.transforms import MapTransform

    def scale(batch: Record, mask: Any) -> Record:
        return {**batch, "image": batch["image"].astype("float32") * INVERSE}

    return run(job, of_arrays(job, "image", "label"), MapTransform(scale))


def tokens(job: Job) -> Iterator[Record]:
    return run(job, of_arrays(job, "tokens"))


def images(job: Job) -> Iterator[Record]:
    import jax
    from cyreal.transforms import MapTransform

    crop = jax.vmap(partial(images_with_jax(), None))
    stage = MapTransform(lambda batch, mask: crop(batch))
    return run(job, of_arrays(job, "image64", "label64"), stage)


def jpeg(job: Job) -> Iterator[Record]:
    from cyreal.sources import DiskSource

    paths = job.paths()

    def source() -> Any:
        return DiskSource(
            length=job.records,
            sample_fn=lambda index: decode(paths[index]),
            ordering="shuffle",
            prefetch_size=job.batch_size,
        )

    return run(job, source)
