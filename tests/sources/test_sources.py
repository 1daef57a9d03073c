"""Sources: one contract for arrays, files, lazy arrays and objects."""

from __future__ import annotations

import gc
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from inside import source_of
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError
from loaderx.testing import SourceContract
from oracle import assert_same, stack

N = 23
X = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
Y = np.arange(N, dtype=np.int16) * 3


class RowsContract(SourceContract):
    """Sources of the rows of X and Y; a subclass supplies the dataset."""

    structure: object = {"x": 0, "y": 0}

    @pytest.fixture
    def dataset(self, tmp_path):
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _keep(self, dataset):
        self.kept = dataset

    def make_source(self):
        return self.kept

    def expected(self, i):
        return {"x": X[i], "y": Y[i]}

    def expected_records(self):
        return [self.expected(i) for i in range(N)]

    def test_slices(self, dataset):
        table = [22, 0, 22, 3, 0]
        assert_same(dataset[table].batch(5), [stack([self.expected(i) for i in table])])
        assert_same(dataset[-1:], [self.expected(-1)])

    def test_specs_of_chains(self, dataset):
        assert repr(dataset.element_spec) == "{'x': float32[2,3], 'y': int16[]}"
        assert repr(dataset.batch(23).element_spec) == "{'x': float32[23,2,3], 'y': int16[23]}"
        assert repr(dataset.batch(5).element_spec) == "{'x': float32[?,2,3], 'y': int16[?]}"

    def test_repr_is_one_stage_a_line(self, dataset):
        lines = repr(dataset.shuffle(1).batch(2)).splitlines()
        assert len(lines) == 4
        assert lines[0].startswith("Dataset.")
        assert lines[1:] == ["  .shuffle(seed=1)", "  .batch(2)", "  # 12 batches"]


