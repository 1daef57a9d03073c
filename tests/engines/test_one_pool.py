"""One pool of `num_workers` serves a loader, whatever its dataset looks like, in every epoch."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from inside import session_of
from loaderx import DataLoader, Dataset
from loaderx.engines import Threads
from oracle import assert_same
from plain import is_odd
from workers import pids

LENGTH = 96


def mix_of_three(lanes=4):
    parts = [Dataset.range(LENGTH * n, LENGTH * (n + 2)).filter(is_odd) for n in range(3)]
    return Dataset.mix(parts, weights=[2, 1, 1], stop="repeat").batch(8, lanes=lanes)


def apart():
    """Lanes that use up their units at different speeds."""
    return Dataset.range(4096).filter(lambda x: x % 512 < 384 or x % 7 == 0).batch(8, lanes=4)


DATASETS = {
    "by index": Dataset.range(LENGTH).map(lambda x: x).batch(4),
    "a stream": Dataset.range(LENGTH).filter(is_odd).batch(4),
    "a mix of three in four lanes": mix_of_three(),
    "a mix of three": mix_of_three(lanes=1),
    "lanes that drift apart": apart(),
    "a stream of streams": Dataset.concatenate([Dataset.range(48), Dataset.range(48)])
    .filter(is_odd)
    .repeat(2)
    .shuffle(window=16)
    .batch(4),
}


def thread_ids() -> list[int]:
    return [one.ident or 0 for one in threading.enumerate() if one.name.startswith("loaderx-")]


@pytest.mark.parametrize("name", list(DATASETS))
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_the_same_workers_serve_every_epoch_and_never_more(engine, name):
    dataset = DATASETS[name]
    workers = pids if engine == "processes" else thread_ids
    seen = set()
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        for _ in range(2):
            batches = []
            for batch in loader.epoch(0):
                batches.append(batch)
                now = workers()
                assert len(now) <= 2
                seen.update(now)
            assert_same(batches, dataset)
        assert len(seen) == 2
        assert loader.stats().engine == f"{engine}(2)"


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_two_iterators_share_the_workers(engine):
    workers = pids if engine == "processes" else thread_ids
    dataset = mix_of_three()
    seen = set()
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        pairs = []
        for pair in zip(loader.epoch(0), loader.epoch(0), strict=True):
            pairs.append(pair)
            seen.update(workers())
            assert len(workers()) <= 2
        assert len(seen) == 2
    for side in zip(*pairs, strict=True):
        assert_same(side, dataset)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ["its end", "the middle", "the beginning", "a close"])
@pytest.mark.parametrize("name", ["by index", "a stream", "a mix of three in four lanes"])
@pytest.mark.parametrize("engine", ["threads", "auto", "processes"])
def test_a_loader_that_is_dropped_is_gone_at_once(engine, name, end, no_collector):
    """Reference counts are enough: nothing waits for the garbage collector."""
    loader = DataLoader(DATASETS[name], engine=engine, num_workers=1)
    iterator = iter(loader)
    if end != "the beginning":
        next(iterator)
    if end == "its end":
        list(iterator)
    if end == "a close":
        iterator.close()
    del iterator, loader
    until = time.monotonic() + 60
    while (thread_ids() or pids()) and time.monotonic() < until:
        time.sleep(0.001)
    assert not thread_ids()
    assert not pids()


def test_a_loader_that_is_closed_again_and_again_keeps_nothing_of_it():
    loader = DataLoader(Dataset.range(8).batch(2), engine=Threads(1))
    kinds = []
    for _ in range(20):
        with loader:
            assert len(list(loader)) == 4
        gc.collect()
        kinds.append(sum(type(one).__name__ == "_ThreadPool" for one in gc.get_objects()))
    assert max(kinds) <= 2


@pytest.mark.parametrize("engine", ["inline", "auto"])
@pytest.mark.parametrize("name", ["by index", "a stream"])
def test_closing_while_this_thread_makes_the_batch_gives_the_batch(engine, name):
    box = []

    def closing(x):
        if box:
            box[0].close()
        return x

    dataset = Dataset.range(12).map(closing)
    dataset = dataset.batch(4) if name == "by index" else dataset.filter(lambda x: True).batch(4)
    loader = DataLoader(dataset, engine=engine)
    box.append(loader)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_auto_may_be_shared_by_threads_while_it_changes_engines():
    """Engines are changed at every few tasks, as a search would do much more rarely."""
    dataset = Dataset.range(64).map(lambda x: x).batch(2)
    expected = [batch.tolist() for batch in dataset]
    loader = DataLoader(dataset, engine="auto", num_workers=2)
    wrong, ended = [], threading.Event()

    def read():
        try:
            for _ in range(30):
                if [batch.tolist() for batch in loader] != expected:
                    wrong.append("other batches")
        except BaseException as error:
            wrong.append(error)

    iterator = iter(loader)  # makes the session
    next(iterator)
    session = session_of(loader)

    def change():
        number = 0
        while not ended.is_set():
            number += 1
            search = session.search
            search.found = [None, ("threads", 1), ("threads", 2)][number % 3]
            session.keep_only(search.found)

    threads = [threading.Thread(target=read) for _ in range(3)]
    changer = threading.Thread(target=change)
    for thread in [*threads, changer]:
        thread.start()
    for thread in threads:
        thread.join(120)
    ended.set()
    changer.join(60)
    loader.close()
    assert wrong == []
