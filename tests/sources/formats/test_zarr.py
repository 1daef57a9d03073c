"""zarr groups and arrays."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
import zarr

from loaderx import Dataset, RecordError
from loaderx.errors import ArgumentError, FileError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

pytestmark = pytest.mark.foreign  # zarr keeps threads of its own

X = np.arange(40.0).reshape(10, 4)


class TestGroup(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        group = zarr.open_group(tmp_path / "a.zarr", mode="w")
        for name, array in (("x", X), ("y", np.arange(10))):
            made = group.create_array(
                name, shape=array.shape, dtype=array.dtype, chunks=(3, 4)[: array.ndim]
            )
            made[:] = array
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path(self.place / "a.zarr")
        return found

    def expected_records(self):
        return [{"x": x, "y": y} for x, y in zip(X, np.arange(10))]


@pytest.mark.parametrize("version", [2, 3])
def test_a_single_array(tmp_path, version):
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=X.shape, dtype=X.dtype, chunks=(4, 4), zarr_format=version
    )
    made[:] = X
    (batch,) = Dataset.open(tmp_path / "x.zarr").batch(10)
    assert batch["x"].tolist() == X.tolist()


def test_what_is_refused(tmp_path):
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    with pytest.raises(FileError, match="has no arrays"):
        Dataset.open(tmp_path / "empty.zarr")
    zarr.open_group(tmp_path / "bad.zarr", mode="w")
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{")
    with pytest.raises(FileError, match=r"bad.zarr is damaged or cut off"):
        Dataset.open(tmp_path / "bad.zarr")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kept", [0, 5, 16, -1])
def test_a_cut_chunk_of_blosc_is_refused(tmp_path, version, kept):
    """Blosc itself would read on behind the end of what it is given."""
    codec = (
        numcodecs.Blosc()
        if version == 2
        else zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle")
    )
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=(4000,), dtype="int64", chunks=(2000,), zarr_format=version,
        compressors=codec,
    )  # fmt: skip
    made[:] = np.arange(4000)
    (batch,) = Dataset.open(tmp_path / "x.zarr").batch(4000)
    assert batch["x"].tolist() == list(range(4000))
    chunk = tmp_path / "x.zarr" / ("1" if version == 2 else "c/1")
    chunk.write_bytes(chunk.read_bytes()[:kept])
    dataset = Dataset.open(tmp_path / "x.zarr")
    assert int(dataset[1999]["x"]) == 1999
    with pytest.raises(
        RecordError, match=r"x\.zarr is damaged or cut off: the chunk (c/)?1 has \d+ bytes"
    ):
        dataset[2000]


def test_an_error_of_a_chunk_names_the_array(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    made = group.create_array(
        "x", shape=X.shape, dtype=X.dtype, chunks=X.shape, compressors=numcodecs.Zlib()
    )
    made[:] = X
    (tmp_path / "a.zarr" / "x" / "0.0").write_bytes(b"no data")
    with pytest.raises(RecordError, match=r"a.zarr, array 'x' is damaged or cut off: ") as caught:
        Dataset.open(tmp_path / "a.zarr")[0]
    assert isinstance(caught.value.__cause__, FileError)


# Groups -----------------------------------------------------------------------------------------


def write_groups(store, version=3):
    group = zarr.open_group(store, mode="w", zarr_format=version)
    group["x"] = X
    group.create_group("inner").create_group("deep")
    group["inner/y"] = np.arange(10)
    group["inner/deep/z"] = np.arange(20).reshape(10, 2)
    return group


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_in_groups_are_named_with_them(tmp_path, version):
    write_groups(tmp_path / "a.zarr", version)
    dataset = Dataset.open(tmp_path / "a.zarr")
    record = dataset[3]
    assert {name: leaf.tolist() for name, leaf in record.items()} == {
        "inner/deep/z": [6, 7], "inner/y": 3, "x": X[3].tolist()
    }  # fmt: skip
    assert list(Dataset.open(tmp_path / "a.zarr", columns=["inner/y"])[0]) == ["inner/y"]
    assert sorted(Dataset.open(tmp_path / "a.zarr" / "inner")[0]) == ["deep/z", "y"]


@pytest.mark.parametrize("make", [Dataset.from_arrays, Dataset.from_source])
def test_a_group_is_a_tree_of_arrays(make):
    dataset = make(write_groups({}))
    batch = dataset.batch(10)[0]
    assert list(batch) == ["inner", "x"]  # sorted, as no store has them in an order
    assert np.array_equal(batch["x"], X)
    assert np.array_equal(batch["inner"]["deep"]["z"], np.arange(20).reshape(10, 2))


def test_arrays_without_records_are_left_out(tmp_path):
    group = write_groups(tmp_path / "a.zarr")
    group.create_array(
        "scale", shape=(), dtype=np.float32
    )  # as xarray stores what holds for all records
    assert sorted(Dataset.open(tmp_path / "a.zarr")[0]) == ["inner/deep/z", "inner/y", "x"]


def test_groups_that_are_splits(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    for split, count in (("train", 10), ("val", 4)):
        group.create_group(split)["x"] = np.arange(count)
    path = tmp_path / "a.zarr"
    assert [int(r["x"]) for r in Dataset.open(path, split="val")] == [0, 1, 2, 3]
    assert len(Dataset.open(path, split="train[:50%]+validation")) == 9
    assert list(Dataset.open(path, columns=["train/x"])[0]) == ["train/x"]
    with pytest.raises(ArgumentError, match="has the splits 'train', 'validation': choose one"):
        Dataset.open(path)


def test_blocks_of_a_shuffle_are_chunks():
    array = zarr.create_array({}, shape=(10,), chunks=(4,), dtype=np.int64)
    array[:] = np.arange(10)
    dataset = Dataset.from_arrays(array).shuffle(3, block="source")
    runs = np.split(np.arange(10), [4, 8])
    for epoch in np.split(np.array([int(x) for x in dataset.repeat(4)]), 4):
        assert sorted(epoch) == list(range(10))
        for run in runs:
            first = epoch.tolist().index(run[0])
            assert epoch[first : first + len(run)].tolist() == run.tolist()
