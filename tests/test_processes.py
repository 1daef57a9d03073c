"""Worker processes: how they start, what they share, and what happens when they die."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fnmatch
import gc
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from chains import arrays, batched_chains, chains
from conftest import worker_processes
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    DataLoader,
    Dataset,
    LoaderxError,
    LoaderxWarning,
    RecordError,
)
from loaderx.engines import Processes
from loaderx.engines.processes import stuck as stuck_module
from loaderx.engines.processes.pickling import PicklingError, SharedPayload
from loaderx.engines.processes.slot_pool import HELD_SLOTS
from loaderx.loader.work import PlanWork
from oracle import assert_same
from plain import hold, jitter


def pids():
    return sorted(int(one.split()[1]) for one in worker_processes())


def run_script(text, *, how="-c", timeout=60):
    """A newcomer's script, without a main guard."""
    text = textwrap.dedent(text)
    command = [sys.executable, "-c", text] if how == "-c" else [sys.executable, "-"]
    given = None if how == "-c" else text
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=timeout, check=False
    )


def work_of(dataset):
    return PlanWork(dataset._node, (0, 1))


# Starting.


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_a_script_needs_no_main_guard(how):
    done = run_script(
        """
        import dataclasses, loaderx as lx, numpy as np
        from typing import NamedTuple

        scale = 3

        class Pair(NamedTuple):
            a: object
            b: object

        @dataclasses.dataclass
        class Both:
            pair: Pair
            text: object

        class Scale:
            def map(self, x):
                return Both(Pair(x * scale, np.float32(x)), "t" * int(x))

        loader = lx.DataLoader(lx.Dataset.range(6).map(Scale()).batch(3), engine="processes")
        for batch in loader:
            assert type(batch) is Both and type(batch.pair) is Pair
            print(batch.pair.a.tolist(), batch.pair.b.dtype, batch.text.tolist())
        """,
        how=how,
    )
    assert done.stderr == ""
    assert (
        done.stdout
        == "[0, 3, 6] float32 ['', 't', 'tt']\n[9, 12, 15] float32 ['ttt', 'tttt', 'ttttt']\n"
    )


def test_workers_know_nothing_of_jax_and_keep_to_their_share_of_the_cores():
    pytest.importorskip("jax")

    def look(_):
        return {
            "jax": "jax" in sys.modules,
            "threads": os.environ["OMP_NUM_THREADS"],
            "platform": os.environ["JAX_PLATFORMS"],
            "name": Path("/proc/self/comm").read_text().strip(),
            "guard": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }

    import jax.numpy as jnp

    jnp.ones(3).block_until_ready()
    workers = 2 * len(os.sched_getaffinity(0))
    with DataLoader(Dataset.range(64).map(look), engine=Processes(workers)) as loader:
        seen = list(loader)
    assert {one["jax"] for one in seen} == {False}
    assert {one["threads"] for one in seen} == {"1"}
    assert {one["platform"] for one in seen} == {"cpu"}
    assert {one["guard"] for one in seen} == {True}
    assert {re.sub(r"\d+", "N", one["name"]) for one in seen} == {"loaderx-N"}


def test_opencv_in_a_worker_keeps_to_its_share():
    pytest.importorskip("cv2")

    def threads(_):
        import cv2

        return cv2.getNumThreads()

    workers = len(os.sched_getaffinity(0))
    with DataLoader(Dataset.range(2).map(threads), engine=Processes(workers)) as loader:
        assert set(loader) == {1}


