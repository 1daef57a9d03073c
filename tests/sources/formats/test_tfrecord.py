"""TFRecord files."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest

from inside import source_of
from loaderx import ArraySpec, DataLoader, Dataset
from loaderx.errors import ArgumentError, ArgumentTypeError, FileError, RecordError
from loaderx.sources import TFRecord, parse_example
from loaderx.sources.cache.folder import CacheFolder, checksum_of
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.formats.tf.tfrecord import TFRecordPayloads
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract
from loaderx.testing.comparing import check_equal
from tf_files import example, feature, frame, run, write_tfrecord

BIG = [-(2**63), 2**63 - 1, -1, 0, 127, 128, 300, 16384, 2**31, -5]


def fixed(i: int) -> dict:
    return {
        "label": [BIG[i % len(BIG)]],
        "text": [f"text {i} é" * i],
        "vector": [float(i), 0.5, -1.0],
        "score": [i / 4],
        "pair": [i, -i],
    }


def fixed_record(i: int) -> dict:
    return {
        "label": np.int64(BIG[i % len(BIG)]),
        "pair": np.array([i, -i]),
        "score": np.float32(i / 4),
        "text": (f"text {i} é" * i).encode(),
        "vector": np.array([i, 0.5, -1], np.float32),
    }


class TestFixedWidth(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = write_tfrecord(tmp_path / "a.tfrecord", [example(fixed(i)) for i in range(23)])

    def make_source(self):
        return Dataset.open(self.path)

    def expected_records(self):
        return [fixed_record(i) for i in range(23)]


class TestShards(TestFixedWidth):
    """Many small shards, some empty, are read in their order."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        sizes = [3, 0, 10, 1, 9]
        starts = np.cumsum([0, *sizes])
        for number, size in enumerate(sizes):
            some = [example(fixed(i)) for i in range(starts[number], starts[number] + size)]
            write_tfrecord(tmp_path / f"a-{number}.tfrecord", some)
        self.path = str(tmp_path / "a-*.tfrecord")

    def test_shards_can_be_chosen(self):
        assert len(Dataset.open(self.path, split="[2shard:4shard]")) == 11


class TestLists(SourceContract):
    """Lists of several lengths; keys in any order, packed and unpacked, some missing."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        payloads = []
        for i in range(9):
            leaves = {
                "ids": BIG[:i],
                "weights": [float(k) for k in range(i)] if i else np.zeros(0, np.float32),
                "words": [b"w%d" % k for k in range(i)] if i else run(1, b""),
            }
            if i == 4:
                del leaves["ids"]
            if i == 5:
                leaves["words"] = None
            order = list(leaves)[:: 1 if i % 2 else -1]
            payloads.append(example({name: leaves[name] for name in order}, packed=i % 3 != 0))
        self.path = write_tfrecord(tmp_path / "a.tfrecord", payloads)

    def make_source(self):
        return Dataset.open(self.path)

    def expected_records(self):
        return [
            {
                "ids": np.array([] if i == 4 else BIG[:i], np.int64),
                "weights": np.arange(i, dtype=np.float32),
                "words": np.array([] if i == 5 else [b"w%d" % k for k in range(i)], object),
            }
            for i in range(9)
        ]


class TestUnpacked(TestFixedWidth):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        some = [example(fixed(i), packed=False) for i in range(23)]
        self.path = write_tfrecord(tmp_path / "a.tfrecord", some)


class TestBytes(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = write_tfrecord(tmp_path / "a.tfrecord", [b"x" * i for i in range(8)])

    def make_source(self):
        return Dataset.open(self.path, decode=False)

    def expected_records(self):
        return [{"data": b"x" * i} for i in range(8)]


class TestBytesInShards(TestBytes):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        for name, numbers in (("a", range(3)), ("b", ()), ("c", range(3, 8))):
            write_tfrecord(tmp_path / f"{name}.tfrecord", [b"x" * i for i in numbers])
        self.path = tmp_path

    def test_where_a_record_lies(self):
        source = source_of(self.make_source())
        assert source.where(4) == f"{self.path / 'c.tfrecord'}, record 1"
        assert source.shard_counts == [3, 0, 5]


@pytest.mark.parametrize("shift", [-100, 100])
def test_a_damaged_index_makes_up_no_bytes(tmp_path, shift):
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"x" * 20] * 3)
    cache = CacheFolder(str(tmp_path / "cache"))
    reader = TFRecordPayloads(FileSet([str(path)]), cache)
    assert reader.payloads(np.array([2, 0])) == [b"x" * 20] * 2
    (stops,) = (tmp_path / "cache").glob("index/*/stops.npy")
    np.save(stops, np.load(stops) + shift)
    told = json.loads((stops.parent / "index.json").read_text())
    told["checksums"]["stops"] = zlib.crc32(np.load(stops))
    del told["checksum"]
    (stops.parent / "index.json").write_text(json.dumps({**told, "checksum": checksum_of(told)}))
    again = TFRecordPayloads(FileSet([str(path)]), cache)
    with pytest.raises(FileError, match=r"a\.tfrecord: the index has records outside the file"):
        again.payloads(np.array([2, 0]))


class TestSchema(SourceContract):
    """What a schema says is not guessed."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        payloads = [
            example({"image": [bytes(range(i, i + 12))], "ids": [i], "text": ["é"], "n": [i]})
            for i in range(7)
        ]
        self.path = write_tfrecord(tmp_path / "a.tfrecord", payloads)

    def make_source(self):
        types = {
            "image": ArraySpec((2, 3), np.dtype("<u2")),
            "ids": ArraySpec((None,), np.dtype(np.int32)),
            "text": str,
            "n": ArraySpec((1,), np.dtype(np.int64)),
        }
        return TFRecord(self.path, features=types, columns=["image", "ids", "text", "n"])

    def expected_records(self):
        return [
            {
                "image": np.frombuffer(bytes(range(i, i + 12)), "<u2").reshape(2, 3),
                "ids": np.array([i], np.int32),
                "text": "é",
                "n": np.array([i]),
            }
            for i in range(7)
        ]


