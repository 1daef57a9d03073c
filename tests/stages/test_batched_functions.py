"""Functions of several records at once, stacked."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import pytest

from chains import arrays
from loaderx import Dataset, RecordError, StackError
from oracle import assert_same


def test_a_batched_function_must_keep_its_rows():
    said = r'a run of 2 records: leaf "y" has 1 row for 2 records: it must return one for each\.$'
    with pytest.raises(RecordError, match=said):
        list(arrays(4).map(lambda b: {"y": b["y"][:1]}, batched=True).batch(2))
    with pytest.raises(RecordError, match="got a float"):
        list(arrays(4).map(lambda b: {"y": 1.0}, batched=True).batch(2))


def tokenize(run):
    """As tokenizers do: lists of rows, in something like a dict."""
    return UserDict({"t": [[int(x)] * int(x) for x in run["x"]], "n": [int(x) for x in run["x"]]})


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_batched_function_may_return_ragged_rows(size):
    each = arrays(7).map(lambda r: {"t": [int(r["x"])] * int(r["x"]), "n": int(r["x"])})
    runs = arrays(7).map(tokenize, batched=True)
    assert_same(runs, each)
    assert_same(runs.batch(size, pad_to={"t": 6}), each.batch(size, pad_to={"t": 6}))
    packed = [one.pack({"t": 8}, max_segments=4).batch(2) for one in (runs, each)]
    assert_same(*packed)
    kept = each.filter(lambda r: r["n"] > 2)
    stream = runs.filter(lambda r: r["n"] > 2)
    assert_same(stream.batch(size, pad_to={"t": 6}), kept.batch(size, pad_to={"t": 6}))
    stream = arrays(7).filter(lambda r: True).map(tokenize, batched=True)
    assert_same(stream.bucket([3, 6], 2), each.bucket([3, 6], 2))


def test_rows_of_one_length_are_stacked_however_many_there_are():
    """Two rows of two tokens are two records, not a list of two leaves."""
    dataset = arrays(4).map(lambda b: {"t": [[int(x), 1] for x in b["x"]]}, batched=True)
    assert [b["t"].tolist() for b in dataset.batch(2)] == [[[0, 1], [1, 1]], [[2, 1], [3, 1]]]
    pairs = arrays(4).map(lambda b: (b["x"], [str(x) for x in b["x"]]), batched=True)
    assert pairs.batch(4)[0][1].tolist() == ["0", "1", "2", "3"]


def test_ragged_rows_without_padding_say_what_to_do():
    dataset = arrays(4).map(tokenize, batched=True)
    with pytest.raises(StackError, match=r'leaf "t".*pad_to'):
        list(dataset.batch(4))
    with pytest.raises(RecordError, match=r"got a str. Lists of 4 rows, which may"):
        list(arrays(4).map(lambda b: {"t": "abcd"}, batched=True).batch(4))
    for short in ([1, 2, 3], [[1] * 7] * 3):
        for tree, leaf in (({"y": {"t": short}}, "y.t"), ((short, short), "0")):
            with pytest.raises(RecordError, match=f'leaf "{leaf}" has 3 rows for 4 records: it'):
                list(arrays(4).map(lambda b, tree=tree: tree, batched=True).batch(4))
        with pytest.raises(RecordError, match="what it returned has 3 rows for 4 records"):
            list(arrays(4).map(lambda b, short=short: short, batched=True).batch(4))


def test_batched_functions_need_records_that_can_be_stacked():
    ragged = Dataset.from_source([{"ids": np.arange(i % 3 + 1)} for i in range(300)])
    said = (
        r'\(<lambda>, batched=True\) is given stacked runs of records: cannot stack leaf "ids": '
        r"record 1 has shape \(2,\), the others \(1,\)\. Drop or pad that leaf in a \.map\(\) "
        r"before it; where batched=True is given, it can also be left out\.$"
    )
    for chain in (
        ragged.map(lambda run: run, batched=True),
        ragged.filter(lambda run: run["ids"], batched=True),
    ):
        with pytest.raises(StackError, match=said):
            list(chain.batch(3))
