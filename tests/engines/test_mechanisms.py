"""What speeds loading up works with every engine: a table says so, and why not where it does not.

A mechanism that is silently off is a fault.  `mechanisms.txt` has a row for each mechanism and kind
of chain, a column for each engine, with and without ``sharding=``; each cell is observed here.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from chains import arrays
from chunk_sources import Chunks, reads
from executors import process_pool
from fetched import Fetched
from inside import session_of
from loaderx import DataLoader, Dataset
from loaderx.engines import Auto, Executor, PoolPerThread, Processes, Session, Shared, Threads
from loaderx.loader.tasks.ranges import RangeTasks
from loaderx.loader.tasks.records import RecordTasks
from loaderx.loader.tasks.shared_steps import SharedStepTasks
from loaderx.plans import chunk_windows
from plain import everything, grow, maker

TABLE = Path(__file__).with_name("mechanisms.txt")


class Outside:
    """An engine that is not loaderx's."""

    def session(self, work):
        return OutsideSession(work)


class OutsideSession(Session):
    window = 4

    def __init__(self, work):
        self._work, self._pools = work, PoolPerThread()
        self._executor, self._lock = None, threading.Lock()

    def submit(self, task):
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(2)
            return self._executor.submit(lambda: self._work(task, self._pools.lend))

    def close(self):
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)


def settle(loader, kind, workers):
    """`auto` has found these workers to be the best."""
    search = session_of(loader).search
    search.found, search.resting = (kind, workers), 0


ENGINES = {
    "threads": Threads,
    "processes": Processes,
    "Shared(threads)": lambda workers: Shared(Threads(workers)),
    "Shared(processes)": lambda workers: Shared(Processes(workers)),
    "auto: threads": Auto,
    "auto: processes": Auto,
    "outside": lambda workers: Outside(),
    "executor: threads": lambda workers: Executor(lambda: ThreadPoolExecutor(workers)),
    "executor: processes": lambda workers: Executor(lambda: process_pool(workers)),
}


def loader_of(dataset, engine, sharding, workers=2):
    """A loader, and an iterator."""
    options = {"sharding": pytest.importorskip("jax").devices()[0]} if sharding else {}
    loader = DataLoader(dataset, engine=ENGINES[engine](workers), **options)
    if engine.startswith("auto"):
        iter(loader).close()  # makes the session
        settle(loader, engine.partition(": ")[2], workers)
    return loader, iter(loader)


class Seen:
    """The tasks of runs that are ranges."""

    def __init__(self, monkeypatch, kind):
        self.tasks = []
        collect = kind.collect

        def noting(tasks, task, made):
            self.tasks.append(task)
            return collect(tasks, task, made)

        monkeypatch.setattr(kind, "collect", noting)


def sees_single_records(engine, sharding, tmp_path, monkeypatch):
    """Several records in a task."""
    seen = Seen(monkeypatch, RecordTasks)
    monkeypatch.setattr("loaderx.loader.tasks.records.RANGE_S", 60.0)
    monkeypatch.setattr("loaderx.loader.tasks.make_range.LONGEST_S", 60.0)
    loader, iterator = loader_of(arrays(300).map(grow), engine, sharding)
    with loader:
        assert sum(1 for _ in iterator) == 300
    return any(last - first > 1 for first, _, last, _ in seen.tasks)


