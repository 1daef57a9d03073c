"""Alias tables: exact shares, for any weights."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx.order.alias import alias_table
from loaderx.rng import mix64


def shares(table, count):
    """The share of each entry, added up from the columns."""
    found = [Fraction(0)] * count
    columns = len(table.border)
    for border, own, other in zip(table.border.tolist(), table.own, table.other):
        found[own] += Fraction(border) / columns
        found[other] += (1 - Fraction(border)) / columns
    return found


WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.sampled_from([1.0, 0.5, 1e-300, 0.1])),
    min_size=1,
    max_size=60,
).filter(any)


@given(WEIGHTS)
def test_every_entry_has_its_share(weights):
    array = np.array(weights)
    total = sum(map(Fraction, weights))
    for weight, share in zip(weights, shares(alias_table(array), len(weights))):
        assert abs(share - Fraction(weight) / total) < Fraction(1, 10**12)
        assert (share > 0) == (weight > 0)


@pytest.mark.parametrize("weights", [[3.0], [1.0, 1.0, 1.0], [0.0, 2.0], [1.0, 1e-18], [5e-324]])
def test_few_entries(weights):
    found = shares(alias_table(np.array(weights)), len(weights))
    total = sum(map(Fraction, weights))
    assert all(abs(s - Fraction(w) / total) < 1e-12 for s, w in zip(found, weights))


def test_many_entries_are_drawn_by_their_weights():
    weights = np.arange(100_000) % 7 / 6
    words = mix64(np.arange(1 << 20, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    drawn = np.bincount(alias_table(weights).draw(words) % 7, minlength=7)
    kinds = np.bincount(np.arange(100_000) % 7, weights)
    expected = kinds / kinds.sum() * len(words)
    assert drawn[0] == 0
    assert np.all(np.abs(drawn[1:] - expected[1:]) < 5 * np.sqrt(expected[1:]))


@pytest.mark.parametrize("columns", [1, 3, 1000, 2**20 - 1, 2**20])
def test_the_largest_and_the_smallest_word_are_inside(columns):
    table = alias_table(np.ones(columns))
    assert table.draw(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, columns - 1]
