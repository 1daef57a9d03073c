"""TFDS folders: the values that TFDS itself gives, with TensorFlow and in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loaderx import Dataset

tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore"),
]
FILES = Path(__file__).parents[1] / "files" / "tfds"


def builder(kind):
    return tfds.builder_from_directory(str(FILES / kind / "kinds" / "1.0.0"))


def plain(value):
    """Lists and bytes, so that they can be compared."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.encode() if isinstance(value, str) else value


def check(path, ours, theirs):
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), path
        for name, value in theirs.items():
            check(f"{path}/{name}", ours[name], value)
    elif isinstance(theirs, tf.RaggedTensor):
        assert plain(ours) == theirs.to_list(), path
    elif isinstance(theirs, tf.data.Dataset):
        steps = list(theirs)
        for name in steps[0]:
            check(f"{path}/{name}", ours[name], tf.stack([step[name] for step in steps]))
    else:
        check_arrays(path, ours, theirs.numpy())


def check_arrays(path, ours, theirs):
    if isinstance(theirs, bytes) or theirs.dtype == object:
        assert plain(ours) == plain(theirs), path
        return
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), path
    if path == "jpeg":  # TensorFlow decodes JPEGs with a fast DCT
        assert np.abs(ours.astype(int) - theirs).max() <= 8
    else:
        assert np.array_equal(ours, theirs), path


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
@pytest.mark.parametrize("split", ["train", "test", "train[25%:75%]", "train[:3]+test[1:]"])
def test_the_values_of_tensorflow(kind, split):
    config = tfds.ReadConfig(interleave_cycle_length=1)
    theirs = list(builder("tfrecord").as_dataset(split=split, read_config=config))
    ours = list(Dataset.open(FILES / kind / "kinds", split=split))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name, value in other.items():
            check(name, one[name], value)


NAMES = ["label", "count", "ratio", "flag", "vector", "rows", "box", "tokens", "words", "text"]


@pytest.fixture
def data_source(tmp_path):
    """Of features that TFDS reads in NumPy as loaderx does."""

    class Small(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        pkg_dir_path = tmp_path
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = builder("array_record").info.features
            chosen = {name: features[name] for name in NAMES}
            nested = {"inner": tfds.features.FeaturesDict({"x": np.float32})}
            chosen |= {"nested": nested, "image": features["image"]}
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(chosen),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            from tfds_examples import example

            for i in range(10):
                given = example(i)
                nested = {"inner": {"x": given["nested"]["inner"]["x"]}}
                yield (
                    i,
                    {name: given[name] for name in NAMES}
                    | {
                        "nested": nested,
                        "image": given["image"],
                    },
                )

    made = Small(data_dir=tmp_path, file_format="array_record")
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    return made


@pytest.mark.parametrize("split", ["train", "train[2:9]", "train[50%:]"])
def test_data_source_objects(data_source, split):
    source = data_source.as_data_source(split=split)
    dataset = Dataset.from_source(source)
    assert "ArrayRecordDataSource" in repr(dataset)
    assert len(dataset) == len(source)
    for index, record in enumerate(dataset):
        same(record, source[index])
    opened = Dataset.open(data_source.data_dir, split=split)
    for record, other in zip(dataset, opened, strict=True):
        assert record["label"] == other["label"]
        assert record["text"].decode() == other["text"]
        assert record["image"].tolist() == other["image"].tolist()


def same(one, other):
    if isinstance(other, dict):
        assert list(one) == list(other)
        for name in other:
            same(one[name], other[name])
        return
    assert type(one) is type(other)
    if isinstance(other, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tolist() == other.tolist()
    else:
        assert one == other


def test_bytes_of_data_source_objects(data_source):
    method = tfds.decode.DeserializeMethod.RAW_BYTES
    raw = data_source.as_data_source(split="train", deserialize_method=method)
    assert list(Dataset.from_source(raw)) == [raw[index] for index in range(len(raw))]
