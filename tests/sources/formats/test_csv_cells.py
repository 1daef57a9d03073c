"""Cells of CSV: many rows at once against one after the other, and against Python's csv."""

from __future__ import annotations

import contextlib
import csv
import io
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaderx.sources.formats.csv_cells import Dialect, cells_of_row, cells_of_rows
from loaderx.sources.formats.csv_columns import CsvColumn, fast_numbers

DIALECT = Dialect(",", '"', "utf-8")
CELLS = st.text(st.sampled_from(list('ab",\n\r é1')), max_size=6)


def written(row):
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(row)
    return out.getvalue().encode()


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_cells_that_csv_writes(rows):
    lines = [written(row) for row in rows]
    assert [cells_of_row(line, DIALECT) for line in lines] == rows
    columns = cells_of_rows(lines, 3, [2, 0], DIALECT)
    assert columns == [[row[2] for row in rows], [row[0] for row in rows]]


@given(st.lists(st.text(st.sampled_from(list('ab",')), max_size=8), min_size=1, max_size=4))
def test_rows_at_once_and_one_after_the_other(texts):
    """Any text whose quotes are even: both ways give the same cells, or both refuse."""
    rows = [text.encode() for text in texts if text.count('"') % 2 == 0] or [b"a,b"]
    found, is_right = [], True
    for row in rows:
        try:
            found.append(cells_of_row(row, DIALECT))
        except ValueError:
            is_right = False
    if not is_right or {len(cells) for cells in found} != {2}:
        with pytest.raises(ValueError):
            cells_of_rows(rows, 2, [0, 1], DIALECT)
    else:
        expected = [list(column) for column in zip(*found, strict=True)]
        assert cells_of_rows(rows, 2, [0, 1], DIALECT) == expected


def test_an_open_quote_is_refused():
    with pytest.raises(ValueError, match="is not closed"):
        cells_of_row(b'a,"b', DIALECT)


# Numbers ----------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from(list("0123456789+-.eEnaif _,[]")), max_size=7)
NUMBERS = st.one_of(
    TEXTS,
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(0, 300).map(str),
    st.sampled_from(["-0", " -0 ", "-0.0", "1e400", "", "NA", "true", "null", "1,2"]),
)


@contextlib.contextmanager
def without_msgspec():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "msgspec", None)
        fast_numbers.cache_clear()
        yield
    fast_numbers.cache_clear()


def outcome(column, cells):
    try:
        return column.array(cells)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint8", "float32", "uint64"])
@given(st.lists(NUMBERS, min_size=1, max_size=5))
@example(["-0", "1"])
@example(["1", "2,3"])
def test_numbers_are_the_same_with_and_without_msgspec(dtype, cells):
    pytest.importorskip("msgspec")
    column = CsvColumn("x", np.dtype(dtype))
    fast = outcome(column, cells)
    with without_msgspec():
        slow = outcome(column, cells)
    if isinstance(fast, str) or isinstance(slow, str):
        assert fast == slow
    else:
        assert fast.dtype == slow.dtype
        np.testing.assert_array_equal(fast, slow)
        assert np.signbit(fast).tolist() == np.signbit(slow).tolist()


@given(st.lists(st.floats().map(repr), min_size=1))
def test_floats_are_those_of_python(cells):
    found = CsvColumn("x", np.dtype(np.float64)).array(cells)
    np.testing.assert_array_equal(found, np.array([float(cell) for cell in cells]))
