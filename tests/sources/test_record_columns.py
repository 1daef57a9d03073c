"""Records as columns: their types, wider types, and what cannot be a column."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numpy as np
import pytest

from loaderx.sources.columns.data import ColumnData, ColumnType, joined
from loaderx.sources.columns.record_columns import UNKNOWN, CannotStoreError, encode, encode_columns
from loaderx.sources.columns.widening import MisfitError, merged, settled, widened

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Box:
    x: int


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 2], "int32"),
        ([True], "bool"),
        ([1.5, 2.0], "float32"),
        ([np.int64(1)], "int64"),
        (["a", ""], "text"),
        ([np.str_("a")], "text"),
        ([b"a"], "bytes"),
        ([np.zeros((2, 3)), np.zeros((2, 3))], "float64[2, 3]"),
        ([np.zeros((2, 3)), np.zeros((1, 3))], "lists of float64[3]"),
        ([[1, 2], []], "lists of int32"),
        ([["a"], []], "list of text"),
        ([np.array(["a", "bc"], object)], "list of text"),
        ([[[1], [2, 3]]], "list of lists of int32"),
        ([{"a": 1, "b": ("x", 2.0)}], "struct(a: int32, b: tuple(0: text, 1: float32))"),
        ([[{"a": 1}], []], "list of struct(a: int32)"),
    ],
)
def test_types(values, told):
    assert str(encode(values).kind) == told


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "is None: a leaf of a record may be None, the record itself may not"),
        ([{"a": 1}, {"a": None}, {"a": object()}], "is an object, which cannot be stored"),
        ([object()], "is an object, which cannot be stored. Make arrays, numbers, text or bytes"),
        ([1, 2.5], "has the dtype float32, and others have int32. Cast it in a .map()"),
        ([1, "a"], "is a str, which cannot be stored"),
        (["a", 1], "is an int, and others are str."),
        (["a", "\ud800"], "is text with half of a surrogate pair, '\\ud800'."),
        ([1, 2**40], "the Python integer 1099511627776 does not fit into int32"),
        (
            [np.zeros((2, 2)), np.zeros((2, 3))],
            "has the shape (2, 3), and others have (2, 2): only",
        ),
        ([np.zeros(2), np.float64(1)], "has the shape (), and others have (2,)"),
        ([np.zeros(2, [("a", "i4")])], "has the dtype [('a', '<i4')], which cannot be stored"),
        ([{"a": 1}, {"b": 1}], "has the keys ['b'], and others have the keys ['a']"),
        ([{"a": 1}, 3], "is an int, and others have the keys ['a']"),
        ([{1: 1}], "has the keys [1], and names of columns are text"),
        ([{}], "is an empty dict"),
        ([()], "is an empty tuple"),
        ([(1, 2), (1,)], "has 1 entries, and others have 2"),
        ([Pair(1, 2)], "is a Pair: make a dict of it, .map(lambda r: r._asdict())"),
        ([Box(1)], "is a Box: make a dict of it, .map(dataclasses.asdict)"),
        ([["a"], 1], "is an int, and others are lists"),
        ([1, []], "has the shape (0,), and others have ()"),
    ],
)
def test_what_cannot_be_stored(values, message):
    with pytest.raises(CannotStoreError) as caught:
        encode(values)
    assert message in caught.value.reason
    assert caught.value.record == len(values) - 1


def test_the_path_and_the_record_of_an_item():
    with pytest.raises(CannotStoreError) as caught:
        encode([{"a": [{"b": 1}]}, {"a": []}, {"a": [{"b": 2}, {"b": object()}]}])
    assert (caught.value.path, caught.value.record) == (("a", "items", "b"), 2)


def test_stacked_records_have_the_same_columns():
    records = [{"x": np.int16(n), "t": "a" * n, "p": (np.zeros(2), [n])} for n in range(3)]
    stacked = {
        "x": np.arange(3, dtype=np.int16),
        "t": np.array(["", "a", "aa"], object),
        "p": (np.zeros((3, 2)), np.array([[0], [1], [2]], np.int32)),
    }
    one, two = encode(records), encode_columns(stacked, 3)
    assert one.kind == two.kind
    assert one.data.fields["t"].offsets.tolist() == two.data.fields["t"].offsets.tolist()


def test_wider_types():
    short, long = encode([np.arange(2)]), encode([np.arange(3)])
    kind = merged(short.kind, long.kind)
    assert str(kind) == "lists of int64"
    data = widened(short.data, short.kind, kind)
    assert (data.values.tolist(), data.offsets.tolist()) == ([0, 1], [0, 2])
    assert merged(UNKNOWN, kind) == merged(kind, UNKNOWN) == kind
    texts = encode([["a"]]).kind
    assert merged(UNKNOWN, texts) == texts
    assert settled(UNKNOWN) == ColumnType("ragged", np.dtype(np.float32))
    two, three = (encode([np.array(["a" * n])]).kind for n in (2, 3))
    assert merged(two, three) == merged(three, two) == three


@pytest.mark.parametrize(
    ("one", "two"), [(1, "a"), (1, 2.0), ([], 1), (np.zeros((2, 3)), np.zeros(4)), ([["a"]], ["a"])]
)
def test_types_that_do_not_fit(one, two):
    kinds = [encode([{"x": value}]).kind for value in (one, two)]
    with pytest.raises(MisfitError) as caught:
        merged(*kinds)
    assert caught.value.path[0] == "x"


def test_joined_data_knows_which_values_there_are():
    kind = ColumnType("fixed", np.dtype(np.int32), ())
    pieces = [
        ColumnData(2, np.arange(2, dtype=np.int32), valid=np.array([True, False])),
        ColumnData(1, np.array([5], np.int32)),
    ]
    found = joined(kind, pieces)
    assert found.values.tolist() == [0, 1, 5]
    assert found.valid.tolist() == [True, False, True]
    assert found.nbytes == 12 + 3
    assert joined(kind, pieces[1:] * 2).valid is None
