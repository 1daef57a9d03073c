"""Ctrl-C at every place where Python can deliver it.

Python runs signal handlers where a Python function begins and after each call into C; a call that
waits is broken off before it does its work.  `Interrupting` is told of exactly these places (they
are what `sys.setprofile` reports) and calls the handler of SIGINT at the chosen one, as Python
would.  So these tests go through all places one by one, without a clock.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import _left_running, worker_processes

import loaderx
from loaderx import DataLoader, Dataset
from loaderx.engines import Inline, Processes, Threads
from loaderx.engines.signals import SignalsDeferred

PACKAGE = str(Path(loaderx.__file__).parent)
BELOW = (PACKAGE, threading.__file__, "/subprocess.py", "/contextlib.py")
WAITS = {"acquire", "sleep", "poll", "waitpid", "read"}


class Interrupting:
    """Ctrl-C at the places of these numbers, counted from the beginning of the block."""

    def __init__(self, *places: int) -> None:
        self.places, self.count = set(places), 0

    def __enter__(self) -> Interrupting:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: Any, event: str, what: Any) -> None:
        if event == "c_call":
            counts = what.__name__ in WAITS
        else:
            counts = event in ("call", "c_return")
        if not counts or not self._is_ours(frame):
            return
        self.count += 1
        if self.count in self.places:
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

    def _is_ours(self, frame: Any) -> bool:
        """Is it loaderx's own, or what loaderx called?  Finalisers are not: Python ends those."""
        name = frame.f_code.co_filename
        if not (name.startswith(PACKAGE) or name.endswith(BELOW[1:])):
            return False
        ours = False
        while frame is not None:
            name = frame.f_code.co_filename
            if name.endswith("/weakref.py") or frame.f_code.co_name == "__del__":
                return False
            ours = ours or name.startswith(PACKAGE)
            frame = frame.f_back
        return ours


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


def use(loader: DataLoader[Any], *places: int) -> int:
    """Iterates and closes with Ctrl-C at these places, and says how many places there were."""
    iterator = iter(loader)
    seen: list[list[int]] = []
    interrupted = 0
    with Interrupting(*places) as interrupting:
        while True:
            # What the caller does with a batch is its own affair, so the batch is kept at once.
            try:
                for batch in iterator:
                    seen += [batch.tolist()]
                loader.close()
                break
            except KeyboardInterrupt:
                interrupted += 1
    assert seen == [[0, 1], [2, 3], [4, 5]], places
    assert iterator.step == 3
    assert interrupted <= len(places)
    return interrupting.count


def assert_nothing_is_left(before: set[str], loader: DataLoader[Any]) -> None:
    loader.close()
    if _left_running() or descriptors() != before:
        gc.collect()
    assert not _left_running()
    assert descriptors() == before


ENGINES = [(Inline(), 1), (Threads(1, prefetch=1), 1)]


@pytest.mark.parametrize("kind", ["by index", "a stream"])
@pytest.mark.parametrize(("engine", "stride"), ENGINES, ids=["inline", "threads"])
def test_ctrl_c_anywhere_loses_no_batch_and_leaves_nothing(kind, engine, stride):
    dataset = chain(kind)
    use(DataLoader(dataset, engine=engine))  # imports, caches
    gc.collect()
    before = descriptors()
    place, count = 0, 1
    while place <= count:
        loader = DataLoader(dataset, engine=engine)
        count = use(loader, place)
        assert_nothing_is_left(before, loader)
        place += stride
    assert place > 50


@pytest.mark.parametrize("kind", ["by index", "a stream"])
@pytest.mark.parametrize("engine", [Inline(), Threads(1, prefetch=1)], ids=["inline", "threads"])
def test_a_second_ctrl_c_soon_after_the_first(kind, engine):
    """The second comes while the first is being dealt with."""
    dataset = chain(kind)
    use(DataLoader(dataset, engine=engine))
    gc.collect()
    before = descriptors()
    place, count = 1, 1
    while place <= count:
        for later in (1, 2, 3, 5, 8, 13):
            loader = DataLoader(dataset, engine=engine)
            count = use(loader, place, place + later)
            assert_nothing_is_left(before, loader)
        place += 3
    assert place > 50


@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_ctrl_c_with_worker_processes(kind):
    """At some places each time they start, work and end; also twice."""
    dataset = chain(kind)
    loader = DataLoader(dataset, engine=Processes(1, prefetch=1))
    count = use(loader)
    gc.collect()
    before = descriptors()
    for number in range(1, 10):
        place = count * number // 10
        loader = DataLoader(dataset, engine=Processes(1, prefetch=1))
        use(loader, place, place + 40)
        assert_nothing_is_left(before, loader)
    assert not worker_processes()


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
    assert not any(thread.is_alive() for thread in started)
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3], [4, 5]]
    loader.close()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_worker_processes_are_ended(times, monkeypatch):
    """As often as they are waited for: all is given back, and then the interrupt is raised."""
    from loaderx.engines.processes.staff import Staff

    gc.collect()
    before = descriptors()
    loader = DataLoader(chain("by index"), engine=Processes(2))
    iterator = iter(loader)
    next(iterator)
    wait, waits = Staff._wait, []

    def interrupted(staff: Staff, patience_s: float) -> None:
        waits.append(patience_s)
        if len(waits) <= times:
            signal.raise_signal(signal.SIGINT)
        wait(staff, patience_s)

    monkeypatch.setattr(Staff, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    assert len(waits) == 2
    assert not worker_processes()
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
