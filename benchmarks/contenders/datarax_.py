"""datarax: the data on the device, and one compiled step for the gather and all stages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

from suite.augmented import BRIGHTNESS, CONTRAST, CROPS, NOISE, images_with_jax, with_jax
from suite.file_workloads import TFDS_NAME
from suite.workloads import INVERSE, Array, Job, Record

TITLE = "datarax"
REQUIREMENTS = [
    "datarax",
    "numpy",
    "tensorflow-cpu<2.21",
    "tensorflow-datasets",
    "tensorflow-metadata<1.18",  # later ones want another protobuf than datarax does
    "importlib-resources",
]
PYTHON = "3.12"  # the oldest that it supports
VERSIONS = ["datarax", "jax", "numpy"]
AUGMENTED = {
    "defaults": "an ElementOperator that crops and flips, its operators for brightness, contrast "
    "and noise",
    "best": "one ElementOperator for all of it",
}
WAYS = {
    "arrays": {"defaults": "MemorySource(shuffle=True), Pipeline without stages"},
    "transform": {"defaults": "the same, the function on whole batches as a stage"},
    "step": {"defaults": "the same as for images in memory; arrays of JAX, into the step"},
    "tokens": {"defaults": "MemorySource of the rows, copied to the device"},
    "images": {"defaults": "one ElementOperator"},
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
}
JAX_ONLY = "its stages are functions of JAX on the device"
CANNOT = {
    "jpeg": JAX_ONLY,
    "gil": JAX_ONLY,
    "transport": JAX_ONLY,
    "remote": "no source for URLs but that of the Hugging Face hub",
    "resume": "it has states; how to go on at 90 % is not written yet",
}


def begin() -> None:
    import datarax  # noqa: F401


def note() -> str:
    return ""


def warm(job: Job) -> None:
    """It compiles a step for every number of records and of epochs."""
    from dataclasses import replace

    for epochs in {1, job.epochs}:
        for _ in islice(globals()[job.workload](replace(job, epochs=epochs)), 1):
            pass


def run(job: Job, stages: list[Any], **arrays: Array) -> Iterator[Record]:
    from datarax.sources import MemorySource, MemorySourceConfig
    from flax import nnx

    source = MemorySource(MemorySourceConfig(shuffle=True), data=arrays, rngs=nnx.Rngs(0))
    yield from batches(job, source, stages)


def batches(job: Job, source: Any, stages: list[Any]) -> Iterator[Record]:
    from datarax import Pipeline
    from flax import nnx

    pipeline = Pipeline(
        source=source,
        stages=stages,
        batch_size=job.batch_size,
        rngs=nnx.Rngs(0),
        num_epochs=job.epochs,
    )
    yield from pipeline


def operator(function: Any, stochastic: bool) -> Any:
    """``f(key, data)`` of a record, as a stage."""
    from datarax.core.config import ElementOperatorConfig
    from datarax.operators.element_operator import ElementOperator
    from flax import nnx

    config = ElementOperatorConfig(
        stochastic=stochastic, stream_name="augment" if stochastic else None
    )
    return ElementOperator(config, fn=function, rngs=nnx.Rngs(0, augment=1))


def arrays(job: Job) -> Iterator[Record]:
    return run(job, [], image=job.load("image"), label=job.load("label"))


step = arrays


@cache
def scaling() -> Any:
    from flax import nnx

    class Scale(nnx.Module):  # type: ignore[misc]
        def __call__(self, batch: Record) -> Record:
            return {**batch, "image": batch["image"].astype("float32") * INVERSE}

    return Scale


def transform(job: Job) -> Iterator[Record]:
    return run(job, [scaling()()], image=job.load("image"), label=job.load("label"))


def tokens(job: Job) -> Iterator[Record]:
    return run(job, [], tokens=job.open("tokens"))


@cache
def cropping() -> Any:
    function = images_with_jax()

    def cropped(element: Any, key: Any) -> Any:
        return element.replace(data=function(key, element.data))

    return cropped


def images(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image64"), "label": job.load("label64")}
    return run(job, [operator(cropping(), False)], **data)


@cache
def whole(workload: str) -> Any:
    function = with_jax(workload)

    def augmented(element: Any, key: Any) -> Any:
        return element.replace(data=function(key, element.data))

    return augmented


@cache
def cropping_at_random(workload: str) -> Any:
    import jax
    import jax.numpy as jnp
    from datarax.operators.modality.image.functional import random_crop, random_flip_left_right

    crop = CROPS[workload][1]

    def cropped(element: Any, key: Any) -> Any:
        place, flip = jax.random.split(key)
        image = random_crop(element.data["image"], (crop, crop), place)
        image = random_flip_left_right(image, flip)
        pixels = image.astype(jnp.float32) * jnp.float32(1 / 255)
        return element.replace(data={**element.data, "image": pixels})

    return cropped


def aug32(job: Job) -> Iterator[Record]:
    data = {"image": job.load(job.workload), "label": job.load(f"label_{job.workload}")}
    if job.variant == "best":
        return run(job, [operator(whole(job.workload), True)], **data)
    crop = operator(cropping_at_random(job.workload), True)
    return run(job, [crop, *own_operators()], **data)


aug128 = aug32


def own_operators() -> list[Any]:
    from datarax.operators.modality.image import (
        BrightnessOperator,
        BrightnessOperatorConfig,
        ContrastOperator,
        ContrastOperatorConfig,
        NoiseOperator,
        NoiseOperatorConfig,
    )
    from flax import nnx

    made = []
    for kind, config, options in (
        (
            BrightnessOperator,
            BrightnessOperatorConfig,
            {"brightness_range": (-BRIGHTNESS, BRIGHTNESS)},
        ),
        (
            ContrastOperator,
            ContrastOperatorConfig,
            {"contrast_range": (1 - CONTRAST, 1 + CONTRAST)},
        ),
        (NoiseOperator, NoiseOperatorConfig, {"mode": "gaussian", "noise_std": NOISE}),
    ):
        name = kind.__name__.lower()
        chosen = config(field_key="image", stochastic=True, stream_name=name, **options)
        made.append(kind(chosen, rngs=nnx.Rngs(0, **{name: 1})))
    return made


# Files --------------------------------------------------------------------------------------------

WAYS["tfds"] = {
    "defaults": "TFDSEagerSource(shuffle=True): decoded once, to the device, when it is made"
}
CANNOT |= {
    "parquet_text": "its data are arrays of JAX, which hold no text",
    "imagefolder": JAX_ONLY,
    "jsonl_pack": JAX_ONLY,
}


@cache
def eager_source(folder: str) -> Any:
    """One for all streams of the process: it takes a millisecond for each record."""
    from datarax.sources import TFDSEagerConfig, TFDSEagerSource
    from flax import nnx

    config = TFDSEagerConfig(
        name=TFDS_NAME, split="train", data_dir=folder, local_files_only=True, shuffle=True
    )
    return TFDSEagerSource(config, rngs=nnx.Rngs(0))


def tfds(job: Job) -> Iterator[Record]:
    return batches(job, eager_source(str(job.data / "tfds" / "tfrecord")), [])
