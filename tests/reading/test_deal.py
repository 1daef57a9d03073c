"""How the records of a stream are dealt to its lanes: every epoch whole, every mix exact."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import DataLoader, Dataset
from loaderx.order.mixing import lane_positions


def documents(count, seed=0):
    lengths = np.random.default_rng(seed).integers(8, 200, count)
    return Dataset.from_source(
        [{"tokens": np.full(length, number)} for number, length in enumerate(lengths)]
    )


def rows_of_an_epoch(stream):
    return sum(1 for _ in stream)


def times_seen(stream, batches, count):
    """How often each document was begun in the first batches."""
    seen = Counter()
    for batch in itertools.islice(DataLoader(stream, engine="inline"), batches):
        for tokens, segments in zip(batch["tokens"], batch["tokens_segment_ids"], strict=True):
            first = np.flatnonzero(np.diff(segments, prepend=0) * (segments > 0))
            seen.update(tokens[first].tolist())
    return np.array([seen[number] for number in range(count)])


@pytest.mark.parametrize(("lanes", "exactly"), [(4, 0.98), (8, 0.96)])
def test_an_epoch_of_rows_has_every_document_once(lanes, exactly):
    count, length, size = 10_000, 1024, 32
    packed = documents(count).shuffle(seed=0).pack({"tokens": length})
    rows = rows_of_an_epoch(packed)
    stream = packed.repeat().batch(size, lanes=lanes)
    once = times_seen(stream, round(rows / size), count)
    assert np.mean(once == 0) <= 0.01
    four = times_seen(stream, round(4 * rows / size), count)
    assert np.all(np.abs(four - 4) <= 1)
    assert np.mean(four == 4) >= exactly


@pytest.mark.parametrize("count", [7, 10, 97, 100, 1001])
@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_lanes_never_differ_by_more_than_a_unit(count, lanes):
    stream = Dataset.range(count).filter(lambda n: True).repeat()
    batches = DataLoader(stream.batch(lanes, lanes=lanes), engine="inline")
    most = -(-count // lanes) + 1
    for epochs in (1, 2, 3, 7):
        taken = itertools.islice(batches, epochs * count // lanes)
        seen = np.bincount(np.concatenate(list(taken)), minlength=count)
        assert abs(seen - epochs).max() <= 1
        assert np.sum(seen != epochs) <= 2 * most


def parts(count):
    def part(number):
        return Dataset.range(1000).map(lambda n: number).filter(lambda n: True).repeat()

    return [part(number) for number in range(count)]


def shares(stream, steps, parts):
    """How many rows of each part the first steps have, step by step."""
    batches = itertools.islice(DataLoader(stream, engine="inline"), steps)
    return np.cumsum([np.bincount(batch, minlength=parts) for batch in batches], axis=0)


weights_of_parts = st.lists(st.integers(1, 40), min_size=2, max_size=4)


@given(weights_of_parts, st.integers(1, 6), st.integers(1, 3))
def test_the_shares_of_a_mix_hold_for_every_prefix_of_steps(weights, lanes, rows):
    stream = Dataset.mix(parts(len(weights)), weights).batch(lanes * rows, lanes=lanes)
    found = shares(stream, 40, len(weights))
    due = np.arange(1, 41)[:, None] * lanes * rows * np.array(weights) / sum(weights)
    assert np.abs(found - due).max() < 1


def test_every_batch_of_many_lanes_is_mixed():
    found = shares(Dataset.mix(parts(3), [7, 2, 1]).batch(64, lanes=64), 50, 3)
    each = np.diff(found, axis=0, prepend=0)
    assert np.abs(each - 64 * np.array([0.7, 0.2, 0.1])).max() < 2


@given(weights_of_parts, st.integers(1, 6))
def test_below_a_window_the_rows_that_enter_it_are_mixed(weights, lanes):
    mixed = Dataset.mix(parts(len(weights)), weights).shuffle(seed=0, window=5)
    found = shares(mixed.batch(5 * lanes, lanes=lanes), 12, len(weights))
    due = np.arange(1, 13)[:, None] * 5 * lanes * np.array(weights) / sum(weights)
    assert np.abs(found - due).max() < 1  # a batch is one window of each lane


@given(st.integers(0, 10**9), st.integers(1, 70))
def test_a_row_of_all_lanes_is_a_run_of_the_mix(first, lanes):
    rows = np.stack([lane_positions(first, 8, lane, lanes) for lane in range(lanes)], axis=1)
    expected = np.arange(first * lanes, (first + 8) * lanes).reshape(8, lanes)
    assert (np.sort(rows, axis=1) == expected).all()


@pytest.mark.parametrize("lanes", [2, 5, 64])
@pytest.mark.parametrize("period", [2, 5, 10, 64, 100, 4096])
def test_every_lane_meets_every_place_of_the_period_alike(lanes, period):
    for lane in range(min(lanes, 8)):
        met = np.bincount(lane_positions(0, 20 * period, lane, lanes) % period, minlength=period)
        assert np.abs(met - 20).max() <= 20
        half = period // 2
        assert abs(met[:half].sum() - 20 * half) <= 40
