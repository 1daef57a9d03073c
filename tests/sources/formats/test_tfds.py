"""Folders that TFDS has prepared; those in tests/files/tfds were written by TFDS."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, RecordError
from loaderx.sources.base import BadRecordError
from loaderx.sources.formats.tf.tfds_decoders import DecodeTensor
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract
from loaderx.testing.comparing import check_equal
from tfds_examples import COUNTS, expected

FILES = Path(__file__).parents[2] / "files" / "tfds"
IMAGES = {"image", "gray", "alpha", "jpeg", "deep", "depth", "mask", "video", "thumbnails", "steps"}
PLAIN = [name for name in expected(0) if name not in IMAGES]
FIXED = ["label", "flag", "byte", "wide", "double", "vector", "matrix", "as_bytes", "as_zlib"]

KINDS = ["tfrecord", "array_record"]


def records(split: str, names: list[str]) -> list[dict]:
    every = map(expected, range(COUNTS[split]))
    return [{name: one[name] for name in names} for one in every]


class TestEveryFeature(SourceContract):
    """All but images, of various shapes: nested, ragged, encoded, optional."""

    def make_source(self):
        return Dataset.open(FILES / "tfrecord" / "kinds", split="train", columns=PLAIN)

    def expected_records(self):
        return records("train", PLAIN)


class TestFixedFeatures(SourceContract):
    """What is gathered, with no Python for each record."""

    def make_source(self):
        return Dataset.open(FILES / "tfrecord" / "kinds", split="train", columns=FIXED)

    def expected_records(self):
        return records("train", FIXED)


class TestArrayRecord(TestEveryFeature):
    def make_source(self):
        return Dataset.open(FILES / "array_record" / "kinds", split="train", columns=PLAIN)


class TestFixedFeaturesOfArrayRecord(TestFixedFeatures):
    def make_source(self):
        return Dataset.open(FILES / "array_record" / "kinds", split="train", columns=FIXED)


@pytest.mark.parametrize("kind", KINDS)
def test_images(kind):
    names = sorted(IMAGES)
    found = list(Dataset.open(FILES / kind / "kinds", split="test", columns=names))
    for one, want in zip(found, records("test", names), strict=True):
        exact, lossy = one.pop("jpeg"), want.pop("jpeg")
        assert (exact.dtype, exact.shape) == (lossy.dtype, lossy.shape)
        check_equal(one, want, "a record")


def test_images_of_one_shape_are_gathered():
    dataset = Dataset.open(FILES / "tfrecord" / "kinds", split="train", columns=["image", "label"])
    assert repr(dataset.element_spec) == "{'image': uint8[4,5,3], 'label': int64[]}"
    batch = dataset.batch(10)[0]
    assert np.array_equal(batch["image"][7], expected(7)["image"])


def test_images_as_bytes():
    columns = ["image", "video", "text", "words", "deep"]
    path = FILES / "tfrecord" / "kinds"
    record = Dataset.open(path, split="train", columns=columns, decode=False)[3]
    assert record["image"].startswith(b"\x89PNG")
    assert [one[:4] for one in record["video"]] == [b"\x89PNG"] * 3
    assert record["text"] == expected(3)["text"].encode()
    assert record["words"].tolist() == [one.encode() for one in expected(3)["words"]]


def test_classes():
    dataset = Dataset.open(FILES / "tfrecord" / "kinds", split="train", decode=False)
    assert dataset.classes == {
        "label": ("cat", "dog", "fish"),
        "mask": ("no", "yes"),
        "nested.inner.label": ("u", "v"),
        "objects.kind": ("p", "q"),
    }


@pytest.mark.parametrize(("told", "expected"), [("3", ("0", "1", "2")), ("x", None)])
def test_classes_without_names(folder, told, expected):
    """As MNIST's: their number is known, and nothing else."""
    version = folder / "1.0.0"
    (version / "label.labels.txt").unlink()

    def count(features):
        features["featuresDict"]["features"]["label"]["classLabel"] = {"numClasses": told}

    change(version / "features.json", count)
    assert Dataset.open(folder, split="train").classes.get("label") == expected


# Folders and splits -----------------------------------------------------------------------------


def labels(path, split):
    dataset = Dataset.open(path, split=split, columns=["count"])
    return [int(one["count"]) + 5 for one in dataset]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", [*range(10)]),
        ("test", [*range(4)]),
        ("train[:25%]", [0, 1]),  # 2.5, rounded as TFDS does
        ("train[75%:]", [8, 9]),
        ("train[2:-5]", [2, 3, 4]),
        ("train[1shard:]", [3, 4, 5, 6, 7, 8, 9]),
        ("test+train[:2]", [0, 1, 2, 3, 0, 1]),
    ],
)
def test_splits(split, expected):
    assert labels(FILES / "tfrecord" / "kinds" / "1.0.0", split) == expected


