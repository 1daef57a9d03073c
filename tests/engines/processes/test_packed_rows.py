"""Rows that travel from worker to worker come out as they were."""

from __future__ import annotations

import os
from collections import namedtuple

import numpy as np
import pytest

from loaderx import LoaderxError
from loaderx.engines.processes.packed_rows import read_rows, write_rows
from loaderx.engines.processes.protocol import RowsPlace, shared_file, slot_start
from loaderx.engines.sharing import MadeRows

Pair = namedtuple("Pair", "a b")


def read_only(array):
    array.flags.writeable = False
    return array


RECORDS = {
    "none": [],
    "dicts": [{"x": np.arange(i, i + 3), "n": i, "t": "a" * i} for i in range(5)],
    "other order": [{"x": 1, "y": 2}, {"y": 2, "x": 1}],
    "other keys": [{"x": 1}, {"y": 2}],
    "arrays": [np.full((2, 2), i, ">i4") for i in range(4)],
    "ragged": [np.arange(i) for i in range(4)],
    "read-only": [{"x": read_only(np.arange(3) + i)} for i in range(4)],
    "some read-only": [{"x": np.arange(3)}, {"x": read_only(np.arange(3))}],
    "no axis": [{"x": np.array(i)} for i in range(3)],
    "numpy numbers": [{"x": np.float32(i)} for i in range(3)],
    "empty arrays": [{"x": np.empty((0, 2))} for _ in range(3)],
    "objects": [{"x": np.array([None, i], object)} for i in range(3)],
    "structured": [{"x": np.zeros(2, [("a", "i2"), ("b", "f8")])} for _ in range(3)],
    "tuples": [(i, np.arange(2)) for i in range(3)],
    "unequal tuples": [(1,), (1, 2)],
    "empty tuples": [(), ()],
    "lists": [[i, "x"] for i in range(3)],
    "named tuples": [Pair(i, np.arange(i)) for i in range(3)],
    "mixed": [{"x": 1}, 2, None],
    "not in C order": [{"x": np.arange(6).reshape(2, 3).T + i} for i in range(3)],
}


def equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.flags.writeable == other.flags.writeable
        assert one.tolist() == other.tolist()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            equal(a, b)
    else:
        assert one == other


@pytest.fixture
def slots():
    descriptor = shared_file("test")
    os.ftruncate(descriptor, slot_start(3))
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("name", RECORDS)
def test_records_come_out_as_they_were(slots, name):
    made = MadeRows(RECORDS[name], False, [(3, "record 3", "map", "bad")], {"map": 0.5})
    nbytes = write_rows(slots, slot_start(2), made)
    found = read_rows(slots, RowsPlace(2, 0, nbytes))
    equal(found.records, made.records)
    assert found[1:] == made[1:]


def test_arrays_that_are_alike_become_one(slots):
    alike = MadeRows([{"x": np.zeros(10), "y": i} for i in range(100)], False, [], {})
    assert write_rows(slots, slot_start(0), alike) < 100 * 80 + 2000


def test_rows_that_are_not_there_are_an_error(slots):
    with pytest.raises(LoaderxError, match="not there any more"):
        read_rows(slots, RowsPlace(9, 0, 100))
