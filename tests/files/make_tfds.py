"""Writes tests/files/tfds: a small dataset with every kind of feature, as TFDS stores it.

Run with tensorflow-cpu 2.21.0, tensorflow-datasets 4.9.10 and array_record 0.8.6:

    python tests/files/make_tfds.py

Beside the folders it writes ``expected.npz`` (no pickles): the leaves as TFDS itself reads them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

HERE = Path(__file__).parent / "tfds"
COUNTS = {"train": 10, "test": 4}
f = tfds.features


def example(i: int) -> dict:
    drawn = np.random.default_rng(i)
    n = i % 4
    height, width = 3 + i % 2, 4

    def pixels(*shape: int) -> np.ndarray:
        return drawn.integers(0, 256, shape, dtype=np.uint8)

    return {
        "image": pixels(4, 5, 3),
        "gray": pixels(height, width, 1),
        "alpha": pixels(2, 2, 4),
        "jpeg": pixels(8, 8, 3),
        "deep": drawn.integers(0, 2**16, (2, 3, 1), dtype=np.uint16),
        "depth": drawn.random((2, 3, 1), np.float32),
        "mask": pixels(2, 2, 1) % 2,
        "video": pixels(2 + i % 2, 2, 3, 3),
        "text": f"text {i} é" * n,
        "label": i % 3,
        "count": i - 5,
        "ratio": i / 7,
        "flag": i % 2 == 0,
        "byte": i * 20,
        "wide": 2**63 + i,
        "double": np.float64(i) / 3,
        "half": np.float16(i) / 4,
        "raw": f"raw {i}".encode(),
        "vector": drawn.random(3, np.float32),
        "matrix": drawn.integers(0, 256, (2, 3), dtype=np.uint8),
        "rows": drawn.integers(-9, 9, (n, 2)).astype(np.int32),
        "as_bytes": drawn.integers(0, 2**15, (2, 3), dtype=np.int16),
        "as_zlib": drawn.random((2, 2)),
        "open_bytes": drawn.random((n, 3), np.float32),
        "dynamic": drawn.integers(0, 99, (n, i % 3, 2)).astype(np.int32),
        "names": np.array([b"a%d" % i, b"b"], object),
        "box": np.array([0.1, 0.2, 0.5, 0.5 + i / 30], np.float32),
        "audio": drawn.integers(-999, 999, 5 + n),
        "tokens": list(range(i, i + n)),
        "pair": [i, -i],
        "words": [f"w{k}é" for k in range(n)],
        "flags": [bool(k % 2) for k in range(n)],
        "thumbnails": [pixels(2, 2, 3) for _ in range(n)],
        "blobs": [drawn.random(2, np.float32) for _ in range(n)],
        "objects": [
            {"box": np.array([0, 0, 1, (k + 1) / 9], np.float32), "kind": k % 2, "name": f"o{k}"}
            for k in range(n)
        ],
        "nested": {"inner": {"x": np.float32(i), "label": "u" if i % 2 else "v"}, "y": i},
        "ragged": [list(range(k)) for k in range(n)],
        "ragged_words": [[f"r{k}"] * k for k in range(n)],
        "deeper": [[list(range(j)) for j in range(k)] for k in range(n)],
        "steps": [{"reward": np.float32(k), "seen": pixels(2, 2, 3)} for k in range(n + 1)],
        "translation": {"de": f"hallo {i}", "en": f"hello {i}"},
        "maybe": None if i % 3 == 0 else np.int32(i),
    }


FEATURES = f.FeaturesDict(
    {
        "image": f.Image(shape=(4, 5, 3)),
        "gray": f.Image(shape=(None, None, 1)),
        "alpha": f.Image(shape=(None, None, 4)),
        "jpeg": f.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "deep": f.Image(shape=(None, None, 1), dtype=np.uint16),
        "depth": f.Image(shape=(None, None, 1), dtype=np.float32),
        "mask": f.LabeledImage(labels=["no", "yes"], shape=(None, None, 1)),
        "video": f.Video(shape=(None, 2, 3, 3)),
        "text": f.Text(),
        "label": f.ClassLabel(names=["cat", "dog", "fish"]),
        "count": f.Scalar(np.int32),
        "ratio": np.float32,
        "flag": np.bool_,
        "byte": np.uint8,
        "wide": np.uint64,
        "double": np.float64,
        "half": np.float16,
        "raw": f.Tensor(shape=(), dtype=np.object_),
        "vector": f.Tensor(shape=(3,), dtype=np.float32),
        "matrix": f.Tensor(shape=(2, 3), dtype=np.uint8),
        "rows": f.Tensor(shape=(None, 2), dtype=np.int32),
        "as_bytes": f.Tensor(shape=(2, 3), dtype=np.int16, encoding="bytes"),
        "as_zlib": f.Tensor(shape=(2, 2), dtype=np.float64, encoding="zlib"),
        "open_bytes": f.Tensor(shape=(None, 3), dtype=np.float32, encoding="bytes"),
        "dynamic": f.Tensor(shape=(None, None, 2), dtype=np.int32, encoding="zlib"),
        "names": f.Tensor(shape=(2,), dtype=np.object_),
        "box": f.BBoxFeature(),
        "audio": f.Audio(sample_rate=8000),
        "tokens": f.Sequence(np.int64),
        "pair": f.Sequence(np.int32, length=2),
        "words": f.Sequence(f.Text()),
        "flags": f.Sequence(np.bool_),
        "thumbnails": f.Sequence(f.Image(shape=(2, 2, 3))),
        "blobs": f.Sequence(f.Tensor(shape=(2,), dtype=np.float32, encoding="bytes")),
        "objects": f.Sequence(
            {"box": f.BBoxFeature(), "kind": f.ClassLabel(names=["p", "q"]), "name": f.Text()}
        ),
        "nested": {
            "inner": {"x": np.float32, "label": f.ClassLabel(names=["u", "v"])},
            "y": np.int64,
        },
        "ragged": f.Sequence(f.Sequence(np.int32)),
        "ragged_words": f.Sequence(f.Sequence(f.Text())),
        "deeper": f.Sequence(f.Sequence(f.Sequence(np.int64))),
        "steps": f.Dataset({"reward": np.float32, "seen": f.Image(shape=(2, 2, 3))}),
        "translation": f.Translation(["en", "de"]),
        "maybe": f.Scalar(np.int32, optional=True),
    }
)


class Kinds(tfds.core.GeneratorBasedBuilder):
    """One feature of every kind."""

    pkg_dir_path = HERE
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=FEATURES,
            supervised_keys=("image", "label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        starts = {"train": 0, "test": 100}
        return {
            name: self._generate_examples(starts[name], count) for name, count in COUNTS.items()
        }

    def _generate_examples(self, start: int, count: int):
        for i in range(start, start + count):
            yield i, example(i - start if start else i)


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    for kind in ("tfrecord", "array_record"):
        with tempfile.TemporaryDirectory() as folder:
            builder = Kinds(data_dir=folder, file_format=kind)
            # An ArrayRecord file has 64 kB at least, mostly zeros: there is one a split.
            config = tfds.download.DownloadConfig(num_shards=3 if kind == "tfrecord" else 1)
            builder.download_and_prepare(download_config=config)
            shutil.copytree(Path(folder) / "kinds", HERE / kind / "kinds")


if __name__ == "__main__":
    main()
