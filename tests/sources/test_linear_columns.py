"""Rows of whole numbers stored as lines: every row comes back, and lines are few where they can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.linear import expanded_data, with_lines
from loaderx.sources.columns.record_columns import Encoded

LINEAR = ColumnType("linear", np.dtype(np.int32), (12,))


def encoded(rows, known):
    rows = np.asarray(rows)
    kind = ColumnType("fixed", rows.dtype, rows.shape[1:])
    return with_lines(Encoded(kind, ColumnData(len(rows), rows)), known)


def back(found):
    return expanded_data(found.kind, found.data).values


def naive(lines, length):
    row = []
    for stop, value, rise in lines:
        row += [value + rise * n for n in range(stop - len(row))]
    assert len(row) == length
    return row


lines_of_a_row = st.lists(st.tuples(st.integers(1, 400), st.integers(-5, 5), st.booleans()))


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(-1, 2), min_size=12, max_size=12), min_size=1, max_size=9))
def test_any_rows_come_back(rows):
    """Rows of 12 numbers between -1 and 2 have lines of all kinds next to each other."""
    found = encoded(np.array(rows, np.int32), LINEAR)
    if found.kind.kind == "linear":
        assert back(found).tolist() == rows


@settings(max_examples=100)
@given(st.lists(lines_of_a_row, min_size=1, max_size=9), st.sampled_from([np.int32, np.int64]))
def test_lines_are_found(drawn, dtype):
    length = 4096
    rows = []
    for lines in drawn:
        stops = np.cumsum([n for n, _, _ in lines])
        told = [(s, v, r) for s, (_, v, r) in zip(stops.tolist(), lines) if s < length]
        rows.append(naive([*told, (length, 0, 0)], length))
    found = encoded(np.array(rows, dtype), None)
    assert found.kind == ColumnType("linear", np.dtype(dtype), (length,))
    assert back(found).tolist() == rows
    assert back(found).dtype == dtype
    for number, lines in enumerate(drawn):  # at most one more where two lines meet
        count = int(np.diff(found.data.offsets)[number])
        assert count <= 2 * (len(lines) + 1)
        begin = int(found.data.offsets[number])
        assert naive(found.data.values[begin : begin + count].tolist(), length) == rows[number]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_numbers_at_the_ends_of_their_range(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    row = np.repeat(np.array([low, high, low, high - 1], dtype), 50)
    ramp = np.arange(200, dtype=dtype) + (high - 199)
    found = encoded(np.stack([row, ramp, np.roll(ramp, 7)]), None)
    assert found.kind.kind == "linear"
    assert np.array_equal(back(found), np.stack([row, ramp, np.roll(ramp, 7)]))


def test_segment_ids_and_positions_have_a_line_for_each_segment():
    ids = np.repeat([1, 2, 3, 4, 0], [90, 60, 80, 20, 6]).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in (90, 60, 80, 20)] + [np.zeros(6)])
    for row in (ids, positions.astype(np.int32)):
        found = encoded(row[None], None)
        assert found.data.values[:, 0].tolist() == [90, 150, 230, 250, 256]
