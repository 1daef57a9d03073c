"""TFRecord with tf.Example: exact shuffle here, a buffer of 10,000 in tf.data; and in sequence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # behind the packages that rows are named after
from _tf_data import write_tfrecords

NEEDS = ["tensorflow-cpu", "google-crc32c"]
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    write_tfrecords(folder, quick)


def _loaderx(kind: str, shuffled: bool) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        from loaderx import DataLoader, Dataset

        dataset = Dataset.open(f"{folder}/{kind}-*.tfrecord", cache=folder / "cache")
        if shuffled:
            dataset = dataset.shuffle(seed=0)
        with DataLoader(dataset.batch(BATCH).repeat(), engine="inline") as loader:
            for batch in loader:
                yield len(batch["label"])

    return run


def _tf_data(kind: str, shuffled: bool) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import tensorflow as tf

        name = "text" if kind == "text" else "image"
        files = sorted(map(str, folder.glob(f"{kind}-*.tfrecord")))
        schema = {
            name: tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        dataset = tf.data.TFRecordDataset(files)
        if shuffled:
            dataset = dataset.shuffle(10_000 if kind != "jpeg" else 1_000)
        dataset = dataset.batch(BATCH).map(lambda rows: tf.io.parse_example(rows, schema))
        for batch in dataset.repeat().prefetch(2).as_numpy_iterator():
            yield len(batch["label"])

    return run


CONTENDERS = {
    f"{name} {kind}{'' if shuffled else ' in sequence'}": make(kind, shuffled)
    for kind in ("cifar", "jpeg", "text")
    for shuffled in (True, False)
    for name, make in (("loaderx", _loaderx), ("tf.data", _tf_data))
}

BARS = [
    *((f"loaderx {kind}", f"tf.data {kind}", 1.8) for kind in ("cifar", "jpeg", "text")),
    *(
        (f"loaderx {kind} in sequence", f"tf.data {kind} in sequence", 1.0)
        for kind in ("cifar", "jpeg", "text")
    ),
]
