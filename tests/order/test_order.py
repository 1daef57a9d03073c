"""Permutations and mixing tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx import Dataset
from loaderx.order.epochs import child, wrap
from loaderx.order.mixing import MAX_TICKETS, schedule, tickets
from loaderx.order.permutation import permute
from loaderx.rng import ROOT, mix64


def key(number: int) -> np.ndarray:
    return mix64(np.array([number], np.uint64))


def is_permutation(order: np.ndarray, n: int) -> bool:
    return bool((np.bincount(order, minlength=n) == 1).all()) and len(order) == n


def test_permutations_of_every_length_up_to_3000():
    for n in range(1, 3001):
        assert is_permutation(permute(np.arange(n), n, key(n)), n), n


@pytest.mark.parametrize("n", [1, 2, 1024, 1025, 60_001, 2**16 + 1, 2**24 + 1, 10**12, 2**62])
def test_permutations_can_be_undone(n):
    some = np.unique(np.random.default_rng(0).integers(0, n, 5_000))
    for keys in (key(3), mix64(np.arange(len(some), dtype=np.uint64)), key(3).repeat(len(some))):
        landed = permute(some, n, keys)
        assert np.array_equal(permute(landed, n, keys, undo=True), some)
        assert np.array_equal(permute(permute(some, n, keys, undo=True), n, keys), some)


@pytest.mark.parametrize("k", range(10, 21))
def test_permutations_around_powers_of_two(k):
    for n in (2**k - 1, 2**k, 2**k + 1):
        for seed in (0, 1):
            assert is_permutation(permute(np.arange(n), n, key(seed)), n), n


@pytest.mark.parametrize("n", [2**24 - 1, 2**24 + 1, 2**32 - 1, 2**32 + 1, 10**12, 2**62])
def test_long_permutations_stay_inside_and_do_not_meet(n):
    some = np.unique(np.random.default_rng(0).integers(0, n, 20_000))
    landed = permute(some, n, key(3))
    assert landed.min() >= 0
    assert landed.max() < n
    assert len(np.unique(landed)) == len(some)


@given(st.integers(2, 5000), st.lists(st.integers(0, 9), min_size=1, max_size=300))
def test_many_keys_at_once_equal_one_key_at_a_time(n, epochs):
    keys = mix64(np.array(epochs, np.uint64))
    positions = np.arange(len(epochs)) * 7919 % n
    together = permute(positions, n, keys)
    alone = [permute(positions[i : i + 1], n, keys[i : i + 1])[0] for i in range(len(epochs))]
    assert together.tolist() == alone


def chi_square_z(values: np.ndarray, bins: int) -> float:
    """How far from uniform, in standard deviations."""
    counts = np.bincount(values, minlength=bins)
    expected = len(values) / bins
    return float(
        (((counts - expected) ** 2 / expected).sum() - (bins - 1)) / (2 * (bins - 1)) ** 0.5
    )


@pytest.mark.parametrize("n", [1000, 1280, 2048, 2304, 61440])
def test_positions_and_differences_are_uniform_over_keys(n):
    keys = mix64(np.arange(100_000 if n > 1024 else 8_000, dtype=np.uint64))
    first = permute(np.full(len(keys), 0), n, keys)
    assert abs(chi_square_z(first * 40 // n, 40)) < 5
    for distance in (1, 2, 64, n // 2, n - 1):
        other = permute(np.full(len(keys), distance), n, keys)
        difference = (other - first) % n
        if 1024 < n <= 4096:
            assert abs(chi_square_z(difference - 1, n - 1)) < 5, distance
        else:
            assert abs(chi_square_z(difference * 40 // n, 40)) < 5, distance


@pytest.mark.parametrize("n", [2048, 5000, 60000])
def test_adjacent_differences_within_one_order(n):
    order = permute(np.arange(n), n, key(5))
    difference = np.diff(order) % n
    assert abs(chi_square_z(difference * 16 // n, 16)) < 5
    fixed = (order == np.arange(n)).sum()
    assert fixed < 12  # one on average


@pytest.mark.parametrize("n", [500, 5000])
def test_neighbouring_seeds_and_epochs_are_unrelated(n):
    def order(seed, epoch):
        dataset = Dataset.range(n).shuffle(seed).batch(n).repeat(3)
        return dataset[epoch]

    orders = {(s, e): order(s, e) for s in (0, 1, 2) for e in (0, 1, 2)}
    limit = 5 / n**0.5
    for one, a in orders.items():
        for other, b in orders.items():
            if one < other:
                assert not np.array_equal(a, b)
                assert abs(np.corrcoef(a, b)[0, 1]) < limit, (one, other)


@given(st.integers(1, 50), st.lists(st.integers(0, 2000), min_size=1, max_size=60))
def test_wrapping_is_division(length, positions):
    epochs, inside = wrap(ROOT, np.array(positions), length, 1)
    epochs = np.broadcast_to(epochs, len(positions))
    for p, e, i in zip(positions, epochs, inside):
        assert i == p % length
        expected = child(ROOT, np.array([p // length]), 1)[0]
        assert e == expected
        assert (e == 0) == (p < length)


@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_mix_keeps_its_proportions_in_every_prefix(counts):
    table = schedule(tuple(counts))
    period = sum(counts)
    seen = np.zeros((period + 1, len(counts)))
    for slot in range(period):
        seen[slot + 1] = seen[slot]
        assert table.rank[slot] == seen[slot, table.component[slot]]
        seen[slot + 1, table.component[slot]] += 1
    ideal = np.arange(period + 1)[:, None] * np.array(counts) / period
    assert (abs(seen - ideal) < 1).all()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 500),
)
def test_the_position_of_a_record_is_where_it_is_located(counts, index):
    table = schedule(tuple(counts))
    for component in range(len(counts)):
        position = table.position(component, index)
        which, inside = table.locate(np.array([position]))
        assert (which[0], inside[0]) == (component, index)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=10))
def test_tickets_are_few_and_close(weights):
    counts = tickets(weights)
    assert sum(counts) <= MAX_TICKETS
    assert min(counts) >= 1
    total = sum(weights)
    for count, weight in zip(counts, weights):
        share = weight / total
        assert abs(count / sum(counts) - share) < 1e-3 + 2 * len(weights) / MAX_TICKETS


def test_simple_weights_are_exact():
    assert tickets([0.5, 0.25, 0.25]) == (2, 1, 1)
    assert tickets([1, 2, 3]) == (1, 2, 3)
    assert tickets([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert tickets([1 / 3, 2 / 3]) == (1, 2)


def test_the_order_is_pinned():
    """A change here changes every user's stream: raise VERSION with it, and say so."""
    assert permute(np.arange(8), 8, key(1)).tolist() == PINNED_8
    assert permute(np.arange(6), 60_000, key(1)).tolist() == PINNED_60000
    assert permute(np.arange(6), 10**6, key(1)).tolist() == PINNED_MILLION
    assert permute(np.arange(4), 10**12, key(1)).tolist() == PINNED_TRILLION
    mapped = Dataset.range(4).shuffle(3).random_map(lambda x, rng: rng.integers(0, 10**6))
    assert [int(x) for x in mapped.repeat(2)] == PINNED_DRAWS
    vector = Dataset.range(4).batch(3).random_map(lambda b, rng: rng.integers(0, 10**6))
    assert [b.tolist() for b in vector] == PINNED_VECTOR


PINNED_8 = [7, 4, 1, 2, 6, 5, 0, 3]
PINNED_60000 = [32962, 31900, 13294, 35803, 53147, 13450]
PINNED_MILLION = [260272, 46430, 116841, 147942, 960047, 845215]
PINNED_TRILLION = [518437207198, 580695647289, 747043159350, 231107197369]
PINNED_DRAWS = [183177, 678847, 622360, 79456, 611699, 764299, 352633, 151393]
PINNED_VECTOR = [[179369, 998810, 358355], [673269]]
