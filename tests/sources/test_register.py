"""Formats from outside: registered by a call, or by an entry point of an installed package."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from file_server import serving
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError
from loaderx.sources import FileFormat, Source, mapped_arrays, register

ROW = np.dtype([("x", "<f4", 3), ("n", "<i4")])
HEAD = struct.Struct("<4sI")


def read(data, path):
    magic, count = HEAD.unpack(data[: HEAD.size].tobytes())
    assert magic == b"ROWS"
    rows = np.ndarray(count, ROW, data, HEAD.size)
    return {"x": rows["x"], "n": rows["n"]}


ROWS = FileFormat("rows", (".rows",), mapped_arrays(read), lambda head: head.startswith(b"ROWS"))


@pytest.fixture(autouse=True)
def _registered():
    register(ROWS)


def write(path, numbers):
    rows = np.zeros(len(numbers), ROW)
    rows["n"], rows["x"] = numbers, np.reshape(numbers, (-1, 1))
    path.write_bytes(HEAD.pack(b"ROWS", len(numbers)) + rows.tobytes())
    return path


def test_one_file(tmp_path):
    dataset = Dataset.open(write(tmp_path / "a.rows", range(10)))
    assert dataset[3]["n"] == 3
    assert dataset[3]["x"].tolist() == [3, 3, 3]


def test_a_file_is_known_by_its_first_bytes(tmp_path):
    assert len(Dataset.open(write(tmp_path / "a.data", range(10)))) == 10


def test_shards_splits_and_columns(tmp_path):
    write(tmp_path / "train-0.rows", range(10))
    write(tmp_path / "train-1.rows", range(10, 30))
    write(tmp_path / "test.rows", range(5))
    dataset = Dataset.open(tmp_path, split="train", columns=["n"])
    assert [record["n"] for record in dataset] == [*range(30)]
    assert dict(dataset[0]).keys() == {"n"}
    assert len(Dataset.open(tmp_path, split="train[:50%]+test")) == 20
    with pytest.raises(ArgumentError, match="no column 'y'"):
        Dataset.open(tmp_path, split="test", columns=["y"])


def test_strided_rows_of_several_files_in_any_order(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.rows", range(number * 10, number * 10 + 10))
    dataset = Dataset.open(tmp_path)
    expected = [record["n"] for record in dataset.shuffle(seed=0)]
    assert sorted(expected) == [*range(30)]
    (batch,) = dataset.shuffle(seed=0).batch(30)
    assert batch["n"].tolist() == expected
    assert batch["x"].tolist() == [[number] * 3 for number in expected]


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_workers(tmp_path, engine):
    for number in range(3):
        write(tmp_path / f"{number}.rows", range(number * 10, number * 10 + 10))
    dataset = Dataset.open(tmp_path).shuffle(seed=0).batch(4)
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        found = np.concatenate([batch["n"] for batch in loader])
    assert sorted(found) == [*range(30)]


def test_compressed(tmp_path):
    plain = write(tmp_path / "a.rows", range(10)).read_bytes()
    (tmp_path / "b.rows.gz").write_bytes(gzip.compress(plain))
    assert Dataset.open(tmp_path / "b.rows.gz", cache=tmp_path / "cache")[4]["n"] == 4


def test_behind_a_url(tmp_path):
    with serving() as server:
        server.files["/a.rows"] = write(tmp_path / "a.rows", range(10)).read_bytes()
        dataset = Dataset.open(f"{server.url}/a.rows", cache=tmp_path / "cache")
        assert [record["n"] for record in dataset] == [*range(10)]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "a.rows").write_bytes(HEAD.pack(b"ROWS", 10) + b"1234")
    with pytest.raises(FileError, match=r"a\.rows is damaged or cut off"):
        Dataset.open(tmp_path / "a.rows")


@pytest.mark.parametrize(
    ("found", "problem"), [({}, "a dict of arrays"), ({"x": [1, 2]}, "'x' must be an array")]
)
def test_a_format_that_gives_something_else(tmp_path, found, problem):
    register(FileFormat("rows", (".rows",), mapped_arrays(lambda data, path: found)))
    with pytest.raises(FileError, match=problem):
        Dataset.open(write(tmp_path / "a.rows", range(3)))


def test_arrays_in_memory(tmp_path):
    register(FileFormat("rows", (".rows",), mapped_arrays(lambda data, path: {"i": np.arange(3)})))
    write(tmp_path / "a.rows", range(3))
    write(tmp_path / "b.rows", range(3))
    assert [record["i"] for record in Dataset.open(tmp_path)] == [0, 1, 2, 0, 1, 2]


def test_a_source_of_its_own(tmp_path):
    class Lines(Source):
        def __init__(self, files, columns):
            self.texts = [line for file in files for line in Path(file).read_text().split()]

        def __len__(self):
            return len(self.texts)

        def records(self, indices):
            return [{"text": self.texts[index]} for index in indices]

    register(FileFormat("rows", (".rows",), lambda files, options: Lines(files, options.columns)))
    (tmp_path / "a.rows").write_text("one two three")
    dataset = Dataset.open(tmp_path / "a.rows")
    assert [record["text"] for record in dataset.shuffle(seed=0)[:]].count("two") == 1


@pytest.mark.parametrize(
    ("format", "problem"),
    [
        (FileFormat("npy", (".rows",), ROWS.open), "of its own"),
        (FileFormat("rows", ".rows", ROWS.open), "tuple of lower case"),
        (FileFormat("rows", (".ROWS",), ROWS.open), "tuple of lower case"),
        ("rows", "needs a FileFormat"),
    ],
)
def test_refused(format, problem):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=problem):
        register(format)


PACKAGE = """
import numpy as np
from loaderx.sources import FileFormat, mapped_arrays
def read(data, path):
    return {"v": data.view("<i4")}
plain = FileFormat("plain", (".plain",), mapped_arrays(read))
"""


def test_an_entry_point(tmp_path):
    site = tmp_path / "site"
    (site / "plain-1.dist-info").mkdir(parents=True)
    (site / "plain_format.py").write_text(PACKAGE)
    (site / "plain-1.dist-info" / "METADATA").write_text("Name: plain\nVersion: 1\n")
    entry = "[loaderx.formats]\nplain = plain_format:plain\n"
    (site / "plain-1.dist-info" / "entry_points.txt").write_text(entry)
    np.arange(6, dtype="<i4").tofile(tmp_path / "a.plain")
    paths = os.pathsep.join([str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])

    def loaderx(*arguments):
        command = [sys.executable, "-m", "loaderx", *arguments]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    file = str(tmp_path / "a.plain")
    assert "plain" in loaderx("info", file)
    assert "6 records, all good" in loaderx("verify", file)
    loaderx("convert", file, str(tmp_path / "converted"))
    assert [record["v"] for record in Dataset.open(tmp_path / "converted")] == [*range(6)]
