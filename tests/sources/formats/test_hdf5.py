"""HDF5 files: mapped where they can be, read by h5py where not."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from loaderx import DataLoader, Dataset, RecordError
from loaderx.errors import ArgumentError, FileError
from loaderx.sources.adapt.h5_datasets import mapped_rows, offset_of
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

X = np.arange(40, dtype=">i4").reshape(10, 4)
TEXTS = [f"ö{n}" for n in range(10)]


def write(path, **options):
    with h5py.File(path, "w", **options) as file:
        file["x"] = X
        file.create_dataset("packed", data=X * 2, chunks=(3, 4), compression="gzip")
        file["group/y"] = np.arange(10.0)
        file["text"] = TEXTS
        file["scale"] = 3.0


class TestMapped(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        write(tmp_path / "a.h5")
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path(self.place / "a.h5", columns=["x", "group/y"])
        return found

    def expected_records(self):
        return [{"x": x, "group/y": y} for x, y in zip(X.astype("=i4"), np.arange(10.0))]


@pytest.mark.foreign
class TestLazy(SourceContract):
    """h5py keeps files open by itself."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        write(tmp_path / "a.h5")
        write(tmp_path / "b.h5", userblock_size=512)
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path(self.place / "?.h5", columns=["packed", "text"])
        return found

    def expected_records(self):
        return [{"packed": x, "text": text} for x, text in zip(X.astype("=i4") * 2, TEXTS)] * 2


def test_all_datasets_by_default(tmp_path):
    write(tmp_path / "a.h5")
    (batch,) = Dataset.open(tmp_path / "a.h5").batch(10)
    assert sorted(batch) == ["group/y", "packed", "text", "x"]
    assert batch["text"].tolist() == TEXTS
    assert np.array_equal(batch["x"], X)


