"""Draws: addressed, vectorised, uniform, independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import ArgumentError, Dataset
from loaderx.rng import (
    BatchGenerator,
    fold,
    fold_int,
    key_words,
    mix64,
    mix_int,
    record_generators,
    stage_keys,
)


@given(st.integers(0, 2**64 - 1))
def test_mixing_an_int_equals_mixing_an_array(value):
    assert int(mix64(np.array([value, 0], np.uint64))[0]) == mix_int(value)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.integers(1, 2**60))
def test_folding_ints_equals_folding_arrays(key, value, tag):
    keys, values = np.array([key, 1], np.uint64), np.array([value, 2])
    expected = fold_int(key, value, tag)
    assert int(fold(keys, values, tag)[0]) == expected
    assert int(fold(keys[:1], values[:1], tag)[0]) == expected
    assert int(fold(keys[:1], values, tag)[0]) == expected


def keys(n: int, seed: int = 0) -> np.ndarray:
    return stage_keys(np.arange(n, dtype=np.uint64), seed, 1)


def test_a_batch_generator_does_not_depend_on_the_batch():
    whole = BatchGenerator(keys(64))
    parts = [BatchGenerator(keys(64)[i : i + 7]) for i in range(0, 64, 7)]
    calls = [
        lambda rng: rng.random(),
        lambda rng: rng.integers(3, 90, size=(2, 2)),
        lambda rng: rng.normal(1, 2, size=3),
        lambda rng: rng.uniform(-1, 1),
        lambda rng: rng.random(dtype=np.float32),
    ]
    for call in calls:
        assert np.array_equal(call(whole), np.concatenate([call(part) for part in parts]))


@pytest.mark.parametrize("batch", [1, 3, 8, 30])
def test_vectorised_draws_are_the_same_for_any_batch_size(batch):
    def draw(element, rng):
        return {"r": rng.random(size=2), "i": rng.integers(0, 100)}

    dataset = Dataset.from_arrays(x=np.arange(30)).shuffle(4)
    one = [e for b in dataset.batch(batch).random_map(draw) for e in zip(b["r"], b["i"])]
    reference = dataset.batch(7).random_map(draw)
    other = [e for b in reference for e in zip(b["r"], b["i"])]
    for (r, i), (s, j) in zip(one, other, strict=True):
        assert np.array_equal(r, s)
        assert i == j


def test_draws_are_uniform_and_independent():
    n = 200_000
    rng = BatchGenerator(keys(n))
    first, second = rng.random(), rng.random()
    for draw in (first, second):
        counts = np.bincount((draw * 100).astype(int), minlength=100)
        assert abs(((counts - n / 100) ** 2 / (n / 100)).sum() - 99) < 5 * (2 * 99) ** 0.5
    limit = 5 / n**0.5
    assert abs(np.corrcoef(first, second)[0, 1]) < limit  # draws of one record
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < limit  # neighbouring records
    other = BatchGenerator(keys(n, seed=1)).random()
    assert abs(np.corrcoef(first, other)[0, 1]) < limit  # neighbouring seeds
    normal = rng.standard_normal()
    assert abs(normal.mean()) < limit
    assert abs(normal.std() - 1) < limit
    integers = rng.integers(-3, 4)
    assert integers.min() == -3
    assert integers.max() == 3
    assert rng.random(dtype=np.float32).dtype == np.float32


def test_generators_of_records_are_unrelated():
    draws = np.array([g.random(4) for g in record_generators(keys(20_000))])
    correlation = np.corrcoef(draws.T)
    assert abs(correlation - np.eye(4)).max() < 5 / 20_000**0.5
    assert abs(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) < 5 / 20_000**0.5
    assert abs(draws.mean() - 0.5) < 0.005


def test_seed_and_index_do_not_add_up():
    one = Dataset.range(50).random_map(lambda x, rng: rng.integers(0, 2**60), seed=0)
    other = Dataset.range(50).random_map(lambda x, rng: rng.integers(0, 2**60), seed=1)
    assert not set(map(int, one)) & set(map(int, other))


def test_record_generators_can_spawn_and_jump():
    (generator,) = record_generators(keys(1))
    assert isinstance(generator, np.random.Generator)
    assert generator.permutation(5).shape == (5,)
    assert generator.bit_generator.jumped() is not None


def test_key_words_differ():
    words = key_words(keys(100), 3)
    assert len(np.unique(words)) == 300


@pytest.mark.parametrize("bounds", [(0, 0), (5, 3), (0, 2**33)])
def test_bad_integer_ranges(bounds):
    with pytest.raises(ArgumentError, match="low < high and a range of at most"):
        BatchGenerator(keys(2)).integers(*bounds)


def test_bad_dtype():
    with pytest.raises(ArgumentError, match="float32 or float64, got int32"):
        BatchGenerator(keys(2)).random(dtype=np.int32)


def test_random_keys_are_key_data():
    dataset = Dataset.from_arrays(x=np.arange(10))
    rows = np.stack([record["key"] for record in dataset.random_keys()])
    batch = dataset.batch(10).random_keys("key")[0]
    assert rows.dtype == np.uint32
    assert rows.shape == (10, 2)
    assert np.array_equal(batch["key"], rows)
    assert len(np.unique(rows, axis=0)) == 10
    assert repr(dataset.random_keys().element_spec["key"]) == "uint32[2]"
    assert repr(dataset.batch(5).random_keys().element_spec["key"]) == "uint32[5,2]"
