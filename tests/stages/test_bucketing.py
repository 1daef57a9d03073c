"""Bucketing: a few shapes, every record once."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx import ArgumentError, ArgumentTypeError, ChainError, DataLoader, Dataset, RecordError
from loaderx.engines import Threads
from oracle import assert_same


def texts(lengths):
    return [{"t": np.full(n, i + 1, np.int32), "id": np.int64(i)} for i, n in enumerate(lengths)]


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.sampled_from([[12], [4, 12], [2, 5, 9, 12]]),
    st.integers(1, 30),
    st.booleans(),
)
def test_every_record_once_in_its_bucket(lengths, boundaries, window, drop):
    sizes = [max(1, 12 // b) for b in boundaries]
    dataset = Dataset.from_source(texts(lengths)).bucket(
        boundaries, sizes, leaves="t", window=window, drop_remainder=drop
    )
    seen = []
    for batch in dataset:
        size, boundary = batch["t"].shape
        assert sizes[boundaries.index(boundary)] == size
        real = np.ones(size, bool) if drop else batch["mask"]
        for row, n, i in zip(batch["t"][real], batch["t_length"][real], batch["id"][real]):
            assert n == lengths[i] <= boundary
            assert row.tolist() == [i + 1] * n + [0] * (boundary - n)
            seen.append(int(i))
    assert len(set(seen)) == len(seen)
    if drop:
        windows = -(-len(lengths) // window)
        assert len(lengths) - len(seen) <= windows * (max(sizes) - 1)
    else:
        assert sorted(seen) == list(range(len(lengths)))


def test_engines_and_states():
    lengths = np.random.default_rng(0).integers(1, 30, 500).tolist()
    dataset = (
        Dataset.from_source(texts(lengths)).shuffle(0).filter(lambda r: r["id"] % 3 > 0)
        .bucket([8, 16, 30], [8, 4, 2], leaves=["t"], window=64)
        .random_map(lambda b, rng: {**b, "draw": rng.random()})
        .repeat(2)
    )  # fmt: skip
    expected = list(dataset)
    assert_same(list(DataLoader(dataset, engine=Threads(2))), expected)
    iterator = iter(DataLoader(dataset))
    list(itertools.islice(iterator, 40))
    state = json.loads(json.dumps(iterator.get_state()))
    fresh = iter(DataLoader(dataset))
    fresh.set_state(state)
    assert_same(list(fresh), expected[40:])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], [1]), ArgumentTypeError, "`boundaries` must be a list of lengths"),
        ((None, [1]), ArgumentTypeError, "`boundaries` must be a list of lengths"),
        (([4], None), ArgumentTypeError, "`batch_sizes` must be an integer, got None"),
        (([4, 4], [1, 1]), ArgumentError, r"must be strictly increasing, got \[4, 4\]"),
        (([0], [1]), ArgumentError, r"`boundaries\[0\]` must be at least 1, got 0"),
        (([4, 8], [1]), ArgumentError, "`batch_sizes` has 1 numbers for 2 boundaries"),
        (([4], [0]), ArgumentError, r"`batch_sizes\[0\]` must be at least 1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Dataset.from_source(texts([1])).bucket(*arguments)


@pytest.mark.parametrize("name", ["leaves", "mask_key"])
def test_bad_names(name):
    with pytest.raises(ArgumentTypeError, match=f"`{name}` must be"):
        Dataset.from_source(texts([1])).bucket([4], 1, **{name: 3})


def test_bad_records():
    with pytest.raises(RecordError, match="record 1 has length 9, and the largest boundary is 8"):
        list(Dataset.from_source(texts([1, 9])).bucket([8], 2, leaves="t"))
    with pytest.raises(RecordError, match="`leaves` names 'u'; records have 't', 'id'"):
        list(Dataset.from_source(texts([1])).bucket([8], 2, leaves="u"))
    with pytest.raises(RecordError, match="record 0 has no leaf with a length"):
        list(Dataset.from_source([{"x": 1}]).bucket([8], 2))
    with pytest.raises(RecordError, match='record 1 has no leaf "t", which other records have'):
        list(Dataset.from_source([{"t": [1]}, {"u": [1]}]).bucket([8], 2))
    with pytest.raises(RecordError, match='in record 1 leaf "t" is a single value, with no length'):
        list(Dataset.from_source([{"t": [1]}, {"t": 1}]).bucket([8], 2))


def test_hosts_are_refused():
    dataset = Dataset.from_source(texts([1, 2])).bucket([8], 2, leaves="t")
    advice = (
        r"Use .pack\(...\).batch\(n, lanes=...\), or .batch\(n, pad_to=..., lanes=...\), with lanes"
    )
    with pytest.raises(ChainError, match=f"hosts cannot share the batches of .bucket.*{advice}"):
        DataLoader(dataset.take(3), shard=(0, 2))
    with pytest.raises(ChainError, match="batch after batch.*Leave one of the two out"):
        dataset.batch(2)
    with pytest.raises(ChainError, match="unbatch of a stream"):
        dataset.unbatch()
    assert "bucket(2x8)" in repr(dataset)
