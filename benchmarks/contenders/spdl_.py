"""SPDL: threads, and for Python that holds the GIL, processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from suite.augmented import with_numpy
from suite.file_workloads import (
    WINDOW,
    image_files,
    image_record,
    json_lines,
    read_parquet,
    take_rows,
    tfds_source,
    write_array_record,
)
from suite.packing import cut, pack_lines
from suite.workloads import (
    BLOCKS,
    JPEG_SIZE,
    LARGE,
    MIXED,
    Array,
    Job,
    Record,
    UnsupportedError,
    augment,
    augment_batch,
    boxes,
    burn,
    decode,
    scale,
    stack,
)

from contenders.numpy_by_hand import fetch, mixed

TITLE = "SPDL"
REQUIREMENTS = [
    "spdl",
    "jax",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "tensorflow-datasets",
    "importlib-resources",
    "array_record",
]
VERSIONS = ["spdl-core", "spdl-io", "jax", "numpy"]
OWN_DECODER = {"jpeg": ("spdl.io",)}
DEFAULTS = "a pipeline of records: pipe(load), aggregate(n), pipe(stack)"
FUNCTION = "a pipeline of batches of indices: pipe(gather and function, concurrency=2)"
BEST = f"{FUNCTION}, in order of completion"
IN_ORDER = "the same, output_order='input': batches come in the order of the indices"
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": BEST},
    "transform": {"defaults": DEFAULTS, "best": BEST},
    "step": {"best": f"{BEST}; NumPy batches, as they are into the step"},
    "tokens": {"defaults": DEFAULTS, "best": BEST},
    "jpeg": {
        "defaults": "pipe(decode with OpenCV, concurrency=2), aggregate(n), pipe(stack)",
        "best": "a pipeline of batches of paths: pipe(decode and stack, concurrency=2), in order "
        "of completion",
        "in order": IN_ORDER,
        "spdl.io": "the defaults with spdl.io (FFmpeg), which crops and scales as it decodes",
    },
    "gil": {
        "defaults": "pipe(f, executor=ProcessPoolExecutor(2), concurrency=2)",
        "best": "the same, a task for a whole batch, concurrency=4",
    },
    "transport": {
        "defaults": "iterate_in_subprocess",
        "best": "iterate_in_subprocess with a SharedMemorySegmentPool: views of shared memory",
        "ring": "iterate_in_subprocess with a SharedMemoryRingBuffer: copies out of shared memory",
    },
    "remote": {
        "best": "pipe(fetch a whole .npy file with urllib, concurrency=4), aggregate(a window), "
        "pipe(mix), disaggregate()",
    },
    "images": {"defaults": DEFAULTS, "best": BEST, "in order": IN_ORDER},
    "aug32": {"best": f"{BEST}; the function is NumPy's"},
    "aug128": {"best": f"{BEST}; the function is NumPy's"},
}
CANNOT = {"resume": "no checkpoint"}


def begin() -> None:
    import spdl.pipeline  # noqa: F401


def note() -> str:
    return ""


def numbers(job: Job) -> Iterator[int]:
    rng = np.random.default_rng(0)
    for _ in range(job.epochs):
        yield from rng.permutation(job.records).tolist()


def index_batches(job: Job) -> Iterator[Array]:
    rng = np.random.default_rng(0)
    for _ in range(job.epochs):
        order = rng.permutation(job.records)
        for start in range(0, job.records, job.batch_size):
            yield order[start : start + job.batch_size]


def run(builder: Any, threads: int) -> Iterator[Record]:
    pipeline = builder.add_sink(3).build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def of_records(job: Job, load: Any, concurrency: int = 1) -> Iterator[Record]:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(numbers(job)).pipe(load, concurrency=concurrency)
    return run(builder.aggregate(job.batch_size).pipe(stack), concurrency + 1)


def of_batches(job: Job, make: Any) -> Iterator[Record]:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(index_batches(job))
    order = "input" if job.variant == "in order" else "completion"
    return run(builder.pipe(make, concurrency=job.workers, output_order=order), job.workers)


def rows(job: Job, arrays: dict[str, Array], record: Any, batch: Any) -> Iterator[Record]:
    def load(ix: Any) -> Record:
        return {name: array[ix] for name, array in arrays.items()}

    if job.variant != "defaults":
        return of_batches(job, lambda ix: batch(load(ix)))
    return of_records(job, lambda i: record(load(i)))


def unchanged(record: Record) -> Record:
    return record


def arrays(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image"), "label": job.load("label")}
    return rows(job, data, unchanged, unchanged)


step = arrays


def transform(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image"), "label": job.load("label")}
    return rows(job, data, scale, scale)


def tokens(job: Job) -> Iterator[Record]:
    return rows(job, {"tokens": job.open("tokens")}, unchanged, unchanged)


def images(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image64"), "label": job.load("label64")}
    return rows(job, data, augment, augment_batch)


def aug32(job: Job) -> Iterator[Record]:
    x, y = job.load(job.workload), job.load(f"label_{job.workload}")

    def make(ix: Array) -> Record:  # a generator for each batch: threads must not share one
        rng = np.random.default_rng([1, int(ix[0])])
        return with_numpy({"image": x[ix], "label": y[ix]}, rng, job.workload)

    return of_batches(job, make)


aug128 = aug32


def with_ffmpeg(path: str) -> Record:
    import spdl.io

    label = int(path[-9:-4])
    top, left, height, width, flipped = boxes()[label].tolist()
    steps = f"format=rgb24,crop={width}:{height}:{left}:{top}:exact=1"
    steps += f",scale={JPEG_SIZE}:{JPEG_SIZE}:flags=bilinear" + (",hflip" if flipped else "")
    buffer = spdl.io.load_image(path, filter_desc=f"{steps},format=rgb24")
    return {"image": spdl.io.to_numpy(buffer), "label": np.int32(label)}


def jpeg(job: Job) -> Iterator[Record]:
    paths = job.paths()
    if job.variant in ("best", "in order"):
        return of_batches(job, lambda ix: stack([decode(paths[i]) for i in ix]))
    load = with_ffmpeg if job.variant == "spdl.io" else decode
    if job.variant == "spdl.io":
        try:
            load(paths[0])
        except RuntimeError as error:
            if "libspdl" not in str(error):
                raise
            raise UnsupportedError(
                "spdl.io needs the shared libraries of FFmpeg, which PyPI does not have"
            ) from None
    return of_records(job, lambda i: load(paths[i]), job.workers)


def remote(job: Job) -> Iterator[Record]:
    from spdl.pipeline import PipelineBuilder

    rng, names = np.random.default_rng(0), job.part_names("npy")
    files = max(1, MIXED // job.part_rows())

    def load(number: int) -> tuple[int, Array]:
        return number, fetch(f"{job.url}/npy/{names[number]}")

    def mix(loaded: list[tuple[int, Array]]) -> list[Record]:
        numbers, parts = zip(*loaded, strict=True)
        return list(mixed(list(parts), np.array(numbers), rng, job.batch_size))

    order = rng.permutation(len(names)).tolist()
    builder = PipelineBuilder().add_source(order).pipe(load, concurrency=4)
    return run(builder.aggregate(files).pipe(mix).disaggregate(), 5)


def burn_batch(ix: Array) -> Record:
    return stack([burn(number) for number in ix])


def gil(job: Job) -> Iterator[Record]:
    from concurrent.futures import ProcessPoolExecutor

    from spdl.pipeline import PipelineBuilder

    with ProcessPoolExecutor(job.workers) as pool:
        if job.variant == "best":
            builder = PipelineBuilder().add_source(index_batches(job))
            yield from run(builder.pipe(burn_batch, executor=pool, concurrency=4), 1)
        else:
            builder = PipelineBuilder().add_source(numbers(job))
            builder.pipe(burn, executor=pool, concurrency=job.workers)
            yield from run(builder.aggregate(job.batch_size).pipe(stack), 1)


class Blocks:
    """Batches, made in the other process."""

    def __init__(self, path: str, records: int, batch_size: int) -> None:
        self.blocks = np.load(path)
        self.records, self.batch_size = records, batch_size

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, self.records, self.batch_size):
            ix = np.arange(start, start + self.batch_size) % BLOCKS
            yield {"x": self.blocks.take(ix, axis=0)}


def transport(job: Job) -> Iterator[Record]:
    from spdl.pipeline import iterate_in_subprocess

    make = partial(Blocks, str(job.data / "blocks.npy"), job.records, job.batch_size)
    batches = iterate_in_subprocess(make, arena=arena(job))
    for _ in range(job.epochs):
        yield from batches


def arena(job: Job) -> Any:
    """Shared memory for eight batches."""
    from spdl.pipeline import SharedMemoryRingBuffer, SharedMemorySegmentPool

    size = job.batch_size * LARGE
    if job.variant == "best":
        return SharedMemorySegmentPool(size + 4096, 8)
    return SharedMemoryRingBuffer(8 * size) if job.variant == "ring" else None


# Files --------------------------------------------------------------------------------------------

COMPLETION = "concurrency=2), in order of completion"
WAYS |= {
    "parquet_text": {
        "best": f"a pipeline of batches of indices: pipe(table.take of pyarrow's, {COMPLETION}"
    },
    "imagefolder": {
        "defaults": "pipe(decode with OpenCV, concurrency=2), aggregate(n), pipe(stack)",
        "best": f"a pipeline of batches of paths: pipe(decode with OpenCV and stack, {COMPLETION}",
        "in order": IN_ORDER,
    },
    "tfds": {
        "best": "a pipeline of batches of indices: pipe(tfds.data_source.__getitems__ and stack, "
        f"{COMPLETION}; ArrayRecord files",
        "in order": IN_ORDER,
    },
    "jsonl_pack": {
        "defaults": "pipe(read, tokenise and pack 2,000 documents by hand, concurrency=2)",
        "best": "the same, executor=ProcessPoolExecutor(2)",
    },
}


def prepare(job: Job) -> None:
    if job.workload == "tfds":
        write_array_record(job)


def parquet_text(job: Job) -> Iterator[Record]:
    return of_batches(job, partial(take_rows, read_parquet(job)))


def imagefolder(job: Job) -> Iterator[Record]:
    files = image_files(job)
    if job.variant == "defaults":
        return of_records(job, lambda i: image_record(files[i]), job.workers)
    return of_batches(job, lambda ix: stack([image_record(files[i]) for i in ix.tolist()]))


def tfds(job: Job) -> Iterator[Record]:
    source = tfds_source(job)
    return of_batches(job, lambda ix: stack(source.__getitems__(ix.tolist())))


def jsonl_pack(job: Job) -> Iterator[Record]:
    from concurrent.futures import ProcessPoolExecutor

    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(index_batches(replace(job, batch_size=WINDOW)))
    make = partial(pack_lines, json_lines(job))
    if job.variant == "defaults":
        parts = run(builder.pipe(make, concurrency=job.workers), job.workers)
        yield from cut(parts, job.batch_size)
        return
    with ProcessPoolExecutor(job.workers) as pool:
        parts = run(builder.pipe(make, executor=pool, concurrency=job.workers), 1)
        yield from cut(parts, job.batch_size)
