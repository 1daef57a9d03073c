"""Steps whose rows several workers make: the same bytes, the same errors, and no waiting."""

from __future__ import annotations

import os
import signal
import threading
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, chains
from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError, StackError
from loaderx.engines import Auto, Processes, Shared, Threads
from loaderx.loader.tasks import shared_steps as shared_steps_module
from one_pool import over_one_pool
from oracle import assert_same, same
from plain import grow, jitter
from shared_steps import meet, share_every_step
from workers import once

ENGINES = [Threads(2), Processes(2)]


@pytest.fixture(autouse=True)
def every_step_is_shared(monkeypatch):
    share_every_step(monkeypatch)


def shared(dataset, engine, **options):
    return DataLoader(dataset, engine=engine, **options)


def as_text(record):
    return {"text": "a" * (int(record["x"]) % 5), "raw": b"\0" * 3, "n": int(record["x"])}


def ragged(record):
    n = int(record["x"]) % 7
    return {"tokens": np.arange(n, dtype=np.int16), "id": record["x"]}


Pair = namedtuple("Pair", "x deep")


def nested(record):
    return Pair(record["x"], {"a": (record["y"], 1.5), "b": [record["y"][:1]]})


def mixed_numbers(record):  # what becomes of a column depends on all its rows
    n = float(record["x"])
    return {"n": n if n < 17 else np.float32(n)}


def seen_types(records):
    """A collate function that sees everything about its records."""
    types = [
        f"{type(r).__name__}{sorted((k, type(v).__name__) for k, v in r.items())}" for r in records
    ]
    flags = [
        [leaf.flags.writeable for leaf in r.values() if type(leaf) is np.ndarray] for r in records
    ]
    return {
        "types": np.array(types),
        "flags": np.array(flags),
        "x": np.array([r["x"] for r in records]),
    }


CHAINS = {
    "map": arrays(50).map(grow).batch(12),
    "random_map": arrays(50).shuffle(1).random_map(jitter).batch(12).repeat(2),
    "batch functions": arrays(50).map(grow).batch(12).map(grow).random_map(jitter),
    "index": arrays(50).map_with_index(lambda i, r: {**r, "i": i}).batch(12),
    "pad": arrays(50).map(grow).batch(12, pad_remainder=True),
    "drop": arrays(50).map(grow).batch(12, drop_remainder=True),
    "pad_to": arrays(50).map(ragged).batch(12, pad_to={"tokens": 8}),
    "text": arrays(50).map(as_text).batch(12),
    "nested": arrays(50).map(nested).batch(12),
    "numbers": arrays(50).map(mixed_numbers).batch(12),
    "bare": arrays(50).map(lambda r: r["y"]).batch(12),
    "tuples": arrays(50).map(lambda r: (r["y"], r["x"])).batch(12),
    "collate": arrays(50).map(grow).batch(12, collate_fn=seen_types),
    "collate views": Dataset.from_source([{"x": np.arange(3) + i} for i in range(50)])
    .map(lambda r: r)
    .batch(12, collate_fn=seen_types),
    "mix": Dataset.mix([arrays(30), arrays(30).map(grow)], [1, 2]).batch(9),
    "zip": Dataset.zip([arrays(30), arrays(30).map(grow)]).batch(9),
}


@pytest.mark.parametrize("name", CHAINS)
def test_steps_that_threads_share_have_the_same_bytes(name):
    with shared(CHAINS[name], Threads(2)) as loader:
        assert_same(loader, list(DataLoader(CHAINS[name], engine="inline")))


def test_steps_that_processes_share_have_the_same_bytes():
    with over_one_pool(CHAINS.values(), Processes(2)) as loaders:
        for loader, dataset in zip(loaders, CHAINS.values(), strict=True):
            assert_same(loader, list(DataLoader(dataset, engine="inline")))


@settings(max_examples=60)
@given(batched_chains())
def test_threads_that_share_equal_inline_on_generated_chains(dataset):
    with shared(dataset, Threads(3)) as loader:
        assert_same(loader, list(dataset))


@settings(max_examples=2)
@given(st.lists(batched_chains(), min_size=4, max_size=4))
def test_processes_that_share_equal_inline_on_generated_chains(datasets):
    with over_one_pool(datasets, Processes(2)) as loaders:
        for loader, dataset in zip(loaders, datasets, strict=True):
            assert_same(loader, list(dataset))


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("host", [0, 1])
def test_a_host_shares_its_own_rows(engine, host):
    dataset = arrays(50).random_map(jitter).batch(12, pad_remainder=True)
    expected = DataLoader(dataset, engine="inline", shard=(host, 2))
    with shared(dataset, engine, shard=(host, 2)) as loader:
        assert_same(loader, list(expected))


