"""NumPy by hand: what somebody writes who wants nothing but this one loop to be fast."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from suite.augmented import with_numpy
from suite.file_workloads import (
    WINDOW,
    image_files,
    image_record,
    json_lines,
    read_parquet,
    take_rows,
)
from suite.packing import cut, pack_lines
from suite.workloads import (
    BLOCKS,
    MIXED,
    Array,
    Job,
    Record,
    augment_batch,
    burn,
    decode,
    scale,
    stack,
)

TITLE = "NumPy by hand"
REQUIREMENTS = None
VERSIONS = ["numpy"]
WAYS = {
    "arrays": {"by hand": "x[permutation[i:i+n]]"},
    "transform": {
        "by hand": "whole batches",
        "per record": "the function called for each record, then np.stack",
    },
    "step": {"by hand": "x[permutation[i:i+n]], as it is into the step"},
    "tokens": {"by hand": "x[permutation[i:i+n]] on the memory map"},
    "jpeg": {"by hand": "a pool of two threads, one batch ahead"},
    "gil": {"by hand": "multiprocessing.Pool(2).imap, one task for a batch"},
    "transport": {
        "no worker": "np.take into a new array in the same process: the limit",
        "by hand": "multiprocessing.Pool(1).imap",
    },
    "remote": {"by hand": "four threads fetch whole .npy files with urllib, a window ahead"},
    "resume": {"by hand": "seed and step; the permutation is drawn again"},
    "images": {"by hand": "whole batches"},
    "aug32": {"by hand": "whole batches"},
    "aug128": {"by hand": "whole batches"},
}
CANNOT: dict[str, str] = {}


def begin() -> None:
    pass


def note() -> str:
    return ""


def orders(job: Job) -> Iterator[Array]:
    """The indices of every batch of all epochs."""
    rng = np.random.default_rng(0)
    for _ in range(job.epochs):
        order = rng.permutation(job.records)
        for start in range(0, job.records, job.batch_size):
            yield order[start : start + job.batch_size]


def arrays(job: Job) -> Iterator[Record]:
    x, y = job.load("image"), job.load("label")
    for ix in orders(job):
        yield {"image": x[ix], "label": y[ix]}


step = arrays


def transform(job: Job) -> Iterator[Record]:
    x, y = job.load("image"), job.load("label")
    for ix in orders(job):
        if job.variant == "per record":
            yield stack([scale({"image": x[i], "label": y[i]}) for i in ix])
        else:
            yield scale({"image": x[ix], "label": y[ix]})


def tokens(job: Job) -> Iterator[Record]:
    x = job.open("tokens")
    for ix in orders(job):
        yield {"tokens": x[ix]}


def images(job: Job) -> Iterator[Record]:
    x, y = job.load("image64"), job.load("label64")
    for ix in orders(job):
        yield augment_batch({"image": x[ix], "label": y[ix]})


def augmented(job: Job) -> Iterator[Record]:
    x, y = job.load(job.workload), job.load(f"label_{job.workload}")
    rng = np.random.default_rng(1)
    for ix in orders(job):
        yield with_numpy({"image": x[ix], "label": y[ix]}, rng, job.workload)


aug32 = aug128 = augmented


def jpeg(job: Job) -> Iterator[Record]:
    return decoded_ahead(job, decode, job.paths())


def decoded_ahead(job: Job, load: Any, files: list[Any]) -> Iterator[Record]:
    with ThreadPoolExecutor(job.workers) as pool:
        ahead: deque[list[Future[Record]]] = deque()
        for ix in orders(job):
            ahead.append([pool.submit(load, files[i]) for i in ix])
            if len(ahead) > 1:
                yield stack([future.result() for future in ahead.popleft()])
        while ahead:
            yield stack([future.result() for future in ahead.popleft()])


def burn_batch(ix: Array) -> Record:
    return stack([burn(number) for number in ix])


def gil(job: Job) -> Iterator[Record]:
    import multiprocessing

    with multiprocessing.Pool(job.workers) as pool:
        yield from pool.imap(burn_batch, orders(job))


_blocks: list[Array] = []


def keep(blocks: Array) -> None:
    _blocks.append(blocks)


def take_block(ix: Array) -> Record:
    return {"x": _blocks[0][ix % BLOCKS]}


def transport(job: Job) -> Iterator[Record]:
    import multiprocessing

    blocks = job.load("blocks")
    numbers = np.arange(job.records * job.epochs).reshape(-1, job.batch_size)
    if job.variant == "no worker":
        for ix in numbers:
            yield {"x": blocks.take(ix % BLOCKS, axis=0)}
    else:
        with multiprocessing.Pool(1, keep, (blocks,)) as pool:
            yield from pool.imap(take_block, numbers)


def fetch(url: str) -> Array:
    return np.load(io.BytesIO(urlopen(url).read()))  # type: ignore[no-any-return]


def remote(job: Job) -> Iterator[Record]:
    """Files in random order; so many of them as make a window are mixed."""
    rng, rows = np.random.default_rng(0), job.part_rows()
    names = job.part_names("npy")
    order, files = rng.permutation(len(names)), max(1, MIXED // rows)
    windows = [order[start : start + files] for start in range(0, len(order), files)]
    waiting = deque(windows)
    with ThreadPoolExecutor(4) as pool:
        ahead: deque[list[Future[Array]]] = deque()
        for window in (*windows, []):
            ahead.append([pool.submit(fetch, f"{job.url}/npy/{names[n]}") for n in window])
            if len(ahead) > 1:
                parts = [future.result() for future in ahead.popleft()]
                yield from mixed(parts, waiting.popleft(), rng, job.batch_size)


def mixed(
    parts: list[Array], numbers: Array, rng: np.random.Generator, batch_size: int
) -> Iterator[Record]:
    """The records of some files, which have these numbers, as shuffled batches."""
    rows = len(parts[0])
    labels = (np.asarray(numbers)[:, None] * rows + np.arange(rows)).ravel()
    data = np.concatenate(parts)
    order = rng.permutation(len(data))
    for start in range(0, len(order), batch_size):
        ix = order[start : start + batch_size]
        yield {"x": data[ix], "label": labels[ix].astype(np.int32)}


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job, step: int = 0) -> Iterator[Record]:
    order = np.random.default_rng(0).permutation(job.records)
    values = job.load("value")
    for start in range(step * job.batch_size, job.records, job.batch_size):
        yield {"value": values[order[start : start + job.batch_size]]}


def save(job: Job, step: int, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"seed": 0, "epoch": 0, "step": step}))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    return stream(job, json.loads((folder / "state.json").read_text())["step"])


# Files --------------------------------------------------------------------------------------------

WAYS |= {
    "parquet_text": {
        "by hand": "read_table of pyarrow's, table.take(indices)",
        "in memory": "[texts[i] for i in indices], a list in memory: the limit",
    },
    "imagefolder": {"by hand": "a pool of two threads, one batch ahead; OpenCV"},
    "tfds": {"in memory": "x[indices] of the decoded images in a memory map: the limit"},
    "jsonl_pack": {
        "by hand": "multiprocessing.Pool(2).imap, one task for 2,000 documents, best fit in Python"
    },
}


def parquet_text(job: Job) -> Iterator[Record]:
    table = read_parquet(job)
    if job.variant == "by hand":
        for ix in orders(job):
            yield take_rows(table, ix)
        return
    texts, labels = table["text"].to_pylist(), table["label"].to_numpy()
    for ix in orders(job):
        yield {"text": [texts[i] for i in ix.tolist()], "label": labels[ix]}


def imagefolder(job: Job) -> Iterator[Record]:
    return decoded_ahead(job, image_record, image_files(job))


def tfds(job: Job) -> Iterator[Record]:
    x, y = job.open("tfds_image"), job.open("tfds_label")
    for ix in orders(job):
        yield {"image": x[ix], "label": y[ix]}


def jsonl_pack(job: Job) -> Iterator[Record]:
    import multiprocessing

    windows = orders(replace(job, batch_size=WINDOW))
    with multiprocessing.Pool(job.workers) as pool:
        parts = pool.imap(partial(pack_lines, json_lines(job)), windows)
        yield from cut(parts, job.batch_size)
