"""TFRecord: files that TensorFlow wrote, and values as it parses them."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.sources.open.opening import open_path

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore"),
]


def feature(values):
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def payloads(count):
    drawn = np.random.default_rng(0)
    for i in range(count):
        values = {
            "image": [drawn.bytes(i * 37)],
            "label": [int(drawn.integers(-(2**62), 2**62))],
            "vector": drawn.random(4).tolist(),
            "ids": drawn.integers(-5, 40_000, 1 + i % 7).tolist(),
            "words": [drawn.bytes(k) for k in range(1 + i % 3)],
        }
        features = tf.train.Features(feature={k: feature(v) for k, v in values.items()})
        yield tf.train.Example(features=features).SerializeToString()


SCHEMA = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "vector": tf.io.FixedLenFeature([4], tf.float32),
    "ids": tf.io.VarLenFeature(tf.int64),
    "words": tf.io.VarLenFeature(tf.string),
}


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_the_same_values(tmp_path, compression):
    paths = [str(tmp_path / f"x-{k}.tfrecord") for k in range(3)]
    for path in paths:
        with tf.io.TFRecordWriter(path, compression) as writer:
            for payload in payloads(40):
                writer.write(payload)
    ours = list(Dataset.open(paths))
    theirs = list(tf.data.TFRecordDataset(paths, compression))
    assert len(ours) == len(theirs) == 120
    for one, payload in zip(ours, theirs, strict=True):
        other = tf.io.parse_single_example(payload, SCHEMA)
        assert one["image"] == other["image"].numpy()
        for name in ("label", "vector"):
            assert one[name].dtype == other[name].numpy().dtype
            assert np.array_equal(one[name], other[name].numpy())
        for name in ("ids", "words"):
            assert one[name].tolist() == tf.sparse.to_dense(other[name]).numpy().tolist()
    (opened,) = open_path(paths)
    assert not any(opened.source.problems())