# That steps are shared: these would wait for ever if they were not.


def test_a_slow_record_does_not_keep_the_other_threads_from_its_step(monkeypatch):
    monkeypatch.undo()
    done = threading.Event()

    def slow(record):
        if record["x"] == 0:
            done.wait()  # for the last record of the same batch
        elif record["x"] == 63:
            done.set()
        return record

    with DataLoader(arrays(64).map(slow).batch(64), engine=Threads(2)) as loader:
        (batch,) = loader
    assert batch["x"].tolist() == list(range(64))


def test_a_slow_record_does_not_keep_the_other_processes_from_its_step(tmp_path, monkeypatch):
    monkeypatch.undo()
    path = tmp_path / "meet"
    os.mkfifo(path)

    def slow(record):
        if record["x"] in (0, 63):
            meet(path, first=record["x"] == 0)
        return record

    with DataLoader(arrays(64).map(slow).batch(64), engine=Processes(2)) as loader:
        (batch,) = loader
    assert batch["x"].tolist() == list(range(64))


def test_cheap_steps_and_gathers_are_not_shared(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(shared_steps_module, "SHARED_S", 1e9)
    threads: dict[int, set[int]] = {}

    def note(record):
        threads.setdefault(int(record["x"]) // 16, set()).add(threading.get_ident())
        return record

    with DataLoader(arrays(160).map(note).batch(16), engine=Threads(2)) as loader:
        list(loader)  # of which the first step is shared: nothing is known before it
        threads.clear()
        list(loader)
    assert [len(one) for one in threads.values()] == [1] * 10


# Failures.


def failing(rows):
    def fail(record):
        if int(record["x"]) in rows:
            raise ValueError(f"record {record['x']} is bad")
        return record

    return fail


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("rows", [{0}, {31}, {5, 30}], ids=repr)
def test_a_row_that_fails_fails_as_it_does_in_a_whole_step(engine, rows):
    # The later stage fails on an earlier record: in one go, that of the first stage is raised.
    dataset = arrays(64).map(failing(rows)).map(failing({1})).batch(32)
    with pytest.raises(RecordError) as expected:
        list(DataLoader(dataset, engine="inline"))
    with shared(dataset, engine) as loader:
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(RecordError) as found:
                next(iterator)
            assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
            assert (found.value.step, found.value.index) == (0, expected.value.index)


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_step_after_one_that_failed_is_whole(engine):
    dataset = arrays(64).map(failing({3})).batch(16)
    with shared(dataset, engine) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError, match="record 3 is bad"):
            next(iterator)
        iterator.seek(1)
        assert_same(iterator, list(arrays(64).batch(16))[1:])


@pytest.mark.filterwarnings("ignore:.*records have failed")
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_records_that_on_error_replaces_are_the_same_and_counted_once(engine):
    dataset = arrays(64).map(failing({3, 17, 40})).on_error("replace").random_map(jitter).batch(20)
    expected, found = DataLoader(dataset, engine="inline"), shared(dataset, engine)
    with expected, found:
        batches = list(expected)
        assert_same(found, batches)
        assert list(map(str, found.stats().failures)) == list(map(str, expected.stats().failures))
        assert found.stats().replaced == 3


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_records_that_cannot_be_stacked_are_named_as_ever(engine):
    def grown(record):
        return {"x": np.zeros(3 if record["x"] == 20 else 2)}

    dataset = arrays(32).map(grown).batch(32)
    with pytest.raises(StackError, match="record 20 has shape") as expected:
        list(DataLoader(dataset, engine="inline"))
    with shared(dataset, engine) as loader, pytest.raises(StackError) as found:
        list(loader)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_batch_function_that_fails_is_told_as_ever(engine):
    def fail(batch):
        raise ValueError("no")

    with (
        shared(arrays(32).map(grow).batch(32).map(fail), engine) as loader,
        pytest.raises(RecordError, match=r"map\(.*fail\) failed on a batch"),
    ):
        list(loader)


def test_records_that_cannot_be_pickled_are_put_together_in_one_worker():
    def lock(record):
        return {"x": record["x"], "lock": threading.Lock()}

    def collate(records):
        return {"x": np.array([record["x"] for record in records])}

    dataset = arrays(40).map(lock).batch(8, collate_fn=collate)
    with shared(dataset, Processes(2)) as loader:
        assert_same(loader, list(DataLoader(dataset, engine="inline")))


def test_an_error_does_not_wait_for_other_threads_and_closing_does(monkeypatch):
    monkeypatch.setattr("loaderx.loader.iterator.CLOSE_PATIENCE_S", 1e6)
    release, calls = threading.Event(), []

    def fail(record):
        if record["x"] == 31:
            release.wait()
            calls.append("ended")
        if record["x"] == 0:
            raise ValueError("no")
        return record

    with shared(arrays(32).map(fail).batch(32), Threads(2)) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError, match="no"):
            next(iterator)
        assert not calls
        release.set()
    assert calls == ["ended"]


