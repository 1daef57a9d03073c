"""Elements are stacked as ``np.stack`` does it, in recycled buffers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loaderx.compat.grain.stacking import make_batch


@dataclasses.dataclass(frozen=True)
class Plain:
    """A dataclass that jax knows nothing of."""

    value: int


COLUMNS = {
    "ints": [1, 2, -3],
    "floats": [1.0, 2.5, 3.0],
    "bools": [True, False, True],
    "complex": [1j, 2j, 3j],
    "ints and floats": [1, 2.5, 3],
    "bools and ints": [True, 2, 3],
    "large": [1, 2, 2**63],
    "text": ["a", "abc", ""],
    "bytes": [b"a", b"abc", b""],
    "numpy scalars": [np.int16(1), np.int16(2), np.int16(3)],
    "numpy scalars of two types": [np.int16(1), np.float32(2), np.int16(3)],
    "numpy text": [np.str_("ab"), np.str_("c"), np.str_("d")],
    "dates": [np.datetime64("2020"), np.datetime64("2021-05"), np.datetime64("2022")],
    "arrays": [np.arange(6, dtype=np.uint8).reshape(2, 3)] * 3,
    "arrays of two types": [np.zeros(3, np.float32), np.zeros(3, np.float64), np.ones(3, "i2")],
    "arrays without axes": [np.array(1, "i2"), np.array(2, "i2"), np.array(3, "i2")],
    "other byte order": [np.arange(3, dtype=">i4")] * 3,
    "empty arrays": [np.zeros((0, 3))] * 3,
    "objects": [Plain(1), Plain(2), Plain(3)],
    "text and numbers": ["a", 1, 2.5],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_leaf_is_what_np_stack_makes_of_it(name):
    column = COLUMNS[name]
    expected = np.stack(column)
    found = make_batch([{"x": value} for value in column])["x"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


def test_large_batches_are_aligned_and_their_memory_is_used_again():
    rows = [np.full((32, 32), number, np.float32) for number in range(8)]
    first = make_batch(rows)
    address = first.ctypes.data
    assert address % 64 == 0
    del first
    assert make_batch(rows).ctypes.data == address


def test_a_batch_that_is_held_is_never_overwritten():
    rows = [np.full((32, 32), number, np.float32) for number in range(8)]
    held = [make_batch([row + step for row in rows]) for step in range(20)]
    for step, batch in enumerate(held):
        np.testing.assert_array_equal(batch, np.stack(rows) + step)
