"""Shards that are opened one after the other, as a stream: `flat_map(Dataset.open, window=1)`."""

from __future__ import annotations

import gzip
from functools import partial

import numpy as np
import pytest

from file_families import WRITERS
from loaderx import DataLoader, Dataset, RecordError

COUNTS = [5, 1, 8, 3]
PARTS = 2


@pytest.fixture
def urls(server, tmp_path, cache, monkeypatch):
    """Four tars; sample 1000 s + n is number n of shard s."""
    monkeypatch.setenv("LOADERX_CACHE", str(cache))
    for s, count in enumerate(COUNTS):
        WRITERS["tar"](tmp_path / f"{s}", [1000 * s + n for n in range(count)])
    server.add(tmp_path)
    return [f"{server.url}/{s}.tar" for s in range(len(COUNTS))]


def read(urls, **options):
    return Dataset.from_source(urls).flat_map(partial(Dataset.open, **options), window=1)


def ids(loader):
    return [batch["cls"].tolist() for batch in loader]


def joined(loader):
    return [one for batch in ids(loader) for one in batch]


EXPECTED = [1000 * s + n for s, count in enumerate(COUNTS) for n in range(count)]


def cut(numbers, size=4):
    return [numbers[n : n + size] for n in range(0, len(numbers), size)]


def test_the_first_batch_takes_the_first_shard_alone(server, urls):
    batches = iter(DataLoader(read(urls).batch(4), engine="inline"))
    assert next(batches)["cls"].tolist() == EXPECTED[:4]
    assert {one.split("/")[-1] for one in server.requests} == {"0.tar"}


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_engines(server, urls, engine):
    with DataLoader(read(urls, columns=["cls"]).batch(4), engine=engine, num_workers=2) as loader:
        assert ids(loader) == cut(EXPECTED)
    assert server.fetched_twice() == {}


def shuffled(urls):
    shards = Dataset.from_source(urls).shuffle(seed=0)
    return shards.flat_map(Dataset.open, window=1).shuffle(seed=1, window=2).batch(4).repeat(3)


def test_shards_and_samples_come_in_a_new_order_in_every_epoch(urls):
    found = joined(DataLoader(shuffled(urls), engine="inline"))
    epochs = [found[n : n + len(EXPECTED)] for n in range(0, len(found), len(EXPECTED))]
    assert [sorted(epoch) for epoch in epochs] == [EXPECTED] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # A window holds two shards, whose samples are mixed.
    orders = [list(dict.fromkeys(one // 1000 for one in epoch)) for epoch in epochs]
    assert len({tuple(order) for order in orders}) > 1
    firsts = {one // 1000 for one in epochs[0][: len(epochs[0])]}
    assert firsts == {0, 1, 2, 3}


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_restored_at_every_step(urls, engine):
    expected = ids(DataLoader(shuffled(urls), engine="inline"))
    loader = DataLoader(shuffled(urls), engine=engine, num_workers=2)
    batches = iter(loader)
    for step in range(len(expected)):
        state = batches.get_state()
        with DataLoader(shuffled(urls), engine=engine, num_workers=2) as again:
            restored = iter(again)
            restored.set_state(state)
            assert next(restored)["cls"].tolist() == expected[step]
        assert next(batches)["cls"].tolist() == expected[step]


def test_what_was_restored_takes_the_shards_that_follow(server, urls):
    batches = iter(DataLoader(read(urls).batch(4), engine="inline"))
    for _ in range(2):
        next(batches)
    state = batches.get_state()
    server.requests.clear()
    batches = iter(DataLoader(read(urls).batch(4), engine="inline"))
    batches.set_state(state)
    assert next(batches)["cls"].tolist() == EXPECTED[8:12]
    assert {one.split("/")[-1] for one in server.requests} == {"2.tar"}


def test_several_hosts(urls):
    dataset = read(urls).repeat().batch(4, lanes=2)
    whole = iter(DataLoader(dataset, engine="inline"))
    hosts = [iter(DataLoader(dataset, engine="inline", shard=(host, 2))) for host in range(2)]
    for _ in range(10):
        parts = np.concatenate([next(host)["cls"] for host in hosts])
        np.testing.assert_array_equal(parts, next(whole)["cls"])


def read_part(one):
    url, part = one
    shard = Dataset.open(url)
    return shard[len(shard) * part // PARTS : len(shard) * (part + 1) // PARTS]


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_parts_of_shards(server, urls, engine):
    del urls[1]  # one sample cannot be parted
    parts = [(url, part) for url in urls for part in range(PARTS)]
    expected = [one for one in EXPECTED if one // 1000 != 1]
    ordered = Dataset.from_source(parts).flat_map(read_part, window=1)
    with DataLoader(ordered.batch(4), engine=engine, num_workers=2) as loader:
        assert ids(loader) == cut(expected)
    assert server.fetched_twice() == {}
    mixed = Dataset.from_source(parts).shuffle(seed=0, block=PARTS).flat_map(read_part, window=1)
    found = joined(DataLoader(mixed.batch(4), engine="inline"))
    assert sorted(found) == expected
    shards = [one // 1000 for one in found]
    assert len(list(dict.fromkeys(shards))) == 3
    assert shards == sorted(shards, key=list(dict.fromkeys(shards)).index)  # one after the other


def test_a_shard_that_is_gone(server, urls):
    del server.files["/2.tar"]
    batches = iter(DataLoader(read(urls).batch(4), engine="inline"))
    assert next(batches)["cls"].tolist() == EXPECTED[:4]
    with pytest.raises(RecordError, match=r"failed on record 2: FileError: there is no file .*2"):
        next(batches)
    left = [one for one in EXPECTED if one // 1000 != 2]
    skipping = read(urls).on_error("skip").batch(4)
    loader = DataLoader(skipping, engine="inline")
    assert ids(loader) == cut(left)
    (failure,) = loader.stats().failures
    assert failure.index == 2


def test_packed_json_lines(server, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(cache))
    for s in range(3):
        WRITERS["jsonl"](tmp_path / f"{s}", [10 * s, 10 * s + 1])
        text = (tmp_path / f"{s}.jsonl").read_bytes()
        server.files[f"/{s}.jsonl.gz"] = gzip.compress(text)
    urls = [f"{server.url}/{s}.jsonl.gz" for s in range(3)]
    found = [batch["x"].tolist() for batch in DataLoader(read(urls).batch(2), engine="inline")]
    assert found == [[0, 1], [10, 11], [20, 21]]


def test_without_a_network(server, urls, monkeypatch):
    ids(DataLoader(read(urls).batch(4), engine="inline"))
    count = len(server.requests)
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    with DataLoader(read(urls).batch(4), engine="processes", num_workers=2) as loader:
        assert ids(loader) == cut(EXPECTED)
    assert len(server.requests) == count