def test_ctrl_c_in_a_terminal_stops_the_script_and_nobody_else_speaks():
    script = textwrap.dedent(
        """
        import loaderx as lx, time
        def slow(x):
            time.sleep(0.05)
            return x
        loader = lx.DataLoader(lx.Dataset.range(10**6).map(slow).batch(2), engine="processes")
        try:
            for batch in loader:
                print("batch", flush=True)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout.readline() == "batch\n"
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert out.endswith("stopped\n")
    assert (child.returncode, err) == (0, "")


def test_what_a_worker_prints_is_seen():
    done = run_script(
        """
        import loaderx as lx
        def say(x):
            print("record", x)
            return x
        list(lx.DataLoader(lx.Dataset.range(2).map(say).batch(2), engine="processes"))
        """
    )
    assert (done.stdout, done.stderr) == ("record 0\nrecord 1\n", "")


# What is sent to them.


def own_pss(pid):
    """The memory of a worker (PSS, kB) without the data and the slots that all of them share."""
    maps = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M
    )
    own = (one for one in maps if "memfd:loaderx" not in one.partition("\n")[0])
    return sum(int(kb) for one in own for kb in re.findall(r"^Pss:\s+(\d+) kB", one, flags=re.M))


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
        while not loader._session.prepare(2):  # one of them may have done it all
            assert time.monotonic() < until
        for pid in pids():
            assert 5_000 < own_pss(pid) < 60_000


def test_mapped_files_are_opened_again(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1_000_000).reshape(-1, 10))
    dataset = Dataset.from_file(path).batch(100)
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


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked(record):
        with lock:
            return record

    dataset = arrays(8).map(lambda r: r).map(locked).batch(2)
    with pytest.raises(PicklingError) as caught:
        next(iter(DataLoader(dataset, engine="processes")))
    message = str(caught.value)
    assert message.startswith("map(locked) cannot be sent to worker processes: TypeError: ")
    assert "use engine='threads'" in message
    assert isinstance(caught.value, LoaderxError)


class Shy:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return _refuse, ()

    def __call__(self, record):
        return record


def _slowly():
    time.sleep(1.5)
    return lambda record: record


def _refuse():
    raise ImportError("there is no such module in a worker")


def test_a_worker_that_cannot_take_up_the_work_says_why():
    with pytest.raises(PicklingError) as caught:
        next(iter(DataLoader(arrays(8).map(Shy()).batch(2), engine=Processes(2))))
    assert str(caught.value) == (
        "the dataset cannot be sent to worker processes: a worker failed to build it: "
        "ImportError: there is no such module in a worker"
    )
    assert "in _refuse" in caught.value.__notes__[0]  # where, in the worker


def test_data_that_does_not_fit_twice_is_refused(monkeypatch):
    from loaderx.engines.processes import pickling

    monkeypatch.setattr(pickling, "_free_memory", lambda: 1_000_000)
    dataset = Dataset.from_arrays(x=np.zeros((1000, 1000))).batch(2)
    with pytest.raises(PicklingError, match=r"0\.01 GB in memory.*Dataset\.from_file"):
        next(iter(DataLoader(dataset, engine=Processes(1))))


# How batches come back.


def every_kind(x):
    i = int(x)
    made = {
        "grown": np.full(i * 37 % 500, i),
        "strided": np.arange(24).reshape(4, 6).T + i,
        "reversed": np.arange(6)[::-1] + i,
        "empty": np.empty((0, 3)),
        "scalar": np.float64(i),
        "zero_d": np.array(i),
        "text": "é" * i,
        "bytes": b"x" * i,
        "number": i,
        "nothing": None,
        "date": np.datetime64("2020-01-01") + np.arange(3),
        "void": np.array([(i, 0.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "objects": np.array([i, "x", None], dtype=object),
        "nested": (i, [np.arange(i), {"k": np.ones(2)}]),
        "broadcast": np.broadcast_to(np.int64(i), (3, 3)),
    }
    return made if i % 3 else {k: made[k] for k in ("grown", "text", "nested")}


def test_records_of_every_kind_come_back_as_they_are():
    dataset = Dataset.range(60).map(every_kind)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)


def test_ragged_batches_grow_their_slots():
    def ragged(batch):
        step = int(batch[0]) // 4
        return {"a": np.full((4, 1 + step**3), step), "b": np.full((4, 3), step, np.int8)}

    dataset = Dataset.range(240).batch(4).map(ragged)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)


def test_batches_are_writable_aligned_and_the_users_own():
    dataset = arrays(4000).batch(100)
    with DataLoader(dataset, engine=Processes(2, prefetch=1)) as loader:
        held = []
        for batch in loader:
            assert batch["x"].flags.writeable
            assert batch["x"].ctypes.data % 64 == 0
            batch["y"][...] = len(held)
            held.append(batch)
    assert_same([b["x"] for b in held], [b["x"] for b in dataset])
    assert all((batch["y"] == number).all() for number, batch in enumerate(held))


def test_views_hold_a_slot_and_outlive_the_loader():
    loader = DataLoader(arrays(4000).batch(50), engine=Processes(2, prefetch=0))
    rows, memory = [], []
    for batch in loader:
        rows.append(batch["x"][3:5])
        memory.append(memoryview(batch["y"]))
        del batch
    loader.close()
    del loader
    gc.collect()
    assert [row.tolist() for row in rows] == [[50 * i + 3, 50 * i + 4] for i in range(80)]
    assert [m[7, 1] for m in memory] == [-(50.0 * i + 7) for i in range(80)]


def test_jax_arrays_on_few_slots_keep_their_values():
    """Slots are page-aligned, so JAX takes them without a copy."""
    jax = pytest.importorskip("jax")
    step = jax.jit(lambda x: (x * 2).sum())
    dataset = Dataset.range(400 * 512).batch(512)
    held, sums = collections.deque(maxlen=11), []
    with DataLoader(dataset, engine=Processes(2, prefetch=0)) as loader:
        for number, batch in enumerate(loader):
            array = jax.device_put(batch)
            sums.append(step(array))
            held.append((number, array))
            if number % 7 == 0:
                for one, kept in held:
                    assert int(kept[0]) == one * 512
                    assert int(kept[-1]) == one * 512 + 511
    expected = [2 * sum(range(i * 512, i * 512 + 512)) for i in range(400)]
    assert [int(s) & 0xFFFFFFFF for s in sums] == [e & 0xFFFFFFFF for e in expected]


def test_a_starved_ring_copies_and_goes_on():
    dataset = arrays(600).shuffle(3).batch(2)
    with DataLoader(dataset, engine=Processes(1, prefetch=0)) as loader:
        held = list(loader)
        slots = slots_of(loader).count
    assert_same(held, dataset)
    assert slots == 1 + HELD_SLOTS


def test_a_function_may_keep_the_arrays_it_is_given():
    kept = []

    def keep(batch):
        kept.append(batch)
        return {**batch, "before": sum(int(b["x"].sum()) for b in kept[:-1]) + 0 * batch["x"]}

    dataset = arrays(300).batch(5).map(keep)
    with DataLoader(dataset, engine=Processes(1, prefetch=3)) as loader:
        got = list(loader)
    sums = np.cumsum([0, *(int(b["x"].sum()) for b in arrays(300).batch(5))])
    assert [int(b["before"][0]) for b in got] == sums[:-1].tolist()


def test_no_name_appears_in_shared_memory():
    with DataLoader(arrays(100).batch(2), engine=Processes(2)) as loader:
        next(iter(loader))
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in pids()]
    assert any("memfd:loaderx" in one for one in maps)
    assert not any("/dev/shm/" in one for one in maps)


def test_one_slow_step_does_not_idle_the_others(tmp_path):
    def wait(record):
        x = int(record["x"])
        if x == 0:
            until = time.monotonic() + 30
            while len(list(tmp_path.iterdir())) < 5:
                assert time.monotonic() < until
                time.sleep(0.001)
        else:
            (tmp_path / str(x)).touch()
        return record

    with DataLoader(arrays(20).map(wait).batch(1), engine=Processes(2, prefetch=4)) as loader:
        first = next(iter(loader))
    assert first["x"].tolist() == [0]
    assert {"1", "2", "3", "4", "5"} <= {path.name for path in tmp_path.iterdir()}


def slots_of(loader):
    return loader._session._pool._processes.slots


@pytest.mark.parametrize(
    "function",
    [
        lambda b: {"a": b["y"] * 2, "b": b["y"] + 1, "c": np.tile(b["y"], 9)},
        lambda b: (np.tile(b["y"], 50) / 255, b["x"] * 2),
    ],
)
def test_functions_that_make_new_arrays_use_no_more_slots(function):
    dataset = arrays(40_000).batch(1000).map(function)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)
        assert slots_of(loader).numbered <= 1 + 2 + HELD_SLOTS


def test_ragged_batches_that_a_function_keeps_cost_one_slot_per_worker():
    kept = []

    def keep(batch):
        kept[:] = [batch]
        return batch

    records = Dataset.range(1200).map(lambda x: np.full(1 + x // 4 * 3, x))
    dataset = records.batch(4).map(keep)
    with DataLoader(dataset, engine=Processes(1, prefetch=1)) as loader:
        for batch in loader:
            assert len(set(batch[:, 0].tolist())) == 4
        numbered = slots_of(loader).numbered
    assert numbered <= 1 + 1 + HELD_SLOTS + 1


def test_the_claims_stay_locked_while_mappings_come_and_go():
    with DataLoader(arrays(40).batch(4), engine=Processes(1)) as loader:
        assert len(list(loader)) == 10
        processes = loader._session._pool._processes
        claims, slot = processes.claims, processes.slots.take(1)
        assert claims.try_lock(1.0)
        slot.read_bytes(0, 1 << 20)
        slot.read_bytes(0, 1 << 22)
        child = (
            "import fcntl, sys\n"
            "try: fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
            "except OSError: sys.exit(7)\n"
        )
        descriptor = processes._lock
        done = subprocess.run(
            [sys.executable, "-c", child, str(descriptor)], pass_fds=[descriptor], check=False
        )
        claims.unlock()
        processes.slots.put_back(slot)
    assert done.returncode == 7


def test_a_batch_that_is_too_large_says_so():
    def huge(batch):
        return np.broadcast_to(np.zeros(1), (3 << 30,))

    with (
        pytest.raises(LoaderxError, match="worker processes can make batches of up to 17 GB"),
        DataLoader(arrays(4).batch(2).map(huge), engine=Processes(1)) as loader,
    ):
        next(iter(loader))


@dataclasses.dataclass
class Counted:
    x: object
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        self.made += 1


@dataclasses.dataclass
class Scaled:
    x: object
    by: dataclasses.InitVar[int] = 1


class Own(collections.namedtuple("Own", "x y")):
    def __new__(cls, x):
        return super().__new__(cls, x, x)


def test_odd_containers_come_back_as_they_were():
    def odd(batch):
        x = batch["x"]
        return (
            Counted(x),
            Scaled(x),
            collections.OrderedDict(a=x, b=x),
            collections.defaultdict(list, a=x),
        )

    dataset = arrays(12).batch(4).map(odd)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        for got, expected in zip(loader, dataset, strict=True):
            assert [type(one) for one in got] == [type(one) for one in expected]
            assert got[0].made == 1
    named = arrays(12).batch(4).map(lambda b: Own(b["x"]))
    with DataLoader(named, engine=Processes(1)) as loader:
        assert [type(batch) for batch in loader] == [Own] * 3


def test_leaves_that_overlap_become_rows_of_their_own_and_aliases_stay():
    def overlapping(batch):
        x = batch["x"]
        return {
            "a": x,
            "b": x[::2],
            "same": np.broadcast_to(x, (3, 4)),
            "windows": np.lib.stride_tricks.sliding_window_view(x, 2),
        }

    dataset = arrays(80).batch(4).map(overlapping)
    with DataLoader(dataset, engine=Processes(1, prefetch=0)) as loader:
        held = []
        for step, batch in enumerate(loader):
            assert_same([{**batch}], [dataset[step]])
            batch["same"][0] += 1000
            assert batch["same"][1].tolist() == batch["a"].tolist()
            batch["a"] += 100
            assert batch["b"].tolist() == batch["a"][::2].tolist()  # also when it was copied out
            held.append(batch)


# The same workers for the whole life of a loader.


def test_workers_stay_for_the_next_epoch_and_for_moves():
    dataset = arrays(60).shuffle(0).batch(4)
    expected = list(dataset.repeat(3))
    with DataLoader(dataset, engine=Processes(2)) as loader:
        iterator = loader.epoch(0)
        assert_same(iterator, expected[:15])
        first = pids()
        assert len(first) == 2
        assert_same(loader.epoch(1), expected[15:30])
        iterator = loader.epoch(0)
        for step in (7, 2, 14, 0):
            iterator.seek(step)
            assert_same([next(iterator)], expected[step : step + 1])
            state = iterator.get_state()
            next(iterator, None)
            iterator.set_state(state)
        assert pids() == first
        del iterator
        assert_same(loader.epoch(2), expected[30:45])
        assert pids() == first
    assert pids() == []


def test_two_iterators_at_once_share_the_workers():
    dataset = arrays(60).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        one, two = iter(loader), iter(loader)
        workers = set()
        pairs = []
        for pair in zip(one, two, strict=True):
            workers.update(pids())
            pairs.append(pair)
        assert len(workers) == 2
        assert_same([a for a, _ in pairs], dataset)
        assert_same([b for _, b in pairs], dataset)


def test_a_forked_child_leaves_the_workers_alone():
    loader = DataLoader(arrays(60).batch(4), engine=Processes(1))
    iterator = iter(loader)
    next(iterator)
    before = pids()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks
        child = os.fork()
    if child == 0:
        del iterator, loader
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert pids() == before
    assert len(list(iterator)) == 14


def test_a_forked_child_cannot_go_on_with_its_parents_workers():
    iterator = iter(DataLoader(arrays(60).batch(4), engine=Processes(1)))
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks
        child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except LoaderxError as error:
            os._exit(0 if "Make a new iterator here" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(iterator)) == 14


def test_closing_from_another_thread_wakes_the_consumer(tmp_path):
    def wait(record):
        (tmp_path / "begun").touch()
        time.sleep(3600)

    loader = DataLoader(arrays(40).map(wait).batch(1), engine=Processes(2))
    ended = []

    def consume():
        try:
            list(loader)
        except LoaderxError as error:
            ended.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.001)
    loader.close()
    consumer.join(60)
    assert len(ended) == 1
    assert ended[0].startswith("the loader was closed while this batch was waited for.")
    assert pids() == []


def test_more_prefetch_than_pipes_hold():
    dataset = arrays(6000).batch(2)
    with DataLoader(dataset, engine=Processes(2, prefetch=100_000)) as loader:
        assert_same(loader, dataset)


def test_a_forked_child_starts_workers_of_its_own():
    loader = DataLoader(arrays(60).batch(4), engine=Processes(1))
    assert len(list(loader)) == 15
    before = pids()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks
        child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(Exception):
            status = 0 if len(list(loader)) == 15 else 2
            loader.close()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pids() == before
    assert len(list(loader)) == 15


def test_a_signal_handler_may_close_the_loader(tmp_path):
    def slow(record):
        (tmp_path / "begun").touch()
        time.sleep(3600)

    loader = DataLoader(arrays(40).map(slow).batch(2), engine=Processes(2))
    before = signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    try:
        pid = os.getpid()
        waker = (
            "import os, sys, time\n"
            f"while not os.path.exists({str(tmp_path / 'begun')!r}): time.sleep(0.01)\n"
            f"os.kill({pid}, {int(signal.SIGUSR1)})\n"
        )
        with (
            subprocess.Popen([sys.executable, "-c", waker]),
            pytest.raises(LoaderxError, match="the loader was closed while"),
        ):
            next(iter(loader))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert pids() == []


# Faults.


def once(path):
    """Is this the first time that anybody asks?"""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@pytest.mark.parametrize("how", ["exit", "kill", "crash"])
def test_a_worker_that_dies_is_replaced_and_its_step_made_again(tmp_path, how):
    def die(record):
        if record["x"] == 13 and once(tmp_path / "died"):
            if how == "exit":
                os._exit(3)
            elif how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                os.kill(os.getpid(), signal.SIGSEGV)
        return record

    dataset = arrays(40).shuffle(0).random_map(jitter).map(die).batch(3)
    expected = list(arrays(40).shuffle(0).random_map(jitter).batch(3))
    step = next(i for i, b in enumerate(expected) if 13 in b["x"])
    with (
        pytest.warns(LoaderxWarning, match="It has been replaced") as said,
        DataLoader(dataset, engine=Processes(2)) as loader,
    ):
        assert_same(loader, expected)
    (warning,) = said
    fate = {"exit": "exit code 3", "kill": "killed by SIGKILL", "crash": "killed by SIGSEGV"}[how]
    assert fate in str(warning.message)
    assert f"while it made step {step}. " in str(warning.message)


def test_a_step_that_kills_three_workers_is_an_error_that_names_it():
    def die(record):
        if record["x"] == 13:
            os._exit(7)
        return record

    seen = []

    def consume(loader):
        iterator = iter(loader)
        seen.extend(next(iterator) for _ in range(3))
        with pytest.raises(RecordError) as caught:
            next(iterator)
        iterator.seek(4)
        seen.extend(iterator)
        return caught

    loader = DataLoader(arrays(40).map(die).batch(4), engine=Processes(2))
    with pytest.warns(LoaderxWarning, match="while it made step 3"):
        caught = consume(loader)
    loader.close()
    assert caught.value.step == 3
    assert str(caught.value).startswith(
        "step 3: 3 worker processes in a row died of this step (exit code 7). "
        "It is made of records 12 to 15 of the stream."
    )
    assert np.concatenate([b["x"] for b in seen]).tolist() == [*range(12), *range(16, 40)]


@pytest.mark.filterwarnings("ignore::loaderx.LoaderxWarning")
def test_random_kills_change_nothing_and_leak_nothing():
    dataset = arrays(1200).shuffle(0).random_map(jitter).batch(2)
    expected = list(dataset)
    chance = random.Random(0)
    open_before = 0
    with DataLoader(dataset, engine=Processes(2, prefetch=2)) as loader:
        for step, batch in enumerate(loader):
            assert_same([batch], expected[step : step + 1])
            if step % 40 == 20:
                for _ in range(chance.choice([1, 2])):
                    os.kill(chance.choice(pids()), signal.SIGKILL)
            if step == 60:
                open_before = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= open_before + 1
        assert len(pids()) <= 2  # a death at the very end may not have been noticed
        assert_same(loader, expected)
        assert len(pids()) <= 2


def test_workers_killed_between_epochs_are_replaced():
    dataset = arrays(40).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.warns(LoaderxWarning, match="killed by SIGKILL; the system does that"):
            assert_same(loader, dataset)


@pytest.mark.parametrize("shown", ["", "full"])
def test_a_stuck_worker_is_reported_with_its_stack(shown, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_TRACEBACK", shown)

    def get_stuck(record):
        if record["x"] == 5:
            while not (tmp_path / "go").exists():
                time.sleep(0.001)
        return record

    with DataLoader(arrays(12).map(get_stuck).batch(2), engine=Processes(1, 0, 0.2)) as loader:
        iterator = iter(loader)
        with warnings.catch_warnings():  # a worker that gets no core for a while is reported, too
            warnings.simplefilter("ignore", LoaderxWarning)
            next(iterator)
            next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LoaderxWarning)
            with pytest.raises(LoaderxWarning) as caught:
                next(iterator)
        assert re.match(
            r"step 2 \(records 4 to 5 of the stream\) has kept worker 0 \(pid \d+\) busy for "
            r"[\d.]+ s; it may be stuck\. It is here:\n",
            str(caught.value),
        )
        stack = str(caught.value).partition("It is here:\n")[2].partition("\n(Processes(")[0]
        assert " in get_stuck" in stack
        # The thread that watches the consumer, and loaderx's own frames, are for those who ask.
        assert ("threading.py" in stack) == ("/loaderx/" in stack) == (shown == "full")
        (tmp_path / "go").touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoaderxWarning)
            assert [b["x"].tolist() for b in iterator] == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_stuck_worker_can_be_replaced(tmp_path):
    def get_stuck(record):
        if record["x"] == 5 and once(tmp_path / "stuck"):
            time.sleep(3600)
        return record

    engine = Processes(2, timeout_s=0.3, replace_stuck=True)
    dataset = arrays(12).map(get_stuck).batch(2)
    with pytest.warns(LoaderxWarning) as said, DataLoader(dataset, engine=engine) as loader:
        assert [b["x"].tolist() for b in loader] == np.arange(12).reshape(-1, 2).tolist()
    messages = [str(one.message) for one in said]
    assert any("It is stopped. It was here:\n" in m and "in get_stuck" in m for m in messages)


def test_a_step_that_is_stuck_for_ever_ends_in_an_error():
    def get_stuck(record):
        time.sleep(3600)

    engine = Processes(1, timeout_s=0.05, replace_stuck=True)
    with (
        pytest.warns(LoaderxWarning),
        pytest.raises(RecordError, match=r"3 worker processes in a row .* \(stuck for [\d.]+ s\)"),
        DataLoader(arrays(4).map(get_stuck).batch(2), engine=engine) as loader,
    ):
        next(iter(loader))


def test_closing_does_not_wait_for_a_stuck_worker():
    def slow(record):
        time.sleep(3600 if record["x"] > 3 else 0)
        return record

    with DataLoader(arrays(40).map(slow).batch(2), engine=Processes(2)) as loader:
        next(iter(loader))
    assert pids() == []


def test_a_start_that_takes_long_is_reported(monkeypatch):
    monkeypatch.setattr(stuck_module, "START_PATIENCE_S", 0.2)

    class Slow:
        def __call__(self, record):
            return record

        def __reduce__(self):
            return _slowly, ()

    with (
        pytest.warns(LoaderxWarning, match=r"worker processes have been starting for [\d.]+ s"),
        DataLoader(arrays(4).map(Slow()).batch(2), engine=Processes(1)) as loader,
    ):
        assert len(list(loader)) == 2


def is_running(pid):
    """False for a zombie, too: when it goes is up to whoever has inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("busy", ["waiting", "spinning"])
def test_nothing_is_left_when_the_parent_is_killed(busy, tmp_path):
    script = textwrap.dedent(
        f"""
        import loaderx as lx, numpy as np, os, sys, time
        def work(record):
            os.write(1, b"%d\\n" % os.getpid())
            while record["x"] > 20:
                {"time.sleep(0.1)" if busy == "waiting" else "pass"}
            return record
        loader = lx.DataLoader(
            lx.Dataset.from_arrays(x=np.arange(100000)).map(work).batch(2), engine="processes")
        for batch in loader:
            pass
        """
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )
    workers = set()
    for _ in range(22):
        workers.add(int(child.stdout.readline()))
    child.kill()
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 60.0
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in workers if is_running(pid)]
    assert not list(tmp_path.iterdir())  # shared memory has no names, see above