def test_a_split_must_be_named():
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(FILES / "tfrecord" / "kinds")
    with pytest.raises(ArgumentError, match="has no split 'dev': it has 'train', 'test'"):
        Dataset.open(FILES / "tfrecord" / "kinds", split="dev")


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(FILES / "tfrecord" / "kinds", tmp_path / "kinds"))


def test_the_newest_version_is_read(folder):
    shutil.copytree(folder / "1.0.0", folder / "0.9.0")
    newest = Path(shutil.copytree(folder / "1.0.0", folder / "1.10.0"))
    change(newest / "dataset_info.json", lambda told: told["splits"].pop())
    assert labels(folder, None) == [*range(10)]
    assert labels(folder / "1.0.0", "test") == [*range(4)]


def test_configurations(folder, tmp_path):
    (tmp_path / "sets").mkdir()
    shutil.copytree(folder, tmp_path / "sets" / "small")
    assert labels(tmp_path / "sets", "test") == [*range(4)]
    shutil.copytree(folder, tmp_path / "sets" / "large")
    with pytest.raises(FileError, match="has the configurations 'large', 'small': open the folder"):
        Dataset.open(tmp_path / "sets", split="test")
    assert labels(tmp_path / "sets" / "large", "test") == [*range(4)]


def change(path: Path, function) -> None:
    told = json.loads(path.read_text())
    function(told)
    path.write_text(json.dumps(told))


def test_empty_splits_and_shards(folder):
    def empty_train(told):
        told["splits"][0]["shardLengths"] = []
        told["splits"][1]["shardLengths"] = ["1", "0", "3"]

    version = folder / "1.0.0"
    whole = b"".join(
        (version / f"kinds-test.tfrecord-{k:05d}-of-00003").read_bytes() for k in (1, 2)
    )
    (version / "kinds-test.tfrecord-00002-of-00003").write_bytes(whole)
    (version / "kinds-test.tfrecord-00001-of-00003").write_bytes(b"")
    change(version / "dataset_info.json", empty_train)
    assert labels(folder, None) == [*range(4)]


def test_a_template_of_file_names(folder):
    version = folder / "1.0.0"
    for k in range(3):
        (version / f"kinds-test.tfrecord-{k:05d}-of-00003").rename(version / f"test_{k:05d}.rec")

    def use_template(told):
        told["splits"][1]["filepathTemplate"] = "{SPLIT}_{SHARD_INDEX}.rec"

    change(version / "dataset_info.json", use_template)
    assert labels(folder, "test") == [*range(4)]


# What cannot be read ----------------------------------------------------------------------------


def test_unknown_features_are_named(folder):
    def strange(told):
        features = told["featuresDict"]["features"]
        features["label"] = {"pythonClassName": "my.package.Molecule", "json": {}}
        features["objects"]["sequence"]["feature"]["featuresDict"]["features"]["box"] = {}

    change(folder / "1.0.0" / "features.json", strange)
    with pytest.raises(FileError, match=r"features\.json: the feature 'label' is a Molecule,"):
        Dataset.open(folder, split="test", columns=["count", "label"])
    with pytest.raises(FileError, match=r"'objects/box' is a \?, .*columns=\["):
        Dataset.open(folder, split="test", columns=["objects"])
    assert len(Dataset.open(folder, split="test", columns=["count"])) == 4
    with pytest.raises(ArgumentError, match="has no column 'nothing'"):
        Dataset.open(folder, split="test", columns=["nothing"])


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"tensor": {"dtype": "bfloat16", "shape": {}}}, "dtype bfloat16"),
        ({"tensor": {"dtype": "complex64", "shape": {}}}, "dtype complex64"),
        ({"tensor": {"dtype": "int32", "encoding": "lzma", "shape": {}}}, "encoding 'lzma'"),
        ({"text": {"encoder": "x"}}, "has an encoder"),
        ({"image": {"dtype": "uint16", "shape": {"dimensions": ["-1", "-1", "3"]}}}, "uint16 with"),
        ({"image": {"shape": {"dimensions": ["-1", "-1", "-1", "3"]}}}, "is an animation"),
        (
            {"tensor": {"dtype": "int32", "shape": {"dimensions": ["-1", "-1"]}}},
            "open axes",
        ),
        ({"tensor": {"dtype": "int32", "shape": {"dimensions": ["x"]}}}, "is damaged"),
        ({"tensor": 3}, "is damaged"),
        ({"sequence": {}}, "is damaged"),
    ],
)
def test_features_that_cannot_be_read(folder, feature, message):
    def put(told):
        told["featuresDict"]["features"]["count"] = feature

    change(folder / "1.0.0" / "features.json", put)
    with pytest.raises(FileError, match=message):
        Dataset.open(folder, split="test", columns=["count"])


