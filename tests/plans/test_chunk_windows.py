"""Which rows of which steps make a window of chunks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_sources import Chunks
from inside import node_of
from loaderx import Dataset
from loaderx.plans import chunk_windows as plan
from loaderx.plans.chunk_windows import chunk_windows

SIZES = [9, 4, 11, 5, 7, 7, 2]


@pytest.fixture
def single(monkeypatch):
    """Windows of few rows are not made together."""
    monkeypatch.setattr(plan, "LEAST_STEPS", 0)


def chunks_of(rows, sizes):
    return set(np.searchsorted(np.cumsum(sizes), rows, side="right").tolist())


def windows_of(dataset, steps, shard=(0, 1)):
    """The rows of each window, as numbers of records."""
    found = chunk_windows(node_of(dataset), shard)
    host, hosts = shard
    batches = [batch["x"].tolist() for batch in dataset]
    parts = []
    for batch in batches:
        width = len(batch) // hosts
        parts.append(batch[host * width : (host + 1) * width])
    out, expected = [], (steps.start, 0)
    for first, place, last, end in found.ranges(steps):
        assert (first, place) == expected
        assert (first, place) < (last, end)
        expected = (last, end)
        rows = []
        for step in range(first, last + (end > 0)):
            stop = end if step == last else None
            rows += parts[step][place if step == first else 0 : stop]
        out.append(rows)
    assert [*chain(*out)] == [*chain(*parts[steps.start : steps.stop])]
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 9), st.data())
def test_no_chunk_of_an_epoch_is_in_two_windows(sizes, size, data):
    window = data.draw(st.sampled_from([None, 1, 5, 12, 100]))
    records = Dataset.from_source(Chunks(sizes)).shuffle(1, block="source", window=window)
    dataset = records.batch(size)
    begin = data.draw(st.integers(0, len(dataset)))
    seen: set[int] = set()
    for rows in windows_of(dataset, range(begin, len(dataset))):
        found = chunks_of(rows, sizes)
        assert not found & seen
        seen |= found


def test_windows_of_few_rows_are_made_together():
    dataset = Dataset.from_source(Chunks([5] * 20)).shuffle(1, block="source").batch(4)
    rows = [len(window) for window in windows_of(dataset, range(len(dataset)))]
    assert rows == [20] * 5
    assert [len(window) for window in windows_of(dataset, range(3, 25))] == [18, 20, 20, 20, 10]


@pytest.mark.filterwarnings("ignore:.*draws a new order in every epoch")
@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize(
    "stages",
    [
        lambda records: records.batch(8, drop_remainder=True).repeat(3),
        lambda records: records.repeat(3).batch(8, drop_remainder=True),
        lambda records: records.skip(3).take(30).batch(8, drop_remainder=True).repeat(2),
    ],
)
@pytest.mark.parametrize("is_shuffled", [True, False])
def test_epochs_slices_and_hosts(stages, hosts, is_shuffled, single):
    records = Dataset.from_source(Chunks(SIZES))
    if is_shuffled:
        records = records.shuffle(1, block="source", window=14)
    dataset = stages(records)
    for host in range(hosts):
        for begin in (0, 3):
            windows = windows_of(dataset, range(begin, len(dataset)), (host, hosts))
            assert all(len(chunks_of(rows, SIZES)) <= 4 for rows in windows)
            assert len(windows) > 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(40).shuffle(1, block=4, window=8).batch(4),  # any order is as fast
        lambda: Dataset.from_source(Chunks(SIZES)).shuffle(1, window=8).batch(4),
        lambda: Dataset.from_source(Chunks(SIZES))[::-1].batch(4),
        lambda: Dataset.from_source(Chunks(SIZES)).shuffle(1, block=5),
        lambda: Dataset.from_source(Chunks(SIZES)).shuffle(1, block=5)[::2].batch(4),
        lambda: Dataset.from_source(Chunks(SIZES)).shuffle(1, block=5).batch(4).shuffle(2),
        lambda: Dataset.from_source(Chunks(SIZES)).shuffle(1, block=5).filter(bool).batch(4),
        lambda: Dataset.mix([Dataset.from_source(Chunks(SIZES)).shuffle(1, block=5)] * 2).batch(4),
    ],
)
def test_chains_without_windows_of_chunks(make):
    assert chunk_windows(node_of(make()), (0, 1)) is None