# Errors.


class Picky(Exception):
    """Cannot be unpickled: it wants two arguments and shows one."""

    def __init__(self, one, two):
        super().__init__(f"{one}-{two}")


def test_errors_that_cannot_travel_keep_their_message_and_traceback():
    def fail(record):
        if record["x"] == 5:
            raise Picky("a", "b")
        return record

    with DataLoader(arrays(12).map(fail).batch(2), engine=Processes(2)) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(RecordError) as caught:
            next(iterator)
    error = caught.value
    assert (error.index, error.stage, error.step) == (5, "map(fail)", 2)
    assert type(error.__cause__) is LoaderxError
    assert "Picky: a-b" in str(error.__cause__)
    (note,) = error.__cause__.__notes__
    assert re.match(r"\nIn worker \d \(pid \d+\):\nTraceback", note)
    assert 'raise Picky("a", "b")' in note


class Sealed(Exception):
    def __setattr__(self, name, value):
        raise AttributeError("sealed")


def test_exceptions_that_refuse_notes_still_arrive_at_their_step():
    def fail(record):
        if record["x"] == 5:
            raise Sealed("no")
        return record

    with DataLoader(arrays(12).map(fail).batch(2), engine=Processes(1)) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(RecordError, match="step 2: map"):
            next(iterator)


