"""Rows of a column in other places."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx.memory import Pool
from loaderx.reading.stored_rows import decoded_rows
from loaderx.sources.columns.pick import Piece, gathered
from loaderx.sources.columns.record_columns import Encoded, encode
from loaderx.sources.columns.widening import settled, widened
from saved_records import check_same, some_records


@given(some_records, st.data())
@settings(max_examples=40)
def test_rows_of_two_pieces_in_any_order(records, data):
    kind, columns = encode(records)
    final = settled(kind)
    columns = widened(columns, kind, final)
    wanted = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=9))
    first = np.array(data.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted))))
    rows, places = np.array(wanted, np.int64), np.arange(len(wanted))
    first = first.astype(np.bool_)
    pieces = [Piece(columns, rows[which], places[which]) for which in (first, ~first)]
    found = decoded_rows(Encoded(final, gathered(final, pieces, len(wanted))), Pool().lend)
    for one, number in zip(found.records(), wanted, strict=True):
        check_same(one, records[number])
