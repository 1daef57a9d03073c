"""The work as it travels to workers that may be on other machines, and its elements back."""

from __future__ import annotations

import collections
import dataclasses
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from executors import process_pool
from inside import node_of
from loaderx import ArgumentTypeError, DataLoader, Dataset, FileError, LoaderxError
from loaderx.engines import Executor, Processes
from loaderx.engines.elsewhere import payload as module
from loaderx.engines.elsewhere.packing import Packed, Packer, Unpacker
from loaderx.engines.elsewhere.payload import load, payload_of
from loaderx.engines.processes.pickling import PicklingError
from loaderx.errors import LoaderxWarning
from loaderx.loader.tasks.plan_work import work_of
from loaderx.memory import Pool


def work(dataset):
    return work_of(node_of(dataset), (0, 1))


def travelled(payload):
    """As Ray or an executor sends it."""
    return pickle.loads(pickle.dumps(payload, protocol=5))


def rows_of(made):
    return made((0,), Pool().lend).value


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Box:
    corner: object
    size: object


TREES = {
    "dict": {"a": np.arange(5), "b": {"c": np.ones((2, 3), np.float32)}},
    "empty": {"a": np.zeros((0, 4)), "b": np.zeros(3, "S0")},
    "strided": {"a": np.arange(24).reshape(4, 6)[::2, ::-1], "b": np.arange(6).reshape(2, 3).T},
    "repeated": np.broadcast_to(np.arange(3), (4, 3)),
    "objects": {"a": np.array(["x", None], object), "b": "text", "c": 3, "d": None},
    "records": np.array([(1, 2.5)], [("n", "<i2"), ("v", ">f8")]),
    "named tuple": Point(np.arange(3), [np.arange(2), 1.5]),
    "dataclass": Box(np.arange(2), {"w": np.float16(2)}),
    "a list": [np.arange(3), np.array(7, np.uint64)],
    "an array": np.arange(3.0),
    "a number": 5,
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_elements_of_any_kind(tree):
    packed = pickle.loads(pickle.dumps(Packer().pack(tree, None)))
    found = Unpacker(2, (), collections.deque()).unpack(packed, None)
    assert type(found) is type(tree)
    assert repr(found) == repr(tree)


def test_memory_of_elements_is_used_again_once_they_are_dropped():
    unpacker, packed = Unpacker(2, (), collections.deque()), Packer().pack(np.arange(100), None)
    first = unpacker.unpack(packed, None)
    second = unpacker.unpack(packed, None)
    place = first.ctypes.data
    assert second.ctypes.data != place
    del first
    assert unpacker.unpack(packed, None).ctypes.data == place


def test_arrays_in_memory_travel_once_and_stay_read_only():
    x = np.arange(100_000)
    both = Dataset.from_arrays(x=x, again=x).batch(10)
    payload, _ = payload_of(work(both))
    assert sum(one.nbytes for one in payload.buffers) == x.nbytes
    assert rows_of(load(travelled(payload)))["again"].tolist() == list(range(10))


def test_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    dataset = Dataset.from_arrays(x=np.zeros(100_000, np.uint8)).batch(10)
    with pytest.raises(PicklingError, match=r"holds 0.00 GB in memory.*ds\.save\(folder\)"):
        payload_of(work(dataset))
    # Threads share what is in memory, so nothing travels.
    assert len(list(DataLoader(dataset, engine=Executor(lambda: ThreadPoolExecutor(1))))) == 10_000


@pytest.fixture
def saved(tmp_path):
    Dataset.range(1000).map(lambda i: {"x": i, "text": f"record {i}"}).save(tmp_path / "saved")
    np.save(tmp_path / "column.npy", np.arange(100_000))
    return tmp_path


def file_chains(folder):
    mapped = np.load(folder / "column.npy", mmap_mode="r")
    return {
        "saved": Dataset.open(folder / "saved").batch(10),
        "column": Dataset.open(folder / "column.npy").batch(10),
        "the user's map": Dataset.from_arrays(x=mapped).batch(10),
    }


@pytest.mark.parametrize("kind", ["saved", "column", "the user's map"])
def test_files_go_by_their_paths(kind, saved):
    dataset = file_chains(saved)[kind]
    payload, _ = payload_of(work(dataset))
    assert payload.buffers == []
    assert len(payload.pickled) < 20_000
    assert payload.files
    assert all(str(saved) in file.path for file in payload.files)
    # Another inode and another time, as on another machine.
    for file in payload.files:
        content = Path(file.path).read_bytes()
        os.replace(file.path, file.path + ".old")
        with open(file.path, "wb") as copy:
            copy.write(content)
    found = rows_of(load(travelled(payload)))
    (name, *_) = found
    assert np.asarray(found[name]).tolist() == list(range(10))


def damage(path, how):
    content = bytearray(Path(path).read_bytes())
    os.remove(path)
    if how != "removed":
        content = content[:-3] if how == "shorter" else bytes([content[0] ^ 1]) + content[1:]
        with open(path, "wb") as file:
            file.write(content)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("removed", r"cannot be read \(No such file or directory\)"),
        ("shorter", r"has [\d,]+ bytes, not [\d,]+"),
        ("other", "begins with other bytes"),
    ],
)
@pytest.mark.parametrize("kind", ["saved", "column", "the user's map"])
def test_files_that_are_not_the_same_are_named(kind, how, said, saved):
    payload, _ = payload_of(work(file_chains(saved)[kind]))
    damage(payload.files[0].path, how)
    with pytest.raises(FileError, match=rf"^1 of the \d+ files .*{said}.*file system that all"):
        load(payload)


