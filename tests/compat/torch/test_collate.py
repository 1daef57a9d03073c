"""The structure rules of torch's default_collate, with arrays."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from loaderx import StackError
from loaderx.compat.torch import default_collate, default_convert, numpy_collate

Pair = namedtuple("Pair", ["x", "y"])


class Tensor:
    """What is used of a tensor."""

    def __init__(self, value, dtype="torch.float32"):
        self.value, self.dtype = np.asarray(value), dtype

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.value


@pytest.fixture
def torch(monkeypatch):
    made = SimpleNamespace(Tensor=Tensor)
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.mark.parametrize(
    ("records", "dtype"),
    [
        ([1, 2], np.int64),
        ([1.0, 2.0], np.float64),
        ([True, False], np.bool_),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.uint8(1), np.uint8(2)], np.uint8),
        ([np.zeros(3, np.float16)] * 2, np.float16),
    ],
)
def test_numbers_and_arrays(records, dtype):
    batch = default_collate(records)
    assert batch.dtype == dtype
    assert np.array_equal(batch, np.stack(records))


def test_text_stays_as_it_is():
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([b"a", b"b"]) == [b"a", b"b"]


def test_structure():
    batch = default_collate([((1, "a"), [2.0], {"k": 3})] * 2)
    assert type(batch) is list
    assert type(batch[0]) is list
    assert batch[0][0].tolist() == [1, 1]
    assert batch[0][1] == ("a", "a")
    assert batch[1][0].tolist() == [2.0, 2.0]
    assert batch[2]["k"].tolist() == [3, 3]


def test_named_tuples_and_mappings_keep_their_class():
    assert type(default_collate([Pair(1, 2), Pair(3, 4)])) is Pair
    assert type(default_collate([OrderedDict(a=1), OrderedDict(a=2)])) is OrderedDict


def test_tensors_become_arrays(torch):
    batch = default_collate([(Tensor([1, 2]), 3), (Tensor([4, 5]), 6)])
    assert batch[0].tolist() == [[1, 2], [4, 5]]
    converted = default_convert({"a": Tensor([1]), "b": (Tensor([2]), "text")})
    assert converted["a"].tolist() == [1]
    assert converted["b"] == [np.array([2]), "text"]


def test_array_likes_are_stacked():
    class Image:
        def __array__(self, dtype=None, copy=None):
            return np.ones((2, 2), np.uint8)

    assert default_collate([Image(), Image()]).shape == (2, 2, 2)


def test_the_name_of_the_tutorials():
    assert numpy_collate is default_collate


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([np.zeros(2), np.zeros(3)], r"record 1 of the batch has \(3,\), the first \(2,\)"),
        ([[1, 2], [1]], r"lists of \[1, 2\] items"),
        ([object(), object()], "a record holds object.*pass a `collate_fn`"),
        ([None, None], "a record holds NoneType"),
        ([1, "a"], "cannot make an array of the numbers"),
    ],
)
def test_what_does_not_fit(records, message):
    with pytest.raises((StackError, TypeError), match=message):
        default_collate(records)


def test_a_dtype_that_numpy_does_not_have(torch):
    with pytest.raises(StackError, match=r"NumPy has no torch\.bfloat16.*\.float\(\)"):
        default_collate([Tensor([1], "torch.bfloat16")])