# Finding files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz", "anything"])
def test_compressed_files(tmp_path, pack, name):
    content = b"".join(frame(example(fixed(i))) for i in range(9))
    (tmp_path / name).write_bytes(pack(content))
    check_equal(Dataset.open(tmp_path / name)[4], fixed_record(4), "record 4")
    if name == "anything":
        assert len(TFRecord(tmp_path / name)) == 9


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_compressed_files_that_are_cut_off(tmp_path, pack):
    content = b"".join(frame(example(fixed(i))) for i in range(300))
    (tmp_path / "a.tfrecord").write_bytes(pack(content)[:-20])
    with pytest.raises(FileError, match=r"a\.tfrecord.* cut off"):
        Dataset.open(tmp_path / "a.tfrecord")


def test_a_folder_with_splits_in_names_as_tfds_has_them(tmp_path):
    for split, count in (("train", 4), ("test", 2)):
        for shard in range(2):
            some = [example(fixed(shard * count + i)) for i in range(count)]
            write_tfrecord(tmp_path / f"x-{split}.tfrecord-{shard:05d}-of-00002", some)
    assert len(Dataset.open(tmp_path, split="train")) == 8
    assert len(Dataset.open(tmp_path, split="test[1:]")) == 3
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(tmp_path)


def test_the_index_is_found_again(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(fixed(i)) for i in range(9)])
    cache = tmp_path / "cache"
    first = Dataset.open(path, cache=cache)
    kept = {file: file.stat().st_mtime_ns for file in cache.rglob("*.npy")}
    assert kept
    check_equal(Dataset.open(path, cache=cache)[8], first[8], "record 8")
    assert kept == {file: file.stat().st_mtime_ns for file in cache.rglob("*.npy")}
    check_equal(Dataset.open(path, cache=False)[8], first[8], "record 8")


# What cannot be read ----------------------------------------------------------------------------


