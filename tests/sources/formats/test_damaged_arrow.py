"""Damaged numbers inside of Arrow files that are decoded are found before pyarrow follows them."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from loaderx import Dataset, LoaderxError

LONG = "longer than what a view has in itself"
WORDS = pa.array(["aaaaa", "bbbbbbb", "cc", "aaaaa"])
FAR = 1 << 30


def view_of(offset: int, size: int = len(LONG)) -> bytes:
    return struct.pack("<i4sii", size, LONG[:4].encode(), 0, offset)


def numbers(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


VIEWS = pa.array([LONG] * 3, pa.string_view())
VIEW = view_of(len(LONG))  # the second one
OFFSETS = numbers(0, 5, 12, 14)
CASES = {
    "text": (VIEWS, VIEW, view_of(FAR)),
    "bytes": (VIEWS.cast(pa.binary_view()), VIEW, view_of(FAR)),
    "too long": (VIEWS, VIEW, view_of(len(LONG), FAR)),
    "list": (pa.ListArray.from_arrays([0, 1, 2, 3], VIEWS), VIEW, view_of(FAR)),
    "struct": (pa.StructArray.from_arrays([VIEWS], ["a"]), VIEW, view_of(FAR)),
    "dictionary": (WORDS.dictionary_encode(), OFFSETS, numbers(0, FAR, 12, 14)),
    "negative": (WORDS.dictionary_encode(), OFFSETS, numbers(0, -9, 12, 14)),
    "runs": (
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), WORDS[:3]),
        OFFSETS,
        numbers(0, FAR, 12, 14),
    ),
}


def written(path, columns, found, damaged):
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    assert content.count(found) == 1
    path.write_bytes(content)
    whole = list(Dataset.open(path, cache=False))
    path.write_bytes(content.replace(found, damaged))
    return whole


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cache", [True, False], ids=["copied", "in place"])
def test_what_leads_outside_of_a_column_is_refused(tmp_path, case, cache):
    path = tmp_path / "x.arrow"
    array, found, damaged = CASES[case]
    assert len(written(path, {"x": array}, found, damaged)) == len(array)
    with pytest.raises(LoaderxError, match=rf"{path} is damaged or cut off: \S"):
        list(Dataset.open(path, cache=tmp_path / "cache" if cache else False))


def test_nulls_are_filled_in_what_is_whole_only(tmp_path):
    path = tmp_path / "x.arrow"
    columns = {"x": pa.array(["aaaaa", None, "bbbbbbb"]), "d": WORDS[:3].dictionary_encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    content, offsets = sink.getvalue().to_pybytes(), numbers(0, 5, 5, 12)
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, numbers(0, FAR, FAR, 12)))
    with pytest.raises(LoaderxError, match=rf"{path} is damaged or cut off"):
        list(Dataset.open(path, fill={"x": "-"}, cache=False))


def test_lists_of_lists_ask_for_no_more_than_there_is(tmp_path):
    path = tmp_path / "x.arrow"
    lists = pa.array([[[1], [2, 3]], [[4]], [[5], [6], [7]]], pa.list_(pa.list_(pa.int32())))
    columns = {"x": lists, "d": WORDS[:3].dictionary_encode()}
    written(path, columns, numbers(0, 2, 3, 6), numbers(0, 2, FAR, 6))
    with pytest.raises(
        LoaderxError, match=rf"offsets of a column are damaged: item {FAR - 1} of 6"
    ):
        list(Dataset.open(path, cache=False))