def test_files_that_are_not_as_they_should_be(folder):
    version = folder / "1.0.0"
    info, features = version / "dataset_info.json", version / "features.json"
    shard = version / "kinds-test.tfrecord-00001-of-00003"
    saved = {path: path.read_bytes() for path in (info, features, shard)}

    def check(message):
        with pytest.raises(FileError, match=message):
            Dataset.open(folder, split="test", columns=["count"])
        for path, content in saved.items():
            path.write_bytes(content)

    change(info, lambda told: told["splits"][1]["shardLengths"].reverse())
    change(info, lambda told: told["splits"][1].update(shardLengths=["1", "1", "1"]))
    check(r"00001-of-00003 has 2 records, and dataset_info\.json says 1")
    shard.unlink()
    check(r"kinds.1\.0\.0 is incomplete: there is no file .*00001-of-00003")
    change(info, lambda told: told.update(fileFormat="riegeli"))
    for number in range(3):
        (version / f"kinds-test.riegeli-{number:05d}-of-00003").write_bytes(b"")
    check("shards of the format 'riegeli'")
    info.write_bytes(b"{")
    check(r"dataset_info\.json is damaged")
    change(info, lambda told: told.pop("splits"))
    check(r"dataset_info\.json is damaged")
    change(info, lambda told: told.update(splits=[]))
    check(r"dataset_info\.json has no splits with records")
    features.write_bytes(b"[]")
    check(r"features\.json is damaged, or of a TFDS before")
    shard.write_bytes(saved[shard][:-1])
    check(r"00001-of-00003 is cut off within record 1")


def test_stored_values_of_another_kind(folder):
    def as_float(told):
        told["featuresDict"]["features"]["count"]["tensor"]["dtype"] = "float32"

    change(folder / "1.0.0" / "features.json", as_float)
    with pytest.raises(FileError, match=r"record 0: 'count' is int64, and features\.json says fl"):
        Dataset.open(folder, split="test", columns=["count"])


def test_values_that_are_missing(folder):
    def new(told):
        features = told["featuresDict"]["features"]
        features["new"] = features["count"]
        features["maybe"]["tensor"]["optional"] = False

    change(folder / "1.0.0" / "features.json", new)
    for name in ("new", "maybe"):
        with pytest.raises(FileError, match=rf"record 0 has no '{name}'.*fill=\{{'{name}'"):
            Dataset.open(folder, split="test", columns=[name])
        dataset = Dataset.open(folder, split="test", columns=[name], fill={name: 7})
        assert int(dataset[0][name]) == 7


def test_a_damaged_value_fails_alone(folder):
    path = folder / "1.0.0" / "kinds-test.tfrecord-00001-of-00003"
    raw = path.read_bytes()
    at = raw.index(b"\x78\x9c", raw.index(b"dynamic/value"))
    path.write_bytes(raw[: at + 6] + b"\xff\xff\xff\xff" + raw[at + 10 :])
    dataset = Dataset.open(folder, split="test", columns=["dynamic", "count"])
    check_equal(dataset[0]["dynamic"], expected(0)["dynamic"], "record 0")
    failed = [i for i in range(4) if fails(dataset, i, r"00001-of-00003, record .*compressed")]
    assert len(failed) == 1
    replaced = list(dataset.on_error("replace"))
    assert len(replaced) == 4
    (opened,) = open_path(folder, split="test", columns=["count"])
    reasons = [one.reason for one in opened.source.problems() if one is not None]
    assert reasons == ["its checksum is wrong"]


def fails(dataset, index, message) -> bool:
    try:
        dataset[index]
    except RecordError as error:
        return re.search(message, str(error)) is not None
    return False


def test_without_pillow(monkeypatch):
    from loaderx.errors import MissingPackageError
    from loaderx.sources.images import pillow_module

    pillow_module.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    dataset = Dataset.open(FILES / "tfrecord" / "kinds", split="test", columns=["image"])
    with pytest.raises((MissingPackageError, RecordError), match=r"loaderx-jax\[images\]"):
        dataset[0]
    pillow_module.cache_clear()


@pytest.mark.parametrize("shape", [(2, 3), (None, 3)])
def test_a_tensor_that_unpacks_to_too_much(monkeypatch, shape):
    monkeypatch.setattr("loaderx.sources.files.unpacking.SMALL", 1000)
    monkeypatch.setattr("loaderx.sources.files.unpacking.RATIO", 1)
    decode = DecodeTensor(shape, np.dtype(np.float32), True)
    assert decode(zlib.compress(np.ones((2, 3), np.float32).tobytes())).tolist() == [[1] * 3] * 2
    most = 24 if shape[0] else 1000
    with pytest.raises(BadRecordError, match=f"it unpacks to more than the {most} bytes"):
        decode(zlib.compress(bytes(1200)))
    with pytest.raises(BadRecordError, match="what is compressed is cut off"):
        decode(zlib.compress(bytes(24))[:-4])
