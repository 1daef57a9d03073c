"""The files of the workloads that read files, written once from fixed seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from format_rows._tf_data import example, frame
from format_rows.parquet import write_parts

from suite.file_checks import draw_number
from suite.file_workloads import CLASSES, TFDS_NAME, TFDS_SHAPE, TFDS_SHARDS, texts
from suite.workloads import Array, single_threaded_opencv


def parquet_text(folder: Path, records: int) -> None:
    """Two files of texts of about 1.6 kB, in row groups of 1,000."""
    import pyarrow as pa

    target = fresh(folder / "parquet_text")
    labels = np.arange(records, dtype=np.int32)
    table = pa.table({"text": list(texts(6, records, 100, 400)), "label": labels})
    write_parts(target, "text", table, 1_000)


def jsonl_pack(folder: Path, records: int) -> None:
    """Documents of 20 to 600 words."""
    target = fresh(folder / "jsonl_pack")
    with open(target / "documents.jsonl", "w") as file:
        for number, text in enumerate(texts(7, records, 20, 600)):
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def photograph(rng: np.random.Generator, height: int, width: int) -> Array:
    """Large shapes and some texture, in colour."""
    cv2: Any = single_threaded_opencv()
    image = np.zeros((height, width, 3), np.float32)
    for parts, weight in ((8, 0.6), (40, 0.25), (150, 0.15)):
        coarse = rng.random((parts, parts, 3), np.float32)
        image += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(image * 255, 0, 255).astype(np.uint8)


def jpeg_bytes(pixels: Array) -> bytes:
    cv2: Any = single_threaded_opencv()
    coded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
    return bytes(coded.tobytes())


def imagefolder(folder: Path, records: int) -> None:
    """Images of various sizes, each with its number in the middle."""
    rng = np.random.default_rng(8)
    target = fresh(folder / "imagefolder") / "images"
    for number in range(records):
        height, width = rng.integers(375, 501, 2).tolist()
        pixels = photograph(rng, height, width)
        draw_number(pixels, number)
        path = target / f"class{number % CLASSES:02}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(pixels))


FEATURES = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "image": {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": {
                    "dtype": "uint8",
                    "shape": {"dimensions": [str(side) for side in TFDS_SHAPE]},
                },
            },
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.scalar.Scalar",
                "tensor": {"dtype": "int32", "encoding": "none", "shape": {}},
            },
        }
    },
}


def tfds(folder: Path, records: int) -> None:
    """A folder as TFDS prepares it, in shards of TFRecord, and the images as an array."""
    target = fresh(folder / "tfds") / "tfrecord" / TFDS_NAME / "1.0.0"
    target.mkdir(parents=True)
    images = np.stack([*small_images(records)])
    np.save(folder / "tfds_image.npy", images)
    np.save(folder / "tfds_label.npy", np.arange(records, dtype=np.int32))
    shards = np.array_split(np.arange(records), TFDS_SHARDS)
    for number, shard in enumerate(shards):
        name = f"{TFDS_NAME}-train.tfrecord-{number:05}-of-{TFDS_SHARDS:05}"
        with open(target / name, "wb") as file:
            for index in shard.tolist():
                file.write(frame(example("image", png_bytes(images[index]), index)))
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "numBytes": str(sum(file.stat().st_size for file in target.iterdir())),
        "shardLengths": [str(len(shard)) for shard in shards],
    }
    info = {"name": TFDS_NAME, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (target / "features.json").write_text(json.dumps(FEATURES))
    (target / "dataset_info.json").write_text(json.dumps(info))


def small_images(records: int) -> Iterator[Array]:
    """Parts of photographs: they compress as PNG about as well as CIFAR-10 does."""
    rng = np.random.default_rng(9)
    height, width, _ = TFDS_SHAPE
    pixels = photograph(rng, 450, 500)
    for _ in range(records):
        top, left = (int(rng.integers(0, side)) for side in (450 - height, 500 - width))
        yield pixels[top : top + height, left : left + width]


def png_bytes(pixels: Array) -> bytes:
    cv2: Any = single_threaded_opencv()
    coded = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1]
    return bytes(coded.tobytes())


def fresh(folder: Path) -> Path:
    """An empty folder: indexes and copies of old files in it are gone too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


FILE_MAKERS = {
    "parquet_text": parquet_text,
    "imagefolder": imagefolder,
    "tfds": tfds,
    "jsonl_pack": jsonl_pack,
}
WITH_OPENCV = ("imagefolder", "tfds")
