"""Loaders of streams: memory, ownership, pickling."""

from __future__ import annotations

import gc
import pickle

import cloudpickle
import numpy as np
import pytest

import stream_oracle
from chains import arrays
from inside import stream_work_of
from loaderx import ChainError, DataLoader, Dataset, LoaderxError
from loaderx.engines import Threads
from oracle import assert_same
from plain import grow
from stream_chains import mixed, odd
from streams import count_up


def test_a_bounded_stream_on_hosts_says_when_it_ends_too_early():
    dataset = arrays(64).filter(odd).batch(8, lanes=4).take(50)
    with pytest.raises(ChainError, match="the stream ended on this host before the .take"):
        list(DataLoader(dataset, shard=(0, 2)))
    assert len(list(DataLoader(dataset.take(3), shard=(0, 2)))) == 3


def test_work_can_be_shipped():
    work = stream_work_of(mixed([2, 1]))
    shipped = cloudpickle.loads(cloudpickle.dumps(work))
    from loaderx.memory import Pool

    for task in ((0, 0, 0), (0, 0, 1), (0, 77, 3), (1, 0, 0), (1, 2**64 - 1, 5)):
        one, other = work(task, Pool().lend), shipped(task, Pool().lend)
        assert_same([one.value], [other.value])
    assert work.describe((0, 0, 1)) == "records 4 to 7 of the input"
    assert "filter(odd)" in dict(work.parts())


def test_loaders_can_be_pickled():
    loader = DataLoader(arrays(20).filter(odd).batch(4), engine="inline")
    batches = list(loader)
    assert_same(list(pickle.loads(pickle.dumps(loader))), batches)
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(iterator))  # as with a function that knows it
    assert copy.step == 1
    assert copy.get_state() == iterator.get_state()
    with pytest.raises(LoaderxError, match="a copy of an iterator, which cannot be iterated"):
        next(copy)
    assert_same(list(iterator), batches[1:])


def test_a_lane_that_falls_far_behind_costs_no_memory():
    """Lane 1 gets many rows per unit, lane 0 few: after a while each has a run of its own."""
    read = []  # all 128 units of each lane, in the end

    def keep(x):
        read.append(int(x) // 16)
        return x // 16 % 2 == 1 or x % 16 == 0

    dataset = Dataset.range(4096).filter(keep).shuffle(window=16).batch(8, lanes=2)
    seen, taken = [], 0
    for batch in DataLoader(dataset, engine=Threads(2)):
        seen.append(batch)
        taken += sum(x // 16 % 2 == 1 for x in batch.tolist())
        waiting = len({unit for unit in read if unit % 2 == 1}) - taken / 16
        assert waiting < 32
    assert len(set(read)) == 256
    assert_same(seen, list(stream_oracle.elements(dataset)))


def test_statistics():
    loader = DataLoader(arrays(600).filter(odd).batch(8).map(grow))
    rows = sum(len(batch["x"]) for batch in loader)
    stats = loader.stats()
    assert (stats.records, stats.batches) == (rows, 50)
    assert "filter(odd)" in stats.stage_s
    assert DataLoader(Dataset.from_iterable(count_up).batch(4)).stats().batches == 0
    loader = DataLoader(Dataset.from_iterable(count_up).batch(4))
    list(loader)
    assert loader.stats().reason == "records are read in order, in the caller's thread"


def test_batches_are_the_users_own():
    held = list(DataLoader(arrays(400).filter(odd, batched=True).batch(8), engine=Threads(2)))
    for batch in held:
        for leaf in batch.values():
            assert leaf.flags.writeable
            assert leaf.ctypes.data % 64 == 0
    expected = list(arrays(400).filter(odd, batched=True).batch(8))
    assert_same(held, expected)
    for batch in expected:
        batch["y"][...] = 0
    assert_same(held, list(arrays(400).filter(odd, batched=True).batch(8)))


def test_records_of_a_stream_are_the_users_own():
    data = np.arange(12.0).reshape(6, 2)
    for record in Dataset.from_arrays(x=data).filter(lambda r: True):
        record["x"][...] = 0
    assert data.sum() == 66


@pytest.mark.parametrize("stages", [lambda d: d, lambda d: Dataset.mix([d, d]).shuffle(window=4)])
def test_a_dropped_iterator_is_gone_at_once(stages):
    """What it runs ends with it; nothing waits for the garbage collector."""
    loader = DataLoader(stages(arrays(60).filter(odd).repeat()).batch(4), engine="inline")
    iterator = iter(loader)
    next(iterator)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)  # what only the collector finds is kept for us to see
    try:
        del iterator
        gc.collect()
        found = [type(each) for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not [each for each in found if each.__module__.startswith("loaderx")]
