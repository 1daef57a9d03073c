"""Fetching ahead of the stream: what is fetched, how far ahead, and how it ends.

Nobody here looks at a clock: who must wait waits for what a source has written down.
"""

from __future__ import annotations

import gc
import signal
import threading

import numpy as np
import pytest

from chunk_sources import Chunks
from fetched import PATIENCE_S, Fetched, Local
from loaderx import ArgumentError, DataLoader, Dataset, RecordError
from loaderx.loader import ahead, ahead_walk
from loaderx.testing.comparing import check_all_equal
from workers import loader_threads, run_script

COUNT = 48


def twice(record):
    return {"x": record["x"] * 2}


def is_kept(record):
    return record["x"] % 3 != 1


def as_tokens(record):
    return {"tokens": np.full(1 + record["x"] % 5, record["x"])}


BY_INDEX = {
    "batches": lambda a, b: a.batch(4),
    "records": lambda a, b: a.map(twice),
    "shuffle": lambda a, b: a.shuffle(seed=1).batch(4).map(twice).repeat(2),
    "block shuffle": lambda a, b: a.shuffle(seed=1, block=4, window=12).batch(5).repeat(2),
    "mix": lambda a, b: Dataset.mix([a.shuffle(seed=1), b], [2, 1]).batch(4),
    "zip": lambda a, b: Dataset.zip((a, b.shuffle(seed=2))).batch(4),
    "concatenate": lambda a, b: Dataset.concatenate([a, b]).shuffle(seed=4).batch(5),
    "cache": lambda a, b: a.cache().shuffle(seed=1).repeat(2).batch(4),
}
STREAMS = {
    "filter": lambda a, b: a.filter(is_kept).batch(4),
    "filter of a shuffle": lambda a, b: a.shuffle(seed=2).filter(is_kept).repeat(2).batch(4),
    "pack": lambda a, b: a.map(as_tokens).pack({"tokens": 8}, window=16).batch(2),
    "a mix": lambda a, b: Dataset.mix([a.filter(is_kept), b.filter(is_kept)], [3, 1]).batch(4),
    "records": lambda a, b: a.filter(is_kept),
    "lanes": lambda a, b: a.filter(is_kept).repeat(2).batch(4, lanes=2),
}
CHAINS = {**BY_INDEX, **{f"stream: {name}": chain for name, chain in STREAMS.items()}}


def sources(kind=Fetched, **options):
    return kind(COUNT, **options), kind(COUNT, 1000, **options)


def dataset_of(name, two):
    return CHAINS[name](*map(Dataset.from_source, two))


def plain(name):
    return list(DataLoader(dataset_of(name, sources(Local)), engine="inline"))


def numbers(batch):
    return np.ravel(batch["x"]).tolist()


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
        print([name for name in sys.modules if name.startswith("loaderx.loader.ahead")])
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


def test_no_more_than_the_folder_of_downloads_has_room_for(monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "4kB")
    assert ahead.ahead_budget() == 1000
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "10")
    assert ahead.ahead_budget() == 10


# Where it begins and ends ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shuffle", "stream: filter of a shuffle", "stream: a mix"])
def test_from_every_state(name):
    two, expected = sources(waits=True), plain(name)
    states = []
    with DataLoader(dataset_of(name, two), engine="inline") as loader:
        iterator = iter(loader)
        for _ in expected:
            states.append(iterator.get_state())
            next(iterator)
        iterator.close()
        for step, state in enumerate(states):
            for source in two:
                source.fetched.clear()
            iterator.set_state(state)
            check_all_equal(list(iterator), expected[step:], "element")


def test_seek_fetches_from_there_on():
    source = Fetched(COUNT)
    source.gate.clear()
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        iterator.seek(7)
        iterator.start()
        source.wait_for(lambda: bool(source.calls))
        assert source.calls == [[28, 29, 30, 31]]
        source.gate.set()
        assert numbers(next(iterator)) == [28, 29, 30, 31]
        iterator.seek(2)
        assert not loader_threads()
        assert numbers(next(iterator)) == [8, 9, 10, 11]


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("name", ["shuffle", "stream: filter"])
def test_early_close(name, engine):
    two = sources()
    loader = DataLoader(dataset_of(name, two), engine=engine)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert not loader_threads()
    begun = len(two[0].calls)
    next(iterator)  # it begins again
    two[0].wait_for(lambda: len(two[0].calls) > begun)
    iterator.close()
    assert not {name for name in loader_threads() if "ahead" in name}
    loader.close()


def test_close_does_not_wait_for_a_fetch_for_ever(monkeypatch):
    monkeypatch.setattr(ahead, "CLOSE_S", 0.0)
    source = Fetched(COUNT)
    source.gate.clear()
    loader = DataLoader(Dataset.from_source(source).batch(4), engine="inline")
    iterator = iter(loader)
    next(iterator)
    source.wait_for(lambda: bool(source.calls))
    loader.close()
    begun = len(source.calls)
    assert numbers(next(iterator)) == [4, 5, 6, 7]
    loader.close()
    source.gate.set()
    wait_for_threads()
    assert len(source.calls) <= begun + 1  # no thread of those went on


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name.startswith("loaderx-ahead"):
            thread.join(PATIENCE_S)
    assert not loader_threads()


