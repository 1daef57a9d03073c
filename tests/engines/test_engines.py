"""Engines: one contract, and whichever runs is never visible in the data."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, chains
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    DataLoader,
    Dataset,
    LoaderxError,
    RecordError,
)
from loaderx.engines import Auto, Inline, Processes, Threads
from loaderx.testing import EngineContract
from loaderx.testing.session_contract import SessionContract
from oracle import assert_same
from workers import loader_threads, worker_processes


class Contract(EngineContract):
    """The contract, with what outside engines need not do."""

    def workers(self):
        return {*loader_threads(), *worker_processes()}

    def test_the_traceback_of_a_failure(self):
        def fail(record):
            raise ValueError("bad record")

        with pytest.raises(RecordError, match=r"^step 0: map\(fail\) failed") as caught:
            next(iter(DataLoader(arrays(40).map(fail).batch(4), engine=self.make_engine())))
        assert "raise ValueError" in "".join(traceback.format_exception(caught.value.__cause__))


class TestInline(Contract):
    def make_engine(self):
        return Inline()


class TestOneThread(Contract):
    def make_engine(self):
        return Threads(1)


class TestThreads(Contract):
    def make_engine(self):
        return Threads(3, prefetch=1)


class TestOneThreadWithoutPrefetch(Contract):
    """A loader with a single task under way; `TestOneProcess` does not repeat its half."""

    def make_engine(self):
        return Threads(1, prefetch=0)


class TestThreadsWithoutPrefetch(Contract):
    def make_engine(self):
        return Threads(2, prefetch=0)


class TestOneProcess(SessionContract):
    """Loaders, for which a session is a session, are tested with two processes."""

    def workers(self):
        return set(_crew())

    def make_engine(self):
        return Processes(1, prefetch=0)


class TestProcesses(Contract):
    def make_engine(self):
        return Processes(2, prefetch=1)


class TestAuto(Contract):
    def make_engine(self):
        return Auto()


def _crew():
    return [*loader_threads(), *worker_processes()]


def _gone():
    """Threads of a dropped run are sent home, not waited for."""
    deadline = time.monotonic() + 30
    while _crew() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.001)
    return not _crew()


@settings(max_examples=25)
@given(chains(), st.sampled_from([1, 2, 7]))
def test_threads_equal_inline_on_generated_chains(dataset, workers):
    assert_same(DataLoader(dataset, engine="threads", num_workers=workers), dataset)


@settings(max_examples=25)
@given(batched_chains())
def test_auto_equals_inline_on_generated_chains(dataset):
    assert_same(DataLoader(dataset), dataset)


class SlowSource:
    """Reading sleeps, so threads help; every read is counted."""

    thread_safe = True

    def __init__(self, n, seconds):
        self.n, self.seconds, self.threads = n, seconds, set()

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        return {"x": i}


def test_auto_moves_waiting_work_to_threads_without_changing_the_stream():
    for _ in range(5):  # it measures: on a busy machine one trial may be lost
        source = SlowSource(400, 0.002)
        loader = DataLoader(Dataset.from_source(source).batch(4), num_workers=4)
        stream = [batch["x"].tolist() for batch in loader]
        assert stream == np.arange(400).reshape(100, 4).tolist()
        assert any(name.startswith("loaderx") for name in source.threads)
        if loader.stats().engine.startswith("threads("):
            break
    assert loader.stats().engine.startswith("threads(")
    assert "inline every" in loader.stats().reason


def test_auto_never_reads_an_unknown_source_in_threads():
    source = SlowSource(400, 0.0005)
    loader = DataLoader(Dataset.from_source(source, thread_safe=False).batch(2))
    list(loader)
    assert source.threads == {threading.current_thread().name}
    assert not loader.stats().engine.startswith("threads")
    loader.close()


def test_auto_stays_inline_for_cheap_batches():
    loader = DataLoader(arrays(4000).batch(2))
    list(loader)
    assert loader.stats().engine == "inline"
    assert "less than handing it over would" in loader.stats().reason


def test_auto_claims_no_measurement_that_it_has_not_made():
    loader = DataLoader(Dataset.from_source(SlowSource(4, 0.001)).batch(2))
    list(loader)
    assert loader.stats().engine == "inline"
    assert loader.stats().reason == "there was too little to measure yet"


def test_steps_under_way_are_bounded():
    started, taken, most = [], 0, 0
    lock = threading.Lock()

    def note(record):
        nonlocal most
        with lock:
            started.append(record["x"])
            most = max(most, len(started) - taken)
        return record

    with DataLoader(arrays(60).map(note).batch(1), engine=Threads(2, prefetch=3)) as loader:
        for _ in loader:
            taken += 1
    assert most <= 2 + 3 + 1


def test_one_slow_step_does_not_idle_the_others():
    """While step 0 waits, the rest of its window is made."""
    gate, made = threading.Event(), []

    def wait(record):
        if record["x"] == 0:
            assert gate.wait(30)
        else:
            made.append(int(record["x"]))
            if len(made) == 3:
                gate.set()
        return record

    iterator = iter(DataLoader(arrays(20).map(wait).batch(1), engine=Threads(2, prefetch=2)))
    assert next(iterator)["x"].tolist() == [0]
    assert made[:3] == [1, 2, 3]
    iterator.close()


def test_collecting_a_run_while_a_lock_is_held_does_not_deadlock():
    """Finalisers wait for nobody: a worker may need the very lock that is held here."""
    lock = threading.Lock()

    def locked(record):
        with lock:
            return record

    iterator = iter(DataLoader(arrays(400).map(locked).batch(1), engine=Threads(2)))
    next(iterator)
    box = [iterator]
    box.append(box)
    del iterator
    with lock:
        del box
        gc.collect()
    assert _gone()


def test_a_script_ends_although_a_worker_is_stuck():
    script = (
        "import loaderx as lx, time\n"
        "def stuck(x):\n    time.sleep(0 if x < 4 else 3600)\n    return x\n"
        "it = iter(lx.DataLoader(lx.Dataset.range(100).map(stuck).batch(2), engine='threads'))\n"
        "next(it)\n"
        "print('done', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_one_iterator_in_two_threads_gives_every_batch_once():
    iterator = iter(DataLoader(arrays(400).batch(2), engine=Threads(2)))
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(b["x"].tolist() for b in iterator))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(x for pair in seen for x in pair) == list(range(400))


def test_closing_from_another_thread_wakes_the_consumer():
    gate = threading.Event()

    def wait(record):
        gate.wait(30)
        return record

    loader = DataLoader(arrays(40).map(wait).batch(1), engine=Threads(2))
    iterator = iter(loader)
    ended = []

    def consume():
        try:
            list(iterator)
            ended.append("end")
        except LoaderxError as error:
            ended.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not _crew():
        time.sleep(0.001)
    iterator.close()
    gate.set()
    consumer.join(60)
    assert ended


def test_threads_read_an_unsafe_source_one_at_a_time():
    class Seek:
        def __len__(self):
            return 200

        def __getitem__(self, i):
            self.position = i
            time.sleep(0.0001)
            return np.int64(self.position)

    dataset = Dataset.from_source(Seek(), thread_safe=False).batch(5)
    stream = [b.tolist() for b in DataLoader(dataset, engine=Threads(4))]
    assert stream == np.arange(200).reshape(-1, 5).tolist()


def test_collecting_a_run_inside_its_own_worker_does_not_deadlock():
    box = []

    def drop(record):
        if record["x"] == 5:
            box.clear()
            gc.collect()
        return record

    loader = DataLoader(arrays(30).map(drop).batch(1), engine=Threads(2))
    box.append(iter(loader))
    next(box[0])
    deadline = time.monotonic() + 30
    while box and time.monotonic() < deadline:
        try:
            next(box[0])
        except (StopIteration, IndexError):
            break
    assert not box
    del loader
    gc.collect()
    assert _gone()


def test_a_forked_child_does_not_wait_for_its_parents_threads():
    dataset = Dataset.range(400).batch(4)
    with DataLoader(dataset, engine=Threads(2)) as loader:
        iterator = iter(loader)
        first = next(iterator).tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python and JAX warn of forks
            child = os.fork()
        if child == 0:  # must not return into the test runner
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                next(iterator)
            except LoaderxError as error:
                os._exit(0 if "this one was forked" in str(error) and told(loader) == first else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert next(iterator).tolist() == [4, 5, 6, 7]


def told(loader):
    return next(iter(loader)).tolist()


def test_ctrl_c_ends_a_waiting_loader():
    script = (
        "import loaderx as lx, time, sys\n"
        "def slow(x):\n    time.sleep(0.2)\n    return x\n"
        "loader = lx.DataLoader(lx.Dataset.range(10**6).map(slow).batch(2), engine='threads')\n"
        "try:\n"
        "    for batch in loader:\n"
        "        print('batch', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n"
    )
    import signal

    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "batch\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out.endswith("stopped\n")
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"engine": "process"},
            ArgumentError,
            "`engine` must be one of 'auto', 'inline', 'threads', 'processes'",
        ),
        ({"engine": 3}, ArgumentTypeError, "`engine` must be one of .* got 3"),
        ({"num_workers": -1}, ArgumentError, "`num_workers` must be at least 0, got -1"),
        ({"num_workers": 1.5}, ArgumentTypeError, "`num_workers` must be an integer"),
        ({"prefetch": -2}, ArgumentError, "`prefetch` must be at least 0"),
        (
            {"engine": Inline(), "num_workers": 2},
            ArgumentError,
            "cannot be used with an engine object",
        ),
    ],
)
def test_bad_engine_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        DataLoader(arrays(4).batch(2), **arguments)


def test_bad_threads():
    with pytest.raises(ArgumentError, match="`num_workers` must be at least 1, got 0"):
        Threads(0)


def test_num_workers_0_is_inline():
    loader = DataLoader(arrays(4).batch(2), engine="threads", num_workers=0)
    list(loader)
    assert loader.stats().engine == "inline"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_may_iterate_the_loader_that_it_works_for(workers):
    sums = []

    def nested(record):
        if record["x"] == 0 and not sums:
            sums.append(0)  # not again in the loop inside
            sums.append(sum(int(batch["x"].sum()) for batch in loader))
        return record

    dataset = arrays(40).map(nested).batch(4)
    with DataLoader(dataset, engine=Threads(workers)) as loader:
        assert_same(loader, list(arrays(40).batch(4)))
    assert sums == [0, sum(range(40))]