def test_missing_values_are_refused_or_filled(tmp_path):
    leaves = {"age": [3], "name": ["a"], "vector": [1.0, 2.0]}
    some = [{k: v for k, v in leaves.items() if k != left} for left in ("", *leaves)]
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(one) for one in some])
    with pytest.raises(FileError, match=r"'age' has 1 value \(int64\) in most") as refused:
        Dataset.open(path)
    assert f"record 1 of {path} has none" in str(refused.value)
    assert "fill={'age': 0}" in str(refused.value)
    with pytest.raises(FileError, match="'name' has 1 value .*fill"):
        Dataset.open(path, fill={"age": -1})
    filled = Dataset.open(path, fill={"age": -1, "name": b"?", "vector": 9})
    assert [int(one["age"]) for one in filled] == [3, -1, 3, 3]
    assert [one["name"] for one in filled] == [b"a", b"a", b"?", b"a"]
    assert filled.batch(4)[0]["vector"].tolist() == [[1, 2], [1, 2], [1, 2], [9, 9]]
    assert Dataset.open(path, columns=["age"], fill={"age": 0}).batch(4)[0]["age"][1] == 0
    with pytest.raises(ArgumentError, match="has no feature 'x'"):
        Dataset.open(path, fill={"x": 0})


def test_a_list_that_is_empty_or_one_value_long_needs_a_word(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example({"x": [1]}), example({"x": []})])
    with pytest.raises(
        FileError,
        match=r"some records of .*a\.tfrecord .*have an empty list.*features=\{'x': Array",
    ):
        Dataset.open(path)
    listed = TFRecord(path, features={"x": ArraySpec((None,), np.dtype(np.int64))})
    assert [one["x"].tolist() for one in listed] == [[1], []]


def test_a_feature_that_no_record_has_is_left_out(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example({"x": [1], "y": None})] * 3)
    assert list(Dataset.open(path)[0]) == ["x"]
    with pytest.raises(ArgumentError, match="has no column 'y'; it has 'x'"):
        Dataset.open(path, columns=["y"])


def test_features_of_two_kinds(tmp_path):
    one = write_tfrecord(tmp_path / "1.tfrecord", [example({"x": [1], "y": [2]})] * 2)
    two = write_tfrecord(tmp_path / "2.tfrecord", [example({"x": [1.5], "y": [2]})] * 2)
    with pytest.raises(FileError, match="'x' is int64 in record 0 of .*1.tfrecord and float32 in"):
        Dataset.open([one, two])
    assert len(Dataset.open([one, two], columns=["y"])) == 4


def test_a_feature_that_only_some_shards_have(tmp_path):
    one = write_tfrecord(tmp_path / "1.tfrecord", [example({"y": [2]})] * 2)
    two = write_tfrecord(tmp_path / "2.tfrecord", [example({"x": [5], "y": [2]})] * 2)
    with pytest.raises(FileError, match=r"'x' has 1 value .* record 0 of .*1\.tfrecord has none"):
        Dataset.open([one, two])
    found = Dataset.open([one, two], fill={"x": 0})
    assert found[[3, 0, 2]].batch(3)[0]["x"].tolist() == [5, 0, 5]


def test_a_damaged_record_fails_alone(tmp_path):
    payloads = [example(fixed(i)) for i in range(9)]
    payloads[5] = payloads[5][:-3]
    path = write_tfrecord(tmp_path / "a.tfrecord", payloads)
    dataset = Dataset.open(path)
    check_equal(dataset[4], fixed_record(4), "record 4")
    with pytest.raises(
        RecordError, match=r"record 5.*a\.tfrecord, record 5: it is not a tf\.Example"
    ):
        dataset[5]
    with pytest.raises(RecordError, match=r"a\.tfrecord, record 5"):
        list(dataset.batch(3))
    replaced = list(dataset.on_error("replace").batch(3))
    assert replaced[1]["label"][:2].tolist() == BIG[3:5]


