"""ArrayRecord files; those in tests/files/array_record were written by its library."""

from __future__ import annotations

import importlib.util
import sys
import types

import numpy as np
import pytest

from array_record_examples import FILES, OTHERS, PACKED, record, unpacked
from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, MissingPackageError, RecordError
from loaderx.sources import parse_example
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract
from tf_files import example

has_library = importlib.util.find_spec("array_record") is not None
READ_HERE = [name for name in FILES if name not in OTHERS and name != "empty"]


class TestOneRecordAChunk(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = unpacked("zstd", tmp_path)

    def make_source(self):
        return Dataset.open(self.path)

    def expected_records(self):
        return [{"data": record(i)} for i in range(40)]


class TestGroups(TestOneRecordAChunk):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = unpacked("groups", tmp_path)


class TestShards(SourceContract):
    """Shards of all kinds that are read here."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.paths = [unpacked(name, tmp_path) for name in ("plain", "empty", "groups", "zstd")]

    def make_source(self):
        return Dataset.open(self.paths)

    def expected_records(self):
        return [{"data": record(i)} for i in range(40)] * 3


@pytest.mark.parametrize("name", READ_HERE)
def test_all_kinds_of_files(name, tmp_path):
    dataset = Dataset.open(unpacked(name, tmp_path))
    assert [one["data"] for one in dataset] == [*map(record, range(40))]
    backward = dataset[np.arange(40)[::-1]].batch(40)[0]["data"]
    assert backward.tolist() == [*map(record, range(40))][::-1]


def test_files_packed_with_gzip():
    dataset = Dataset.open(PACKED / "zstd.arrayrecord.gz")
    assert dataset[9] == {"data": record(9)}
    assert len(Dataset.open(PACKED / "zstd.arrayrecord.gz", columns=["data"])) == 40
    with pytest.raises(ArgumentError, match="has no column 'x'; it has 'data'"):
        Dataset.open(PACKED / "zstd.arrayrecord.gz", columns=["x"])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.skipif(has_library, reason="array_record is installed")
def test_what_the_library_must_read(name, tmp_path):
    path = unpacked(name, tmp_path)
    with pytest.raises(MissingPackageError, match=f"{OTHERS[name]}.*pip install array_record"):
        Dataset.open(path)


def test_examples_are_parsed_by_a_map():
    payloads = [{"data": example({"x": [i, i + 1], "name": ["a"]})} for i in range(5)]
    dataset = Dataset.from_source(payloads).map(lambda one: parse_example(one["data"]))
    assert dataset[3]["x"].tolist() == [3, 4]


# Damage -----------------------------------------------------------------------------------------


def test_no_records(tmp_path):
    with pytest.raises(FileError, match=r"empty\.arrayrecord has no records"):
        Dataset.open(unpacked("empty", tmp_path))


@pytest.mark.parametrize("name", READ_HERE)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "its last block is missing"),
        (lambda raw: raw[: 1 << 16], "its last block is missing"),
        (
            lambda raw: raw[: -1 << 16],
            "longer than|does not say|there is no chunk|list of chunks|last block",
        ),
        (lambda raw: raw[:64], "its last block is missing"),
        (lambda raw: raw[: -1 << 16] + bytes(1 << 16), "there is no chunk of records where"),
    ],
)
def test_files_that_are_cut_off(name, damage, message, tmp_path):
    path = unpacked(name, tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileError, match=rf"{name}\.arrayrecord is damaged.*({message})"):
        Dataset.open(path)


def test_another_file(tmp_path):
    (tmp_path / "a.arrayrecord").write_bytes(b"something else")
    with pytest.raises(FileError, match=r"a\.arrayrecord is not an ArrayRecord file"):
        Dataset.open(tmp_path / "a.arrayrecord")


@pytest.mark.parametrize("name", ["zstd", "groups"])
def test_a_damaged_chunk_fails_alone(name, tmp_path):
    path = unpacked(name, tmp_path)
    raw = bytearray(path.read_bytes())
    at = -(1 << 16)
    for _ in range(3):  # the list of chunks is the last that is compressed, in two frames
        at = raw.rindex(b"\x28\xb5\x2f\xfd", 0, at)
    raw[at + 4 : at + 12] = b"\xff" * 8
    path.write_bytes(raw)
    dataset = Dataset.open(path)
    assert dataset[0]["data"] == record(0)
    with pytest.raises(RecordError, match=rf"{name}\.arrayrecord, record \d+: "):
        list(dataset)
    assert len(list(dataset.on_error("replace"))) == 40
    (opened,) = open_path(path)
    found = [one for one in opened.source.problems() if one is not None]
    assert 1 <= len(found) <= 7
    assert found[0].where.startswith(str(path))


def test_without_zstd(monkeypatch, tmp_path):
    from loaderx.sources.formats.tf import riegeli

    path = unpacked("zstd", tmp_path)
    riegeli.zstd_function.cache_clear()
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[zstd\]'"):
        Dataset.open(path)
    riegeli.zstd_function.cache_clear()
    assert len(Dataset.open(unpacked("plain", tmp_path))) == 40


def test_the_library_reads_zstd_where_zstandard_is_missing(monkeypatch, tmp_path):
    from loaderx.sources.formats.tf import riegeli

    path = unpacked("zstd", tmp_path)
    expected = [bytes(one["data"]) for one in Dataset.open(path)]  # with the index of zstandard

    class Reader:
        def __init__(self, path):
            self.closed = False

        def num_records(self):
            return len(expected)

        def read(self, indices):
            return [expected[index] for index in indices]

        def close(self):
            self.closed = True

    library = types.ModuleType("array_record.python.array_record_module")
    library.ArrayRecordReader = Reader
    monkeypatch.setitem(sys.modules, "array_record", types.ModuleType("array_record"))
    monkeypatch.setitem(sys.modules, "array_record.python", types.ModuleType("python"))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    (tmp_path / "again").mkdir()
    for other in (path, unpacked("zstd", tmp_path / "again")):  # indexed before, and not
        riegeli.zstd_function.cache_clear()
        records = [bytes(one["data"]) for one in Dataset.open(other)]
        riegeli.zstd_function.cache_clear()
        assert records == expected
