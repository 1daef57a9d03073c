"""Finite streams, counted: the same rows and masks on any number of hosts, each record once."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finite_host
from finite_chains import finite_chain, ids_of, make_documents
from loaderx import ArgumentError, DataLoader, Dataset, LoaderxError, merge_states
from loaderx.engines import Inline, Processes, Threads
from loaderx.loader.counts import Counts
from oracle import assert_same
from processes import environment

CHAINS = 200
NUMBERS = [  # two of five in every run
    pytest.param(number, marks=[] if number % 5 < 2 else pytest.mark.large)
    for number in range(CHAINS)
]
pytestmark = pytest.mark.filterwarnings("ignore:.* records have failed")


def joined(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The global batches of hosts, each of which has as many."""
    assert len({len(part) for part in parts}) == 1
    return [
        {name: np.concatenate([host[name] for host in hosts]) for name in hosts[0]}
        for hosts in zip(*parts, strict=True)
    ]


def on_hosts(
    dataset: Dataset[Any], hosts: int, counts: Counts | None = None
) -> list[dict[str, Any]]:
    shards = [(host, hosts) for host in range(hosts)]
    return joined(
        [list(DataLoader(dataset, shard=one, engine="inline", counts=counts)) for one in shards]
    )


@pytest.mark.parametrize("number", NUMBERS)
def test_generated_chains_on_1_2_4_and_8_hosts(number):
    dataset, expected = finite_chain(number, pads=number % 3 > 0)
    with DataLoader(dataset, engine="inline") as loader:
        alone = list(loader)
        counts = loader.counts()
    assert len(alone) == counts.steps
    assert_same(on_hosts(dataset, 2), alone)  # each counts by itself
    for hosts in (4, 8):
        assert_same(on_hosts(dataset, hosts, counts), alone)
    if number % 3:
        real = sum(int(batch["mask"].sum()) for batch in alone)
        assert real == counts.rows
        assert counts.padding == 16 * len(alone) - real
        if expected is not None:
            assert Counter(ids_of(alone)) == expected
    elif expected is not None:  # the remainder is dropped
        assert Counter(ids_of(alone)) <= expected


