"""Tables in several files: read out of order, their columns are one array each."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest

from file_families import WRITERS
from inside import lines_of, source_of
from loaderx import DataLoader, Dataset, RecordError
from loaderx.sources.columns import elements
from loaderx.sources.files.parts import lie_outside
from tf_files import example, write_tfrecord

ROWS = 240
LABELS = {
    "image": np.random.default_rng(0).integers(0, 255, (ROWS, 20, 20, 3), np.uint8),
    "label": np.arange(ROWS, dtype=np.int32),
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(params=["joined", "not joined"])
def joins(request, monkeypatch):
    """Whether the system can join maps."""
    if request.param == "not joined":
        monkeypatch.setattr(elements, "joined_maps", lambda array_of, counts: None)
    return request.param == "joined" and sys.platform == "linux"


def saved(folder, columns=LABELS, part_bytes=60_000):
    Dataset.from_arrays(columns).save(folder, part_bytes=part_bytes, engine="inline")
    assert len([one for one in os.listdir(folder) if one.startswith("part-")]) > 1
    return Dataset.open(folder)


def is_joined(dataset):
    """Are all columns?"""
    columns, _ = source_of(dataset).columns
    (found,) = {column.elements.is_joined for column in columns}
    return found


def check_same(found, expected, engine="inline", num_workers=None, **batch):
    options = {"engine": engine, "num_workers": num_workers}
    one, two = (
        list(DataLoader(dataset.shuffle(1).batch(32, **batch), **options))
        for dataset in (found, expected)
    )
    assert len(one) == len(two)
    for batch, other in zip(one, two, strict=True):
        assert list(batch) == list(other)
        for name, column in batch.items():
            assert column.dtype == other[name].dtype
            np.testing.assert_array_equal(column, other[name])


@pytest.mark.parametrize("part_bytes", [200_000, 10_000])
def test_a_saved_dataset(tmp_path, joins, part_bytes):
    """Few parts, and more than are kept mapped."""
    found = saved(tmp_path / "x", part_bytes=part_bytes)
    check_same(found, Dataset.from_arrays(LABELS))
    assert is_joined(found) == joins
    again = pickle.loads(pickle.dumps(found))
    assert not is_joined(again)
    check_same(again, Dataset.from_arrays(LABELS))


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_with_workers(tmp_path, engine):
    found = saved(tmp_path / "x")
    check_same(found, Dataset.from_arrays(LABELS), engine=engine, num_workers=2)


def test_in_the_order_of_the_files_nothing_is_joined(tmp_path):
    found = saved(tmp_path / "x")
    batches = list(DataLoader(found.batch(32), engine="inline"))
    assert not is_joined(found)
    labels = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(labels, LABELS["label"])


@pytest.mark.parametrize("part_bytes", [5000, 300])
def test_text_and_lists(tmp_path, joins, part_bytes):
    """Among them parts in which all texts are empty, and texts that end their file."""
    rng = np.random.default_rng(0)
    texts = ["" if 40 < i < 130 else "é" * int(rng.integers(0, 9)) for i in range(ROWS)]
    records = [
        {"text": text, "ids": np.arange(i % 7, dtype=np.int16), "data": text.encode()}
        for i, text in enumerate(texts)
    ]
    Dataset.from_source(records).save(tmp_path / "x", part_bytes=part_bytes, engine="inline")
    found = Dataset.open(tmp_path / "x")
    expected = Dataset.from_source(records)
    for one, two in zip(found.shuffle(1), expected.shuffle(1), strict=True):
        assert (one["text"], one["data"]) == (two["text"], two["data"])
        np.testing.assert_array_equal(one["ids"], two["ids"])
    options = {"pad_to": {"ids": 8}, "pad_value": -1}
    check_same(found, expected, **options)
    check_same(pickle.loads(pickle.dumps(found)), expected, **options)
    assert is_joined(found) == joins


def test_records_in_records(tmp_path, joins):
    nested = {"a": {"image": LABELS["image"]}, "b": LABELS["label"]}
    found = saved(tmp_path / "x", nested)
    (batch,) = DataLoader(found.shuffle(0).batch(ROWS), engine="inline")
    order = batch["b"]
    np.testing.assert_array_equal(batch["a"]["image"], LABELS["image"][order])
    assert is_joined(found) == joins


def test_values_that_are_not_there(tmp_path, joins):
    records = [{"age": i if i % 3 else None} for i in range(ROWS)]
    Dataset.from_source(records).save(tmp_path / "x", part_bytes=300, engine="inline")
    found = Dataset.open(tmp_path / "x").shuffle(1)
    expected = [record["age"] for record in Dataset.from_source(records).shuffle(1)]
    assert [record["age"] for record in found] == expected


@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
def test_shards_of_npz_files(tmp_path, joins, dtype):
    rows = np.arange(300, dtype=dtype).reshape(100, 3)
    for number, part in enumerate(np.array_split(rows, 3)):
        np.savez(tmp_path / f"{number}.npz", x=part)
    found = Dataset.open(str(tmp_path / "*.npz"))
    (batch,) = DataLoader(found.shuffle(0).batch(100), engine="inline")
    column = batch["x"]
    assert column.dtype == np.int32
    assert sorted(column[:, 0].tolist()) == rows[:, 0].tolist()
    assert is_joined(found) == joins


@pytest.mark.parametrize(
    ("start", "stop", "size"),
    [(-1, 2, 5), (2, 1, 5), (2, 6, 5), (6, 6, 5), (0, -1, 5), (10, 5 - 2**63, 3), (0, -(2**63), 0)],
)
def test_runs_that_lie_outside(start, stop, size):
    """Also where a difference overflows."""
    starts, stops = np.array([0, start]), np.array([0, stop])
    assert lie_outside(starts, stops, size)
    assert lie_outside(starts, stops, np.array([size, size]))
    assert not lie_outside(np.array([0, size]), np.array([size, size]), size)


def test_damaged_offsets_are_named(tmp_path, joins):
    texts = Dataset.from_source([{"text": "x" * (i % 9)} for i in range(ROWS)])
    texts.save(tmp_path / "x", part_bytes=400, engine="inline")
    path = tmp_path / "x" / "part-00002" / "text.offsets.npy"
    data = bytearray(path.read_bytes())
    data[-8:] = (10**6).to_bytes(8, "little")  # still as long as it was
    path.write_bytes(data)
    found = Dataset.open(tmp_path / "x")
    with pytest.raises(RecordError, match="the offsets of a column are damaged"):
        list(DataLoader(found.shuffle(0).batch(32), engine="inline"))
    fine = found[: ROWS // 9].shuffle(0).batch(8)
    assert sum(len(batch["text"]) for batch in DataLoader(fine, engine="inline")) == ROWS // 9


def test_a_part_that_was_cut_off_is_named_where_it_is_read(tmp_path):
    found = saved(tmp_path / "x")
    path = tmp_path / "x" / "part-00002" / "image.npy"
    os.truncate(path, 5000)
    with pytest.raises(RecordError, match="part-00002"):
        list(DataLoader(found.shuffle(0).batch(32), engine="inline"))
    (batch,) = DataLoader(found[:32].shuffle(0).batch(32), engine="inline")
    np.testing.assert_array_equal(batch["image"], LABELS["image"][batch["label"]])


@pytest.mark.parametrize("family", ["text", "jsonl", "csv", "tfrecord", "tar"])
def test_files_of_records(tmp_path, joins, family):
    for number in range(5):
        WRITERS[family](tmp_path / f"{number}", range(20 * number, 20 * number + 20))
    dataset = Dataset.open(tmp_path, cache=False)
    expected = [repr(dataset[index]) for index in range(100)]  # one by one nothing is joined
    for made in (dataset, pickle.loads(pickle.dumps(dataset))):
        order = np.random.default_rng(0).permutation(100)
        found = source_of(made).records(order)
        assert list(map(repr, found)) == [expected[index] for index in order]


def test_shuffled_lines_of_many_files_are_read_at_once(tmp_path, joins):
    for number in range(5):
        WRITERS["text"](tmp_path / f"{number}", range(20 * number, 20 * number + 20))
    lines = lines_of(source_of(Dataset.open(tmp_path, cache=False)))
    order = np.random.default_rng(0).permutation(100)
    assert len(list(lines.split(order))) == (1 if joins else 5)
    assert len(list(lines.split(np.array([0, 1, 2])))) == 1


def test_a_feature_that_is_parsed_late_ends_with_its_file(tmp_path, joins):
    """Of a packed list whose values stand alone, the length is known only when it is read."""
    for number in range(3):
        records = [example({"x": [n, n + 1]}, packed=n % 2 == 0) for n in range(4)]
        write_tfrecord(tmp_path / f"{number}.tfrecord", records)
    source = source_of(Dataset.open(tmp_path, cache=False))
    found = source.records(np.array([9, 0, 5, 2]))
    assert [one["x"].tolist() for one in found] == [[1, 2], [0, 1], [1, 2], [2, 3]]