def test_a_deadly_step_gives_its_slot_back():
    def die(record):
        if record["x"] % 4 == 3:
            os._exit(1)
        return record

    loader = DataLoader(arrays(12).map(die).batch(2), engine=Processes(1, prefetch=0))
    iterator = iter(loader)
    for step in (1, 3, 5):
        iterator.seek(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoaderxWarning)
            with pytest.raises(RecordError, match="died of this step"):
                next(iterator)
        assert slots_of(loader).spare == slots_of(loader).count
    loader.close()


def test_sys_exit_in_a_function_is_an_error_of_its_step():
    def leave(record):
        if record["x"] == 3:
            sys.exit("enough")
        return record

    with DataLoader(arrays(8).map(leave).batch(2), engine=Processes(1)) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SystemExit, match="enough"):
            next(iterator)


def test_an_element_that_cannot_travel_is_an_error_of_its_step():
    def odd(record):
        return (
            {"x": record["x"], "generator": (i for i in range(3))} if record["x"] == 3 else record
        )

    with DataLoader(arrays(8).map(odd), engine=Processes(1)) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        with pytest.raises(RecordError, match="cannot be sent from a worker.*generator"):
            next(iterator)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": 0}, ArgumentError, "`num_workers` must be at least 1, got 0"),
        ({"num_workers": 5000}, ArgumentError, "`num_workers` must be at most 1024, got 5000"),
        ({"prefetch": -1}, ArgumentError, "`prefetch` must be at least 0"),
        ({"timeout_s": 0}, ArgumentError, "`timeout_s` must be above 0, got 0"),
        ({"timeout_s": "1"}, ArgumentTypeError, "`timeout_s` must be a number of seconds or None"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Processes(**arguments)


def test_a_system_without_what_is_needed_is_told(monkeypatch):
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ArgumentError, match=r"cannot run here: they need a POSIX.*'threads'"):
        Processes()


