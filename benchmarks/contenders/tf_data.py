"""tf.data.  Batches are tensors, seen as NumPy arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.augmented import BRIGHTNESS, CONTRAST, CROPS, NOISE
from suite.file_workloads import (
    CENTRE,
    SHORTER_SIDE,
    image_files,
    read_parquet,
    tfds_folder,
)
from suite.workloads import (
    BIAS,
    CROP,
    GAIN,
    INVERSE,
    JPEG_SIZE,
    Job,
    Record,
    boxes,
    burn,
    crops,
)

TITLE = "tf.data"
REQUIREMENTS = [
    "tensorflow-cpu",
    "tensorflow-datasets",
    "importlib-resources",
    "jax",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
]
VERSIONS = ["tensorflow-cpu", "tensorflow-datasets", "jax", "numpy"]
OWN_DECODER = {"jpeg": ("defaults", "best"), "imagefolder": ("defaults", "best")}
DEFAULTS = "from_tensor_slices, shuffle(all), map, batch"
BEST = "range, shuffle(all), batch, repeat, map(gather and function, AUTOTUNE), prefetch(AUTOTUNE)"
AUGMENTED = {
    "defaults": f"{DEFAULTS}; tf.image for each record",
    "best": f"{BEST}; operations on the batch",
    "per record": "tf.image in repeat, map(AUTOTUNE), not deterministic, prefetch(AUTOTUNE)",
}
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": BEST},
    "transform": {"defaults": DEFAULTS, "best": BEST},
    "step": {
        "defaults": f"{DEFAULTS}, as_numpy_iterator; as they are into the step",
        "best": f"{BEST}, as_numpy_iterator; the same",
    },
    "tokens": {"defaults": DEFAULTS, "best": BEST},
    "jpeg": {
        "defaults": "map(decode_and_crop_jpeg, resize, flip)",
        "best": "the same, repeat, AUTOTUNE, not deterministic, prefetch(AUTOTUNE)",
    },
    "gil": {
        "defaults": "numpy_function",
        "best": "the same, repeat, AUTOTUNE, prefetch(AUTOTUNE): threads, which share one GIL",
    },
    "resume": {
        "defaults": "a checkpoint of the iterator; shuffled only within a buffer of 100,000",
        "best": "index_shuffle from the saved position on",
    },
    "images": {
        "defaults": DEFAULTS,
        "best": BEST,
        "per record": "repeat, map(AUTOTUNE), not deterministic, prefetch(AUTOTUNE)",
    },
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
}
CANNOT = {
    "transport": "threads only; worker processes need the tf.data service",
    "remote": "no file system for HTTP: tf.io opens paths, gs://, hdfs:// and, with plugins, s3://",
}


def begin() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf  # noqa: F401


def note() -> str:
    return ""


def numpy(dataset: Any, epochs: int = 1) -> Iterator[Record]:
    """With more than one epoch, a new iterator for each; ``repeat`` saves that."""
    for _ in range(epochs):
        yield from dataset.as_numpy_iterator()


def auto() -> Any:
    import tensorflow as tf

    return tf.data.AUTOTUNE


def rows(job: Job, arrays: dict[str, Any], function: Any = None) -> Iterator[Record]:
    """Shuffled rows of arrays, with a function that fits a record as well as a batch."""
    import tensorflow as tf

    data = tf.data.Dataset
    if job.variant == "best":
        constants = {name: tf.constant(array) for name, array in arrays.items()}

        def gather(ix: Any) -> Any:
            batch = {name: tf.gather(array, ix) for name, array in constants.items()}
            return function(batch) if function else batch

        made = data.range(job.records).shuffle(job.records, seed=0).batch(job.batch_size)
        made = made.repeat(job.epochs)
        return numpy(made.map(gather, num_parallel_calls=auto()).prefetch(auto()))
    made = data.from_tensor_slices(arrays).shuffle(job.records, seed=0)
    if function:
        made = made.map(function)
    return numpy(made.batch(job.batch_size), job.epochs)


def arrays(job: Job) -> Iterator[Record]:
    return rows(job, {"image": job.load("image"), "label": job.load("label")})


step = arrays


def transform(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    def scale(record: Record) -> Record:
        return {"image": tf.cast(record["image"], tf.float32) * INVERSE, "label": record["label"]}

    return rows(job, {"image": job.load("image"), "label": job.load("label")}, scale)


def tokens(job: Job) -> Iterator[Record]:
    return rows(job, {"tokens": job.open("tokens")})


def records(job: Job, made: Any, function: Any) -> Iterator[Record]:
    """A function for each record, in parallel where that is asked for."""
    made = made.shuffle(job.records, seed=0)
    if job.variant != "defaults":
        made = made.repeat(job.epochs)
        made = made.map(function, num_parallel_calls=auto(), deterministic=False)
        return numpy(made.batch(job.batch_size).prefetch(auto()))
    return numpy(made.map(function).batch(job.batch_size), job.epochs)


def images(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    table = tf.constant(crops())

    def augment(record: Record) -> Record:
        top, left, flipped = tf.unstack(table[record["label"]])
        image = tf.image.crop_to_bounding_box(record["image"], top, left, CROP, CROP)
        image = tf.cond(flipped > 0, lambda: tf.image.flip_left_right(image), lambda: image)
        return {"image": tf.cast(image, tf.float32) * GAIN + BIAS, "label": record["label"]}

    span = tf.range(CROP)

    def augment_batch(batch: Record) -> Record:
        box = tf.gather(table, batch["label"])
        lines = box[:, 0, None] + span
        columns = box[:, 1, None] + tf.where(box[:, 2, None] > 0, CROP - 1 - span, span)
        image = tf.gather(batch["image"], lines, axis=1, batch_dims=1)
        image = tf.gather(image, columns, axis=2, batch_dims=1)
        return {"image": tf.cast(image, tf.float32) * GAIN + BIAS, "label": batch["label"]}

    data = {"image": job.load("image64"), "label": job.load("label64")}
    if job.variant == "best":
        return rows(job, data, augment_batch)
    return records(job, tf.data.Dataset.from_tensor_slices(data), augment)


def aug32(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    side, crop = CROPS[job.workload]

    def noisy(pixels: Any) -> Any:
        return tf.clip_by_value(pixels + tf.random.normal(tf.shape(pixels), stddev=NOISE), 0, 1)

    def augment(record: Record) -> Record:
        image = tf.image.random_crop(record["image"], (crop, crop, 3))
        image = tf.image.random_flip_left_right(image)
        pixels = tf.image.convert_image_dtype(image, tf.float32)
        pixels = tf.image.random_brightness(pixels, BRIGHTNESS)
        pixels = tf.image.random_contrast(pixels, 1 - CONTRAST, 1 + CONTRAST)
        return {"image": noisy(pixels), "label": record["label"]}

    span = tf.range(crop)

    def augment_batch(batch: Record) -> Record:
        rows = tf.shape(batch["label"])[0]
        corner = tf.random.uniform((2, rows, 1), 0, side - crop + 1, tf.int32)
        flipped = tf.random.uniform((rows, 1)) < 0.5
        image = tf.gather(batch["image"], corner[0] + span, axis=1, batch_dims=1)
        columns = corner[1] + tf.where(flipped, crop - 1 - span, span)
        image = tf.gather(image, columns, axis=2, batch_dims=1)
        pixels = tf.cast(image, tf.float32) * INVERSE
        mean = tf.reduce_mean(pixels, axis=(1, 2), keepdims=True)
        factor = tf.random.uniform((rows, 1, 1, 1), 1 - CONTRAST, 1 + CONTRAST)
        shift = tf.random.uniform((rows, 1, 1, 1), -BRIGHTNESS, BRIGHTNESS)
        pixels = pixels * factor + (mean * (1 - factor) + shift)
        return {"image": noisy(pixels), "label": batch["label"]}

    data = {"image": job.load(job.workload), "label": job.load(f"label_{job.workload}")}
    if job.variant == "best":
        return rows(job, data, augment_batch)
    return records(job, tf.data.Dataset.from_tensor_slices(data), augment)


aug128 = aug32


def jpeg(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    table = tf.constant(boxes())

    def decode(path: Any, label: Any) -> Record:
        box = table[label]
        image = tf.image.decode_and_crop_jpeg(tf.io.read_file(path), box[:4], channels=3)
        image = tf.image.resize(image, (JPEG_SIZE, JPEG_SIZE))
        image = tf.cast(tf.round(image), tf.uint8)
        image = tf.cond(box[4] > 0, lambda: tf.image.flip_left_right(image), lambda: image)
        return {"image": image, "label": label}

    labels = np.arange(job.records, dtype=np.int32)
    return records(job, tf.data.Dataset.from_tensor_slices((job.paths(), labels)), decode)


def burn_both(number: Any) -> tuple[Any, Any]:
    record = burn(number)
    return record["value"], record["label"]


def gil(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    def call(number: Any) -> Record:
        value, label = tf.numpy_function(burn_both, [number], (tf.int64, tf.int32))
        return {"value": tf.ensure_shape(value, ()), "label": tf.ensure_shape(label, ())}

    return records(job, tf.data.Dataset.range(job.records), call)


# Resuming -----------------------------------------------------------------------------------------


def shuffled(job: Job, step: int = 0) -> Any:
    import tensorflow as tf

    values = tf.constant(job.load("value"))
    if job.variant == "best":
        seed = tf.constant([1, 2], tf.int64)
        last = tf.constant(job.records - 1, tf.int64)

        def place(index: Any) -> Any:
            return tf.random.experimental.index_shuffle(index, seed, last)

        made = tf.data.Dataset.range(step * job.batch_size, job.records)
        made = made.map(place, num_parallel_calls=auto()).batch(job.batch_size)
        made = made.map(lambda ix: {"value": tf.gather(values, ix)}, num_parallel_calls=auto())
        return made.prefetch(auto())
    made = tf.data.Dataset.from_tensor_slices({"value": values})
    # A buffer of all ten million would take minutes and gigabytes.
    buffer = min(100_000, job.records)
    made = made.shuffle(buffer, seed=0, reshuffle_each_iteration=False)
    return made.batch(job.batch_size)


def stream(job: Job) -> Iterator[Record]:
    return numpy(shuffled(job))


def save(job: Job, step: int, folder: Path) -> None:
    import tensorflow as tf

    if job.variant == "best":
        (folder / "state.json").write_text(json.dumps({"step": step}))
        return
    iterator = iter(shuffled(job))
    for _ in range(step):
        next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(str(folder / "state"))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    import tensorflow as tf

    if job.variant == "best":
        yield from numpy(shuffled(job, json.loads((folder / "state.json").read_text())["step"]))
        return
    iterator = iter(shuffled(job))
    tf.train.Checkpoint(iterator=iterator).read(str(folder / "state")).assert_consumed()
    for batch in iterator:
        yield {"value": batch["value"].numpy()}


# Files --------------------------------------------------------------------------------------------

WAYS |= {
    "parquet_text": {
        "best": f"read_table of pyarrow's into a tensor of strings; {BEST}",
    },
    "imagefolder": {
        "defaults": "from_tensor_slices(paths), shuffle(all), map(decode_jpeg, crop, resize)",
        "best": "the same with decode_and_crop_jpeg, repeat, AUTOTUNE, not deterministic, "
        "prefetch(AUTOTUNE)",
    },
    "tfds": {
        "defaults": "as_dataset(shuffle_files=True), shuffle(all), batch; TFRecord files",
        "best": "SkipDecoding, shuffle(all), repeat, map(decode, AUTOTUNE, not deterministic), "
        "batch, prefetch(AUTOTUNE)",
        "cached": "as_dataset, cache, shuffle(all), repeat, batch, prefetch(AUTOTUNE): decoded "
        "once",
    },
}
CANNOT["jsonl_pack"] = "no reader of JSON and no packing of its own"


def parquet_text(job: Job) -> Iterator[Record]:
    table = read_parquet(job)
    return rows(job, {"text": table["text"].to_pylist(), "label": table["label"].to_numpy()})


def imagefolder(job: Job) -> Iterator[Record]:
    import tensorflow as tf

    def centre(path: Any, label: Any) -> Record:
        data = tf.io.read_file(path)
        height, width, _ = tf.unstack(tf.io.extract_jpeg_shape(data))
        shorter = tf.cast(tf.minimum(height, width), tf.float32)
        side = tf.cast(tf.round(shorter * (CENTRE / SHORTER_SIDE)), tf.int32)
        top, left = (height - side) // 2, (width - side) // 2
        if job.variant == "best":
            image = tf.image.decode_and_crop_jpeg(data, [top, left, side, side], channels=3)
        else:
            image = tf.image.decode_jpeg(data, channels=3)
            image = tf.image.crop_to_bounding_box(image, top, left, side, side)
        image = tf.image.resize(image, (CENTRE, CENTRE), antialias=True)
        return {"image": tf.cast(tf.round(image), tf.uint8), "label": label}

    paths, labels = zip(*image_files(job), strict=True)
    files = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
    return records(job, files, centre)


def tfds(job: Job) -> Iterator[Record]:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(tfds_folder(job, "tfrecord")))
    if job.variant == "best":
        encoded = {"image": tfds.decode.SkipDecoding()}
        files = builder.as_dataset(split="train", shuffle_files=True, decoders=encoded)
        decode = builder.info.features["image"].decode_example

        def decoded(record: Record) -> Record:
            return {**record, "image": decode(record["image"])}

        return records(job, files, decoded)
    made = builder.as_dataset(split="train", shuffle_files=True)
    if job.variant == "cached":
        made = made.cache().shuffle(job.records, seed=0).repeat(job.epochs)
        return numpy(made.batch(job.batch_size).prefetch(auto()))
    return numpy(made.shuffle(job.records, seed=0).batch(job.batch_size), job.epochs)
