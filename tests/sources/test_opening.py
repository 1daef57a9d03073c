"""`Dataset.open`: which format a path has, what is chosen of it, and what is said otherwise."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from descriptors import few_descriptors, room
from file_families import WRITERS
from loaderx import Dataset, LoaderxError
from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources.columns.build import fixed_column, run_column
from loaderx.sources.columns.elements import ListedArrays
from loaderx.sources.columns.run_columns import TextColumn
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.npy import NpyWriter
from loaderx.sources.files.parts import Parts
from loaderx.testing import SourceContract
from loaderx.tree import ArraySpec


@pytest.fixture
def shards(tmp_path):
    start = 0
    for number, count in ((2, 5), (10, 4), (11, 3)):
        x = np.arange(start, start + count)
        np.savez(tmp_path / f"s-{number}.npz", x=x, y=np.stack([x, -x], 1).astype(np.float32))
        start += count
    return tmp_path


def test_several_npz_are_shards(shards):
    dataset = Dataset.open(shards / "s-*.npz")
    assert [int(record["x"]) for record in dataset] == list(range(12))
    (batch,) = dataset.batch(12)
    assert batch["y"].tolist() == [[n, -n] for n in range(12)]
    assert repr(dataset).startswith("Dataset.open(npz: x=int64[], y=float32[2])")
    assert dataset.classes == {}


@pytest.mark.parametrize("family", ["hdf5", "npz", "safetensors"])
def test_many_shards_take_few_descriptors(tmp_path, family):
    count = room() + 20
    for number in range(count):
        WRITERS[family](tmp_path / f"{number}", [2 * number, 2 * number + 1])
    with few_descriptors():
        dataset = Dataset.open(tmp_path).batch(10)
        found = np.concatenate([batch["x"] for batch in dataset])
    assert found.tolist() == list(range(2 * count))


def test_more_columns_than_descriptors(tmp_path):
    columns = {f"c{number}": np.arange(3) + number for number in range(max(120, room() + 20))}
    np.savez(tmp_path / "a.npz", **columns)
    (tmp_path / "npy").mkdir()
    for name, column in columns.items():
        np.save(tmp_path / "npy" / name, column)
    with few_descriptors():
        Dataset.from_arrays(columns).save(tmp_path / "saved")
        for name in ("a.npz", "npy", "saved"):
            dataset = Dataset.open(tmp_path / name)
            assert {key: int(value) for key, value in dataset[2].items()} == {
                key: number + 2 for number, key in enumerate(columns)
            }, name


def test_a_range_of_records_and_shards(shards):
    def rows(split):
        return [int(r["x"]) for r in Dataset.open(shards / "s-*.npz", split=split, columns=["x"])]

    assert rows("[1shard:]+[:2]") == [5, 6, 7, 8, 9, 10, 11, 0, 1]
    assert rows("[:50%]") == list(range(6))


def test_a_folder_with_splits_by_name(tmp_path):
    for name, count in (("train-0", 4), ("train-1", 2), ("test", 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(count))
    with pytest.raises(ArgumentError, match=r"has the splits 'train', 'test': choose one, split="):
        Dataset.open(tmp_path)
    assert len(Dataset.open(tmp_path, split="train")) == 6
    assert len(Dataset.open(tmp_path, split="test+train[:1shard]")) == 7
    with pytest.raises(ArgumentError, match=r"has no split 'dev': it has 'train', 'test'\."):
        Dataset.open(tmp_path, split="dev")


def test_a_split_by_another_of_its_names(tmp_path):
    np.savez(tmp_path / "validation.npz", x=np.arange(2))
    np.savez(tmp_path / "train.npz", x=np.arange(4))
    assert len(Dataset.open(tmp_path, split="val[:1]+training")) == 5


def test_compressed_files_are_unpacked_once(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    with gzip.open(tmp_path / "x.npy.gz", "wb") as file:
        file.write((tmp_path / "x.npy").read_bytes())
    cache = tmp_path / "cache"
    for _ in range(2):
        dataset = Dataset.open(tmp_path / "x.npy.gz", cache=cache)
        assert [int(record["x"]) for record in dataset] == [0, 1, 2, 3]
    assert len(list((cache / "files").iterdir())) == 1
    with pytest.raises(FileError, match="must be unpacked first, and there is no cache folder"):
        Dataset.open(tmp_path / "x.npy.gz", cache=False)
    (tmp_path / "y.npy.gz").write_bytes((tmp_path / "x.npy.gz").read_bytes()[:-9])
    with pytest.raises(FileError, match=r"y\.npy\.gz is damaged or cut off"):
        Dataset.open(tmp_path / "y.npy.gz", cache=cache)
    assert len(list((cache / "files").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "train"}, ArgumentError, r"it has no splits\. Leave `split` out, and"),
        ({"columns": "x"}, ArgumentTypeError, r"list of names: write \['x'\]"),
        ({"channels": 1}, ArgumentTypeError, r"write .*ImageFolder\(path, channels=\.\.\.\)"),
        ({"columns": 3}, ArgumentTypeError, "`columns` must be a list of names, got 3"),
        ({"columns": [3]}, ArgumentTypeError, "`columns` must be a list of names, and has 3 in it"),
        ({"columns": []}, ArgumentError, "`columns` is empty: name the columns to read, or leave"),
        ({"columns": ["x", "x"]}, ArgumentError, "`columns` has 'x' twice"),
        ({"fill": {"z": 0}}, ArgumentError, r"`fill` names 'z', and .*s-2\.npz has 'x', 'y'"),
        ({"format": ".NPZ"}, ArgumentError, r"got '\.NPZ'\. Did you mean 'npy'\?"),
        (
            {"format": "mds"},
            ArgumentError,
            r"format='mds' opens a folder, and .*npz is a file",
        ),
        ({"columns": ["z"]}, LoaderxError, "has no array 'z'; it has 'x', 'y'"),
        ({"fill": 3}, ArgumentTypeError, "`fill` must be a dict of values by column"),
        ({"decode": "yes"}, ArgumentError, "`decode` must be True, False, 'upright' or"),
        ({"cache": 3}, ArgumentTypeError, "`cache` must be a folder or False"),
        ({"format": "nix"}, ArgumentError, "`format` must be one of .*'npy'.*, got 'nix'"),
    ],
)
def test_wrong_arguments(shards, arguments, error, message):
    with pytest.raises(error, match=message):
        Dataset.open(shards / "s-2.npz", **arguments)


def test_unknown_files_say_what_was_looked_for(tmp_path):
    (tmp_path / "x.weird").write_bytes(b"\x01\x02")
    with pytest.raises(FileError, match=r"that loaderx does not know. It opens files that"):
        Dataset.open(tmp_path / "x.weird")
    with pytest.raises(FileError, match=r"has no files that loaderx knows"):
        Dataset.open(tmp_path)
    (tmp_path / "x.png").touch()
    with pytest.raises(FileError, match=r"x\.png is empty\."):
        Dataset.open(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("csv", r"has no files of the format 'csv', by their suffixes; it has some of 'npy'"),
        (
            "huggingface",
            r"is no folder of the format 'huggingface': it has no state\.json,",
        ),
        ("loaderx", r"is no folder of the format 'loaderx': it has no loaderx\.json"),
        ("zarr", r"is no folder of the format 'zarr': it has no \.zarray or"),
        ("mds", r"there is no file .*index\.json"),
        ("tfds", r"has no dataset_info\.json and features\.json: it is not a folder of TFDS"),
        ("images", r"has no images: files that end with"),
    ],
)
def test_a_folder_of_another_format(shards, format, message):
    with pytest.raises(FileError, match=message):
        Dataset.open(shards, format=format)


@pytest.mark.parametrize("family", [one for one in WRITERS if one not in ("images", "text")])
def test_values_for_columns_that_are_not_there(tmp_path, family):
    WRITERS[family](tmp_path / "a", range(5))
    path = tmp_path / "a" if family == "native" else tmp_path
    if family == "jsonl":  # a key that no record has
        assert Dataset.open(path, fill={"agee": 7})[0]["agee"] == 7
        return
    with pytest.raises(ArgumentError, match="'agee'"):
        Dataset.open(path, fill={"agee": 7})


def test_shards_that_differ(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.savez(tmp_path / "b.npz", y=np.arange(3))
    np.savez(tmp_path / "c.npz", x=np.arange(3.0))
    with pytest.raises(FileError, match=r"the shards of a dataset have the same ones"):
        Dataset.open([tmp_path / "a.npz", tmp_path / "b.npz"])
    with pytest.raises(FileError, match=r"'x' is int64\[\] in .*a.npz, and float64\[\] in .*c.npz"):
        Dataset.open([tmp_path / "a.npz", tmp_path / "c.npz"])


# Tables -----------------------------------------------------------------------------------------


def npy(path, array):
    with NpyWriter(str(path), array.dtype, array.shape[1:]) as writer:
        for start in range(0, len(array), 2):
            writer.append(array[start : start + 2])
    return np.load(path)


def test_the_writer_writes_what_numpy_reads(tmp_path):
    for array in (np.arange(5), np.zeros((3, 2, 2), ">f4"), np.empty((0, 3), np.uint8)):
        assert np.array_equal(npy(tmp_path / "x.npy", array), array)


class TestTable(SourceContract):
    def make_source(self):
        parts = Parts([4, 0, 3])
        numbers = [np.arange(8).reshape(4, 2), np.empty((0, 2), int), np.arange(6).reshape(3, 2)]
        texts = ["a", "", "öß", "b" * 30, "c", "d", "e"]
        columns = {
            "n": fixed_column(parts, ListedArrays(numbers), ArraySpec((2,), numbers[0].dtype)),
            "inner": {"text": text_column([texts[:4], [], texts[4:]])},
        }
        self.records = [
            {"n": n, "inner": {"text": text}}
            for n, text in zip(np.concatenate(numbers), texts, strict=True)
        ]
        return TableSource(columns, 7, label="test", shard_counts=[4, 0, 3])

    def expected_records(self):
        self.make_source()
        return self.records


def text_column(parts):
    data = [np.frombuffer("".join(texts).encode(), np.uint8) for texts in parts]
    offsets = [np.cumsum([0, *(len(text.encode()) for text in texts)]) for texts in parts]
    return run_column(
        TextColumn,
        Parts([len(texts) for texts in parts]),
        ListedArrays(data),
        ListedArrays(offsets),
    )
