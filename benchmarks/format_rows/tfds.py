"""TFDS folders: images as tensors (no decoding) and as PNG, in TFRecord and ArrayRecord shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

NEEDS = ["tensorflow-cpu", "tensorflow-datasets", "array_record", "grain", "zstandard", "pillow"]
BATCH = 256
COUNT = 50_000


def write(folder: Path, quick: bool) -> None:
    import tensorflow_datasets as tfds

    images = {
        "tensor": tfds.features.Tensor(shape=(32, 32, 3), dtype=np.uint8, encoding="bytes"),
        "png": tfds.features.Image(shape=(32, 32, 3)),
    }
    count = COUNT // 50 if quick else COUNT
    for kind, feature in images.items():
        builder_class = _builder_class(kind, feature, count if kind == "tensor" else count // 5)
        for file_format in ("tfrecord", "array_record"):
            builder = builder_class(data_dir=folder / file_format, file_format=file_format)
            config = tfds.download.DownloadConfig(num_shards=4)
            builder.download_and_prepare(download_config=config)


def _builder_class(kind: str, feature: object, count: int) -> type:
    import tensorflow_datasets as tfds

    class Cifar(tfds.core.GeneratorBasedBuilder):
        """Random pixels."""

        pkg_dir_path = Path(__file__).parent
        name = f"cifar_{kind}"
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict(
                {"image": feature, "label": tfds.features.ClassLabel(num_classes=10)}
            )
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            drawn = np.random.default_rng(0)
            for i in range(count):
                pixels = drawn.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                yield i, {"image": pixels, "label": i % 10}

    return Cifar


def _loaderx(kind: str, file_format: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        from loaderx import DataLoader, Dataset

        path = folder / file_format / f"cifar_{kind}"
        dataset = Dataset.open(path, cache=folder / "cache").shuffle(seed=0)
        with DataLoader(dataset.batch(BATCH).repeat(), engine="inline") as loader:
            for batch in loader:
                yield len(batch["label"])

    return run


def data_source(path: Path):
    """Decoded records by number, of a folder with ArrayRecord files."""
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(str(path)).as_data_source(split="train")


def _source(folder: Path, kind: str):
    return data_source(folder / "array_record" / f"cifar_{kind}" / "1.0.0")


def _data_source(kind: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        source = _source(folder, kind)
        drawn = np.random.default_rng(0)
        while True:
            order = drawn.permutation(len(source))
            for start in range(0, len(order), BATCH):
                records = source.__getitems__(order[start : start + BATCH].tolist())
                batch = {name: np.stack([one[name] for one in records]) for name in records[0]}
                yield len(batch["label"])

    return run


def _grain(kind: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import grain

        dataset = grain.MapDataset.source(_source(folder, kind)).shuffle(seed=0).repeat()
        for batch in dataset.batch(BATCH):
            yield len(batch["label"])

    return run


CONTENDERS = {
    "loaderx, TFRecord": _loaderx("tensor", "tfrecord"),
    "loaderx, ArrayRecord": _loaderx("tensor", "array_record"),
    "tfds.data_source": _data_source("tensor"),
    "grain on tfds.data_source": _grain("tensor"),
    "loaderx, PNG in TFRecord": _loaderx("png", "tfrecord"),
    "loaderx, PNG in ArrayRecord": _loaderx("png", "array_record"),
    "tfds.data_source, PNG": _data_source("png"),
}
BARS = [
    ("loaderx, TFRecord", "tfds.data_source", 8.0),
    ("loaderx, ArrayRecord", "tfds.data_source", 8.0),
    ("loaderx, TFRecord", "grain on tfds.data_source", 20.0),
    ("loaderx, PNG in TFRecord", "tfds.data_source, PNG", 1.0),
    ("loaderx, PNG in ArrayRecord", "tfds.data_source, PNG", 1.0),
]
