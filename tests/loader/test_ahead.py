"""Fetching ahead of the stream: what is fetched, in which order, and how far ahead.

Nobody here looks at a clock: who must wait waits for what a source has written down.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from chunk_sources import Chunks
from fetched import PATIENCE_S, Fetched, Local
from fetched_chains import CHAINS, COUNT, dataset_of, is_kept, numbers, plain, sources
from loaderx import ArgumentError, DataLoader, Dataset
from loaderx.loader.fetch_ahead import budget as ahead_walk
from loaderx.loader.fetch_ahead import threads as ahead
from loaderx.testing.comparing import check_all_equal
from workers import loader_threads, run_script

# What is fetched ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "threads", "auto"])
@pytest.mark.parametrize("name", CHAINS)
def test_all_that_is_read_was_fetched_before(name, engine):
    two = sources(waits=True)  # reading waits for it
    workers = None if engine == "inline" else 2
    with DataLoader(dataset_of(name, two), engine=engine, num_workers=workers) as loader:
        check_all_equal(list(loader), plain(name), "element")
    for source in two:
        assert set(source.read) <= set(source.fetched)
        # A mix of streams ends with one of them, and what comes next of the other was fetched.
        assert name == "stream: a mix" or set(source.fetched) == set(source.read)


@pytest.mark.parametrize("name", ["shuffle", "stream: filter"])
def test_worker_processes(name):
    two = sources()
    expected = plain(name)
    with DataLoader(dataset_of(name, two), engine="processes", num_workers=2) as loader:
        iterator = iter(loader)
        iterator.start()
        for batch in expected:
            values = np.asarray(numbers(batch))
            two[0].wait_for_records(values // 2 if name == "shuffle" else values)
            check_all_equal([next(iterator)], [batch], "batch")
        with pytest.raises(StopIteration):
            next(iterator)
    assert not two[0].read  # in this process
    assert not loader_threads()


class FetchedChunks(Fetched, Chunks):
    """Chunks that must be fetched, and then decoded."""

    def __init__(self):
        Chunks.__init__(self, [4] * 12)
        Fetched.__init__(self, COUNT, nbytes=100)

    def __reduce__(self):
        return FetchedChunks, ()

    spec, gather = Chunks.spec, Chunks.gather  # not those of `Fetched`


def test_windows_of_worker_processes(monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "400")  # less than a window has
    source = FetchedChunks()
    dataset = Dataset.from_source(source).shuffle(seed=1, block="source", window=16).batch(4)
    expected = list(
        Dataset.from_source(Chunks([4] * 12)).shuffle(seed=1, block="source", window=16).batch(4)
    )
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        iterator = iter(loader)
        iterator.start()
        source.wait_for_records(np.concatenate([batch["x"] for batch in expected[:4]]))
        check_all_equal(list(iterator), expected, "batch")


def test_a_host_fetches_its_own_rows_only():
    for host in (0, 1):
        source = Fetched(COUNT, waits=True)
        dataset = Dataset.from_source(source).shuffle(seed=1).batch(8)
        with DataLoader(dataset, engine="inline", shard=(host, 2)) as loader:
            own = [n for batch in loader for n in numbers(batch)]
        assert sorted(source.fetched.elements()) == sorted(own)
        assert len(own) == COUNT // 2


def test_a_host_fetches_its_own_lanes_only():
    found = []
    for host in (0, 1):
        source = Fetched(COUNT, waits=True)
        dataset = Dataset.from_source(source).filter(is_kept).batch(4, lanes=2).take(6)
        with DataLoader(dataset, engine="threads", num_workers=2, shard=(host, 2)) as loader:
            assert len(list(loader)) == 6
        assert set(source.read) <= set(source.fetched)
        found.append(set(source.fetched))
    assert found[0].isdisjoint(found[1])


def test_a_source_that_does_not_fetch_is_left_alone():
    source, local = Fetched(COUNT, waits=True), Local(COUNT)
    with DataLoader(
        Dataset.zip((Dataset.from_source(source), Dataset.from_source(local))).batch(4)
    ) as loader:
        list(loader)
    assert source.calls
    assert not local.calls
    with DataLoader(Dataset.from_source(local).batch(4), engine="inline") as loader:
        next(iter(loader))
        assert not loader_threads()


def test_nothing_is_imported_where_nothing_is_fetched():
    found = run_script(
        """
        import sys
        from loaderx import DataLoader, Dataset
        for chain in (Dataset.range(8).batch(2), Dataset.range(8).filter(bool).batch(2)):
            list(DataLoader(chain, engine="threads"))
        print([name for name in sys.modules if name.startswith("loaderx.loader.fetch_ahead")])
        """
    )
    assert found.stdout.strip() == "[]", found.stderr


class ReadTwice(Fetched):
    """Reading waits for what was not fetched from the second time on: `save` looks first."""

    def gather(self, indices):
        found = super().gather(indices)
        self.waits = True
        return found


def test_save(tmp_path):
    source = ReadTwice(COUNT)
    dataset = Dataset.from_source(source).shuffle(seed=1)
    dataset.save(tmp_path, engine="threads", num_workers=2)
    check_all_equal(list(Dataset.open(tmp_path)), list(dataset), "record")
    assert set(source.fetched) == set(range(COUNT))


# In which order, and how far ---------------------------------------------------------------------


def test_the_first_step_is_fetched_first_and_alone():
    source = Fetched(COUNT)
    source.gate.clear()
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        iterator.start()  # also without workers
        source.wait_for(lambda: bool(source.calls))
        assert source.calls == [[0, 1, 2, 3]]
        source.gate.set()
        source.wait_for(lambda: len(source.fetched) == COUNT)
        assert source.calls[0] == [0, 1, 2, 3]
        assert max(map(len, source.calls)) > 4  # several steps in one call
        assert [numbers(batch) for batch in iterator] == np.arange(COUNT).reshape(-1, 4).tolist()


def test_the_first_step_does_not_wait_for_the_second():
    later = threading.Event()

    class Held(Fetched):
        def fetch(self, indices):
            assert indices.max() < 4 or later.wait(PATIENCE_S)
            return super().fetch(indices)

    source = Held(COUNT, waits=True)
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        assert numbers(next(iterator)) == [0, 1, 2, 3]
        later.set()
        assert len(list(iterator)) == 11


def test_what_the_consumer_has_overtaken_is_not_fetched(monkeypatch):
    monkeypatch.setattr(ahead, "THREADS", 1)
    source = Fetched(COUNT)
    source.gate.clear()
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        iterator.start()
        source.wait_for(lambda: bool(source.calls))
        for _ in range(5):
            next(iterator)
        source.gate.set()
        source.wait_for(lambda: COUNT - 1 in source.fetched)
        assert set(source.fetched) == {0, 1, 2, 3, *range(20, COUNT)}


def fetched_ahead(source, step):
    """Records for which a fetch has begun, and which were not read before this step."""
    with source.changed:
        return sum(len(call) for call in source.calls) - 4 * step


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_the_budget(engine, monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "3200")
    source = Fetched(1000, nbytes=100)
    with DataLoader(Dataset.from_source(source).batch(4), engine=engine) as loader:
        iterator = iter(loader)
        iterator.start()
        for step in range(250):
            source.wait_for(lambda step=step: len(source.fetched) >= min(1000, 4 * step + 24))
            assert fetched_ahead(source, step) <= 32 + 8  # and a part of a group
            next(iterator)


def test_what_is_here_already_is_not_walked_over_for_ever(monkeypatch):
    monkeypatch.setattr(ahead, "MOST_ROWS", 64)
    monkeypatch.setattr(ahead_walk, "UNKNOWN_ROWS", 16)
    source = Fetched(COUNT, nbytes=0)
    with DataLoader(Dataset.from_source(source).repeat().batch(4), engine="inline") as loader:
        iterator = iter(loader)
        for step in range(100):
            next(iterator)
            assert fetched_ahead(source, step) <= 64 + 16 + 4


@pytest.mark.parametrize("name", ["batches", "stream: filter"])
def test_nothing_is_fetched_ahead_without_a_budget(name, monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "0")
    two = sources()
    with DataLoader(dataset_of(name, two)) as loader:
        check_all_equal(list(loader), plain(name), "element")
    assert not two[0].calls


@pytest.mark.parametrize("given", ["-1", "much"])
def test_a_wrong_budget(given, monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", given)
    with pytest.raises(ArgumentError) as caught:
        next(iter(DataLoader(Dataset.from_source(Fetched(COUNT)).batch(4))))
    assert str(caught.value) == (
        f"LOADERX_AHEAD_BYTES is '{given}', and must be a number of bytes, at least 0: 268435456 "
        "is 0.25 GiB, the default."
    )


def test_one_element_is_fetched_ahead_whatever_it_takes(monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "1")
    source = Fetched(COUNT)
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        iterator.start()
        for step in range(11):
            source.wait_for(lambda step=step: len(source.fetched) == 4 * step + 8)
            next(iterator)


def test_no_more_than_the_folder_of_downloads_has_room_for(monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "4kB")
    assert ahead.ahead_budget() == 1000
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "10")
    assert ahead.ahead_budget() == 10
