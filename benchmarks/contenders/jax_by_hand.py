"""JAX by hand: jitted functions where records are augmented, and data on the device for steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from suite.augmented import jitted
from suite.workloads import Job, Record

from contenders.numpy_by_hand import orders

TITLE = "JAX by hand"
REQUIREMENTS = None
VERSIONS = ["jax", "numpy"]
AUGMENTED = {
    "by hand": "x[permutation[i:i+n]] in NumPy, a function vmapped and jitted for the CPU",
    "on device": "all images in an array of JAX, the gather inside the jitted function",
}
WAYS = {
    "step": {
        "device-resident": "all batches are arrays of JAX before the first step: nothing is loaded",
        "on device": "all images in an array of JAX, a jitted gather for each batch",
    },
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
}
CANNOT: dict[str, str] = {}


def begin() -> None:
    import jax  # noqa: F401


def note() -> str:
    return ""


def warm(job: Job) -> None:
    """Makes the batches that are there before the clock starts."""
    if job.workload == "step" and job.variant == "device-resident":
        resident_batches(job)


def step(job: Job) -> Iterator[Record]:
    if job.variant == "device-resident":
        for _ in range(job.epochs):
            yield from resident_batches(job)
        return
    import jax

    x, y = jax.device_put((job.load("image"), job.load("label")))
    gather = batch_gather()
    for ix in orders(job):
        yield gather(x, y, ix)


_resident: dict[int, list[Record]] = {}


def resident_batches(job: Job) -> list[Record]:
    """One shuffled epoch, on the device; made once."""
    import jax

    if job.records not in _resident:
        x, y = job.load("image"), job.load("label")
        once = orders(replace(job, epochs=1))
        made = [jax.device_put({"image": x[ix], "label": y[ix]}) for ix in once]
        _resident[job.records] = jax.block_until_ready(made)
    return _resident[job.records]


@cache
def batch_gather() -> Any:
    import jax

    return jax.jit(lambda x, y, ix: {"image": x[ix], "label": y[ix]})


def aug32(job: Job) -> Iterator[Record]:
    x, y = job.load(job.workload), job.load(f"label_{job.workload}")
    rng = np.random.default_rng(1)
    function = gathering(job.workload) if job.variant == "on device" else jitted(job.workload)
    if job.variant == "on device":
        import jax

        x, y = jax.device_put((x, y))
    for ix in orders(job):
        keys = rng.integers(0, 1 << 32, (len(ix), 2), np.uint32)
        if job.variant == "on device":
            yield function(keys, x, y, ix)
        else:
            yield function(keys, {"image": x[ix], "label": y[ix]})


aug128 = aug32


@cache
def gathering(workload: str) -> Any:
    import jax

    function = jitted(workload)

    @jax.jit
    def gather(keys: Any, x: Any, y: Any, ix: Any) -> Any:
        return function(keys, {"image": x[ix], "label": y[ix]})

    return gather
