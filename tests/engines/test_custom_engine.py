"""Engines written outside of loaderx, with what `loaderx.engines` exports."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import PoolPerThread, Session
from loaderx.testing import EngineContract


class Executor:
    """As in docs/extending.md."""

    def __init__(self, num_workers):
        self.num_workers = num_workers

    def session(self, work):
        return ExecutorSession(work, self.num_workers)


class ExecutorSession(Session):
    def __init__(self, work, num_workers):
        self.window = 2 * num_workers
        self._work, self._num_workers = work, num_workers
        self._pools = PoolPerThread()
        self._executor = None
        self._lock = threading.Lock()

    def submit(self, task):
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._num_workers)
            return self._executor.submit(make, self._work, task, self._pools)

    def close(self):
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)

    def describe(self):
        return f"executor({self._num_workers})", "it was asked for"


def make(work, task, pools):
    return work(task, pools.lend)


class TestOneWorker(EngineContract):
    gives_up_when_cancelled = False

    def make_engine(self):
        return Executor(1)


class TestExecutor(EngineContract):
    gives_up_when_cancelled = False

    def make_engine(self):
        return Executor(3)


class OnExecutor:
    """An engine around an executor that the user owns: no value, and nothing to start or stop."""

    def __init__(self, executor, window):
        self._executor, self._window = executor, window

    def session(self, work):
        return OnExecutorSession(self._executor, self._window, work)


class OnExecutorSession(Session):
    shares_sources = True

    def __init__(self, executor, window, work):
        self.window = window
        self._executor, self._work, self._pools = executor, work, PoolPerThread()
        self._futures = weakref.WeakSet()
        self._lock = threading.Lock()

    def submit(self, task):
        future = self._executor.submit(make, self._work, task, self._pools)
        with self._lock:
            self._futures.add(future)
        return future

    def close(self):
        """Others may use the executor: what this session has submitted is cancelled."""
        with self._lock:
            futures = list(self._futures)
        for future in reversed(futures):
            future.cancel()
        wait(futures)

    def describe(self):
        return f"executor({self.window})", "it was asked for"


class TestOnExecutor(EngineContract):
    gives_up_when_cancelled = False
    can_be_pickled = False

    @classmethod
    def setup_class(cls):
        cls.executor = ThreadPoolExecutor(2, thread_name_prefix="the user's")

    @classmethod
    def teardown_class(cls):
        cls.executor.shutdown()

    def make_engine(self):
        return OnExecutor(self.executor, window=4)

    def workers(self):
        return {name for name in super().workers() if "the user's" not in name}


def test_a_loader_with_such_an_engine_can_be_copied_but_not_pickled():
    with ThreadPoolExecutor(2) as executor:
        loader = DataLoader(DATASETS["by index"], engine=OnExecutor(executor, window=4))
        assert len(list(copy.copy(loader))) == 25
        with pytest.raises(TypeError) as caught:
            pickle.dumps(loader)
    assert isinstance(caught.value, LoaderxError)
    assert str(caught.value) == (
        "this loader cannot be pickled, since its engine OnExecutor holds what cannot be "
        "(TypeError: cannot pickle '_queue.SimpleQueue' object). Pickle the dataset, and make a "
        "loader of it there."
    )


def is_odd(number):
    return number % 2 == 1


DATASETS = {
    "by index": Dataset.range(100).batch(4),
    "a stream": Dataset.range(100).filter(is_odd).batch(4),
}


class CancelsAll(Session):
    """As if it were closed after every `submit`."""

    window = 3

    def submit(self, task):
        future = Future()
        assert future.cancel()
        return future


class Engine:
    def __init__(self, session):
        self._session = session

    def session(self, work):
        return self._session(work)


@pytest.mark.parametrize("name", list(DATASETS))
def test_a_session_that_was_closed_by_others_is_said_to_be_closed(name):
    """Between `close` of the iterator and `close` of the session, a `next` may begin."""
    iterator = iter(DataLoader(DATASETS[name], engine=Engine(lambda work: CancelsAll())))
    with pytest.raises(LoaderxError, match="the loader was closed while this batch was waited for"):
        next(iterator)
    assert iterator.step == 0


class Told(Future):
    """A future that tells when somebody waits for it, and is never done."""

    waited_for = threading.Event()

    def result(self, timeout=None):
        self.waited_for.set()
        return super().result(timeout)


@pytest.mark.parametrize("name", list(DATASETS))
def test_a_cancelled_future_is_an_iterator_that_was_closed(name):
    class Waits(Session):
        window = 3

        def submit(self, task):
            return Told()

    Told.waited_for.clear()
    iterator = iter(DataLoader(DATASETS[name], engine=Engine(lambda work: Waits())))
    with ThreadPoolExecutor(1) as other:
        taken = other.submit(next, iterator)
        assert Told.waited_for.wait(60)
        iterator.close()
        with pytest.raises(LoaderxError, match="the loader was closed while this batch was waited"):
            taken.result(60)
    assert iterator.step == 0


@pytest.mark.parametrize("name", list(DATASETS))
def test_an_error_of_the_engine_itself_is_raised_as_it_is(name):
    class Broken(Session):
        def submit(self, task):
            future = Future()
            future.set_exception(OSError("the cluster is down"))
            return future

    iterator = iter(DataLoader(DATASETS[name], engine=Engine(lambda work: Broken())))
    with pytest.raises(OSError, match="the cluster is down"):
        next(iterator)
    assert iterator.step == 0
