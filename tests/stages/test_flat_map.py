"""`flat_map`: each record that it makes is one of its own."""

from __future__ import annotations

import pytest

from loaderx import ChainError, DataLoader, Dataset
from loaderx.errors import ArgumentError


def test_children_draw_their_own():
    twins = Dataset.range(20).flat_map(lambda x: [x, x]).random_map(lambda x, rng: rng.random())
    draws = [float(x) for x in twins]
    assert len(set(draws)) == 40


def read_for_the_first_batch(dataset, **options):
    """How many records are read before there is a batch."""
    read = []

    def children(record):
        read.append(record)
        return [record] * 1000

    with DataLoader(dataset.flat_map(children, **options).batch(4), engine="inline") as loader:
        assert next(iter(loader)).tolist() == [0, 0, 0, 0]
    return len(read)


@pytest.mark.parametrize("dataset", [Dataset.range(10_000), Dataset.from_source(list(range(5000)))])
def test_few_records_are_read_at_first(dataset):
    """Each may give thousands, and all of them are made before the first is used."""
    assert read_for_the_first_batch(dataset) == 64
    assert read_for_the_first_batch(dataset, window=1) == 1


def test_over_an_iterable_a_window_is_read_at_a_time():
    assert read_for_the_first_batch(Dataset.from_iterable(lambda: range(100)), window=1) == 1


def test_windows_are_checked():
    with pytest.raises(ArgumentError, match="window"):
        Dataset.range(9).flat_map(range, window=0)
    with pytest.raises(ChainError, match=r"flat_map\(range, window=3\) and shuffle\(window=8\)"):
        Dataset.range(9).flat_map(range, window=3).shuffle(window=8)