def test_without_memfd_a_nameless_file_does(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = arrays(40).shuffle(0).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)
        assert not list(tmp_path.iterdir())


def test_loaders_and_datasets_can_be_pickled():
    import cloudpickle

    loader = DataLoader(arrays(40).map(lambda r: r).batch(4), engine="processes")
    again = cloudpickle.loads(cloudpickle.dumps(loader))
    with again:
        assert_same(again, loader.dataset)


# Chosen by measuring.


def goes_to_processes(dataset, expected):
    """A loader that has chosen processes.  It measures: on a busy machine a trial may be lost."""
    for _ in range(5):
        loader = DataLoader(dataset, num_workers=2)
        for step, batch in enumerate(loader):
            assert batch["x"].tolist() == expected(step)
            if loader.stats().engine == "processes(2)":
                return loader
            if step == 600 or "did not help" in loader.stats().reason:
                break
        loader.close()
    raise AssertionError(loader.stats())


def test_auto_moves_python_that_holds_the_gil_to_processes_and_remembers():
    rows = np.arange(60).reshape(-1, 2).tolist()
    dataset = arrays(60).map(hold).batch(2).repeat()
    with goes_to_processes(dataset, lambda step: rows[step % 30]) as loader:
        assert "inline every" in loader.stats().reason
        gc.collect()
        workers = pids()
        assert len(workers) == 2
        again = iter(loader)  # a new iterator starts with what was found
        assert [next(again)["x"].tolist() for _ in range(32)] == (rows * 2)[:32]
        assert pids() == workers
    assert pids() == []