def test_where_rows_can_be_mapped(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["written"] = X
        file.create_dataset("never", shape=(5,), dtype="i4")
        file.create_dataset("chunked", data=X, chunks=(2, 4))
        file["text"] = TEXTS
        file.create_dataset("empty", shape=(0, 3), dtype="i4")
    with h5py.File(tmp_path / "a.h5") as file:
        offset = offset_of(file["written"])
        assert (tmp_path / "a.h5").read_bytes()[offset : offset + X.nbytes] == X.tobytes()
        for name in ("never", "chunked", "text", "empty"):
            assert offset_of(file[name]) is None


def test_lists_of_various_lengths(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = file.create_dataset("tokens", (4,), h5py.vlen_dtype(np.int32))
        for n in range(4):
            rows[n] = np.arange(n)
        file["n"] = np.arange(4)
    found = Dataset.open(tmp_path / "a.h5")
    assert [record["tokens"].tolist() for record in found] == [list(range(n)) for n in range(4)]
    (batch,) = found.batch(4, pad_to={"tokens": 3})
    assert batch["tokens"][3].tolist() == [0, 1, 2]


def test_worker_processes(tmp_path):
    write(tmp_path / "a.h5")
    dataset = Dataset.open(tmp_path / "a.h5").shuffle(3).batch(5)
    expected = list(dataset)
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        for ours, theirs in zip(loader, expected, strict=True):
            assert np.array_equal(ours["packed"], theirs["packed"])
            assert ours["text"].tolist() == theirs["text"].tolist()


def test_what_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = X, np.arange(3)
        file["ref"] = np.array([file["x"].ref] * 10, h5py.ref_dtype)
    with pytest.raises(FileError, match="'ref' holds references, which loaderx cannot interpret"):
        Dataset.open(tmp_path / "a.h5")
    with pytest.raises(FileError, match=r"different numbers of rows \('x' 10, 'y' 3\)"):
        Dataset.open(tmp_path / "a.h5", columns=["x", "y"])
    (tmp_path / "b.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:1000])
    with pytest.raises(FileError, match=r"b.h5 is damaged or cut off"):
        Dataset.open(tmp_path / "b.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["scalar"] = 3
    with pytest.raises(FileError, match="has no datasets with an axis of records"):
        Dataset.open(tmp_path / "c.h5")


def test_a_file_that_has_changed(tmp_path):
    write(tmp_path / "a.h5")
    found = Dataset.open(tmp_path / "a.h5", columns=["packed"])
    with open(tmp_path / "a.h5", "ab") as file:
        file.write(b"more")
    with pytest.raises(RecordError, match=r"a.h5 has grown"):
        found[0]


def test_open_datasets_are_mapped_too(tmp_path):
    write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        found = Dataset.from_arrays(x=file["x"], y=file["group/y"], z=file["packed"])
        (batch,) = found.batch(10)
        assert mapped_rows(file["x"]) is not None
        assert mapped_rows(file["packed"]) is None
    assert np.array_equal(batch["x"], X)
    assert np.array_equal(batch["z"], X * 2)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        assert mapped_rows(file["x"]) is None  # a writer may hold rows back
    with h5py.File("none.h5", "w", driver="core", backing_store=False) as file:
        file["x"] = X
        (batch,) = Dataset.from_arrays(x=file["x"]).batch(10)
    assert np.array_equal(batch["x"], X)


def test_an_error_of_a_chunk_names_the_dataset(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(4000), chunks=(2000,), compression="gzip")
        place = file["x"].id.get_chunk_info(1)
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)
    dataset = Dataset.open(path)
    assert int(dataset[1999]["x"]) == 1999
    with pytest.raises(RecordError, match=r"x.h5, dataset 'x' is damaged or cut off: ") as caught:
        dataset[2000]
    assert isinstance(caught.value.__cause__, FileError)


# Groups and chunks ------------------------------------------------------------------------------


def write_splits(path):
    with h5py.File(path, "w") as file:
        for split, count in (("train", 10), ("test", 4)):
            file.create_dataset(f"{split}/x", data=X[:count], chunks=(3, 4))
            file[f"{split}/meta/y"] = np.arange(count)


@pytest.mark.foreign
def test_groups_that_are_splits(tmp_path):
    write_splits(tmp_path / "a.h5")
    write_splits(tmp_path / "b.h5")
    test = Dataset.open(tmp_path / "a.h5", split="test")
    assert len(test) == 4
    assert sorted(test[3]) == ["meta/y", "x"]
    (batch,) = DataLoader(Dataset.open(tmp_path / "a.h5", split="train").batch(10))
    assert np.array_equal(batch["x"], X)
    assert len(Dataset.open(tmp_path / "?.h5", split="train[:50%]+test")) == 10 + 8
    assert list(Dataset.open(tmp_path / "a.h5", split="test", columns=["x"])[0]) == ["x"]
    named = Dataset.open(tmp_path / "a.h5", columns=["train/x", "train/meta/y"])
    assert sorted(named[9]) == ["train/meta/y", "train/x"]


@pytest.mark.foreign
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has the splits 'train', 'test': choose one, split='train', or join them"),
        ({"split": "valid"}, "has no split 'valid': it has 'train', 'test'"),
        ({"split": "train", "columns": ["z"]}, "has no column 'z'; it has 'meta/y', 'x'"),
    ],
)
def test_splits_that_are_not_there(tmp_path, options, message):
    write_splits(tmp_path / "a.h5")
    with pytest.raises(ArgumentError, match=message):
        Dataset.open(tmp_path / "a.h5", **options)


@pytest.mark.foreign
def test_splits_of_a_file_in_a_folder(tmp_path):
    write_splits(tmp_path / "a.h5")
    assert len(Dataset.open(tmp_path, split="test")) == len(
        Dataset.open(tmp_path / "a.h5", split="test")
    )


@pytest.mark.foreign
def test_one_group_and_arrays_beside_groups_are_no_splits(tmp_path):
    for name, arrays in (("a.h5", ["train/x"]), ("b.h5", ["train/x", "test/x", "x"])):
        with h5py.File(tmp_path / name, "w") as file:
            for array in arrays:
                file[array] = X
        assert sorted(Dataset.open(tmp_path / name)[0]) == sorted(arrays)


@pytest.mark.foreign
@pytest.mark.parametrize("kind", ["opened", "arrays"])
def test_blocks_of_a_shuffle_are_chunks(tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(10), chunks=(2,))
        file.create_dataset("y", data=np.arange(10), chunks=(4,))
        file["z"] = np.arange(10)
    file = h5py.File(tmp_path / "a.h5")
    dataset = Dataset.open(file.filename) if kind == "opened" else Dataset.from_arrays(file)
    found = [int(record["x"]) for record in dataset.shuffle(0, block="source").repeat(3)]
    for epoch in np.split(np.array(found), 3):
        for run in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):  # the larger chunks
            first = epoch.tolist().index(run[0])
            assert epoch[first : first + len(run)].tolist() == run
    mixed = dataset.shuffle(0, block="source", window=8).batch(5)
    assert sorted(np.concatenate([batch["y"] for batch in mixed]).tolist()) == list(range(10))