@pytest.mark.parametrize("number", [0, 1, 5, 7, 10, 11])
def test_every_step_resumes_on_another_number_of_hosts(number):
    dataset, _ = finite_chain(number, pads=number % 3 > 0)
    with DataLoader(dataset, engine="inline") as loader:
        alone, counts = list(loader), loader.counts()

    def iterators(hosts: int) -> list[Any]:
        shards = [(host, hosts) for host in range(hosts)]
        return [
            iter(DataLoader(dataset, shard=one, engine="inline", counts=counts)) for one in shards
        ]

    for before, after in ((1, 4), (4, 2), (2, 8)):
        writers = iterators(before)
        for step in range(len(alone) + 1):
            state = json.loads(json.dumps(merge_states([one.get_state() for one in writers])))
            readers = iterators(after)
            for reader in readers:
                reader.set_state(state)
                assert reader.step == step
            if step % 4 == 1 or step > len(alone) - 3:
                assert_same(joined([list(reader) for reader in readers]), alone[step:])
            else:
                assert_same(joined([[next(reader)] for reader in readers]), alone[step : step + 1])
            for one in writers:
                next(one, None)


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("hosts", [1, 4])
def test_seeking_and_lengths(number, hosts):
    dataset, _ = finite_chain(number, pads=number % 3 > 0)
    dataset = dataset.map_with_index(lambda n, batch: {**batch, "step": np.full(16 // hosts, n)})
    loader = DataLoader(dataset, shard=(hosts - 1, hosts), engine="inline")
    expected = list(loader.epoch(0))
    assert len(expected) == loader.counts().steps == len(loader)
    iterator = loader.epoch(0)
    for step in [*range(len(expected) + 1), 0, len(expected) // 2]:
        iterator.seek(step)
        assert iterator.step == step
        assert len(iterator) == len(expected) - step
        state = iterator.get_state()
        assert_same(itertools.islice(iterator, 2), expected[step : step + 2])
        iterator.set_state(state)
        some = None if step % 7 == 3 else 1
        assert_same(itertools.islice(iterator, some), expected[step:][:some])
    with pytest.raises(ArgumentError, match="beyond this stream, which has"):
        iterator.seek(len(expected) + 1)


def test_epochs_after_the_batch():
    """Each epoch is counted; where all are alike, one count serves them all."""
    alike = Dataset.range(230).map(as_record).filter(is_kept).batch(16, lanes=8, pad_remainder=True)
    shuffled = (
        Dataset.range(230).map(as_record).shuffle(seed=1).filter(is_kept)
        .batch(16, lanes=8, pad_remainder=True)
    )  # fmt: skip
    for dataset in (alike.repeat(3), shuffled.repeat(3), alike.repeat().take(40)):
        alone = list(DataLoader(dataset, engine="inline"))
        for hosts in (2, 8):
            assert_same(on_hosts(dataset, hosts), alone)
    loader = DataLoader(alike.repeat(3), engine="inline")
    assert [loader.counts(epoch).lanes for epoch in range(3)] == [
        DataLoader(alike, engine="inline").counts(epoch).lanes for epoch in range(3)
    ]
    alone, iterator = list(loader), iter(DataLoader(alike.repeat(3), counts=loader.counts()))
    assert len(iterator) == len(alone)
    for step in (0, 17, 16, 29, len(alone), 5):
        iterator.seek(step)
        assert iterator.epoch == min(2, step // (len(alone) // 3))
        assert_same(list(iterator), alone[step:])


def test_epochs_of_a_loop():
    """The k-th loop over a loader on several hosts is its k-th epoch, counted when it begins."""
    dataset = (
        Dataset.range(230).map(as_record).shuffle(seed=1).filter(is_kept)
        .batch(16, lanes=4, drop_remainder=True)
    )  # fmt: skip
    loaders = [DataLoader(dataset, shard=(host, 2), engine="inline") for host in range(2)]
    alone = DataLoader(dataset, engine="inline")
    for _ in range(3):
        assert_same(joined([list(loader) for loader in loaders]), list(alone))


def test_lanes_without_rows_give_padding():
    dataset = (
        Dataset.range(400).map(as_record).filter(is_first).batch(16, lanes=8, pad_remainder=True)
    )
    alone = list(DataLoader(dataset))
    assert DataLoader(dataset).counts().lanes == (7, 2, 0, 0, 0, 0, 0, 0)
    hosts = [list(DataLoader(dataset, shard=(host, 4))) for host in range(4)]
    assert_same(joined(hosts), alone)
    last = hosts[3][0]
    assert not last["mask"].any()
    assert last["x"].dtype == alone[0]["x"].dtype
    last["x"][:] = 7  # it is the consumer's own
    nothing = Dataset.range(400).filter(lambda x: x < 0).batch(16, lanes=8, drop_remainder=True)
    assert [len(list(DataLoader(nothing, shard=(host, 2)))) for host in range(2)] == [0, 0]


def as_record(x):
    return {"x": x}


def is_kept(record):
    return record["x"] % 3 != 1


def is_first(record):
    return record["x"] < 9


@pytest.mark.parametrize("hosts", [2, 4])
def test_buckets_on_several_hosts(hosts):
    dataset = (
        Dataset.from_source(make_documents(300, seed=3)).random_keys()
        .bucket([8, 16, 40], [8, 8, 4], leaves="tokens", window=100)
        .random_map(jitter)
    )  # fmt: skip
    alone = list(DataLoader(dataset, engine="inline"))
    assert sum(int(batch["mask"].sum()) for batch in alone) == 300
    assert_same(on_hosts(dataset, hosts), alone)
    iterators = [iter(DataLoader(dataset, shard=(host, hosts))) for host in range(hosts)]
    for iterator in iterators:
        next(iterator)
    one = iter(DataLoader(dataset))
    one.set_state(merge_states([iterator.get_state() for iterator in iterators]))
    assert_same(list(one), alone[1:])


def jitter(batch, rng):
    return {**batch, "noise": rng.random(3)}


# Counts are checked ----------------------------------------------------------------------------


class Threshold:
    """A filter whose answer depends on a file: not a function of its record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, record: dict[str, Any]) -> bool:
        return bool(record["x"] % 100 < int(self.path.read_text()))


@pytest.mark.parametrize(("now", "found"), [(30, "or more"), (20, "")])
@pytest.mark.parametrize("steps", ["padded", "dropped"])
def test_a_filter_that_lies_is_found_at_the_same_step_on_every_engine(tmp_path, now, found, steps):
    path = tmp_path / "threshold"
    path.write_text("25")
    dataset = (
        Dataset.range(800).map(as_record).filter(Threshold(path))
        .batch(16, lanes=4, pad_remainder=steps == "padded", drop_remainder=steps == "dropped")
    )  # fmt: skip
    counts = DataLoader(dataset, engine="inline").counts()
    assert counts.lanes == (50, 50, 50, 50)
    path.write_text(str(now))
    failed = []
    for engine in (Inline(), Threads(2), Processes(1)):
        with DataLoader(dataset, shard=(1, 2), engine=engine, counts=counts) as loader:
            iterator = iter(loader)
            with contextlib.suppress(StopIteration):
                try:
                    while True:
                        next(iterator)
                except LoaderxError as error:
                    failed.append((iterator.step, str(error)))
    if steps == "dropped" and now > 25:
        assert failed == []  # rows beyond the last step are not looked at
        return
    assert len(failed) == 3
    assert len(set(failed)) == 1
    step, message = failed[0]
    assert step == (12 if now > 25 else 10)
    assert "and 50 were counted: a function of the dataset has changed" in message
    assert "lane 2 of the stream has" in message
    assert (" or more" in message) == bool(found)


def test_counts_that_prove_wrong_are_removed(tmp_path):
    path = tmp_path / "threshold"
    path.write_text("25")
    dataset = (
        Dataset.range(800).map(as_record).filter(Threshold(path)).batch(16, drop_remainder=True)
    )
    assert DataLoader(dataset).counts().rows == 200
    path.write_text("10")
    loader = DataLoader(dataset, engine="inline")
    assert loader.counts().rows == 200  # from the cache folder
    with pytest.raises(LoaderxError, match="The stored counts are removed; start again"):
        list(loader)
    assert loader.counts().rows == 80
    assert len(list(loader)) == 5


# Where counts come from -------------------------------------------------------------------------


class Calls:
    """A filter that notes each of its calls in a file."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, record: dict[str, Any]) -> bool:
        with self.log.open("a") as file:
            file.write(".")
        return bool(record["x"] % 2)


def test_counts_are_kept_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "x.npy", np.arange(100))

    def make() -> DataLoader[Any]:
        dataset = Dataset.open(tmp_path / "x.npy").map(first_leaf).filter(Calls(tmp_path / "log"))
        return DataLoader(dataset.batch(8, drop_remainder=True), engine="inline")

    def calls() -> int:
        return len((tmp_path / "log").read_text())

    assert make().counts().rows == 50
    assert calls() == 100
    assert make().counts().rows == 50
    assert calls() == 100
    assert make().counts(1).rows == 50  # all epochs have the same rows
    assert calls() == 100
    for entry in (tmp_path / "cache" / "index").iterdir():
        (entry / "index.json").write_text('{"lanes": [[0, 7')
    assert make().counts().rows == 50  # a damaged entry is made again
    assert calls() == 200
    np.save(tmp_path / "x.npy", np.arange(200))  # another file
    assert make().counts().rows == 100
    assert calls() == 400


def first_leaf(record):
    return {"x": next(iter(record.values()))}


def test_hosts_that_share_the_cache_folder_count_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    dataset = Dataset.range(100).map(as_record).filter(Calls(tmp_path / "log"))
    dataset = dataset.batch(8, lanes=4, pad_remainder=True)
    found = [
        DataLoader(dataset, shard=(host, hosts), engine="inline").counts()
        for hosts in (2, 1, 4)
        for host in range(hosts)
    ]
    assert len({repr(one) for one in found}) == 1
    assert len((tmp_path / "log").read_text()) == 100


def test_functions_are_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    for limit in (10, 20):
        dataset = Dataset.range(100).filter(lambda x: x < limit)  # noqa: B023
        assert DataLoader(dataset.batch(4)).counts().rows == limit


def test_what_cannot_be_pickled_is_counted_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    lock = threading.Lock()
    dataset = Dataset.range(100).filter(lambda x: x % 2 == 0 and not lock.locked()).batch(4)
    assert DataLoader(dataset, engine="threads").counts().rows == 50
    assert not (tmp_path / "cache").exists()


def test_counts_without_a_cache_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "file" / "cache"))
    dataset = Dataset.range(100).filter(is_odd).batch(4)
    with pytest.warns(UserWarning, match="cannot be written to"):
        assert DataLoader(dataset).counts().rows == 50


def is_odd(x):
    return x % 2 == 1


def test_counts_are_given_to_other_hosts(tmp_path):
    log = tmp_path / "log"
    dataset = (
        Dataset.range(100).map(as_record).filter(Calls(log)).batch(8, lanes=4, pad_remainder=True)
    )
    counts = DataLoader(dataset, engine="inline").counts()
    assert len(log.read_text()) == 100
    other = DataLoader(dataset, shard=(1, 2), engine="inline", counts=counts)
    assert len(other) == counts.steps
    assert len(list(other)) == counts.steps
    assert len(log.read_text()) == 150  # it has read its own lanes, and counted nothing
    with pytest.raises(ArgumentError, match="must be what loader.counts.. returned for the same"):
        DataLoader(dataset.map(as_is), counts=counts)
    with pytest.raises(ArgumentError, match="must be what loader.counts.. returned"):
        DataLoader(dataset, counts=3)
    with pytest.raises(ArgumentError, match="`counts` is for streams"):
        DataLoader(Dataset.range(3), counts=counts)


def as_is(batch):
    return batch


def test_only_stages_that_decide_about_rows_run():
    """A map above the last filter keeps each record in its place, and is not called."""
    dataset = Dataset.range(100).filter(is_odd).map(fail).batch(8)
    assert DataLoader(dataset, engine="inline").counts().rows == 50
    skipping = Dataset.range(100).filter(is_odd).map(fail_for_a_third).on_error("skip").batch(8)
    assert DataLoader(skipping, engine="inline").counts().rows == 33


def fail(x):
    raise ValueError(x)


def fail_for_a_third(x):
    if x % 3 == 0:
        raise ValueError(x)
    return x


@pytest.mark.parametrize("engine", [Inline(), Threads(2), Processes(2)], ids=["i", "t", "p"])
def test_every_engine_counts_alike(engine, tmp_path, monkeypatch):
    for number in range(6):
        dataset, _ = finite_chain(number, pads=True)
        expected = DataLoader(dataset, engine="inline").counts()
        monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / str(number)))
        assert repr(DataLoader(dataset, engine=engine).counts()) == repr(expected)