def test_auto_reads_an_unknown_source_in_processes_never_in_threads(tmp_path):
    class Unknown:
        def __len__(self):
            return 100_000

        def __getitem__(self, i):
            if threading.current_thread() is not threading.main_thread():
                (tmp_path / "thread").touch()
            return {"x": hold(i)}

    dataset = Dataset.from_source(Unknown()).batch(2)
    goes_to_processes(dataset, lambda step: [2 * step, 2 * step + 1]).close()
    assert not list(tmp_path.iterdir())


def test_auto_stays_inline_where_the_work_cannot_be_sent():
    class Unknown:
        def __init__(self):
            self.lock = threading.Lock()

        def __len__(self):
            return 100_000

        def __getitem__(self, i):
            return {"x": hold(i)}

    def iterate():
        for step, batch in enumerate(loader):
            assert batch["x"].tolist() == [step]
            if "cannot be sent" in loader.stats().reason or step == 600:
                break

    with DataLoader(Dataset.from_source(Unknown()).batch(1), num_workers=2) as loader:
        with pytest.warns(LoaderxWarning, match="num_workers=2 was asked for, and batches are"):
            iterate()
        assert loader.stats().engine == "inline"
        assert "cannot be sent to worker processes" in loader.stats().reason
    assert pids() == []


