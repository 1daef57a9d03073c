"""Tables in several files: read out of order, their columns are one array each."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest

from inside import source_of
from loaderx import DataLoader, Dataset, RecordError
from loaderx.sources import joined_columns

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
        monkeypatch.setattr(joined_columns, "joined_maps", lambda columns, counts: None)
    return request.param == "joined" and sys.platform == "linux"


def saved(folder, columns=LABELS, part_bytes=60_000):
    Dataset.from_arrays(columns).save(folder, part_bytes=part_bytes, engine="inline")
    assert len([one for one in os.listdir(folder) if one.startswith("part-")]) > 1
    return Dataset.open(folder)


def is_joined(dataset):
    return bool(source_of(dataset)._joined.arrays)


def check_same(found, expected, **loader):
    one, two = (
        list(DataLoader(dataset.shuffle(1).batch(32), **{"engine": "inline", **loader}))
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


def test_text_beside_numbers(tmp_path, joins):
    columns = {**LABELS, "text": np.array([f"record {i}" for i in range(ROWS)], object)}
    found = saved(tmp_path / "x", columns)
    check_same(found, Dataset.from_arrays(columns))
    assert is_joined(found) == joins


def test_records_in_records(tmp_path, joins):
    nested = {"a": {"image": LABELS["image"]}, "b": LABELS["label"]}
    found = saved(tmp_path / "x", nested)
    (batch,) = DataLoader(found.shuffle(0).batch(ROWS), engine="inline")
    order = batch["b"]
    np.testing.assert_array_equal(batch["a"]["image"], LABELS["image"][order])
    assert is_joined(found) == joins


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
    assert is_joined(found) == (joins and dtype == np.dtype(np.int32).str)


def test_a_part_that_was_cut_off_is_named_where_it_is_read(tmp_path):
    found = saved(tmp_path / "x")
    path = tmp_path / "x" / "part-00002" / "image.npy"
    os.truncate(path, 5000)
    with pytest.raises(RecordError, match="part-00002"):
        list(DataLoader(found.shuffle(0).batch(32), engine="inline"))
    (batch,) = DataLoader(found[:32].shuffle(0).batch(32), engine="inline")
    np.testing.assert_array_equal(batch["image"], LABELS["image"][batch["label"]])