def test_records_and_iterables_are_counted():
    assert DataLoader(Dataset.range(100).filter(is_odd)).counts().rows == 50
    dataset = Dataset.from_iterable(every_other).batch(4, lanes=2, pad_remainder=True)
    assert_same(on_hosts(dataset, 2), list(DataLoader(dataset)))


def every_other(shard, count):
    for number in range(shard, 37, count):
        yield {"x": number}


# Processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 4])
def test_an_evaluation_by_real_processes(tmp_path, hosts):
    """The same rows and masks, so the same perplexity, as by one."""
    with DataLoader(finite_host.dataset()) as loader:
        alone = list(loader)
    children = [
        subprocess.Popen(
            [
                sys.executable,
                finite_host.__file__,
                str(host),
                str(hosts),
                str(tmp_path / f"{host}"),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(LOADERX_CACHE=str(tmp_path / "cache")),
        )
        for host in range(hosts)
    ]
    try:
        for child in children:
            _, errors = child.communicate(timeout=150)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            child.kill()
            child.wait()
    found = []
    for host in range(hosts):
        with np.load(tmp_path / f"{host}.npz") as file:
            names = {name.partition(".")[2] for name in file}
            steps = len(file) // len(names)
            found.append([{name: file[f"{n}.{name}"] for name in names} for n in range(steps)])
    assert_same(
        [dict(sorted(b.items())) for b in joined(found)], [dict(sorted(b.items())) for b in alone]
    )
    assert finite_host.perplexity(joined(found)) == finite_host.perplexity(alone)
