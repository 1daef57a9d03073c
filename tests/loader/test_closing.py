"""`close()` while a `next` is under way: from a function, a signal handler, another thread.

The `next` under way hands out its batch or raises; nothing is lost, nothing comes twice, nothing
ends quietly, and states stay exact.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Auto, Inline, Processes, Threads, Work
from runs import run_of_steps

LENGTH = 24
CLOSED = "the loader was closed while this batch was waited for. The next `next` continues with it."
ENGINES = {
    "inline": Inline(),
    "auto": Auto(2),
    "threads": Threads(2),
    "one thread": Threads(1, prefetch=0),
}
HAS_JAX = importlib.util.find_spec("jax") is not None
PLACED = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not HAS_JAX, reason="jax is not installed")),
]


def chain(kind: str, function: Any) -> Dataset[Any]:
    dataset = Dataset.range(LENGTH).map(function)
    if kind == "a stream":
        return dataset.filter(lambda x: True).batch(2)
    if kind == "a mix of streams":
        parts = [dataset.filter(lambda x, r=r: x % 2 == r) for r in (0, 1)]
        return Dataset.mix(parts).batch(2)
    return dataset.batch(2)


KINDS = ["by index", "a stream", "a mix of streams"]


def loader_of(dataset: Dataset[Any], engine: Any, placed: bool) -> DataLoader[Any]:
    if not placed:
        return DataLoader(dataset, engine=engine)
    import jax

    return DataLoader(dataset.map(np.int32), engine=engine, sharding=jax.devices()[0])


def consume(iterator: Any) -> list[tuple[dict[str, Any], list[int]]]:
    """Each batch with the state before it; a `next` that gives up is asked again."""
    seen = []
    given_up: list[str] = []
    while True:
        state = iterator.get_state()
        assert state["step"] == iterator.step == len(seen)
        try:
            seen.append((state, np.asarray(next(iterator)).tolist()))
        except StopIteration:
            return seen
        except LoaderxError as error:
            given_up.append(str(error))
        assert set(given_up) <= {CLOSED}
        assert len(given_up) < 100


def assert_exact(dataset: Dataset[Any], seen: list[tuple[dict[str, Any], list[int]]]) -> None:
    plain = iter(DataLoader(dataset, engine="inline"))
    expected = []
    while True:
        state = plain.get_state()
        try:
            expected.append((state, next(plain).tolist()))
        except StopIteration:
            break
    assert [batch for _, batch in seen] == [batch for _, batch in expected]
    assert [place(state) for state, _ in seen] == [place(state) for state, _ in expected]


def place(state: dict[str, Any]) -> dict[str, Any]:
    """A state without the names of functions."""
    return {name: value for name, value in state.items() if name != "chain"}


@contextlib.contextmanager
def handling(function: Any) -> Any:
    before = signal.signal(signal.SIGUSR1, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Closer:
    """A map function that closes its loader, now and then, in one of three ways."""

    def __init__(self, way: str) -> None:
        self.way, self.loader, self.calls = way, None, 0

    def __call__(self, x: Any) -> Any:
        if self.loader is not None:
            self.calls += 1
            if self.calls in (3, 8, 25, 31, 60):
                self.close()
        return x

    def close(self) -> None:
        assert self.loader is not None
        if self.way == "a call":
            self.loader.close()
        elif self.way == "a signal":
            signal.raise_signal(signal.SIGUSR1)  # handled at once if this is the main thread
        else:
            closer = threading.Thread(target=self.loader.close)
            closer.start()
            if threading.current_thread() is threading.main_thread():
                closer.join(60)  # a worker must not: closing waits for it


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("way", ["a call", "a signal", "another thread"])
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("kind", KINDS)
def test_closing_inside_a_function_of_the_dataset(kind, engine, way, placed):
    closer = Closer(way)
    loader = loader_of(chain(kind, closer), ENGINES[engine], placed)
    with handling(lambda *_: loader.close()):
        closer.loader = loader
        seen = consume(iter(loader))
        assert closer.calls > 8
        closer.loader = None
    loader.close()
    assert_exact(chain(kind, lambda x: x), seen)


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_closing_from_another_thread_while_a_function_waits(kind, engine, tmp_path):
    """The other thread closes while step 5 is being made, and only then lets it go on."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def wait(x: Any) -> Any:
        if x == 10 and not begun.exists():
            begun.touch()
            until = time.monotonic() + 60
            while not go_on.exists() and time.monotonic() < until:
                time.sleep(0.001)
        return x

    dataset = chain(kind, wait)
    loader = DataLoader(dataset, engine=engine, num_workers=1)

    def close() -> None:
        while not begun.exists():
            time.sleep(0.001)
        loader.close()
        go_on.touch()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        seen = consume(iter(loader))
    finally:
        begun.touch()
        closer.join(60)
    loader.close()
    assert_exact(chain(kind, lambda x: x), seen)