def sees_windows(engine, sharding, tmp_path, monkeypatch):
    """Every chunk is decoded once in an epoch."""
    monkeypatch.setattr(chunk_windows, "LEAST_STEPS", 0)
    sizes, log = [9, 4, 11, 5, 7, 7, 2, 30, 6], tmp_path / "log"
    dataset = Dataset.from_source(Chunks(sizes, log)).shuffle(1, block="source", window=20)
    loader, iterator = loader_of(dataset.batch(8), engine, sharding)
    with loader:
        assert sum(1 for _ in iterator) == -(-sum(sizes) // 8)
    return reads(log) == dict.fromkeys(range(len(sizes)), 1)


def sees_shared_steps(engine, sharding, tmp_path, monkeypatch):
    """Several workers make the first step."""
    seen = Seen(monkeypatch, SharedStepTasks)
    loader, iterator = loader_of(arrays(256).map(grow).batch(64), engine, sharding)
    with loader:
        assert sum(1 for _ in iterator) == 4
    return any(len(task) == 4 and task[0] == task[2] for task in seen.tasks)


def sees_fetching_ahead(engine, sharding, tmp_path, monkeypatch):
    """Records are fetched before they are read."""
    source = Fetched(64)
    loader, iterator = loader_of(Dataset.from_source(source).batch(4), engine, sharding, 1)
    with loader:
        next(iterator)
        source.wait_for(lambda: source.fetched[60] > 0)
    return True


def sees_recycling(engine, sharding, tmp_path, monkeypatch):
    """Batches that were dropped give their memory to later ones."""
    loader, iterator = loader_of(arrays(6400).batch(64), engine, sharding, 1)
    places = Counter()
    with loader:
        for batch in iterator:
            places[address_of(batch["y"])] += 1
            del batch
    return len(places) < sum(places.values()) / 2


def sees_units_in_workers(engine, sharding, tmp_path, monkeypatch):
    """What stands below a filter, and the filter itself, run in workers."""
    dataset = arrays(4000).map(maker).filter(everything).batch(50)
    loader, iterator = loader_of(dataset, engine, sharding)
    makers, count = set(), 0
    with loader:
        for batch in iterator:
            makers |= set(np.asarray(batch["thread"]).tolist())
            count += 1
    assert count == 80
    others = makers - {threading.get_native_id()}
    # `auto` may find that handing these units over takes longer than making them.
    return others != set() if engine.startswith("auto") else others == makers


def sees_units_fetched_ahead(engine, sharding, tmp_path, monkeypatch):
    """Records of later units are fetched before they are read."""
    source = Fetched(6000)
    dataset = Dataset.from_source(source).filter(everything).batch(4)
    loader, iterator = loader_of(dataset, engine, sharding)
    with loader:
        next(iterator)
        source.wait_for(lambda: source.fetched[5999] > 0)
    return True


def sees_recycling_in_a_stream(engine, sharding, tmp_path, monkeypatch):
    """Batches that were dropped give their memory to later ones."""
    dataset = arrays(6400).filter(everything).batch(64)
    loader, iterator = loader_of(dataset, engine, sharding)
    places = Counter()
    with loader:
        for batch in iterator:
            places[address_of(batch["y"])] += 1
            del batch
    return len(places) < sum(places.values()) / 2


def address_of(leaf):
    return leaf.ctypes.data if isinstance(leaf, np.ndarray) else leaf.unsafe_buffer_pointer()


MECHANISMS = {
    "single records in ranges, by index": sees_single_records,
    "windows of chunks, by index": sees_windows,
    "rows of a step shared, by index": sees_shared_steps,
    "fetching ahead, by index": sees_fetching_ahead,
    "memory used again, by index": sees_recycling,
    "units made by workers, of a stream": sees_units_in_workers,
    "fetching ahead, of a stream": sees_units_fetched_ahead,
    "memory used again, of a stream": sees_recycling_in_a_stream,
}


def table():
    """The cells of the file: (mechanism, engine, with sharding) to "on", or the reason."""
    found = {}
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            mechanism, engine, plain, sharded = (cell.strip() for cell in line.split("|"))
            found[mechanism, engine, False], found[mechanism, engine, True] = plain, sharded
    return found


@pytest.mark.parametrize("sharding", [False, True], ids=["numpy", "sharding"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_table_is_true(mechanism, engine, sharding, tmp_path, monkeypatch):
    expected = table()[mechanism, engine, sharding]
    is_on = MECHANISMS[mechanism](engine, sharding, tmp_path, monkeypatch)
    assert is_on == (expected == "on"), expected


def test_every_cell_is_in_the_table():
    engines = [*ENGINES, "ray"]  # looked at in tests/owners/ray
    cells = {(m, e, s) for m in MECHANISMS for e in engines for s in (False, True)}
    assert set(table()) == cells
    assert issubclass(RecordTasks, RangeTasks)
