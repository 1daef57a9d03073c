"""The grammar of splits, as TFDS has it."""

from __future__ import annotations

import pytest

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.formats.splits import SplitSize, names_in, resolve_split, split_of

SIZES = {"train": SplitSize(101, [40, 40, 21]), "test": SplitSize(10), "": SplitSize(7)}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", [("train", 0, 101)]),
        ("train[:80%]", [("train", 0, 81)]),
        ("train[80%:]", [("train", 81, 101)]),
        ("train[-10%:]", [("train", 91, 101)]),
        ("train[10:20]", [("train", 10, 20)]),
        ("train[-5:]", [("train", 96, 101)]),
        ("train[:-5]", [("train", 0, 96)]),
        ("train[1shard:]", [("train", 40, 101)]),
        ("train[:1shard]", [("train", 0, 40)]),
        ("train[-1shard:]", [("train", 80, 101)]),
        ("train[1shard:2shards]", [("train", 40, 80)]),
        ("train[50:1_000]", [("train", 50, 101)]),
        (" train [ : 50% ] + test ", [("train", 0, 50), ("test", 0, 10)]),
        ("test+train[:1]", [("test", 0, 10), ("train", 0, 1)]),
        ("test[5:5]+train", [("train", 0, 101)]),
        ("[2:]", [("", 2, 7)]),
    ],
)
def test_what_is_asked_for(split, expected):
    assert [tuple(one) for one in resolve_split(split, SIZES)] == expected


def test_parts_by_percent_are_disjoint_and_complete():
    for records in range(1, 60):
        sizes = {"a": SplitSize(records)}
        for percent in range(0, 101, 7):
            found = resolve_split(f"a[:{percent}%]+a[{percent}%:]", sizes)
            covered = [n for _, start, stop in found for n in range(start, stop)]
            assert covered == list(range(records))


def test_names():
    assert names_in("a[:5]+b+a[5:]") == ["a", "b"]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("train[:80", "is not understood at 'train"),
        ("train+", "is not understood at ''"),
        ("train[10]", "is not understood"),
        ("train[::2]", "is not understood"),
        ("train[a:]", "'a' in split 'train.a:.' is neither a number of records"),
        ("train[:101%]", "'101%' in split .* is beyond 100%"),
        ("train[4shard:]", "there are 3 shards"),
        ("test[1shard:]", "counts shards, and this data has none"),
        ("train[5:5]", "has no records"),
    ],
)
def test_what_is_refused(split, message):
    with pytest.raises(ArgumentError, match=message):
        resolve_split(split, SIZES)
    with pytest.raises(ArgumentTypeError, match="`split` must be text"):
        resolve_split(3, SIZES)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("data/validation-0.parquet", "validation"),
        ("dev.jsonl", "validation"),
        ("en/test/0001.tar", "test"),
        ("a_train_b.csv", "train"),
        ("training.csv", "train"),
        ("trainer.csv", ""),
        ("latest.csv", ""),
        ("x.csv", ""),
    ],
)
def test_splits_by_name(name, split):
    assert split_of(name) == split
