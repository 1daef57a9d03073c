"""`engines.Shared`: one set of workers for several loaders."""

from __future__ import annotations

import gc
import os
import pickle
import threading

import numpy as np
import pytest

from inside import session_of
from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines import Inline, Processes, Shared, Threads
from loaderx.testing import EngineContract
from loaderx.testing.engine_work import wait_until
from loaderx.testing.session_contract import SessionContract
from oracle import assert_same
from plain import is_odd
from workers import loader_threads, worker_processes


class TestSharedThreads(EngineContract):
    def workers(self):
        return {*loader_threads(), *worker_processes()}

    def make_engine(self):
        return Shared(Threads(2))


class TestSharedProcesses(SessionContract):
    """Loaders that share processes are tested below."""

    def workers(self):
        return {*loader_threads(), *worker_processes()}

    def make_engine(self):
        return Shared(Processes(1, prefetch=1))


def worker(record):
    return {"x": record, "pid": os.getpid(), "thread": np.int64(threading.get_ident())}


def datasets():
    return [
        Dataset.range(60).shuffle(1).map(worker).batch(4),
        Dataset.range(0, 400).filter(is_odd).map(worker).batch(8),
        Dataset.range(50).map(worker),
    ]


ENGINES = [Threads(2), Processes(2)]


@pytest.mark.parametrize("engine", ENGINES)
def test_loaders_share_the_workers(engine):
    shared = Shared(engine)
    loaders = [DataLoader(dataset, engine=shared) for dataset in datasets()]
    iterators = [iter(loader) for loader in loaders]
    seen = set()
    for _ in range(8):
        for iterator in iterators:
            found = next(iterator)
            seen |= set(zip(np.ravel(found["pid"]), np.ravel(found["thread"]), strict=True))
    assert 1 <= len(seen) <= 2
    running = loader_threads() if isinstance(engine, Threads) else worker_processes()
    assert len(running) == 2
    assert [loader.stats().engine for loader in loaders] == [
        f"{type(engine).__name__.lower()}(2)"
    ] * 3
    for loader in loaders:
        loader.close()
    assert not worker_processes()


@pytest.mark.parametrize("engine", ENGINES)
def test_each_loader_has_its_own_stream(engine):
    shared = Shared(engine)
    chains = [
        Dataset.range(40).shuffle(1).batch(4),
        Dataset.range(400).filter(is_odd).batch(8),
        Dataset.range(90).map(lambda x: {"x": x, "t": "t" * int(x)}),
    ]
    loaders = [DataLoader(chain, engine=shared) for chain in chains]
    iterators = [iter(loader) for loader in loaders]
    for found in zip(*iterators, strict=False):
        assert len(found) == 3
    for loader, chain in zip(loaders, chains, strict=True):
        assert_same(list(loader.epoch(0)), list(chain))
        loader.close()


def test_closing_one_leaves_the_others_running():
    shared = Shared(Threads(2))
    one, two = (DataLoader(Dataset.range(40).batch(4), engine=shared) for _ in range(2))
    first, second = iter(one), iter(two)
    next(first)
    next(second)
    threads = loader_threads()
    one.close()
    assert loader_threads() == threads
    assert len(list(second)) == 9
    assert len(list(first)) == 9  # it goes on
    one.close()
    two.close()
    assert not loader_threads()


def test_dropping_all_ends_the_workers():
    shared = Shared(Threads(2))
    iterators = [iter(DataLoader(Dataset.range(40).batch(4), engine=shared)) for _ in range(2)]
    for iterator in iterators:
        next(iterator)
    del iterators[0], iterator
    gc.collect()
    assert len(loader_threads()) == 2
    next(iterators[0])
    iterators.clear()
    gc.collect()
    wait_until(lambda: not loader_threads(), "the threads to end")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loader_that_joins_later(engine):
    shared = Shared(engine)
    first = DataLoader(Dataset.range(40).batch(4), engine=shared)
    iterator = iter(first)
    taken = [next(iterator) for _ in range(3)]
    second = DataLoader(Dataset.range(100, 140).batch(4), engine=shared)
    other = list(second)
    taken += list(iterator)
    assert_same(taken, list(Dataset.range(40).batch(4)))
    assert_same(other, list(Dataset.range(100, 140).batch(4)))
    first.close()
    second.close()
    assert not worker_processes()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_that_of_its_own_loader(engine):
    def fail(number):
        if number == 9:
            raise ValueError("nine")
        return number

    shared = Shared(engine)
    good = DataLoader(Dataset.range(40).batch(4), engine=shared)
    bad = DataLoader(Dataset.range(40).map(fail).batch(4), engine=shared)
    first, second = iter(good), iter(bad)
    for _ in range(2):
        next(first)
        next(second)
    with pytest.raises(RecordError, match=r"step 2: map\(fail\) failed on record 9: ValueError"):
        next(second)
    assert len(list(first)) == 8
    good.close()
    bad.close()


def test_the_window_is_shared_out():
    shared = Shared(Threads(2, prefetch=6))
    loaders = [DataLoader(Dataset.range(40).batch(4), engine=shared) for _ in range(4)]
    sessions = []
    for loader in loaders:
        iterator = iter(loader)
        next(iterator)
        sessions.append(session_of(loader))
    assert [session.window for session in sessions] == [2] * 4
    for loader in loaders:
        loader.close()
    assert sessions[0].window == 8


def test_what_cannot_be_shared():
    for engine in (Inline(), "threads", Shared(Threads(1))):
        with pytest.raises(LoaderxError, match="Shared takes an engine that has workers"):
            Shared(engine)
    with pytest.raises(LoaderxError, match="in_order=True reads for one loader"):
        Shared(Threads(in_order=True))


def test_a_copy_has_workers_of_its_own():
    shared = Shared(Threads(2))
    copy = pickle.loads(pickle.dumps(shared))
    assert repr(copy) == repr(shared)
    assert repr(shared).startswith("Shared(Threads(num_workers=2")
