"""The shared memory that batches come back in: how much of it, and who may hold it."""

from __future__ import annotations

import collections
import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from chains import arrays
from inside import processes_of, session_of
from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError
from loaderx.engines import Processes
from loaderx.engines.processes.slot_pool import HELD_SLOTS
from oracle import assert_same
from workers import pids


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


def slots_of(loader):
    return processes_of(session_of(loader)).slots


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
        processes = processes_of(session_of(loader))
        claims, slot = processes.claims, processes.slots.take(1)
        assert claims.try_lock(1.0)
        slot.read_bytes(0, 1 << 20)
        slot.read_bytes(0, 1 << 22)
        child = (
            "import fcntl, sys\n"
            "try: fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
            "except OSError: sys.exit(7)\n"
        )
        descriptor = processes.lock
        done = subprocess.run(
            [sys.executable, "-c", child, str(descriptor)], pass_fds=[descriptor], check=False
        )
        claims.unlock()
        processes.slots.put_back(slot)
    assert done.returncode == 7


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