@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_closing_processes_in_a_signal_handler_inside_next(kind, monkeypatch):
    """At every wait of the consumer, for as long as each of them lasts."""
    from loaderx.engines.processes.pool import WorkerPool

    dataset = chain(kind, lambda x: x)
    poll, waits = WorkerPool.poll, []

    def interrupted(pool: WorkerPool, timeout_s: float) -> None:
        waits.append(timeout_s)
        if len(waits) in (1, 2, 3, 8):  # after each there is one more wait, that for a new worker
            signal.raise_signal(signal.SIGUSR1)
        poll(pool, timeout_s)

    monkeypatch.setattr(WorkerPool, "poll", interrupted)
    with (
        DataLoader(dataset, engine=Processes(1, prefetch=1)) as loader,
        handling(lambda *_: loader.close()),
    ):
        seen = consume(iter(loader))
    assert len(waits) > 3
    assert_exact(dataset, seen)


@pytest.mark.parametrize("engine", ["inline", "threads", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_closes_from_another_thread(kind, engine):
    """However they fall: no end before the end, no batch twice, none lost."""
    dataset = chain(kind, lambda x: x)
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:

        def close() -> None:
            for _ in range(20):
                loader.close()

        closer = threading.Thread(target=close)
        closer.start()
        try:
            seen = consume(iter(loader))
        finally:
            closer.join(60)
    assert_exact(dataset, seen)


def test_a_closed_run_of_threads_is_no_end():
    work = _Numbers()
    session = Threads(1).session(work)
    run = run_of_steps(session, work, range(4))
    assert run.next() == (0,)
    run.close()
    with pytest.raises(LoaderxError, match="the loader was closed while this batch was waited for"):
        run.next()


class _Numbers(Work):
    def __call__(self, task: Any, lend: Any) -> Any:
        return task


@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_workers_go_although_the_loader_is_closed_in_the_middle_of_next(kind):
    """The processes of a run that is still under way are not kept when it ends."""
    from loaderx.engines.processes.pool import WorkerPool
    from workers import wait_until_no_worker_is_left, worker_processes

    dataset = chain(kind, lambda x: x)
    loader = DataLoader(dataset, engine=Processes(1, prefetch=1))
    iterator = iter(loader)
    next(iterator)
    assert worker_processes()
    poll = WorkerPool.poll

    def closing(pool: WorkerPool, timeout_s: float) -> None:
        loader.close()  # what a signal handler would do
        poll(pool, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "poll", closing)
        with contextlib.suppress(LoaderxError):
            for _ in range(LENGTH):
                next(iterator)
    assert not wait_until_no_worker_is_left()
    seen = np.concatenate([*iterator]).tolist()
    assert seen == list(range(seen[0], LENGTH))
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_next_inside_next_is_an_error(kind):
    box: list[Any] = []

    def nested(x: Any) -> Any:
        if box:
            next(box[0])
        return x

    iterator = iter(DataLoader(chain(kind, nested), engine="inline"))
    box.append(iterator)
    with pytest.raises(
        LoaderxError, match="`next` was called inside a `next` of the same iterator"
    ):
        next(iterator)
    box.clear()
    assert next(iterator).tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_moving_inside_next_is_an_error(kind):
    box: list[Any] = []

    def moving(x: Any) -> Any:
        if box:
            iterator, state = box
            iterator.set_state(state)
        return x

    iterator = iter(DataLoader(chain(kind, moving), engine="inline"))
    state = iterator.get_state()
    box.extend([iterator, state])
    with pytest.raises(LoaderxError, match="cannot be moved inside its own `next`"):
        next(iterator)
    box.clear()
    assert next(iterator).tolist() == [0, 1]


def test_a_state_taken_inside_next_is_that_of_the_batch_under_way():
    """As a handler of SIGTERM would take it, over more steps than positions are remembered."""
    states: list[Any] = []
    box: list[Any] = []

    def save(x: Any) -> Any:
        states.append(box[0].get_state())
        return x

    length = 600
    dataset = Dataset.range(length).filter(lambda x: True).batch(1).map(save)
    iterator = iter(DataLoader(dataset, engine="inline"))
    box.append(iterator)
    expected = []
    for _ in range(length):
        expected.append(iterator.get_state())
        next(iterator)
    assert states == expected


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("kind", KINDS)
def test_closing_wakes_a_next_that_waits_for_a_thread(kind, placed, monkeypatch):
    monkeypatch.setattr(
        "loaderx.loader.iterator.CLOSE_PATIENCE_S", 0.1
    )  # the thread goes on waiting
    begun, go_on = threading.Event(), threading.Event()

    def wait(x: Any) -> Any:
        begun.set()
        go_on.wait(120)
        return x

    loader = loader_of(chain(kind, wait), Threads(1), placed)
    said: list[str] = []

    def take() -> None:
        with pytest.raises(LoaderxError) as caught:
            next(iter(loader))
        said.append(str(caught.value))

    consumer = threading.Thread(target=take)
    consumer.start()
    try:
        assert begun.wait(60)
        loader.close()
        consumer.join(60)
        assert said == [CLOSED]
    finally:
        go_on.set()
        consumer.join(60)
    loader.close()
