"""Ctrl-C at every place where Python can deliver it.

Python runs signal handlers where a Python function begins and after each call into C; a call that
waits is broken off before it does its work.  `Interrupting` is told of exactly these places (they
are what `sys.setprofile` reports) and calls the handler of SIGINT at the chosen one, as Python
would.  So these tests go through all places one by one, without a clock.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import loaderx
from loaderx import DataLoader, Dataset
from loaderx.engines import Inline, Processes, Threads
from loaderx.engines.signals import SignalsDeferred
from loaderx.sources import Source
from workers import loader_threads, wait_until_no_worker_is_left

PACKAGE = str(Path(loaderx.__file__).parent)
BELOW = ("/threading.py", "/subprocess.py", "/contextlib.py")
WAITS = {"acquire", "sleep", "poll", "waitpid", "read"}


class Interrupting:
    """Ctrl-C at a place, counted from the beginning of the block; and again some calls later.

    Python ends profiling when the function that it tells raises, so the second is left to tracing.
    """

    def __init__(self, place: int, later: int) -> None:
        self.place, self.later = place, later
        self.count, self.since = 0, -1

    def __enter__(self) -> Interrupting:
        if self.later:
            sys.settrace(self._look_again)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        if self.later:
            sys.settrace(None)

    def _look(self, frame: Any, event: str, what: Any) -> None:
        if event == "c_call":
            counts = what.__name__ in WAITS
        else:
            counts = event in ("call", "c_return")
        if counts and is_ours(frame.f_code):
            self.count += 1
            if self.count == self.place and not is_finalising(frame):
                self.since = 0
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

    def _look_again(self, frame: Any, event: str, what: Any) -> None:
        if self.since >= 0 and is_ours(frame.f_code):
            self.since += 1
            if self.since == self.later and not is_finalising(frame):
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)


@functools.cache
def is_ours(code: Any) -> bool:
    """Is it loaderx, or what loaderx calls?"""
    return code.co_filename.startswith(PACKAGE) or code.co_filename.endswith(BELOW)


def is_finalising(frame: Any) -> bool:
    """Is a finaliser at work?  Python ends those at an interrupt, whatever is done about it."""
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "__del__" or code.co_filename.endswith("/weakref.py"):
            return True
    return False


LENGTH = 6


def chain(kind: str) -> Dataset[Any]:
    dataset = Dataset.range(LENGTH)
    if kind == "a stream":
        dataset = dataset.filter(_is_small)
    return dataset.batch(2)


def _is_small(x: Any) -> bool:
    return bool(x < 100)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()


def use(loader: DataLoader[Any], place: int = 0, later: int = 0) -> int:
    """Iterates and closes with Ctrl-C at a place, and says how many places came before the end."""
    iterator = iter(loader)
    seen: list[list[int]] = []
    with Interrupting(place, later) as interrupting:
        while True:
            try:
                for batch in iterator:
                    seen += [batch]  # what the caller does with a batch is not looked at
                loader.close()
                break
            except KeyboardInterrupt:
                pass
    assert [batch.tolist() for batch in seen] == [[0, 1], [2, 3], [4, 5]], (place, later)
    assert iterator.step == 3
    return interrupting.count


def assert_nothing_is_left(before: set[str], loader: DataLoader[Any]) -> None:
    """Soon: a thread that was sent away by a finaliser has to be given the time to go."""
    loader.close()
    until = time.monotonic() + 60
    while (loader_threads() or descriptors() != before) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.001)
    assert not loader_threads()
    assert descriptors() == before


ENGINES = {"inline": Inline(), "threads": Threads(1, prefetch=1)}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("later", [0, 1, 2, 4, 7], ids=lambda later: f"and {later}")
@pytest.mark.parametrize("kind", ["by index", "a stream"])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_ctrl_c_anywhere_loses_no_batch_and_leaves_nothing(kind, engine, later):
    """Once; and a second time, so many calls later, while the first is being dealt with.

    A generator that is collected swallows an interrupt (that is Python's, too), hence the filter.
    """
    dataset = chain(kind)
    use(DataLoader(dataset, engine=ENGINES[engine]))  # imports, caches
    count = use(DataLoader(dataset, engine=ENGINES[engine]))
    assert count > 50
    gc.collect()
    before = descriptors()
    every = 1 if kind == "by index" and not later else 7  # a stream has many places in its plan
    for place in range(1 + later, count + 1, every):
        loader = DataLoader(dataset, engine=ENGINES[engine])
        use(loader, place, later)
        assert_nothing_is_left(before, loader)


class Far(Source):
    """Numbers that are fetched."""

    thread_safe = True

    def __len__(self) -> int:
        return LENGTH

    def gather(self, indices: Any) -> Any:
        return indices.copy()

    def fetch(self, indices: Any) -> int:
        return len(indices)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("later", [0, 3], ids=lambda later: f"and {later}")
def test_ctrl_c_while_records_are_fetched_ahead(later):
    dataset = Dataset.from_source(Far()).batch(2)
    use(DataLoader(dataset, engine="inline"))  # imports, caches
    count = use(DataLoader(dataset, engine="inline"))
    gc.collect()
    before = descriptors()
    for place in range(1 + later, count + 1, 2):
        loader = DataLoader(dataset, engine="inline")
        use(loader, place, later)
        assert_nothing_is_left(before, loader)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_with_worker_processes():
    """At some places while they start, work and end; also twice."""
    dataset = chain("by index")
    count = use(DataLoader(dataset, engine=Processes(1, prefetch=1)))
    gc.collect()
    before = descriptors()
    for number in range(1, 5):
        loader = DataLoader(dataset, engine=Processes(1, prefetch=1))
        use(loader, count * number // 5, number % 3)
        assert_nothing_is_left(before, loader)
        assert not wait_until_no_worker_is_left()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ctrl_c_while_threads_start(number, monkeypatch):
    started = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("loaderx"):
            started.append(thread)
            if len(started) == number:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    loader = DataLoader(chain("by index"), engine=Threads(3))
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    loader.close()
    for thread in started:
        thread.join(60)
    assert not any(thread.is_alive() for thread in started)
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3], [4, 5]]
    loader.close()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_worker_processes_are_ended(times, monkeypatch):
    """As often as they are waited for: all is given back, and then the interrupt is raised."""
    from loaderx.engines.processes.worker_processes import WorkerProcesses

    gc.collect()
    before = descriptors()
    loader = DataLoader(chain("by index"), engine=Processes(2))
    iterator = iter(loader)
    next(iterator)
    wait, waits = WorkerProcesses._wait, []

    def interrupted(processes: WorkerProcesses, patience_s: float) -> None:
        waits.append(patience_s)
        if len(waits) <= times:
            signal.raise_signal(signal.SIGINT)
        wait(processes, patience_s)

    monkeypatch.setattr(WorkerProcesses, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    assert len(waits) == 2
    assert not wait_until_no_worker_is_left()
    del iterator, loader
    gc.collect()
    assert descriptors() == before


def test_deferred_signals_are_handled_at_the_end_of_the_block():
    came = []
    usual = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), SignalsDeferred():
            with SignalsDeferred():
                signal.raise_signal(signal.SIGUSR1)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            assert came == []
            came.append("inside")
        assert came == ["inside", signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_are_not_touched_in_other_threads():
    seen = []

    def look() -> None:
        with SignalsDeferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert seen == [signal.default_int_handler]


def test_ctrl_c_in_a_terminal_stops_the_script_and_nobody_else_speaks():
    script = textwrap.dedent(
        """
        import loaderx as lx, time
        def slow(x):
            time.sleep(0.05)
            return x
        loader = lx.DataLoader(lx.Dataset.range(10**6).map(slow).batch(2), engine="processes")
        try:
            for batch in loader:
                print("batch", flush=True)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout.readline() == "batch\n"
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert out.endswith("stopped\n")
    assert (child.returncode, err) == (0, "")


def test_ctrl_c_ends_a_stream():
    script = (
        "import loaderx as lx, signal, os, threading\n"
        "ds = lx.Dataset.range(100).repeat().filter(lambda x: x % 2 == 0).batch(2)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    for batch in lx.DataLoader(ds, engine='threads'): pass\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
