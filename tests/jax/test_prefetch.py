"""Batches that are placed ahead of use."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import loaderx as lx
from devices import filtered, rows, table
from loaderx import DataLoader, Dataset
from loaderx.jax.placement import Placement
from loaderx.jax.prefetch import PlacedRun

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own


class Counting:
    """A source that knows how often it was read."""

    thread_safe = True

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        if index == 25:
            raise ValueError("no such record")
        return np.full(2, index, np.float32)


def stream(source: Any, **options: Any) -> Any:
    dataset = Dataset.from_source(source).batch(1)
    return iter(DataLoader(dataset, sharding=jax.devices()[0], engine="inline", **options))


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_batches_are_placed_ahead_and_do_not_count(depth):
    source = Counting()
    iterator = stream(source, device_prefetch=depth)
    for step in range(12):
        assert int(next(iterator)[0, 0]) == step
        assert len(set(source.read)) == step + 1 + min(step, depth)
        assert iterator.step == iterator.get_state()["step"] == step + 1
    iterator.close()


def test_a_failure_waits_for_its_step():
    source = Counting()
    iterator = stream(source, device_prefetch=3)
    iterator.seek(20)
    assert [int(next(iterator)[0, 0]) for _ in range(5)] == [20, 21, 22, 23, 24]
    for _ in range(2):  # and it stays there
        with pytest.raises(lx.RecordError, match="step 25: .* failed on record 25"):
            next(iterator)
        assert iterator.step == 25
    iterator.seek(26)
    assert int(next(iterator)[0, 0]) == 26
    state = iterator.get_state()
    other = stream(Counting())
    other.set_state(state)
    assert [int(batch[0, 0]) for batch in other] == list(range(27, 40))
    with pytest.raises(StopIteration):
        next(other)
    other.close()
    iterator.close()
    iterator.close()
    assert int(next(iterator)[0, 0]) == 27


def test_what_is_ahead_does_not_wait_for_what_is_not_made_yet():
    class Run:
        """Gives numbers; waiting for one would be a failure."""

        is_ready, given = True, 0

        def ready(self) -> bool:
            return self.is_ready

        def next(self) -> Any:
            assert self.is_ready
            self.given += 1
            return np.arange(self.given, self.given + 4, dtype=np.int32)

        def close(self) -> None:
            pass

    run = Run()
    placed = PlacedRun(run, Placement(jax.devices()[0]), 2)
    assert [int(placed.next()[0]) for _ in range(3)] == [1, 2, 3]
    assert run.given == 5  # two ahead
    run.is_ready = False
    assert [int(placed.next()[0]) for _ in range(2)] == [4, 5]
    run.is_ready = True
    assert [int(placed.next()[0]) for _ in range(3)] == [6, 7, 8]
    assert run.given == 10


def test_ctrl_c_while_loading_ahead_loses_nothing():
    source = Counting()
    iterator = stream(source)
    for _ in range(3):
        next(iterator)
    plain, source.__class__ = source.__class__, _Interrupted
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    source.__class__ = plain
    assert int(next(iterator)[0, 0]) == 3


class _Interrupted(Counting):
    def __getitem__(self, index: int) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_threads_share_an_iterator(kind, placed, engine):
    """They begin and end at once, with the interpreter going from one to the other all the time."""
    dataset = table(40)
    if kind == "a stream":
        dataset = dataset.filter(lambda record: True)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(25):
            sharding = jax.devices()[0] if placed else None
            with DataLoader(dataset.batch(4), sharding=sharding, engine=engine) as loader:
                assert shared(iter(loader), 3) == list(range(0, 80, 8))
    finally:
        sys.setswitchinterval(usual)


def shared(iterator: Any, count: int) -> list[int]:
    """What several threads get of one iterator."""
    together, seen = threading.Barrier(count), []

    def take() -> None:
        together.wait()
        for batch in iterator:
            seen.append(int(batch["label"][0, 0]))

    takers = [threading.Thread(target=take) for _ in range(count)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    return sorted(seen)


def test_closing_while_another_thread_waits_ends_its_wait():
    """Whatever is under way: the waiting thread gets an answer, and nothing hangs."""
    entered, go_on = threading.Event(), threading.Event()

    class Blocking(Counting):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                entered.set()
                go_on.wait(20)
            return super().__getitem__(index)

    iterator, outcome = stream(Blocking(), device_prefetch=0), []

    def take() -> None:
        try:
            for _ in range(4):
                next(iterator)
        except (lx.LoaderxError, StopIteration) as error:
            outcome.append(error)
        else:
            outcome.append(None)

    taker = threading.Thread(target=take)
    taker.start()
    assert entered.wait(20)
    iterator.close()
    go_on.set()
    taker.join(20)
    assert not taker.is_alive()
    assert len(outcome) == 1
    iterator.close()


def test_closing_just_before_a_batch_is_handed_out_is_no_quiet_end():
    class Run:
        """Is closed between the last look and the taking."""

        def next(self) -> Any:
            return np.ones(2, np.float32)

        def ready(self) -> bool:
            placed.close()
            return False

        def close(self) -> None:
            pass

    placed = PlacedRun(Run(), Placement(jax.devices()[0]), 2)
    placed.next()
    with pytest.raises(lx.LoaderxError, match="was closed while this batch was waited for"):
        placed.next()


@pytest.mark.parametrize("is_stream", [False, True])
def test_start_lets_workers_begin_and_places_nothing(is_stream):
    begun = threading.Event()

    def note(record: Any) -> Any:
        begun.set()
        return record

    dataset = Dataset.from_arrays(x=np.arange(40, dtype=np.int64))
    dataset = (dataset.filter(lambda r: True) if is_stream else dataset).map(note).batch(4)
    with DataLoader(dataset, sharding=jax.devices()[0], engine="threads", num_workers=1) as loader:
        iterator = iter(loader)
        iterator.start()
        assert begun.wait(60)
        assert iterator.step == 0
        assert [batch["x"].tolist() for batch in iterator] == [
            list(range(first, first + 4)) for first in range(0, 40, 4)
        ]


def test_a_dropped_iterator_leaves_nothing():
    iterator = iter(DataLoader(table().batch(8).repeat(), sharding=rows("data"), engine="threads"))
    for _ in range(5):
        next(iterator)
    del iterator
    gc.collect()  # the fixture looks for threads


def test_stats_count_what_was_handed_out():
    with DataLoader(table().batch(16), sharding=rows("data")) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        stats = loader.stats()
    assert (stats.batches, stats.records) == (2, 32)
    assert stats.bytes == 2 * 16 * (16 + 8)


def test_a_stream_far_ahead_knows_its_position():
    with DataLoader(filtered(), sharding=jax.devices()[0], device_prefetch=300) as loader:
        iterator = iter(loader)
        for _ in range(600):
            next(iterator)
        state, expected = iterator.get_state(), next(iterator)["x"].tolist()
    plain = iter(DataLoader(filtered()))
    plain.set_state(state)
    assert next(plain)["x"].tolist() == expected


def test_batches_of_a_stream_are_placed_and_its_state_is_what_was_handed_out():
    expected = [batch["x"].tolist() for batch in itertools.islice(filtered(), 40)]
    sharding = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data"))
    with DataLoader(filtered(), sharding=sharding) as loader:
        iterator = iter(loader)
        for step in range(20):
            batch = next(iterator)
            assert isinstance(batch["x"], jax.Array)
            assert batch["x"].sharding == sharding
            assert (batch["x"].dtype, batch["wide"].dtype) == (jnp.int32, jnp.float32)
            assert batch["x"].tolist() == expected[step]
        state = json.loads(json.dumps(iterator.get_state()))
        next(iterator)
        iterator.set_state(state)
        assert [next(iterator)["x"].tolist() for _ in range(20)] == expected[20:]
    plain = iter(DataLoader(filtered()))
    plain.set_state(state)
    assert next(plain)["x"].tolist() == expected[20]
