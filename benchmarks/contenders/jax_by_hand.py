"""JAX by hand: a gather in NumPy and a jitted function, where records are augmented."""

from __future__ import annotations

from collections.abc import Iterator
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
WAYS = {"aug32": AUGMENTED, "aug128": AUGMENTED}
CANNOT: dict[str, str] = {}


def begin() -> None:
    import jax  # noqa: F401


def note() -> str:
    return ""


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