@pytest.mark.parametrize("nbytes", [1, 1 << 40])
@pytest.mark.parametrize("name", ["batches", "stream: filter"])
def test_an_iterator_that_is_dropped(name, nbytes):
    two = sources(nbytes=nbytes)
    iterate_with_a_function_that_holds_its_iterator(dataset_of(name, two))
    two[0].wait_for(lambda: bool(two[0].fetched))
    # A thread in the middle of a turn holds the iterator until that ends.
    threads = [one for one in threading.enumerate() if one.name.startswith("loaderx-ahead")]
    for _ in range(1000):
        gc.collect()
        for thread in threads:
            thread.join(PATIENCE_S / 1000)
        if not loader_threads():
            return
    raise AssertionError(loader_threads())


def iterate_with_a_function_that_holds_its_iterator(dataset):
    held = []

    def unchanged(batch):
        return batch if held else None

    loader = DataLoader(dataset.map(unchanged), engine="inline")
    held.append((loader, iter(loader)))
    next(held[0][1])


def test_ctrl_c():
    source = Fetched(COUNT)
    interrupts = [True]

    def interrupted(batch):
        if batch["x"][0] == 8 and interrupts:
            interrupts.clear()
            signal.raise_signal(signal.SIGINT)
        return batch

    with DataLoader(
        Dataset.from_source(source).batch(4).map(interrupted), engine="inline"
    ) as loader:
        iterator = iter(loader)
        assert [numbers(next(iterator))[0] for _ in range(2)] == [0, 4]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert not loader_threads()
        assert [numbers(batch)[0] for batch in iterator] == list(range(8, COUNT, 4))


def test_fork():
    found = run_script(
        """
        import os, sys, warnings
        import numpy as np
        from loaderx import DataLoader, Dataset
        from loaderx.sources import Source

        class Numbers(Source):
            thread_safe = True
            def __len__(self):
                return 40
            def gather(self, indices):
                return {"x": indices}
            def fetch(self, indices):
                return len(indices)

        warnings.simplefilter("ignore")
        iterator = iter(DataLoader(Dataset.from_source(Numbers()).batch(4), engine="inline"))
        fresh = iter(DataLoader(Dataset.from_source(Numbers()).batch(4), engine="inline"))
        next(iterator)
        child = os.fork()
        if not child:
            assert [int(batch["x"][0]) for batch in iterator] == list(range(4, 40, 4))
            assert [int(batch["x"][0]) for batch in fresh] == list(range(0, 40, 4))
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(status, [int(batch["x"][0]) for batch in iterator] == list(range(4, 40, 4)))
        next(fresh)  # and the end of the program finds its threads
        """
    )
    assert (found.stdout.strip(), found.stderr) == ("0 True", "")


# Failures ----------------------------------------------------------------------------------------


class Failing(Fetched):
    """Records 20 to 23 cannot be fetched."""

    error: BaseException = OSError("no")

    def fetch(self, indices):
        found = super().fetch(indices)
        if (indices // 4 == 5).any():
            raise self.error
        return found


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_fetch_that_fails_is_no_error(error):
    source = Failing(COUNT)
    source.error = error
    with DataLoader(Dataset.from_source(source).batch(1), engine="inline") as loader:
        iterator = iter(loader)
        iterator.start()
        found = []
        for step in range(COUNT):
            if step < 20:
                source.wait_for_records([step])
            found += numbers(next(iterator))
        assert found == list(range(COUNT))


def test_the_walk_goes_on_when_the_stream_has_passed_a_failure(monkeypatch):
    monkeypatch.setattr(ahead_walk, "GROUP_ROWS", 4)
    source = Failing(COUNT)
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        iterator = iter(loader)
        for step in range(12):
            found = numbers(next(iterator))
            assert found == list(range(4 * step, 4 * step + 4))
            if step == 6:
                source.wait_for(lambda: COUNT - 1 in source.fetched)
    assert source.fetched.keys() >= set(range(32, COUNT))


def test_who_reads_meets_the_error():
    class Broken(Failing):
        def gather(self, indices):
            if (indices // 4 == 5).any():
                raise OSError("the network is down")
            return super().gather(indices)

    with DataLoader(Dataset.from_source(Broken(COUNT)).batch(4), engine="inline") as loader:
        with pytest.raises(RecordError) as caught:
            list(loader)
        assert caught.value.step == 5
        assert "the network is down" in str(caught.value)


def test_a_fetch_that_says_nothing():
    class Quiet(Fetched):
        def fetch(self, indices):
            super().fetch(indices)

    source = Quiet(COUNT, waits=True)
    with DataLoader(Dataset.from_source(source).batch(4), engine="inline") as loader:
        assert len(list(loader)) == 12