def test_of_many_files_some_beginnings_and_all_sizes_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_DIGESTS", 3)
    for number in range(10):
        np.save(tmp_path / f"{number}.npy", np.arange(5000))
    payload, _ = payload_of(work(Dataset.open(tmp_path).batch(2)))
    assert len(payload.files) == 10
    assert sum(bool(file.digest) for file in payload.files) == 3
    for file in payload.files[:5]:
        damage(file.path, "shorter")
    with pytest.raises(FileError, match=r"^5 of the 10 files .*; and 2 more\."):
        load(payload)


def test_a_module_that_a_worker_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("def double(record):\n    return 2 * record\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_mine

    payload, _ = payload_of(work(Dataset.range(10).map(of_mine.double).batch(5)))
    script = (
        "import pickle, sys\n"
        "from loaderx.engines.elsewhere.payload import load\n"
        "from loaderx.memory import Pool\n"
        "payload = pickle.load(sys.stdin.buffer)\n"
        "try:\n"
        "    places = payload.places if sys.argv[1:] else []\n"
        "    print(load(payload._replace(places=places))((0,), Pool().lend).value)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )

    def run(*arguments):
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(
            command, input=pickle.dumps(payload), capture_output=True, check=True, cwd="/"
        ).stdout.decode()

    assert "LoaderxError the dataset needs the module 'of_mine', which a worker on" in run()
    assert run("with the consumer's places") == "[0 2 4 6 8]\n"


# Executors ----------------------------------------------------------------------------------------


def test_what_is_no_executor():
    with pytest.raises(ArgumentTypeError, match=r"takes a function that makes an executor"):
        Executor(5)
    dataset = Dataset.range(4).batch(2)
    with pytest.raises(ArgumentTypeError, match=r"has returned 5, and that is no executor"):
        list(DataLoader(dataset, engine=Executor(lambda: 5)))


def test_an_executor_that_was_given_stays_open():
    dataset = Dataset.range(8).batch(2)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            with DataLoader(dataset, engine=Executor(pool)) as loader:
                assert len(list(loader)) == 4
        assert pool.submit(int).result() == 0
    with pytest.raises(LoaderxError, match="the executor takes no tasks: .*after shutdown"):
        list(DataLoader(dataset, engine=Executor(pool)))


def test_a_worker_that_dies_is_replaced_with_its_executor(tmp_path):
    mark = tmp_path / "died"

    def fatal(record):
        if record == 21 and not mark.exists():
            mark.touch()
            os._exit(1)
        return record

    dataset = Dataset.range(60).map(fatal).batch(4)
    with DataLoader(dataset, engine=Executor(process_pool)) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(60))
    assert mark.exists()


def test_a_task_that_kills_workers_is_named():
    def fatal(record):
        return os._exit(1) if record == 21 else record

    dataset = Dataset.range(60).map(fatal).batch(4)
    with DataLoader(dataset, engine=Executor(process_pool)) as loader:
        iterator, found = iter(loader), []
        with pytest.raises(
            LoaderxError, match=r"workers of 3 executors in a row have died on .*records 20 to 23"
        ):
            while True:
                found.append(next(iterator))
        assert len(found) == 5
    with process_pool() as pool, pytest.raises(LoaderxError, match="Given a function"):
        list(DataLoader(dataset, engine=Executor(pool)))


def test_workers_warn_of_global_generators():
    def drawn(record):
        return record + np.random.random()  # noqa: NPY002

    dataset = Dataset.range(60).map(drawn).batch(4)
    with (
        DataLoader(dataset, engine=Executor(lambda: process_pool(1))) as loader,
        pytest.warns(LoaderxWarning, match="draw from the global generator of NumPy"),
    ):
        list(loader)


def test_stats_say_what_each_worker_has_done():
    dataset = Dataset.range(60).map(lambda i: i).batch(4)
    with DataLoader(dataset, engine=Executor(process_pool)) as loader:
        list(loader)
        stats = loader.stats()
    assert sum(one.made for one in stats.workers) >= 15
    assert all("(pid" in one.name and one.way == "executor" for one in stats.workers)
    assert "(pid" in str(stats)
    assert "on the way" in stats._repr_html_()
    assert stats.as_dict()["workers"][0]["made"] == stats.workers[0].made
    assert stats.engine == "executor(2)"
    assert "ProcessPoolExecutor" in stats.reason
    with DataLoader(dataset, engine=Processes(1)) as loader:
        list(loader)
        assert loader.stats().workers == ()


def test_nothing_was_packed():
    assert Packed().needs_work
    assert not Packer().pack(None, None).needs_work
