"""The same workers for the whole life of a loader, and nobody else's."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from chains import arrays
from loaderx import DataLoader, LoaderxError
from loaderx.engines import Processes
from oracle import assert_same
from workers import once, pids


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


def test_an_iterator_goes_on_after_ctrl_c_in_another_one(tmp_path):
    def interrupt(record):
        if record["x"] == 60 and once(tmp_path / "sent"):
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(3600)  # until the pool is ended
        return record

    dataset = arrays(80).map(interrupt).batch(4)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with DataLoader(dataset, engine=Processes(2)) as loader:
            one, other = iter(loader), iter(loader)
            found = [next(other)]  # of which more steps are under way now
            one.seek(15)
            with pytest.raises(KeyboardInterrupt):
                next(one)
            found += other
            assert_same(found, list(arrays(80).batch(4)))
            assert_same(one, list(arrays(80).batch(4))[15:])
    finally:
        signal.signal(signal.SIGINT, before)
