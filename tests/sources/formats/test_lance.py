"""Lance datasets: against what pylance itself reads."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys

import lance
import numpy as np
import pyarrow as pa
import pytest

from chunk_sources import Logged, reads
from inside import node_of
from loaderx import ArgumentError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import ArgumentTypeError, ChainError
from loaderx.testing import SourceContract

pytestmark = pytest.mark.foreign  # lance keeps threads of its own

COUNT = 40


def table(count, first=0):
    numbers = list(range(first, first + count))
    vectors = np.array([[n, n + 0.5, -n] for n in numbers], np.float32).reshape(-1, 3)
    return pa.table(
        {
            "x": pa.array(numbers, pa.int64()),
            "small": pa.array([n % 7 for n in numbers], pa.uint8()),
            "half": pa.array(np.array(numbers, np.float16)),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
            "text": [f"text é {n}" for n in numbers],
            "data": pa.array([bytes([n % 256]) * (n % 5) for n in numbers], pa.binary()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3),
            "tokens": pa.array([list(range(n % 4)) for n in numbers], pa.list_(pa.int32())),
            "tags": [[f"t{k}" for k in range(n % 3)] for n in numbers],
            "box": [{"a": n, "b": f"{n}"} for n in numbers],
            "day": pa.array(numbers, pa.date32()),
        }
    )


def records(rows):
    """The records of an Arrow table, as loaderx has them."""
    days = np.array(rows["day"].to_pylist(), "M8[D]")
    dtypes = {"small": np.uint8, "half": np.float16, "x": np.int64, "flag": np.bool_}
    arrays = {"vector": np.float32, "tokens": np.int32}
    return [
        {
            **row,
            **{name: dtype(row[name]) for name, dtype in dtypes.items()},
            **{name: np.array(row[name], dtype) for name, dtype in arrays.items()},
            "box": {"a": np.int64(row["box"]["a"]), "b": row["box"]["b"]},
            "day": day,
        }
        for row, day in zip(rows.to_pylist(), days)
    ]


def write(place):
    """Fragments of which one is appended later; rows of two of them are deleted."""
    lance.write_dataset(table(25), place, max_rows_per_file=10)
    lance.write_dataset(table(COUNT - 25, 25), place, mode="append")
    lance.dataset(place).delete("x % 6 = 2 or x between 10 and 19")  # one fragment goes away
    return place


class TestCopied(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.place, self.cache = write(tmp_path / "x.lance"), tmp_path / "cache"

    def make_source(self):
        return Dataset.open(self.place, cache=self.cache)

    def expected_records(self):
        found = records(lance.dataset(self.place).to_table())
        assert len(found) == 24
        return found


class TestFragments(TestCopied):
    def make_source(self):
        return Dataset.open(self.place, cache=False)


def test_versions_and_tags(tmp_path):
    place, cache = write(tmp_path / "x.lance"), tmp_path / "cache"
    lance.dataset(place).tags.create("first", 1)
    for version in (1, 2, 3, "first", None):
        rows = lance.dataset(place, version=version).to_table()["x"].to_pylist()
        for kept in (cache, False):
            found = Dataset.open(place, columns=["x"], version=version, cache=kept)
            assert [int(record["x"]) for record in found] == rows
    assert len(list((cache / "files").iterdir())) == 3  # "first" is 1, and None is 3
    lance.write_dataset(table(3), place, mode="overwrite")
    assert len(Dataset.open(place, cache=cache)) == 3
    assert len(Dataset.open(place, version="first", cache=cache)) == 25


def test_old_names_of_manifests(tmp_path):
    place = tmp_path / "x.lance"
    lance.write_dataset(table(3), place, enable_v2_manifest_paths=False)
    lance.write_dataset(table(4), place, mode="append")
    assert sorted(file.name for file in (place / "_versions").glob("*.manifest"))[0] == "1.manifest"
    assert [len(Dataset.open(place, version=version)) for version in (1, 2, None)] == [3, 7, 7]


@pytest.mark.parametrize("storage", ["2.0", "2.1", "legacy"])
def test_older_storage(tmp_path, storage):
    chosen = ["x", "text", "vector", "tokens"]
    place, rows = tmp_path / "x.lance", table(30).select(chosen)
    lance.write_dataset(rows, place, data_storage_version=storage, max_rows_per_group=16)
    for cache in (None, False):
        found = list(Dataset.open(place, cache=cache))
        assert repr(found) == repr(
            [{name: record[name] for name in chosen} for record in records(table(30))]
        )


def test_a_version_that_does_not_exist(tmp_path):
    place = write(tmp_path / "x.lance")
    with pytest.raises(ArgumentError) as caught:
        Dataset.open(place, version=7)
    assert str(caught.value) == f"{place} has no version 7; the newest are 1, 2, 3."
    with pytest.raises(ArgumentError) as caught:
        Dataset.open(place, version="v1")
    assert str(caught.value) == f"{place} has no tag 'v1'; its tags are []."
    lance.dataset(place).tags.create("good", 2)
    with pytest.raises(ArgumentError, match=r"has no tag '\.\./good'; its tags are \['good'\]"):
        Dataset.open(place, version="../good")
    for wrong in (True, 1.0, [1]):
        with pytest.raises(ArgumentTypeError, match="`version` must be a number or a tag, got"):
            Dataset.open(place, version=wrong)


def test_a_tag_of_a_branch(tmp_path):
    place = write(tmp_path / "x.lance")
    lance.dataset(place).tags.create("good", 2)
    path = place / "_refs" / "tags" / "good.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "branch": "trial"}))
    with pytest.raises(FileError, match="the tag 'good' is of the branch 'trial'"):
        Dataset.open(place, version="good")


def test_other_formats_have_no_versions(tmp_path):
    (tmp_path / "x.txt").write_text("a\n")
    with pytest.raises(ArgumentError) as caught:
        Dataset.open(tmp_path / "x.txt", version=2)
    assert str(caught.value) == (
        f"`version` chooses one of a Lance dataset, and {tmp_path / 'x.txt'} is text: leave it out."
    )


@pytest.mark.parametrize("cache", [None, False])
def test_nulls(tmp_path, cache):
    place = tmp_path / "x.lance"
    rows = pa.table({"x": [1, None, 3], "t": ["a", "b", None], "l": [[1], None, [2, None]]})
    lance.write_dataset(rows, place)
    fill = {"x": -1, "t": "", "l": 0}
    with pytest.raises((FileError, RecordError), match=r"column 'x' has 1 null.*fill="):
        list(Dataset.open(place, columns=["x"], cache=cache))
    found = list(Dataset.open(place, columns=["x", "t"], fill={"x": -1, "t": ""}, cache=cache))
    assert [(int(one["x"]), one["t"]) for one in found] == [(1, "a"), (-1, "b"), (3, "")]
    with pytest.raises(ArgumentError, match="`fill` names 'y'"):
        Dataset.open(place, fill={**fill, "y": 0}, cache=cache)


def test_columns_that_were_added_and_dropped(tmp_path):
    place = tmp_path / "x.lance"
    lance.write_dataset(pa.table({"x": [1, 2], "y": [3, 4]}), place)
    lance.dataset(place).add_columns({"z": "x + y"})
    lance.dataset(place).drop_columns(["y"])
    assert repr(list(Dataset.open(place))) == repr(
        [{"x": np.int64(1), "z": np.int64(4)}, {"x": np.int64(2), "z": np.int64(6)}]
    )


def test_blobs(tmp_path):
    metadata = {b"lance-encoding:blob": b"true"}
    schema = pa.schema([pa.field("data", pa.large_binary(), metadata=metadata)])
    blobs = [bytes([n]) * 1000 for n in range(5)]
    rows = pa.table({"data": blobs}, schema=schema)
    lance.write_dataset(rows, tmp_path / "x.lance", data_storage_version="2.1")
    for cache in (None, False):
        assert [one["data"] for one in Dataset.open(tmp_path / "x.lance", cache=cache)] == blobs


def test_what_cannot_be_read_is_refused(tmp_path):
    lance.write_dataset(table(5), tmp_path / "x.lance")
    lance.dataset(tmp_path / "x.lance").delete("true")
    with pytest.raises(FileError, match="there are no records in version 2"):
        Dataset.open(tmp_path / "x.lance")
    decimals = pa.table({"d": pa.array([1, 2], pa.decimal128(5, 2))})
    lance.write_dataset(decimals, tmp_path / "d.lance")
    with pytest.raises(FileError, match=r"d\.lance.*decimal"):
        Dataset.open(tmp_path / "d.lance")
    (tmp_path / "y.lance" / "_versions").mkdir(parents=True)
    with pytest.raises(FileError, match=r"y\.lance is damaged: it has no manifest"):
        Dataset.open(tmp_path / "y.lance")


@pytest.mark.parametrize("what", ["data", "manifest"])
@pytest.mark.parametrize("cache", [None, False])
def test_damaged_folders(tmp_path, what, cache):
    """What is cut off or missing is named; it never becomes other records."""
    place = tmp_path / "x.lance"
    lance.write_dataset(table(COUNT), place)
    (file,) = place.glob("data/*.lance" if what == "data" else "_versions/*.manifest")
    whole = file.read_bytes()
    for stop in (*range(0, len(whole), max(1, len(whole) // 7)), len(whole) - 1):
        file.write_bytes(whole[:stop])
        with pytest.raises((FileError, RecordError), match=rf"{place}.* is damaged or cut off: \S"):
            dataset = Dataset.open(place, cache=cache)
            dataset.batch(COUNT)[0]
    file.unlink()
    with pytest.raises((FileError, RecordError), match=rf"{place}"):
        Dataset.open(place, cache=cache).batch(COUNT)[0]


# The copy -----------------------------------------------------------------------------------------


OPENS = """
import sys
from loaderx import Dataset