# The stream is the inline stream.


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_processes_equal_inline_on_generated_chains(workers):
    @settings(max_examples=10)
    @given(chains())
    def check(dataset):
        with DataLoader(dataset, engine=Processes(workers)) as loader:
            assert_same(loader, dataset)

    check()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_restoring_at_every_step_gives_the_same_tail(workers):
    @settings(max_examples=6)
    @given(batched_chains())
    def check(dataset):
        expected = list(dataset)
        with DataLoader(dataset, engine=Processes(workers, prefetch=1)) as loader:
            states = []
            iterator = iter(loader)
            for _ in expected:
                states.append(iterator.get_state())
                next(iterator)
            for step, state in list(enumerate(states))[:12]:
                iterator = iter(loader)
                iterator.set_state(state)
                assert_same([next(iterator)], expected[step : step + 1])
                iterator.set_state(state)
                assert_same(iterator, expected[step:])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)  # the same order again is what we want
        check()


@dataclasses.dataclass
class Point:
    x: np.ndarray
    y: np.ndarray


def test_dataclasses_of_a_module_come_back_as_themselves():
    dataset = arrays(20).map(lambda r: Point(r["x"], r["y"])).batch(4)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        batches = list(loader)
    assert {type(batch) for batch in batches} == {Point}
    assert_same([b.x for b in batches], [b.x for b in dataset])


