"""`take`, `skip`, slices and indices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from chains import arrays, ids
from loaderx import ArgumentError, ArgumentTypeError, PositionError
from streams import STREAM, numbers


def test_take_and_skip_of_records_and_of_batches():
    assert numbers(STREAM.take(4)) == [0, 2, 4, 6]
    assert numbers(STREAM.skip(47)) == [94, 96, 98]
    assert numbers(STREAM[2:5]) == [4, 6, 8]
    assert numbers(STREAM.take(10).filter(lambda x: x > 15)) == [16, 18]
    assert [b.tolist() for b in STREAM.batch(2).skip(1).take(2)] == [[4, 6], [8, 10]]
    assert [b.tolist() for b in STREAM.batch(2).take(1).repeat(2)] == [[0, 2], [0, 2]]
    assert numbers(STREAM.take(1000)) == list(range(0, 100, 2))


def test_slices_masks_and_arrays():
    d = arrays(10)
    assert ids(d[2:8:3]) == [2, 5]
    assert ids(d[::-1]) == list(range(9, -1, -1))
    assert ids(d[-3:]) == [7, 8, 9]
    assert ids(d[[-1, 0, 3]]) == [9, 0, 3]
    assert ids(d[np.arange(10) % 3 == 0]) == [0, 3, 6, 9]
    assert ids(d[d[3]["x"] : 5]) == [3, 4]
    assert ids(d.skip(2).take(3)) == [2, 3, 4]
    assert ids(d.take(99)) == list(range(10))
    assert ids(d.repeat()[8:14:2]) == [8, 0, 2]
    assert ids(d.repeat().skip(9).take(2)) == [9, 0]
    assert d.batch(4)[-1]["x"].tolist() == [8, 9]


TABLE = pd.DataFrame({"n": np.arange(10), "even": [True, False] * 5}, index=range(9, -1, -1))


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (pd.Index([3, 1]), [3, 1]),
        (TABLE.index[:3], [9, 8, 7]),
        (TABLE.n[TABLE.even], [0, 2, 4, 6, 8]),
        (TABLE.even, [0, 2, 4, 6, 8]),
        (pd.Series([1, -1], dtype="Int64"), [1, 9]),
        (pd.Series([True] * 3 + [False] * 7, dtype="boolean"), [0, 1, 2]),
        (pl.Series([1, 5]), [1, 5]),
        (pl.Series([True, False] * 5), [0, 2, 4, 6, 8]),
        ((3, 4), [3, 4]),
        (range(3), [0, 1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_indices_of_tables(index, expected):
    assert ids(arrays(10)[index]) == expected


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (pd.Series([1, None], dtype="Int64"), ArgumentTypeError, "integers or bools, got float64"),
        (TABLE, ArgumentError, r"one-dimensional, got shape \(10, 2\)"),
        (pd.Index(list("ab")), ArgumentTypeError, "integers or bools, got <U1"),
        (pd.MultiIndex.from_tuples([(1, 2)]), ArgumentError, r"one-dimensional, got shape \(1, 2"),
        (pl.Series([True] * 3), PositionError, "the mask has 3 entries for 10 elements"),
        (pd.Index([10]), PositionError, "index 10 is out of range for 10 elements"),
    ],
)
def test_indices_that_are_none(index, error, message):
    with pytest.raises(error, match=message):
        arrays(10)[index]
