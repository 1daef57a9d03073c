"""The contract passes for sources that are right, and each of its tests finds what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import loaderx
from loaderx import ArraySpec, Dataset
from loaderx.sources import RangeSource, Source, Tokens
from loaderx.testing import SourceContract

N = 9
X = np.arange(N * 2, dtype=np.float32).reshape(N, 2) + 1


class Good(Source):
    """Rows of X; the broken sources below differ from it in one thing each."""

    thread_safe = True

    @property
    def spec(self):
        return {"x": ArraySpec((2,), np.dtype(np.float32))}

    def __len__(self):
        return N

    def gather(self, indices, lend):
        batch = self.buffers(len(indices), lend)
        X.take(indices, 0, batch["x"], "clip")
        return batch


class Rows(SourceContract):
    def make_source(self):
        return Good()

    def expected_records(self):
        return [{"x": X[i]} for i in range(N)]


class TestGood(Rows):
    pass


class TestRange(SourceContract):
    def make_source(self):
        return RangeSource(3, 30, 4)

    def make_sized_source(self, count):
        return RangeSource(0, count, 1)

    def expected_records(self):
        return [np.int64(n) for n in range(3, 30, 4)]


class TestTokensMadeAnew(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "tokens.bin"
        np.arange(40, dtype=np.uint16).tofile(self.path)

    def make_source(self):
        return Tokens(self.path, 4)

    def make_sized_source(self, count):
        path = self.path.with_name(f"{count}.bin")
        np.zeros(4 * count, np.uint16).tofile(path)
        return Tokens(path, 4)

    def expected_records(self):
        return [{"tokens": np.arange(k, k + 4, dtype=np.uint16)} for k in range(0, 40, 4)]


class TestFileMadeAnew(Rows):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "x.npy"
        np.save(self.path, X)

    def make_source(self):
        return Dataset.open(self.path)

    def make_sized_source(self, count):
        path = self.path.with_name(f"{count}.npy")
        np.save(path, np.zeros((2, count), np.float32).T)  # in Fortran order
        return Dataset.open(path)


class TestViews(Rows):
    """Columns of one table, and members of an archive: neither is contiguous and aligned."""

    def make_source(self):
        return Dataset.from_arrays(x=np.pad(X, ((0, 0), (0, 1)))[:, :2])

    def make_sized_source(self, count):
        return Dataset.from_arrays(x=np.zeros((count, 3), np.float32)[:, :2])


class TestArchive(Rows):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def make_source(self):
        np.savez(self.folder / "x.npz", x=X)
        return Dataset.open(self.folder / "x.npz")

    def make_sized_source(self, count):
        path = self.folder / f"{count}.npz"
        np.savez(path, x=np.zeros((count, 2), np.float32))
        return Dataset.open(path)


class TestRagged(SourceContract):
    """Records of unequal length."""

    class Lists(Source):
        @property
        def spec(self):
            return {"t": ArraySpec((None,), np.dtype(np.int32))}

        def __len__(self):
            return N

        def records(self, indices):
            return [{"t": np.arange(i, dtype=np.int32)} for i in indices]

    def make_source(self):
        return self.Lists()

    def expected_records(self):
        return [{"t": np.arange(i, dtype=np.int32)} for i in range(N)]


class TestMixedObjects(SourceContract):
    """Text, Python numbers, and NaN."""

    def make_source(self):
        return [{"text": "ab" * i, "n": i, "f": float("nan")} for i in range(N)]

    def make_sized_source(self, count):
        return [{"n": 1}] * count

    def expected_records(self):
        return self.make_source()


@pytest.mark.foreign
class TestHuggingFace(SourceContract):
    def make_source(self):
        datasets = pytest.importorskip("datasets")
        return datasets.Dataset.from_dict({"x": X, "y": range(N)}).with_format("numpy")

    def expected_records(self):
        return [{"x": X[i], "y": np.int64(i)} for i in range(N)]


class Growing(Good):
    length = N

    def __len__(self):
        return self.length

    def gather(self, indices, lend):
        self.length = N + 1
        return super().gather(indices, lend)


class Changing(Good):
    made = 0

    def __init__(self):
        type(self).made += 1
        self.length = N + type(self).made

    def __len__(self):
        return self.length


class Shifted(Good):
    def gather(self, indices, lend):
        return super().gather((indices + 1) % N, lend)


class Endless(Good):
    def __getitem__(self, index):
        return {"x": X[index % N].copy()}


class Sorting(Good):
    def gather(self, indices, lend):
        return super().gather(np.sort(indices), lend)


class OnceEach(Good):
    def gather(self, indices, lend):
        if len(np.unique(indices)) < len(indices):
            raise ValueError("an index twice")
        return super().gather(indices, lend)


class WritesIndices(Good):
    def gather(self, indices, lend):
        batch = super().gather(indices, lend)
        indices += 1
        return batch


class Widening(Good):
    @property
    def spec(self):
        return None

    def gather(self, indices, lend):
        return {"x": X[indices].astype(np.float64)}


class WrongSpec(Good):
    @property
    def spec(self):
        return {"x": ArraySpec((3,), np.dtype(np.float32))}

    def records(self, indices):
        return [{"x": X[i].copy()} for i in indices]

    @property
    def gathers(self):
        return False


class HandsOutViews(Good):
    def __init__(self):
        self.data = X.copy()

    def __getitem__(self, index):
        return {"x": self.data[index]}

    @property
    def gathers(self):
        return False


class OneBuffer(Good):
    """Fills the same array for every batch."""

    def __init__(self):
        self.kept = np.zeros((2 * N, 2), np.float32)

    def gather(self, indices):
        batch = self.kept[: len(indices)]
        batch[...] = X[indices]
        return {"x": batch}


class Handle(Good):
    """Opens a file at once, which no pickle can hold."""

    def __init__(self):
        self.file = open(__file__, "rb")  # noqa: SIM115


class HandleLater(Good):
    file = None

    def gather(self, indices, lend):
        self.file = self.file or open(__file__, "rb")  # noqa: SIM115
        return super().gather(indices, lend)


class ByProcess(Good):
    """Reads other records in another process."""

    def __init__(self):
        self.home = os.getpid()

    def gather(self, indices, lend):
        batch = super().gather(indices, lend)
        batch["x"] += os.getpid() != self.home
        return batch


class Leaking(Good):
    opened: list[object] = []  # noqa: RUF012

    def __init__(self):
        self.opened.append(open(__file__, "rb"))  # noqa: SIM115


class FirstThreadOnly(Good):
    """Pretends to be thread-safe; a second thread gets other records."""

    def gather(self, indices, lend):
        import threading

        batch = super().gather(indices, lend)
        if threading.current_thread() is not threading.main_thread():
            batch["x"] += 1
        return batch


class Fetching(Good):
    """Writes down what it was asked to fetch."""

    def __init__(self):
        self.fetched = set()

    def fetch(self, indices):
        before = len(self.fetched)
        self.fetched.update(indices.tolist())
        return 8 * (len(self.fetched) - before)


class ReadsOtherwise(Fetching):
    """Reads other records once they were fetched."""

    def gather(self, indices, lend):
        batch = super().gather(indices, lend)
        batch["x"] += len(self.fetched)
        return batch


class FetchesLess(Fetching):
    def fetch(self, indices):
        return -1


class TestFetching(Rows):
    def make_source(self):
        return Fetching()


@pytest.mark.filterwarnings("ignore::loaderx.LoaderxWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("source", "test"),
    [
        (Growing, "test_length"),
        (Changing, "test_made_twice_it_is_the_same"),
        (Shifted, "test_records"),
        (Endless, "test_records_of_the_source_itself"),
        (Sorting, "test_shuffled_batches"),
        (Sorting, "test_gather_takes_any_indices"),
        (OnceEach, "test_gather_takes_any_indices"),
        (OnceEach, "test_records_take_any_indices"),
        (WritesIndices, "test_gather_takes_any_indices"),
        (Widening, "test_batches"),
        (WrongSpec, "test_spec"),
        (HandsOutViews, "test_results_are_the_callers_own"),
        (OneBuffer, "test_results_are_the_callers_own"),
        (Handle, "test_pickled"),
        (HandleLater, "test_pickled"),
        (ByProcess, "test_worker_processes"),
        (FirstThreadOnly, "test_threads"),
        (ReadsOtherwise, "test_fetch"),
        (FetchesLess, "test_fetch"),
        (Leaking, "test_files_are_closed"),
    ],
)
def test_what_is_wrong_is_found(source, test):
    class Contract(Rows):
        def make_source(self):
            return source()

    if source is Leaking and not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to look at open files")
    with pytest.raises(Exception) as caught:
        getattr(Contract(), test)()
    assert str(caught.value) or caught.value.__cause__
    while Leaking.opened:
        Leaking.opened.pop().close()


class CopiesAll(Source):
    """As `ndarray.take` does where rows are not contiguous."""

    def __init__(self, count):
        self.x = np.zeros((count, 3), np.float32)[:, :2]

    def __len__(self):
        return len(self.x)

    def gather(self, indices, lend):
        return {"x": self.x.take(indices, 0)}


class AsksAll(CopiesAll):
    """As who looks into every shard for each batch."""

    def __init__(self, count):
        super().__init__(count)
        self.ends = range(100, count + 1, 100)

    def gather(self, indices, lend):
        shards = [sum(end <= i for end in map(int, self.ends)) for i in indices[:1]]
        return {"x": self.x[indices], "shard": np.full(len(indices), shards[0])}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (CopiesAll, r"64 of 1,000,000 records take [\d,]+ bytes, and of 1,000 records [\d,]+\. The "
         "source copies or searches all of its data for each batch"),
        (AsksAll, r"64 of 1,000,000 records take [\d,]+ calls of functions, and of 1,000 records"),
    ],
)  # fmt: skip
def test_a_cost_that_grows_is_found(source, message):
    class Sized(Rows):
        def make_sized_source(self, count):
            return source(count)

    with pytest.raises(AssertionError, match=message):
        Sized().test_a_batch_costs_the_same_in_many_records()


def test_a_source_of_another_size_is_found():
    class Sized(Rows):
        def make_sized_source(self, count):
            return Good()

    with pytest.raises(AssertionError, match=r"make_sized_source\(1000\) has 9 records"):
        Sized().test_a_batch_costs_the_same_in_many_records()


def test_what_is_missing_is_said():
    for name in ("make_source", "expected_records"):
        with pytest.raises(NotImplementedError, match=f"SourceContract needs {name}"):
            getattr(SourceContract(), name)()

    class Few(Rows):
        def expected_records(self):
            return [{"x": X[0]}]

    with pytest.raises(AssertionError, match="these tests need 5 records; expected_records has 1"):
        Few().test_length()

    class Staged(Rows):
        def make_source(self):
            return Dataset.from_source(Good()).shuffle(0)

    with pytest.raises(loaderx.ArgumentTypeError, match="or a dataset without any stage; got"):
        Staged().test_spec()


def test_the_first_difference_is_named():
    class Other(Rows):
        def expected_records(self):
            return [{"x": np.append(X[i, :1], 7.0)} for i in range(N)]

    with pytest.raises(
        AssertionError, match=r'leaf "x" of record 0 is float32\[2\], expected is f'
    ):
        Other().test_records()


def test_pytest_is_not_imported():
    script = "import sys, loaderx.testing; print('pytest' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_names():
    assert sorted(loaderx.testing.__all__) == loaderx.testing.__all__
    for name in dir(SourceContract):
        if not name.startswith("_"):
            assert getattr(SourceContract, name).__doc__, name
