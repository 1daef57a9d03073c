"""Augmentation whose random numbers every contender draws by itself: what it is, and its check.

One record, a square image of bytes with three channels:

1. crop to `CROPS` pixels at a random place,
2. flip left to right, with probability 1/2,
3. bytes to float32 in [0, 1],
4. brightness: add a number in ±`BRIGHTNESS`,
5. contrast: multiply the distance from each channel's mean by a number in 1 ± `CONTRAST`,
6. add normal noise of deviation `NOISE` to every number,
7. clip to [0, 1].

Every record has draws of its own.  Since no two libraries draw the same numbers, the check looks
at what was done: in the images the first channel rises from left to right, the second from top to
bottom, and the third is flat with some texture.  So flips, crops, brightness, contrast and noise
of every record can be read from the result, and their distributions are compared with the above.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from suite.workloads import BIAS, CROP, GAIN, IMAGE, Array, Record, crop_into, crops

CROPS = {"aug32": (32, 28), "aug128": (128, 112)}
"""The side of the images, and of what is cropped."""
BRIGHTNESS, CONTRAST, NOISE = 0.1, 0.2, 0.05
LOWEST, RISE = 96, 64
"""The first two channels rise by so much, from there."""


def make_images(side: int, records: int) -> Array:
    """The data of a workload."""
    rng = np.random.default_rng(side)
    images = np.empty((records, side, side, 3), np.uint8)
    ramp = LOWEST + (np.arange(side) * RISE // side)
    images[..., 0] = ramp
    images[..., 1] = ramp[:, None]
    images[..., 2] = rng.integers(112, 145, images.shape[:3])
    return images


# In NumPy and in JAX ------------------------------------------------------------------------------


def adjust(cut: Array, noise: Array, shift: Array, factor: Array, scratch: Array) -> Array:
    """Steps 3 to 7 in place: ``noise`` becomes the result.  ``scratch`` has the same shape."""
    rows, pixels = len(cut), cut.shape[1] * cut.shape[2]
    mean = cut.reshape(rows, pixels, 3).mean(axis=1, dtype=np.float32) / np.float32(255)
    offset = mean * (1 - factor[:, None]) + shift[:, None]
    np.multiply(cut, (factor / np.float32(255))[:, None, None, None], out=scratch)
    noise *= np.float32(NOISE)
    noise += scratch
    noise += offset[:, None, None, :]
    return np.clip(noise, 0, 1, out=noise)


def with_numpy(batch: Record, rng: np.random.Generator, workload: str) -> Record:
    """A whole batch, with a generator of NumPy's."""
    images, (side, crop) = batch["image"], CROPS[workload]
    rows = len(images)
    corner = rng.integers(0, side - crop + 1, (rows, 2))
    cut = np.empty((rows, crop, crop, 3), np.uint8)
    crop_into(cut, images, np.column_stack([corner, rng.random(rows) < 0.5]).tolist())
    shift = rng.uniform(-BRIGHTNESS, BRIGHTNESS, rows).astype(np.float32)
    factor = rng.uniform(1 - CONTRAST, 1 + CONTRAST, rows).astype(np.float32)
    noise = rng.standard_normal(cut.shape, np.float32)
    made = adjust(cut, noise, shift, factor, np.empty(cut.shape, np.float32))
    return {"image": made, "label": batch["label"]}


def with_jax(workload: str, normal: Any = None) -> Callable[[Any, Any], Any]:
    """``f(key, record)`` for one record, with `jax.random.normal` unless another is given."""
    import jax
    import jax.numpy as jnp

    side, crop = CROPS[workload]
    draw = normal or jax.random.normal

    def augmented(key: Any, record: Record) -> Record:
        few, many = jax.random.split(key)
        u = jax.random.uniform(few, (5,))
        top, left = (u[:2] * (side - crop + 1)).astype(jnp.int32)
        image = jax.lax.dynamic_slice(record["image"], (top, left, 0), (crop, crop, 3))
        image = jnp.where(u[2] < 0.5, image[:, ::-1], image)
        # Sums of integers, one axis at a time: XLA computes them faster than a mean of floats.
        mean = image.astype(jnp.int32).sum(axis=0).sum(axis=0) / (255 * crop * crop)
        factor = 1 - CONTRAST + 2 * CONTRAST * u[4]
        offset = mean * (1 - factor) + BRIGHTNESS * (2 * u[3] - 1)
        pixels = image.astype(jnp.float32) * (factor / 255) + offset
        noisy = pixels + NOISE * draw(many, pixels.shape)
        return {"image": jnp.clip(noisy, 0, 1), "label": record["label"]}

    return augmented


