"""`batch` and `unbatch`: lanes, padding, and rows that are counted."""

from __future__ import annotations

import numpy as np
import pytest

import stream_oracle
from chains import arrays, ids
from loaderx import ChainError, DataLoader, Dataset, RecordError, StackError
from oracle import assert_same
from streams import STREAM, everything, head, numbers


def test_batches_below_a_stream_are_its_own_business():
    cut = Dataset.range(20).batch(4).map(lambda b: b * 2).unbatch().filter(lambda x: x % 3 == 0)
    assert numbers(cut) == [0, 6, 12, 18, 24, 30, 36]
    assert [b.tolist() for b in DataLoader(cut.batch(3))] == [[0, 6, 12], [18, 24, 30], [36]]
    with pytest.raises(ChainError, match=r"needs a .batch\(...\)"):
        DataLoader(cut.repeat(), shard=(0, 2))
    lanes = cut.repeat().batch(4, lanes=2).take(3)
    assert_same(list(DataLoader(lanes)), list(stream_oracle.elements(lanes)))


def test_lanes_that_end_at_different_times():
    dataset = Dataset.range(16).filter(lambda x: x >= 3).batch(4, lanes=2)
    batches = [b.tolist() for b in dataset]
    assert sorted(x for b in batches for x in b) == list(range(3, 16))
    full = [
        b.tolist()
        for b in Dataset.range(16).filter(lambda x: x >= 3).batch(4, lanes=2, drop_remainder=True)
    ]
    assert full == [b for b in batches if len(b) == 4]


def test_padding_and_collating():
    ragged = Dataset.from_source([{"t": [i] * (i % 3)} for i in range(12)]).filter(lambda r: True)
    batch = next(iter(ragged.batch(4, pad_to={"t": 2}, pad_value=-1)))
    assert batch["t"].tolist() == [[-1, -1], [1, -1], [2, 2], [-1, -1]]
    assert batch["t_length"].tolist() == [0, 1, 2, 0]
    collated = list(STREAM.batch(20, collate_fn=sum))
    assert [int(x) for x in collated] == [380, 1180, 890]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_padding_where_units_meet(engine):
    """A batch of several units is padded as a batch of one; a misfit is the fault of its batch."""
    records = [{"a": {"t": [i] * (i % 3)}, "n": i} for i in range(40)]
    records[33] = {"a": {"t": list(range(9))}, "n": 33}
    records[:4] = [{"a": {"t": []}, "n": i} for i in range(4)]  # nobody knows what it is empty of
    for dataset in (
        Dataset.from_source(records).filter(everything),
        Dataset.from_source(records[:5]).filter(everything).repeat(8),
        Dataset.mix([Dataset.from_source(records).filter(everything)] * 2, [1, 2]),
    ):
        batched = dataset.batch(6, pad_to={"a.t": 4}, pad_value=7)
        iterator = iter(DataLoader(batched, engine=engine, num_workers=1))
        plain = iter(dataset)
        while rows := head(plain, 6):
            if any(len(row["a"]["t"]) > 4 for row in rows):
                with pytest.raises(
                    StackError, match=r'cannot pad leaf "a.t" to 4: record 33 .*has len'
                ):
                    next(iterator)
                break
            batch = next(iterator)
            texts = [row["a"]["t"] for row in rows]
            assert batch["n"].tolist() == [row["n"] for row in rows]
            assert batch["a"]["t"].tolist() == [(text + [7] * 4)[:4] for text in texts]
            assert batch["a"]["t_length"].tolist() == list(map(len, texts))


def test_records_without_leaves():
    for dataset in (
        Dataset.range(5).filter(everything).map(lambda x: {}),
        Dataset.range(5).filter(everything).map(lambda run: {}, batched=True),
        Dataset.from_iterable(lambda: [{}] * 5),
    ):
        assert list(dataset.batch(2)) == list(Dataset.range(5).map(lambda x: {}).batch(2))
        assert list(dataset.shuffle(window=2)) == [{}] * 5


def test_pad_remainder():
    masked = Dataset.from_arrays(x=np.arange(5)).filter(lambda r: True).batch(4, pad_remainder=True)
    assert [b["mask"].tolist() for b in masked] == [[True] * 4, [True, False, False, False]]


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.batch(4).repeat().skip(3).unbatch(),
        lambda d: d.batch(4).repeat()[::2].unbatch(),
        lambda d: d.batch(4).shuffle(0).repeat().unbatch(),
    ],
)
def test_unbatch_of_moved_short_batches_is_refused_when_endless_too(make):
    with pytest.raises(ChainError, match="a short last batch was moved"):
        make(arrays(10))


def test_unbatch_of_an_endless_repeat_counts_real_rows():
    assert ids(arrays(5).batch(2).repeat().unbatch().take(12)) == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_unbatch_checks_rows():
    with pytest.raises(RecordError, match="functions that keep the rows of their batch"):
        list(arrays(12).batch(4).map(lambda b: {"x": b["x"][:2]}).unbatch().batch(3))


def test_large_batches_of_unequal_size_are_resolved_in_small_blocks():
    big = Dataset.range(10**9).shuffle(0)
    joined = Dataset.concatenate([big.batch(1024), big.batch(2048)])
    loader = DataLoader(joined, engine="inline")
    assert next(iter(loader)).shape == (1024,)
    assert loader._work.plan._stretch_steps <= 16


def test_added_leaves_are_aligned_too():
    batch = arrays(12).batch(3).random_keys()[1]
    padded = Dataset.from_source([{"t": [1, 2]}] * 3).batch(3, pad_to={"t": 4})[0]
    for leaf in (*batch.values(), *padded.values()):
        assert leaf.__array_interface__["data"][0] % 64 == 0