def test_problems_are_found_by_checksums(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(fixed(i)) for i in range(9)])
    raw = bytearray(path.read_bytes())
    at = raw.index("text 7 é".encode())
    raw[at] ^= 1
    path.write_bytes(raw)
    for decode in (True, False):
        (opened,) = open_path(path, decode=decode)
        found = [one for one in opened.source.problems() if one is not None]
        assert [(one.record, one.reason) for one in found] == [(7, "its checksum is wrong")]
        assert found[0].where == f"{path}, record 7"
    assert Dataset.open(path)[7]["text"].startswith(b"uext 7")  # not looked at when it is read


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], r"a\.tfrecord is cut off within record 8"),
        (lambda raw: raw[:-4], r"a\.tfrecord is cut off within record 8"),
        (lambda raw: raw + b"\0\0", r"a\.tfrecord is cut off within record 9"),
        (lambda raw: raw + bytes(12), r"a\.tfrecord, record 9: the checksum of its length"),
        (lambda raw: b"\1" + raw[1:], r"record 0: the checksum of its length is wrong.*or it is"),
        (lambda raw: b"\xff" * 8 + raw[8:], r"record 0: the checksum of its length is wrong"),
        (lambda raw: b"", r"a\.tfrecord has no records"),
        (lambda raw: frame(b"no example") * 3, r"are not tf\.Examples .*decode=False"),
        (lambda raw: frame(run(2, b"")) * 3, r"tf\.SequenceExample.*decode=False"),
        (lambda raw: frame(example({})) * 3, r"no feature has a value in any record"),
    ],
)
def test_damaged_files(tmp_path, damage, message):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(fixed(i)) for i in range(9)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileError, match=message):
        Dataset.open(path)


def test_a_number_of_eleven_bytes(tmp_path):
    bad = run(3, run(1, b"\xff" * 10 + b"\x01"))
    good = [example({"x": [i]}) for i in range(5)]
    path = write_tfrecord(tmp_path / "a.tfrecord", [*good, example({"x": bad})])
    dataset = Dataset.open(path)
    assert int(dataset[4]["x"]) == 4
    with pytest.raises(RecordError, match=r"record 5: a number has more than ten bytes"):
        dataset[5]


def test_features_that_are_not_what_was_said(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example({"x": [1], "b": [b"abc"]})] * 3)
    spec = ArraySpec((2,), np.dtype(np.uint8))
    with pytest.raises(RecordError, match="'b' has 3 bytes instead of 2 bytes"):
        Dataset.from_source(TFRecord(path, features={"b": spec}))[0]
    with pytest.raises(RecordError, match="'x' has 1 values instead of 2"):
        Dataset.from_source(TFRecord(path, features={"x": spec}))[0]
    with pytest.raises(ArgumentError, match="'x' is int64, not str"):
        TFRecord(path, features={"x": str})
    with pytest.raises(ArgumentTypeError, match=r"features\['x'\] must be an ArraySpec"):
        TFRecord(path, features={"x": np.int64})
    with pytest.raises(ArgumentError, match="has no feature 'z'"):
        TFRecord(path, features={"z": str})
    with pytest.raises(ArgumentError, match="only the first axis"):
        TFRecord(path, features={"x": ArraySpec((2, None), np.dtype(np.int64))})


def test_text_that_is_not_utf8(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example({"b": [b"\xff"]})] * 3)
    with pytest.raises(RecordError, match=r"record 1: 'b' is not text in UTF-8"):
        Dataset.from_source(TFRecord(path, features={"b": str}))[1]


def test_parse_example():
    found = parse_example(example({"a": [1, -2], "b": [b"x"], "c": [0.5], "d": None, "e": []}))
    assert {name: one.tolist() for name, one in found.items()} == {
        "a": [1, -2], "b": [b"x"], "c": [0.5], "e": [],
    }  # fmt: skip
    unpacked = parse_example(example({"a": [1, -2], "c": [0.5, 2.0]}, packed=False))
    assert {name: one.tolist() for name, one in unpacked.items()} == {"a": [1, -2], "c": [0.5, 2]}
    with pytest.raises(FileError, match="a field is longer than its message"):
        parse_example(example({"a": [1]})[:-1])
    with pytest.raises(ArgumentTypeError, match="takes bytes, got a str"):
        parse_example("text")


def test_states_go_on_where_they_were(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(fixed(i)) for i in range(23)])
    chain = Dataset.open(path).shuffle(seed=1).batch(4)
    every = [batch["pair"].tolist() for batch in chain]
    with DataLoader(chain) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = iterator.get_state()
    again = Dataset.open(path, cache=False).shuffle(seed=1).batch(4)
    with DataLoader(again) as loader:
        iterator = iter(loader)
        iterator.set_state(state)
        assert [batch["pair"].tolist() for batch in iterator] == every[2:]


def test_feature_helper_writes_what_is_read():
    assert feature(np.zeros(0, np.float32)) == run(2, run(1, b""))
