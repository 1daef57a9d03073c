"""Worker processes make windows of chunks: each chunk is decoded once, and nothing else differs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from chunk_sources import Chunks, Documents, reads
from inside import node_of
from loaderx import DataLoader, Dataset, RecordError
from loaderx.engines import Processes, Shared, Threads
from loaderx.engines.base import Measured, Session
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.plan_work import work_of
from loaderx.memory import Pool
from loaderx.plans import chunk_windows
from loaderx.sources.adapt.kept_chunks import chunk_budget
from oracle import assert_same
from plain import jitter

SIZES = [9, 4, 11, 5, 7, 7, 2, 30, 6]
COUNT = sum(SIZES)


@pytest.fixture(autouse=True)
def single(monkeypatch):
    """Windows of few rows are not made together."""
    monkeypatch.setattr(chunk_windows, "LEAST_STEPS", 0)


class Pending:
    def __init__(self, session, task):
        self.session, self.task = session, task

    def result(self):
        self.session.made.append(self.task)
        if self.task in self.session.lost:
            raise OSError("its workers died")
        return self.session.work(self.task, Pool().lend)

    def done(self):
        return True

    def cancel(self):
        pass


class Here(Session):
    """Makes windows in this process."""

    window = 3
    shares_memory = True

    def __init__(self, work, lost=()):
        self.work, self.lost = work, lost
        self.submitted, self.made = [], []

    def submit(self, task):
        self.submitted.append(task)
        return Pending(self, task)


def records(kind=Chunks, log=None, window=20):
    return Dataset.from_source(kind(SIZES, log)).shuffle(1, block="source", window=window)


def run_of(dataset, begin=0, shard=(0, 1), lost=()):
    work = work_of(node_of(dataset), shard)
    session = Here(work, lost)
    tasks = work.tasks(session, range(begin, len(dataset)))
    return TaskRun(session, work, tasks), session


def value(element):
    """An element without its statistics."""
    return element.value if isinstance(element, Measured) else element


def elements(run):
    found = []
    while True:
        try:
            found.append(value(run.next()))
        except StopIteration:
            return found


def jitter_batch(batch, rng):
    return {**batch, "y": batch["y"] + rng.random(2).astype(np.float32)}


CHAINS = {
    "gathered": lambda: records().batch(8),
    "larger than windows": lambda: records(window=5).batch(31),
    "padded": lambda: records().batch(8, pad_remainder=True).repeat(2),
    "functions": lambda: records().random_map(jitter).batch(8).random_map(jitter_batch).repeat(2),
    "epochs in a batch": lambda: records().repeat(2).batch(9),
    "documents": lambda: records(Documents).batch(8, pad_to={"t": 4}).repeat(2),
    "texts": lambda: records(Documents).map(lambda r: {"text": r["text"]}).batch(8),
    "collated": lambda: records(Documents).batch(8, collate_fn=lambda rows: [r["x"] for r in rows]),
    "in order": lambda: Dataset.from_source(Chunks(SIZES)).skip(2).batch(8).repeat(2),
    "blocks": lambda: Dataset.from_source(Chunks(SIZES)).shuffle(2, block=5, window=15).batch(8),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_elements_are_the_same_from_any_step_on(name):
    dataset = CHAINS[name]()
    expected = list(dataset)
    for begin in range(len(dataset)):
        run, session = run_of(dataset, begin)
        assert_same(elements(run), expected[begin:])
        assert all(len(task) == 4 for task in session.made)
    run, _ = run_of(dataset, len(dataset))
    assert elements(run) == []


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_make_their_rows(hosts):
    dataset = records().batch(8, drop_remainder=True).repeat(2)
    parts = [elements(run_of(dataset, shard=(host, hosts))[0]) for host in range(hosts)]
    assert_same(map(joined, zip(*parts)), dataset)


def joined(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_each_chunk_is_read_once_in_an_epoch(tmp_path):
    dataset = records(log=tmp_path / "log").batch(8)
    run, _ = run_of(dataset)
    assert len(elements(run)) == len(dataset)
    assert reads(tmp_path / "log") == dict.fromkeys(range(len(SIZES)), 1)


def test_batches_do_not_share_the_memory_of_their_window():
    run, _ = run_of(records().batch(8))
    first, second = value(run.next()), value(run.next())
    assert first["y"].base is not second["y"].base
    assert first["x"].flags.writeable
    assert first["x"].ctypes.data % 64 == 0


def test_a_window_that_is_lost_is_made_step_by_step():
    dataset = records().batch(8)
    _, session = run_of(dataset)
    tasks = list(session.work.windows(range(len(dataset))))
    run, session = run_of(dataset, lost=[tasks[1]])
    assert_same(elements(run), dataset)
    first, _, last, end = tasks[1]
    assert [task for task in session.made if len(task) == 1] == [
        (step,) for step in range(first, last + (end > 0))
    ]


def fail_on_30(record):
    if record["x"] == 30:
        raise ValueError("no")
    return record


def test_an_error_is_raised_at_its_own_step():
    dataset = records().map(fail_on_30).batch(8)
    expected = []
    with pytest.raises(RecordError) as inline:
        expected.extend(dataset)
    run, _ = run_of(dataset)
    found = []
    with pytest.raises(RecordError) as caught:
        while True:
            found.append(value(run.next()))
    assert_same(found, expected)
    assert caught.value.step == len(expected)
    assert caught.value.detail == inline.value.detail
    replaced = records().map(fail_on_30).on_error("replace").batch(8)
    run, _ = run_of(replaced)
    assert_same(elements(run), replaced)


@pytest.mark.parametrize(("budget", "expected"), [(1, 1), (10**9, 3)])
def test_as_many_windows_are_under_way_as_the_budget_has_room_for(budget, expected, monkeypatch):
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", str(budget))
    run, session = run_of(records(window=10).batch(4))
    found = 0
    with contextlib.suppress(StopIteration):
        while True:
            run.next()
            found = max(found, len(session.submitted) - len(session.made))
    assert found <= expected
    assert budget == 1 or found == expected - 1  # one of them is in use


# In worker processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_processes_decode_each_chunk_once(workers, tmp_path):
    dataset = records(log=tmp_path / "log").random_map(jitter).batch(8)
    expected = list(records().random_map(jitter).batch(8))
    with DataLoader(dataset, engine="processes", num_workers=workers) as loader:
        assert_same(list(loader), expected)
        assert reads(tmp_path / "log") == dict.fromkeys(range(len(SIZES)), 1)
        if workers == 2:
            iterator = loader.epoch(0)
            for step in (7, 2, 3):
                iterator.seek(step)
                assert_same([next(iterator)], [expected[step]])
            iterator.close()


@pytest.mark.parametrize("engine", [Threads(2), Processes(2)], ids=["threads", "processes"])
def test_workers_of_several_loaders_decode_each_chunk_once(engine, tmp_path):
    shared = Shared(engine)
    logs = [tmp_path / "a", tmp_path / "b"]
    loaders = [
        DataLoader(records(log=log).random_map(jitter).batch(size), engine=shared)
        for log, size in zip(logs, (8, 6), strict=True)
    ]
    streams = [iter(loader) for loader in loaders]  # each known before the workers start
    found = [[next(stream)] for stream in streams]
    for stream, batches in zip(streams, found, strict=True):
        batches += stream
    for size, batches, log in zip((8, 6), found, logs, strict=True):
        assert_same(batches, list(records().random_map(jitter).batch(size)))
        assert reads(log) == dict.fromkeys(range(len(SIZES)), 1)
    for loader in loaders:
        loader.close()


def test_an_error_in_shared_workers_is_raised_at_its_own_step():
    chain = records().map(fail_at_50).batch(8)
    with DataLoader(chain, engine=Shared(Processes(2))) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError, match="map\\(fail_at_50\\) failed") as raised:
            list(iterator)
        expected = raised.value.step
    with pytest.raises(RecordError) as raised:
        list(DataLoader(chain, engine="inline"))
    assert raised.value.step == expected


def fail_at_50(record):
    if record["x"] == 50:
        raise ValueError("fifty")
    return record


def test_the_units_of_a_stream_are_windows(tmp_path):
    chain = records(log=tmp_path / "log").map(dict).filter(is_kept).batch(8)
    with DataLoader(chain, engine="processes", num_workers=2) as loader:
        assert_same(list(loader), list(records().filter(is_kept).batch(8)))
    # The largest chunk has 30 records, so two windows of 20 make a unit.
    assert "units 40" in iter(DataLoader(chain, engine="inline")).get_state()["chain"]
    assert reads(tmp_path / "log") == dict.fromkeys(range(len(SIZES)), 1)


@pytest.mark.parametrize(("window", "pack_window"), [(20, 10), (20, 30), (None, 15)])
def test_the_units_of_packing_are_whole_windows(window, pack_window, tmp_path):
    """Windows of packing end where those of the shuffle do, so no chunk belongs to two units."""

    def chain(log=None):
        documents = records(Documents, log, window).map(only_tokens)
        return documents.pack({"t": 8}, window=pack_window).batch(2)

    expected = list(chain())
    with DataLoader(chain(tmp_path / "log"), engine="processes", num_workers=2) as loader:
        assert_same(list(loader), expected)
    assert reads(tmp_path / "log") == dict.fromkeys(range(len(SIZES)), 1)
    tokens = sum(int((batch["t_segment_ids"] > 0).sum()) for batch in expected)
    assert tokens == sum(n % 4 + 1 for n in range(sum(SIZES)))


def only_tokens(record):
    return {"t": record["t"]}


def is_kept(record):
    return record["x"] % 3 > 0


def budget_of(record):
    return {"budget": chunk_budget()}


def test_workers_share_the_budget(monkeypatch):
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", "1000")
    with DataLoader(Dataset.range(4).map(budget_of), engine="processes", num_workers=2) as loader:
        assert {int(record["budget"]) for record in loader} == {500}


@pytest.mark.parametrize("engine", ["inline", "threads", "auto"])
def test_threads_decode_each_chunk_once(engine, tmp_path):
    dataset = records(log=tmp_path / "log").batch(8)
    with DataLoader(
        dataset, engine=engine, num_workers=None if engine == "inline" else 4
    ) as loader:
        assert_same(list(loader), list(records().batch(8)))
    assert reads(tmp_path / "log") == dict.fromkeys(range(len(SIZES)), 1)
