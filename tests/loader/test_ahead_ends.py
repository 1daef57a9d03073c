"""Fetching ahead: where it begins and ends, and what a failure does.

Nobody here looks at a clock: who must wait waits for what a source has written down.
"""

from __future__ import annotations

import gc
import signal
import threading

import pytest

from fetched import PATIENCE_S, Fetched
from fetched_chains import COUNT, dataset_of, numbers, plain, sources
from loaderx import DataLoader, Dataset, RecordError
from loaderx.loader.fetch_ahead import budget as ahead_walk
from loaderx.loader.fetch_ahead import threads as ahead
from loaderx.testing.comparing import check_all_equal
from workers import loader_threads, run_script


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
    # A thread in the middle of a turn holds the iterator until that ends, and may start another.
    for _ in range(1000):
        gc.collect()
        for thread in threading.enumerate():
            if thread.name.startswith("loaderx-ahead"):
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
