from __future__ import annotations

import sys

import numpy as np
import pytest

from loaderx.compat.grain.samplers import IndexSampler, SequentialSampler
from loaderx.compat.grain.sharding import NoSharding, ShardOptions


def keys(sampler, positions):
    return [sampler[i].record_key for i in positions]


def test_every_record_once_an_epoch():
    sampler = IndexSampler(10, NoSharding(), shuffle=True, num_epochs=3, seed=1)
    assert len(sampler) == 30
    epochs = [keys(sampler, range(e * 10, e * 10 + 10)) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("shard", [NoSharding(), ShardOptions(1, 3), ShardOptions(2, 4, True)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_many_at_once_are_those_one_by_one(shard, shuffle):
    sampler = IndexSampler(101, shard, shuffle=shuffle, num_epochs=2, seed=5)
    regular = range(shard.shard_index, len(sampler), shard.shard_count)
    assert sampler.record_keys(regular).tolist() == keys(sampler, regular)
    some = np.array([7, 3, 100, 190])
    assert sampler.record_keys(some).tolist() == keys(sampler, some.tolist())


def test_parts_are_runs_of_records():
    part = IndexSampler(10, ShardOptions(1, 3), num_epochs=1)
    assert keys(part, range(1, 10, 3)) == [4, 5, 6]


def test_generators_depend_on_seed_and_position():
    first = IndexSampler(10, seed=3, num_epochs=1)[4].rng.integers(1 << 40)
    second = SequentialSampler(10, seed=4)[3].rng.integers(1 << 40)
    assert first == second == np.random.Generator(np.random.Philox(key=7)).integers(1 << 40)
    assert SequentialSampler(10)[3].rng is None


def test_without_epochs_there_is_no_end():
    sampler = IndexSampler(3, shuffle=True, seed=0)
    assert len(sampler) == sys.maxsize
    assert sampler[10**12].index == 10**12


def test_remainders_are_dropped():
    assert len(SequentialSampler(10, ShardOptions(0, 4, drop_remainder=True))) == 8
    assert len(IndexSampler(10, ShardOptions(0, 4, drop_remainder=True), num_epochs=2)) == 16


def test_text_is_that_of_saved_states():
    part = "ShardOptions(shard_index=0, shard_count=2, drop_remainder=False)"
    assert repr(IndexSampler(4, ShardOptions(0, 2), seed=1)) == (
        f"IndexSampler(num_records=4, shard_options={part}, shuffle=False, num_epochs=None, seed=1)"
    )
    assert repr(SequentialSampler(4, ShardOptions(0, 2))) == (
        f"SequentialSampler(num_records=4, shard_options={part})"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_records": 0}, "`num_records` must be at least 1, got 0."),
        ({"num_records": 1, "num_epochs": 0}, "`num_epochs` must be at least 1 or None, got 0."),
        ({"num_records": 1, "shuffle": True}, "`shuffle=True` needs a seed: pass `seed=0`"),
        ({"num_records": 1, "seed": -1}, "`seed` must be from 0 to 2**32 - 1, got -1."),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError) as caught:
        IndexSampler(**arguments)
    assert message in str(caught.value)


def test_positions_end():
    with pytest.raises(IndexError, match="from 0 to 4 .excluded., got 4"):
        SequentialSampler(4)[4]