# Workers that die, and loaders that are closed.


@pytest.mark.parametrize("row", [0, 13, 31])
def test_a_range_whose_worker_is_killed_is_made_again(tmp_path, row):
    def die(record):
        if record["x"] == row and once(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    dataset = arrays(96).random_map(jitter).map(die).batch(32)
    with (
        pytest.warns(LoaderxWarning, match="while it made step 0. It has been replaced"),
        shared(dataset, Processes(2)) as loader,
    ):
        assert_same(loader, list(arrays(96).random_map(jitter).batch(32)))


def test_a_worker_that_is_killed_while_it_puts_a_step_together(tmp_path):
    def die(batch):
        if once(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    dataset = arrays(96).random_map(jitter).batch(32).map(die)
    with (
        pytest.warns(LoaderxWarning, match=r"while it made step \d. It has been replaced"),
        shared(dataset, Processes(2)) as loader,
    ):
        assert_same(loader, list(arrays(96).random_map(jitter).batch(32)))


def test_a_record_that_kills_three_workers_is_an_error_that_names_its_step():
    def die(record):
        if record["x"] == 40:
            os._exit(7)
        return record

    with (
        shared(arrays(64).map(die).batch(32), Processes(2)) as loader,
        pytest.warns(LoaderxWarning, match="exit code 7"),
        pytest.raises(RecordError) as found,
    ):
        list(loader)
    assert "3 worker processes in a row died" in str(found.value)
    assert "records 32 to 63 of the stream" in str(found.value)
    assert found.value.step == 1


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_an_iterator_that_is_closed_or_moved_in_the_middle_of_shared_steps(engine):
    dataset = arrays(300).random_map(jitter).batch(20)
    expected = list(dataset)
    with shared(dataset, engine) as loader:
        for step in (0, 7, 3, 14):
            iterator = loader.epoch(0)
            next(iterator)
            iterator.seek(step)
            assert same(next(iterator), expected[step])
            iterator.close()
        loader.close()
        assert_same(loader.epoch(0), expected)


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_results_that_are_held_outlive_the_steps_after_them(engine):
    dataset = arrays(600).random_map(jitter).batch(20)
    with shared(dataset, engine) as loader:
        held = list(loader)
        again = [{name: leaf.copy() for name, leaf in batch.items()} for batch in loader.epoch(0)]
    assert_same(held, again)


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_stages_of_shared_steps_are_timed(engine):
    with shared(arrays(640).map(grow).batch(64), engine) as loader:
        list(loader)
        assert {"source", "map(grow)", "batch(64)"} <= set(loader.stats().stage_s)


@settings(max_examples=10)
@given(chains())
def test_auto_may_share(dataset):
    with DataLoader(dataset, engine=Auto(2)) as loader:
        assert_same(loader, list(dataset))


@pytest.mark.parametrize("engine", [*ENGINES, Shared(Threads(2)), Shared(Processes(2))], ids=repr)
def test_batches_for_devices_are_shared_too(engine):
    """Their 64-bit numbers become 32-bit after the rows were put together."""
    jax = pytest.importorskip("jax")
    dataset = arrays(50).map(grow).batch(12)
    with DataLoader(dataset, engine=engine, sharding=jax.devices()[0]) as loader:
        found = [{name: np.asarray(leaf) for name, leaf in batch.items()} for batch in loader]
    expected = [
        {name: leaf.astype(leaf.dtype.str.replace("8", "4")) for name, leaf in batch.items()}
        for batch in dataset
    ]
    assert_same(found, expected)
