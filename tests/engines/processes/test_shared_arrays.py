"""Arrays and mapped files that workers read: shared, opened again, never copied for each worker."""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from chains import arrays
from inside import session_of, work_of
from loaderx import DataLoader, Dataset, LoaderxError, LoaderxWarning, RecordError
from loaderx.engines import Processes
from loaderx.engines.processes.pickling import PicklingError, SharedPayload
from oracle import assert_same
from workers import own_pss, pids


def test_large_arrays_are_shared_once():
    x = np.arange(6_000_000.0).reshape(-1, 3)
    one = Dataset.from_arrays(x=x)
    both = Dataset.concatenate([one.map(lambda r: r), Dataset.from_arrays(x=x)]).batch(2)
    assert SharedPayload(work_of(both)).nbytes == x.nbytes


def test_memory_of_a_worker_above_the_shared_data():
    x = np.ones((100_000, 250))  # 200 MB
    with DataLoader(Dataset.from_arrays(x=x).batch(1000), engine=Processes(2)) as loader:
        assert sum(int(batch["x"].sum()) for batch in loader) == x.size

        until = time.monotonic() + 60
        while not session_of(loader).prepare(2):  # one of them may have done it all
            assert time.monotonic() < until
        for pid in pids():
            assert 5_000 < own_pss(pid) < 60_000


def test_mapped_files_are_opened_again(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1_000_000).reshape(-1, 10))
    dataset = Dataset.open(path).batch(100)
    assert SharedPayload(work_of(dataset)).nbytes == 0
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)
        (pid,) = pids()
        assert str(path) in Path(f"/proc/{pid}/maps").read_text()
    mapped = np.load(path, mmap_mode="r")[7::3, ::-1]
    views = Dataset.from_arrays(x=mapped).batch(100)
    assert SharedPayload(work_of(views)).nbytes == 0
    with DataLoader(views, engine=Processes(1)) as loader:
        assert_same(loader, views)


def test_a_mapped_file_that_was_replaced_is_sent_as_it_was(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100_000))
    mapped = np.load(path, mmap_mode="r")
    dataset = Dataset.from_arrays(x=mapped).batch(1000)
    expected = [batch["x"] for batch in dataset]
    path.unlink()
    np.save(path, np.zeros(100_000, np.int64))
    for _ in range(2):
        with (
            DataLoader(dataset, engine=Processes(1)) as loader,
            pytest.warns(LoaderxWarning, match=r"no longer the files .*x\.npy.* from a copy in"),
        ):
            assert_same([batch["x"] for batch in loader], expected)
        path.unlink(missing_ok=True)


@pytest.mark.foreign
def test_h5py_datasets_are_opened_again(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(2000).reshape(-1, 4)
    with h5py.File(tmp_path / "x.h5", "r") as file:
        dataset = Dataset.from_arrays(x=file["x"]).shuffle(0).batch(7)
        with DataLoader(dataset, engine=Processes(2)) as loader:
            assert_same(loader, dataset)


def test_a_mapped_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100_000))
    dataset = Dataset.from_arrays(x=np.load(path, mmap_mode="r")).batch(10)
    loader = DataLoader(dataset, engine=Processes(1))
    iterator = iter(loader)
    next(iterator)
    np.save(tmp_path / "other.npy", np.zeros(100_000, np.int64))
    os.replace(tmp_path / "other.npy", path)
    os.kill(pids()[0], signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        with pytest.raises(LoaderxError, match="has been replaced by another file"):
            list(iterator)
    loader.close()


def test_writable_maps_can_be_written_in_a_worker(tmp_path):
    counts = np.memmap(tmp_path / "counts", np.int64, "w+", shape=(10_000,))

    def count(record):
        counts[record["x"]] += 1
        return record

    with DataLoader(arrays(100).map(count).batch(4), engine=Processes(2)) as loader:
        assert len(list(loader)) == 25
    assert counts[:100].tolist() == [1] * 100


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype("datetime64[s]"),
        lambda x: x.astype("timedelta64[s]"),
        lambda x: x.astype([("a", "i8"), ("b", "f4")]),
        lambda x: x.astype("S8"),
        lambda x: x.reshape(-1, 10).T,
        lambda x: x.reshape(-1, 10)[::-1, ::2],
        lambda x: np.asfortranarray(x.reshape(-1, 10)),
        lambda x: x > 5,
    ],
)
def test_every_kind_of_array_is_shared(make):
    x = make(np.arange(100_000))
    dataset = Dataset.from_arrays(x=x).batch(len(x) // 5)
    assert SharedPayload(work_of(dataset)).nbytes >= x.nbytes
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)


def test_windows_over_an_array_are_not_written_out():
    x = np.arange(500_000.0)
    windows = np.lib.stride_tricks.sliding_window_view(x, 200)
    dataset = Dataset.from_arrays(x=windows).take(600).batch(200)
    assert SharedPayload(work_of(dataset)).nbytes == x.nbytes
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)


def test_arrays_with_gaps_are_shared_too():
    x = np.arange(400_000).reshape(-1, 40)[:, ::5]
    dataset = Dataset.from_arrays(x=x).batch(100)
    assert SharedPayload(work_of(dataset)).nbytes == x.nbytes
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)


def test_scratch_arrays_can_be_written_in_a_worker_and_sources_cannot():
    scratch = np.zeros(100_000)

    def use(record):
        scratch[:] = record["x"]
        return {"x": scratch[:2].copy()}

    with DataLoader(arrays(20).map(use).batch(4), engine=Processes(2)) as loader:
        assert_same(loader, arrays(20).map(use).batch(4))

    def spoil(record):
        record["y"][...] = 0
        return record

    with (
        pytest.raises(RecordError, match="read-only"),
        DataLoader(
            Dataset.from_arrays(y=np.ones((9000, 9))).map(spoil).batch(2), engine=Processes(1)
        ) as loader,
    ):
        list(loader)


def test_data_that_does_not_fit_twice_is_refused(monkeypatch):
    from loaderx.engines.processes import pickling

    monkeypatch.setattr(pickling, "free_memory", lambda: 1_000_000)
    dataset = Dataset.from_arrays(x=np.zeros((1000, 1000))).batch(2)
    with pytest.raises(PicklingError, match=r"0\.01 GB in memory.*Dataset\.open"):
        next(iter(DataLoader(dataset, engine=Processes(1))))
