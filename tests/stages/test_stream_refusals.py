"""Streams: what is refused, and functions that return what they should not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, ChainError, DataLoader, Dataset, RecordError
from plain import tag
from streams import STREAM, count_up, even

MIXED = Dataset.mix(
    [STREAM.repeat(), Dataset.range(3000).filter(even).shuffle(window=500).repeat()]
)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: STREAM.shuffle(0), ChainError, r"needs a window: write .shuffle\(window=1000\)"),
        (lambda: STREAM.batch(4).shuffle(window=3), ChainError, "before .batch"),
        (lambda: STREAM.shuffle(window=0), ArgumentError, "`window` must be at least 1, got 0"),
        (lambda: STREAM.shuffle(window=1 << 63), ArgumentError, r"`window` must be at most 2\*\*62"),
        (lambda: Dataset.range(9).shuffle(window=1.5), ArgumentTypeError, "`window` must be an int"),
        (lambda: STREAM[3], ChainError, "a stream has no elements by number: iterate over it"),
        (lambda: STREAM[[1, 2]], ChainError, "a stream has no elements by number"),
        (lambda: STREAM[::2], ChainError, r"the slice \[::2\] of a stream: its step must be 1"),
        (lambda: len(STREAM), TypeError, "a stream has no length"),
        (lambda: len(STREAM.batch(4)), TypeError, "a stream has no length"),
        (lambda: len(DataLoader(STREAM.batch(4))), TypeError, "a stream has no length"),
        (lambda: STREAM.split(0.5, 0.5), ChainError, "split of a stream.*Split first, then put"),
        (lambda: STREAM.map_with_index(tag), ChainError, "their numbers are not known. Put it before"),
        (lambda: STREAM.repeat().repeat(), ChainError, "this one is endless already"),
        (lambda: STREAM.batch(4).unbatch(), ChainError, r"unbatch of a stream: leave .batch\(...\) o"),
        (lambda: STREAM.batch(4).batch(4), ChainError, "batch after batch"),
        (lambda: STREAM.batch(4).filter(even), ChainError, "filter after batch: it works on records"),
        (lambda: STREAM.batch(4).flat_map(even), ChainError, "flat_map after batch"),
        (
            lambda: STREAM.batch(4, lanes=3),
            ArgumentError,
            r"the lanes must divide the batch.*Write batch\(6, lanes=3\), or lanes that divide 4\.",
        ),
        (lambda: STREAM.batch(4, lanes=0), ArgumentError, "`lanes` must be at least 1, got 0"),
        (lambda: Dataset.range(9).batch(4, lanes=2), ChainError, "is for streams.*leave `lanes` out"),
        (lambda: STREAM.take(9).batch(4, lanes=2), ChainError, r".take\(9\) of a stream counts its"),
        (lambda: STREAM.take(9).batch(4, lanes=2), ChainError, r"steps instead, with .take\(steps\) af"),
        (
            lambda: STREAM.skip(9).batch(4, lanes=2),
            ChainError,
            r"needs one lane, not 2. Count steps instead, with .skip\(steps\) after .batch\(...\), or "
            "count records before the stage that makes the stream",
        ),
        (lambda: STREAM[2:9].batch(4, lanes=2), ChainError, r"with .skip\(steps\).take\(steps\) after"),
        (
            lambda: STREAM.batch(101, lanes=101),
            ChainError,
            r"Dataset.range\(0, 100\) has 100 records, too few for 101 lanes, each of which needs "
            r"one. Use at most 100 lanes, or put .repeat\(\) right after it, before the stage that",
        ),
        (lambda: Dataset.zip([STREAM, STREAM]), ChainError, "zip: dataset 0 is a stream"),
        (lambda: Dataset.concatenate([STREAM, STREAM]), ChainError, "or use Dataset.mix"),
        (lambda: Dataset.mix([STREAM.batch(2)] * 2), ChainError, "mix of batched streams: join the r"),
        (lambda: Dataset.mix([STREAM] * 2, [1, np.nan]), ArgumentError, "weight 1 is nan"),
        (lambda: STREAM.filter(3), ArgumentTypeError, "`filter` needs a function, or an object"),
        (lambda: STREAM.flat_map(None), ArgumentTypeError, "`flat_map` needs a function"),
        (lambda: DataLoader(STREAM, batch_size=4), ChainError, "pass shuffle=False"),
        (lambda: DataLoader(STREAM, shard=(0, 2)), ChainError, r"needs a .batch\(...\)"),
        (
            lambda: DataLoader(STREAM.repeat().batch(4), shard=(0, 2)),
            ChainError,
            r"2 hosts cannot share 1 lane of a stream: the number of hosts must divide the lanes. A "
            r"run that was begun keeps its lanes, and can go on with these numbers of hosts: 1. For a "
            r"new run write "
            r"batch\(4, lanes=2\), or a multiple of 2 lanes if there may be more hosts later; each "
            "lane holds about 8 records in memory.",
        ),
        (
            lambda: DataLoader(STREAM.repeat().batch(16, lanes=4), shard=(0, 3)),
            ChainError,
            r"3 hosts cannot share 4 lanes of a stream.* numbers of hosts: 1, 2, 4. For a new run "
            r"write batch\(18, lanes=3\), or a multiple of 3 lanes",
        ),
        (
            lambda: DataLoader(STREAM.repeat().batch(16, lanes=4), shard=(0, 8)),
            ChainError,
            "8 hosts cannot share 4 lanes of a stream.* hosts: 1, 2, 4. For",
        ),
        (
            lambda: DataLoader(MIXED.batch(6, lanes=6), shard=(0, 4)),
            ChainError,
            r"of hosts: 1, 2, 3, 6. For a new run write batch\(8, lanes=4\).* each lane holds "
            "about 504 records of 2 inputs in memory",
        ),
        (  # lanes would be refused, too, so that is no advice
            lambda: DataLoader(STREAM.take(9).batch(4), shard=(0, 2)),
            ChainError,
            r"A new run needs lanes=2, and this dataset cannot have them: .take\(9\) of a stream",
        ),
        (
            lambda: DataLoader(Dataset.from_iterable(count_up).batch(4), shard=(0, 2)),
            ChainError,
            r"cannot have them: lanes=2 needs 2 parts of the iterable: give from_iterable a function",
        ),
        (
            lambda: DataLoader(STREAM.repeat().batch(303), shard=(0, 101)),
            ChainError,
            r"A new run needs lanes=101.* has 100 records, too few for 101 lanes",
        ),
        (
            lambda: DataLoader(STREAM.batch(4, lanes=2), shard=(0, 2)),
            ChainError,
            r"some hosts would get no rows of them. Write drop_remainder=True or pad_remainder",
        ),
        (
            lambda: DataLoader(
                STREAM.shuffle(window=8).batch(4, lanes=2, drop_remainder=True).repeat(),
                shard=(0, 2),
            ),
            ChainError,
            r"every epoch of this stream has other rows.*Put .repeat\(\) before .batch",
        ),
        (
            lambda: DataLoader(
                STREAM.batch(4, lanes=2, drop_remainder=True).skip(1), shard=(0, 2)
            ),
            ChainError,
            r"\.skip\(1\) after .batch\(...\) changes the number of its steps",
        ),
        (lambda: DataLoader(STREAM.repeat().batch(4)).counts(), ChainError, "streams that end"),
        (lambda: DataLoader(Dataset.range(4).batch(2)).counts(), ChainError, "has a length"),
        (lambda: DataLoader(STREAM.repeat().batch(4)).epoch(1), ChainError, "whose epochs end"),
        # Iterables
        (lambda: Dataset.from_iterable(count_up()), ArgumentTypeError, "can be read only once. Pass"),
        (lambda: Dataset.from_iterable(iter([1])), ArgumentTypeError, "can be read only once"),
        (lambda: Dataset.from_iterable("abc"), ArgumentTypeError, "needs an iterable of records"),
        (lambda: Dataset.from_iterable(3), ArgumentTypeError, r"got 3 \(int\)"),
        (lambda: Dataset.from_iterable(lambda a: [a]), ArgumentTypeError, r"<lambda> takes \(a\)"),
        (
            lambda: Dataset.from_iterable(count_up).batch(4, lanes=2),
            ChainError,
            r"give from_iterable a function of \(shard, count\)",
        ),
        (
            lambda: list(Dataset.from_iterable(lambda: 3)),
            ArgumentTypeError,
            r"must return an iterable of records; it returned 3 \(int\)",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Dataset.range(9).filter(lambda x: int(x)),
            r"filter\(<lambda>\) failed on record 0: it must return True or False, got 0 \(int\)",
        ),
        (Dataset.range(9).filter(lambda x: None), r"got None \(NoneType\)"),
        (Dataset.range(9).filter(lambda x: np.array([True])), r"\(ndarray\)"),
        (
            Dataset.range(9).filter(lambda x: x, batched=True),
            r"it must return a bool for each of the \d+ records it was given; got int64 of shape",
        ),
        (Dataset.range(9).filter(lambda x: True, batched=True), r"got bool of shape \(\)"),
        (Dataset.range(9).filter(lambda x: 1 / (x - 5 + 0 * x) > 0).batch(2), None),
        (Dataset.range(9).flat_map(lambda x: x), "failed on record 0: .*not iterable"),
        (Dataset.range(9).flat_map(lambda x: None), "a list .* of records; got a NoneType"),
        (Dataset.range(9).flat_map(lambda x: {"a": 1}), "got a dict"),
        (Dataset.range(9).flat_map(lambda x: [None]), "one of the records that it returned is None"),
        (Dataset.range(9).filter(even).map(lambda x: None), "did it forget its `return`"),
    ],
)  # fmt: skip
def test_functions_that_return_what_they_should_not(dataset, message):
    if message is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            list(dataset)
        return
    with pytest.raises(RecordError, match=message):
        list(dataset)
