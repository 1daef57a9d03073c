"""Writes tests/files/tfds: a small dataset with every kind of feature, as TFDS stores it.

Run with tensorflow-cpu 2.21.0, tensorflow-datasets 4.9.10 and array_record 0.8.6:

    python tests/files/make_tfds.py

What is in it is made in tests/support/tfds_examples.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

HERE = Path(__file__).parent / "tfds"
sys.path.append(str(Path(__file__).parents[1] / "support"))
from tfds_examples import COUNTS, example  # noqa: E402

f = tfds.features


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