ds = Dataset.open(sys.argv[1], columns=["x", "text"], cache=sys.argv[2])
print(len(ds), ds[3]["text"], ds.shuffle(0).batch(8)[0]["x"].tolist())
assert "lance" not in sys.modules and "pyarrow" not in sys.modules
"""


def test_a_copy_needs_no_pylance(tmp_path):
    place, cache = write(tmp_path / "x.lance"), tmp_path / "cache"
    ds = Dataset.open(place, columns=["x", "text"], cache=cache)
    told = f"{len(ds)} {ds[3]['text']} {ds.shuffle(0).batch(8)[0]['x'].tolist()}\n"
    made = subprocess.run(
        [sys.executable, "-c", OPENS, place, cache], capture_output=True, text=True, check=True
    )
    assert made.stdout == told


def test_a_dataset_that_is_written_anew_is_copied_anew(tmp_path):
    place, cache = tmp_path / "x.lance", tmp_path / "cache"
    for first in (0, 5):
        lance.write_dataset(table(7, first), place)
        assert int(Dataset.open(place, cache=cache)[0]["x"]) == first
        shutil.rmtree(place)


def test_shards_are_fragments(tmp_path):
    place = write(tmp_path / "x.lance")
    for cache in (None, False):
        dataset = Dataset.open(place, columns=["x"], split="[1shard:]", cache=cache)
        whole = Dataset.open(place, columns=["x"], cache=cache)
        assert len(dataset) == len(whole) - lance.dataset(place).get_fragments()[0].count_rows()


# Without a copy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [None, 2])
def test_fragments_are_decoded_once_in_an_epoch(workers, tmp_path):
    place = tmp_path / "x.lance"
    lance.write_dataset(table(200), place, max_rows_per_file=16)
    dataset = Dataset.open(place, columns=["x", "text"], cache=False)
    blocks = node_of(dataset).source.kept_chunks
    blocks.decode = Logged(blocks.decode, tmp_path / "log")
    shuffled = dataset.shuffle(1, block="source", window=40).batch(9)
    expected = [batch["x"].tolist() for batch in pickle.loads(pickle.dumps(shuffled))]
    assert sorted(x for batch in expected for x in batch) == list(range(200))
    (tmp_path / "log").unlink()  # of the copy, which reads the same file
    engine = "inline" if workers is None else "processes"
    with DataLoader(shuffled, engine=engine, num_workers=workers) as loader:
        assert [batch["x"].tolist() for batch in loader] == expected
    assert reads(tmp_path / "log") == dict.fromkeys(range(13), 1)
    with pytest.raises(ChainError, match=r"leave cache=False out .* \.shuffle\(block="):
        dataset.shuffle()


def test_large_fragments_are_read_in_parts(tmp_path):
    """Each about 64 MB, so that a fragment need not fit into memory."""
    place, rows = tmp_path / "x.lance", 1500
    noise = np.random.default_rng(0).integers(0, 256, (rows, 100_000), np.uint8)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(noise.reshape(-1)), noise.shape[1])
    lance.write_dataset(pa.table({"x": np.arange(rows), "noise": fixed}), place)
    lance.dataset(place).delete("x % 5 = 1")
    left = np.delete(np.arange(rows), np.arange(rows) % 5 == 1)
    dataset = Dataset.open(place, cache=False)
    assert len(node_of(dataset).source.chunks()) == 1 + 2
    for start, batch in zip(range(0, len(left), 100), dataset.batch(100)):
        kept = left[start : start + 100]
        assert np.array_equal(batch["x"], kept)
        assert np.array_equal(batch["noise"], noise[kept])