def images_with_jax() -> Callable[[Any, Any], Any]:
    """`augment` of `images64` in JAX.  The key is not used: the place of a crop is the record's.

    Flipped first: then XLA makes one loop of the crop and the arithmetic.
    """
    import jax
    import jax.numpy as jnp

    table = crops()

    def cropped(key: Any, record: Record) -> Record:
        top, left, flipped = jnp.asarray(table)[record["label"]]
        image = jnp.where(flipped, record["image"][:, ::-1], record["image"])
        left = jnp.where(flipped, IMAGE - CROP - left, left)
        image = jax.lax.dynamic_slice(image, (top, left, 0), (CROP, CROP, 3))
        return {"image": image.astype(jnp.float32) * GAIN + BIAS, "label": record["label"]}

    return cropped


@cache
def jitted(workload: str) -> Callable[[Array, Record], Any]:
    """The same for a batch: ``f(key data, batch)``, vmapped and jitted."""
    import jax

    function = with_jax(workload)

    @jax.jit
    def batched(keys: Any, batch: Record) -> Any:
        return jax.vmap(function)(jax.random.wrap_key_data(keys), batch)

    return batched


# The check ----------------------------------------------------------------------------------------

SPREAD = 12**-0.5  # deviation of a number that is uniform in [0, 1]
MOST = 2_048  # records that are looked at


class Effects:
    """What was done to the records of a stream."""

    def __init__(self, workload: str) -> None:
        self.side, self.crop = CROPS[workload]
        self.found: list[Array] = []
        self.wrong = ""

    def add(self, batch: Record) -> None:
        image = np.asarray(batch["image"])
        shape = (self.crop, self.crop, 3)
        if image.dtype != np.float32 or image.shape[1:] != shape:
            self.wrong = f"images of {image.dtype} and of shape {image.shape[1:]}"
        elif not (image.min() >= 0 and image.max() <= 1):
            self.wrong = f"numbers from {image.min()} to {image.max()}, not within 0 and 1"
        elif sum(map(len, self.found)) < MOST:
            self.found.append(self.measure(image))

    def measure(self, image: Array) -> Array:
        """For each record: flipped, contrast, brightness, top, left, noise, fourth moment."""
        places = np.arange(self.crop) - (self.crop - 1) / 2
        weights = places / (places**2).sum()
        step = RISE / self.side / 255
        level = image.mean(axis=(1, 2))
        slope = image[..., 0].mean(axis=1) @ weights
        residual = image[..., 0] - level[:, 0, None, None] - slope[:, None, None] * places
        shift = level[:, 2] - 128 / 255
        middle = LOWEST / 255 + (self.crop - 1) / 2 * step
        top, left = ((level[:, channel] - shift - middle) / step for channel in (1, 0))
        noise = residual.std(axis=(1, 2))
        moment = (residual**4).mean(axis=(1, 2)) / noise**4
        return np.stack([slope < 0, abs(slope) / step, shift, top, left, noise, moment], axis=1)

    def result(self) -> dict[str, Any]:
        if self.wrong or not self.found:
            return {"wrong": self.wrong or "no batches"}
        found = np.concatenate(self.found)
        in_batch = min(float(part[:, 1].std()) for part in self.found if len(part) > 8)
        return {
            "mean": found.mean(axis=0).tolist(),
            "deviation": found.std(axis=0).tolist(),
            "contrast_in_batch": in_batch,
            "records": len(found),
        }


def wrong_effects(found: dict[str, Any], workload: str) -> str | None:
    """What is not as described above, or None."""
    if "wrong" in found:
        return str(found["wrong"])
    side, crop = CROPS[workload]
    flips, contrast, shift, top, left, noise, moment = found["mean"]
    spread = found["deviation"]
    places = side - crop
    wide = (((places + 1) ** 2 - 1) / 12) ** 0.5
    close = 5 / found["records"] ** 0.5  # five standard errors of a mean
    checks = {
        "fraction of flips": (flips, 0.5, 0.5 * close),
        "mean contrast": (contrast, 1.0, 0.01 + 2 * CONTRAST * SPREAD * close),
        "deviation of contrast": (spread[1], 2 * CONTRAST * SPREAD, 0.02),
        "contrast within a batch": (found["contrast_in_batch"], 2 * CONTRAST * SPREAD, 0.06),
        "mean brightness": (shift, 0.0, 0.003 + 2 * BRIGHTNESS * SPREAD * close),
        "deviation of brightness": (spread[2], 2 * BRIGHTNESS * SPREAD, 0.01),
        "mean of top": (top, places / 2, 0.6 + wide * close),
        "mean of left": (left, places / 2, 0.6 + wide * close),
        "deviation of top": (spread[3], wide, 0.2 * wide + 0.4),
        "deviation of left": (spread[4], wide, 0.2 * wide + 0.4),
        "deviation of noise": (noise, NOISE, 0.03 * NOISE),
        "fourth moment of noise": (moment, 3.0, 0.1),
    }
    for name, (value, expected, allowed) in checks.items():
        if abs(value - expected) > allowed:
            return f"{name} is {value:.4g}, expected {expected:.4g} ± {allowed:.2g}"
    return None
