"""One pool of `num_workers` serves a loader, whatever its dataset looks like, in every epoch."""

from __future__ import annotations

import threading

import pytest

from loaderx import DataLoader, Dataset
from oracle import assert_same
from workers import pids

LENGTH = 96


def is_odd(x):
    return x % 2 == 1


def mix_of_three(lanes=4):
    parts = [Dataset.range(LENGTH * n, LENGTH * (n + 2)).filter(is_odd) for n in range(3)]
    return Dataset.mix(parts, weights=[2, 1, 1], stop="repeat").batch(8, lanes=lanes)


def apart():
    """Lanes that use up their units at different speeds."""
    return Dataset.range(4096).filter(lambda x: x % 512 < 384 or x % 7 == 0).batch(8, lanes=4)


DATASETS = {
    "by index": Dataset.range(LENGTH).map(lambda x: x).batch(4),
    "a stream": Dataset.range(LENGTH).filter(is_odd).batch(4),
    "a mix of three in four lanes": mix_of_three(),
    "a mix of three": mix_of_three(lanes=1),
    "lanes that drift apart": apart(),
    "a stream of streams": Dataset.concatenate([Dataset.range(48), Dataset.range(48)])
    .filter(is_odd)
    .repeat(2)
    .shuffle(window=16)
    .batch(4),
}


def thread_ids() -> list[int]:
    return [one.ident or 0 for one in threading.enumerate() if one.name.startswith("loaderx-")]


@pytest.mark.parametrize("name", list(DATASETS))
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_the_same_workers_serve_every_epoch_and_never_more(engine, name):
    dataset = DATASETS[name]
    workers = pids if engine == "processes" else thread_ids
    seen = set()
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        for _ in range(3):
            batches = []
            for batch in loader.epoch(0):
                batches.append(batch)
                now = workers()
                assert len(now) <= 2
                seen.update(now)
            assert_same(batches, dataset)
        assert len(seen) == 2
        assert loader.stats().engine == f"{engine}(2)"


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_two_iterators_share_the_workers(engine):
    workers = pids if engine == "processes" else thread_ids
    dataset = mix_of_three()
    seen = set()
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        pairs = []
        for pair in zip(loader.epoch(0), loader.epoch(0), strict=True):
            pairs.append(pair)
            seen.update(workers())
            assert len(workers()) <= 2
        assert len(seen) == 2
    for side in zip(*pairs, strict=True):
        assert_same(side, dataset)