class TestArrays(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_arrays(x=X, y=Y)

    def test_a_chain_of_arrays_runs_without_single_records(self, dataset, monkeypatch):
        def forbidden(self, indices):
            raise AssertionError("a record was read alone")

        monkeypatch.setattr(type(source_of(dataset)), "records", forbidden)
        mix = Dataset.mix([dataset.shuffle(0), dataset[::2]], [2, 1], stop="repeat")
        joined = Dataset.concatenate([mix, dataset.skip(3)])
        pair = Dataset.zip((joined, joined.shuffle(1))).map(lambda p: p[0], batched=True)
        chain = pair.batch(4).map(lambda b: b).random_map(lambda b, rng: b).repeat(2)
        assert len(list(chain.random_keys())) == len(chain)

    def test_pickling(self, dataset):
        again = pickle.loads(pickle.dumps(dataset))
        assert_same(again.batch(4), dataset.batch(4))


class TestFortranOrder(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_arrays(x=np.asfortranarray(X), y=Y[::-1][::-1])


class TestList(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_source([self.expected(i) for i in range(N)])


class Indexed:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": X[i].copy(), "y": Y[i]}


class TestObject(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_source(Indexed())


class Many(Indexed):
    def __getitem__(self, i):
        raise AssertionError("__getitems__ should be used")

    def __getitems__(self, indices):
        assert all(type(i) is int for i in indices)
        return [{"x": X[i].copy(), "y": Y[i]} for i in indices]


class TestManyAtOnce(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_source(Many())


class Gathering(Indexed):
    def gather(self, indices, out=None):
        return {"x": X[indices], "y": Y[indices]}


class TestGathering(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_source(Gathering())


class TestNpz(RowsContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=X, y=Y, other=np.zeros(3))
        return Dataset.open(tmp_path / "a.npz", columns=["x", "y"])

    def test_it_is_mapped(self, dataset, tmp_path):
        """So what is written to the file is read at once."""
        content = (tmp_path / "a.npz").read_bytes()
        with open(tmp_path / "a.npz", "r+b") as file:
            for leaf in (X, Y):
                file.seek(content.index(leaf.tobytes()))
                file.write(np.ones_like(leaf).tobytes())
        for record in dataset:
            assert (record["x"] == 1).all()
            assert record["y"] == 1


class TestCompressedNpz(RowsContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        np.savez_compressed(tmp_path / "a.npz", x=X, y=Y)
        return Dataset.open(tmp_path / "a.npz")

    def test_it_is_read_once(self, dataset, monkeypatch):
        list(dataset.batch(4))
        monkeypatch.setattr(zipfile, "ZipFile", None)
        list(dataset.batch(4).shuffle())


class TestFolder(RowsContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", Y)
        return Dataset.open(tmp_path)


class TestHdf5(RowsContract):
    can_be_pickled = False

    @pytest.fixture
    def dataset(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"], file["y"] = X, Y
        file = h5py.File(tmp_path / "a.h5")
        yield Dataset.from_arrays(x=file["x"], y=file["y"])
        file.close()


@pytest.mark.foreign
class TestZarr(RowsContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        zarr = pytest.importorskip("zarr")
        x = zarr.create_array(str(tmp_path / "x"), shape=X.shape, chunks=(5, 2, 3), dtype=X.dtype)
        y = zarr.create_array(str(tmp_path / "y"), shape=Y.shape, chunks=(5,), dtype=Y.dtype)
        x[:], y[:] = X, Y
        return Dataset.from_arrays(x=x, y=y)


class Lazy:
    """An array-like that tells what was read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.rows = array, array.shape, array.dtype, 0

    def __getitem__(self, index):
        found = self.array[index]
        self.rows = max(self.rows, len(found))
        return found


def test_lazy_arrays_are_never_read_whole():
    lazy = Lazy(np.arange(10_000))
    dataset = Dataset.from_arrays(x=lazy).shuffle(0).batch(10).take(50)
    expected = list(Dataset.from_arrays(x=np.arange(10_000)).shuffle(0).batch(10).take(50))
    assert_same(dataset, expected)
    assert lazy.rows <= 20


def test_a_dropped_dataset_lets_go_of_its_files(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to look at open files")
    dataset = Dataset.open(tmp_path / "a.npz")
    list(dataset.batch(5))
    del dataset
    gc.collect()
    assert not [
        p for p in Path("/proc/self/fd").iterdir() if p.exists() and str(tmp_path) in os.readlink(p)
    ]


def test_the_published_form(tmp_path):
    np.savez(tmp_path / "train.npz", images=X, digits=Y, w=Y * 2)
    dataset = Dataset(tmp_path / "train.npz", "images", "digits", weight="w")
    assert list(dataset[2]) == ["data", "label", "weight"]
    assert dataset[2]["weight"] == Y[2] * 2
    np.save(tmp_path / "data.npy", X)
    np.save(tmp_path / "label.npy", Y)
    assert_same([Dataset(tmp_path, "data", "label.npy")[2]], [{"data": X[2], "label": Y[2]}])


def test_one_npy(tmp_path):
    np.save(tmp_path / "tokens.npy", Y)
    assert Dataset.open(tmp_path / "tokens.npy")[2] == {"tokens": Y[2]}


def test_ranges():
    assert [int(x) for x in Dataset.range(3)] == [0, 1, 2]
    assert [int(x) for x in Dataset.range(7, 1, -2)] == [7, 5, 3]
    assert Dataset.range(5).batch(5)[0].dtype == np.int64
    assert Dataset.range(2)[1].dtype == np.int64


def test_trees_other_than_dicts():
    pair = Dataset.from_arrays((X, {"y": Y}))
    x, rest = pair.batch(3)[1]
    assert np.array_equal(x, X[3:6])
    assert rest["y"].tolist() == Y[3:6].tolist()
    alone = Dataset.from_arrays(Y)
    assert alone.batch(4)[0].tolist() == Y[:4].tolist()


def test_small_matrices_by_hand():
    dataset = Dataset.from_arrays(a=[[1, 2], [3, 4], [5, 6]], b=[0.5, 1.5, 2.5])
    assert repr(dataset.element_spec) == "{'a': int32[2], 'b': float32[]}"
    assert dataset[1]["a"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Dataset.from_arrays(a=[[1, 2], [3]]),
            ArgumentError,
            r'^leaf "a" is a list of rows of unequal length, which is not an array\. Write '
            r'Dataset\.from_source\(\[\{"a": row\} for row in rows\]\), and '
            r'\.batch\(n, pad_to=\{"a": length\}\)',
        ),
        (
            lambda: Dataset.from_arrays([np.zeros((32, 32))] * 300),
            ArgumentTypeError,
            r"^this is a list of 300 arrays\. Here a list of arrays means columns\. For one "
            r"array per record write np\.stack\(images\), or Dataset\.from_source\(a_list\)\. "
            r"If they are columns, give a tuple\.$",
        ),
        (
            lambda: Dataset.from_arrays(image=[np.zeros((32, 32))] * 1000, label=np.zeros(1000)),
            ArgumentTypeError,
            '^leaf "image" is a list of 1000 arrays. Here a list of arrays means columns',
        ),
        (
            lambda: Dataset.from_arrays(image=[np.zeros((32, 32))] * 7, label=np.zeros(7)),
            ArgumentError,
            '"image.3" has 32, "label" has 7 \\(8 arrays in all\\). Here a list of arrays means',
        ),
        (
            lambda: Dataset.from_arrays(tuple(np.zeros(9 - i // 9) for i in range(10))),
            ArgumentError,
            '"0" has 9, "1" has 9, "2" has 9, "3" has 9, "9" has 8 \\(10 arrays in all\\).$',
        ),
        (
            lambda: Dataset.from_arrays(Indexed()),
            ArgumentTypeError,
            r"the array has the type Indexed, which is read by record: write Dataset\.from_source",
        ),
        (
            lambda: Dataset.from_source({"train": Indexed(), "test": Indexed()}),
            ArgumentTypeError,
            r"^this dict holds several datasets \('train', 'test'\)\. Choose one of them: Dataset\."
            r"from_source\(d\['train'\]\)\.$",
        ),
        (
            lambda: Dataset.from_source("a/img.jpg"),
            ArgumentTypeError,
            r"got the text 'a/img.jpg'\. For a file write Dataset\.open\(path\)\.$",
        ),
        (
            lambda: DataLoader(Path("data.npz"), batch_size=2),
            ArgumentTypeError,
            r"needed; got the path 'data.npz'\. For a file write Dataset\.open\(path\)\.$",
        ),
        (lambda: Dataset.from_arrays(a=X, b=Y[:5]), ArgumentError, '"a" has 23, "b" has 5'),
        (lambda: Dataset.from_arrays(a=X[:0]), ArgumentError, 'empty: leaf "a" has length 0'),
        (lambda: Dataset.from_arrays(), ArgumentError, "needs at least one array"),
        (lambda: Dataset.from_arrays({}), ArgumentError, "needs at least one array"),
        (lambda: Dataset.from_arrays(a=3), ArgumentTypeError, 'leaf "a" is 3, not an array'),
        (lambda: Dataset.from_arrays(a="f.npy"), ArgumentTypeError, "'f.npy', not an array"),
        (lambda: Dataset.from_arrays(a=np.float32(1)), ArgumentTypeError, "not an array"),
        (lambda: Dataset.from_arrays(a=np.array(1)), ArgumentTypeError, "no leading axis"),
        (lambda: Dataset.from_arrays(X, b=Y), ArgumentTypeError, "one tree or named arrays"),
        (lambda: Dataset.from_source([]), ArgumentError, "the dataset is empty: list of length 0"),
        (lambda: Dataset.from_source(3), ArgumentTypeError, "needs __len__ and __getitem__; int"),
        (lambda: Dataset.from_source({"a": X}), ArgumentTypeError, r"Dataset.from_arrays\(...\)"),
        (
            lambda: Dataset.from_source(iter([1])),
            ArgumentTypeError,
            "list_iterator has no __len__ and",
        ),
        (
            lambda: Dataset.from_source({1}),
            ArgumentTypeError,
            "set has no __getitem__. For data that can only",
        ),
        (
            lambda: Dataset.from_source((X, Y)),
            ArgumentTypeError,
            r"would be 2 records. .*\(\(x, y\)\)",
        ),
        (lambda: Dataset.range(0), ArgumentError, r"empty: range\(0, 0\)"),
        (lambda: Dataset.range(1, 5, 0), ArgumentError, "`step` must not be 0"),
        (lambda: Dataset.range(1.5), ArgumentTypeError, "`start` must be an integer, got 1.5"),
        (lambda: Dataset(x=X, y=Y), ArgumentTypeError, r"begin: Dataset.from_arrays\(x=..., y=..."),
        (lambda: Dataset("x.npz", X, Y), ArgumentTypeError, r"from_arrays\(data=..., label=...\)"),
        (lambda: Dataset("none.npz", "x", "y"), FileError, "there is no file or folder none.npz"),
        (
            lambda: Dataset.open(".", columns="x"),
            ArgumentTypeError,
            r"a list of names: write \['x'\]",
        ),
    ],
)
def test_bad_sources(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bad_files(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(FileError, match=r"a.npz has no array 'z'; it has 'x', 'y'"):
        Dataset.open(tmp_path / "a.npz", columns=["z"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"is an empty folder"):
        Dataset.open(tmp_path / "empty")
    (tmp_path / "text.npy").write_text("hello, I am no array at all")
    with pytest.raises(FileError, match=r"text.npy is not a NumPy array file"):
        Dataset.open(tmp_path / "text.npy")
    (tmp_path / "none.npy").write_bytes(b"")
    with pytest.raises(FileError, match=r"none.npy is not a NumPy array file"):
        Dataset.open(tmp_path / "none.npy")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(FileError, match=r"cut.npz is not a zip archive"):
        Dataset.open(tmp_path / "cut.npz")
    np.save(tmp_path / "long.npy", X)
    whole = (tmp_path / "long.npy").read_bytes()
    (tmp_path / "long.npy").write_bytes(whole[:-10])
    with pytest.raises(FileError, match=f"long.npy is cut off: {len(whole)} bytes are expected"):
        Dataset.open(tmp_path / "long.npy")
    np.save(tmp_path / "object.npy", np.array([{}, []], object))
    with pytest.raises(FileError, match="loaderx never unpickles a file"):
        Dataset.open(tmp_path / "object.npy")
    np.savez(tmp_path / "object.npz", o=np.array([{}], object))
    with pytest.raises(FileError, match="never unpickles"):
        Dataset.open(tmp_path / "object.npz")


def test_two_arrays_of_a_file_of_another_kind(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y")
    with pytest.raises(FileError, match=r"a\.csv is not a NumPy array file .*Dataset\.open"):
        Dataset(path, "x", "y")


def test_a_damaged_compressed_member(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, 5000, np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=noise)
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[2000:2100] = bytes(100)
    (tmp_path / "a.npz").write_bytes(raw)
    dataset = Dataset.open(tmp_path / "a.npz")
    with pytest.raises(Exception, match="is damaged"):
        list(dataset.batch(100))


class Wrong(Indexed):
    def __getitems__(self, indices):
        return [{"x": 1}]


def test_a_source_that_gives_too_few_records():
    with pytest.raises(Exception, match="was asked for 4 records and gave 1"):
        Dataset.from_source(Wrong()).batch(4)[0]


def test_a_source_that_fails_names_its_record():
    class Broken(Indexed):
        def __getitem__(self, i):
            if i == 6:
                raise OSError("disk on fire")
            return super().__getitem__(i)

    with pytest.raises(Exception, match="reading the source failed on record 6: OSError: disk on"):
        list(Dataset.from_source(Broken()).batch(4))


def test_thread_safety_is_not_assumed():
    def safe(dataset):
        return source_of(dataset).thread_safe

    assert safe(Dataset.from_source([1]))
    assert not safe(Dataset.from_source(Indexed()))
    assert safe(Dataset.from_source(Indexed(), thread_safe=True))
    assert safe(Dataset.from_arrays(x=X))
    assert not safe(Dataset.from_arrays(x=Lazy(X)))