# Caches that functools makes.


def test_cached_functions_of_a_script_go_to_workers_with_an_empty_cache():
    done = run_script(
        """
        import functools
        from loaderx import DataLoader, Dataset

        @functools.lru_cache(maxsize=7, typed=True)
        def bpe(word):
            return len(word) if len(word) < 2 else 1 + bpe(word[1:])  # itself, from its globals

        bpe.table = [1, 2]

        class Tokenizer:
            def __init__(self):
                self.made = 0

            @functools.cache
            def look_up(self, word):
                return bpe(word)

            @functools.cached_property
            def offset(self):
                self.made += 1
                return 100

            def __call__(self, record):
                assert bpe.cache_parameters() == {"maxsize": 7, "typed": True}
                assert (bpe.table, bpe.__name__) == ([1, 2], "bpe")
                found = self.look_up(record["text"]) + self.offset + self.offset
                return {"x": found, "made": self.made}

        texts = Dataset.from_source([{"text": "a" * n} for n in range(1, 9)])
        tokens = texts.map(Tokenizer()).batch(8)
        with DataLoader(tokens, engine="processes", num_workers=1) as loader:
            for batch in loader:
                print(batch["x"].tolist(), batch["made"].tolist())
        """
    )
    assert done.stdout.split("\n")[:1] == [
        "[201, 202, 203, 204, 205, 206, 207, 208] [1, 1, 1, 1, 1, 1, 1, 1]"
    ], done.stderr


def test_a_cached_function_of_a_module_is_imported_there():
    shared = fnmatch._compile_pattern

    def same(x):
        return shared is sys.modules["fnmatch"]._compile_pattern

    assert hasattr(shared, "cache_info")
    with DataLoader(Dataset.range(2).map(same).batch(2), engine=Processes(1)) as loader:
        assert next(iter(loader)).tolist() == [True, True]
