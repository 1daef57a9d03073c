"""Texts made Python's in bulk: the same as one by one, whatever they are and however they lie."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from loaderx import DataLoader, Dataset
from loaderx.sources.base import BadRecordError
from loaderx.sources.columns.build import run_column
from loaderx.sources.columns.elements import ListedArrays
from loaderx.sources.columns.run_columns import TextColumn
from loaderx.sources.columns.text import (
    ImportLater,
    breaks_in,
    bulk_values,
    can_be_taken,
    can_be_viewed,
    import_later,
    texts_in_order,
    texts_one_by_one,
    touch,
    viewed_texts,
)
from loaderx.sources.files.parts import Parts
from native_files import kinds_of, runs, write

COUNT = 300
PIECES = ["plain ", "é", "\0", "中文", "\U0001f600", "\n", "z" * 11]


def texts_of(longest, *, shortest=0, seed=0):
    """Texts of so many pieces."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(shortest, longest + 1, COUNT)
    return ["".join(rng.choice(PIECES, count)) for count in counts.tolist()]


def laid_out(values):
    """Bytes, and where each text begins and ends in them."""
    encoded = [value if isinstance(value, bytes) else value.encode() for value in values]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in encoded])]).astype(np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def column_of(values):
    data, offsets = laid_out(values)
    arrays = ListedArrays([data]), ListedArrays([offsets])
    return run_column(TextColumn, Parts([len(values)]), *arrays)


def read(column, indices):
    return column.values(column.parts.at(indices))


def order_of(count, seed=1):
    return np.random.default_rng(seed).permutation(count)


@pytest.fixture(params=[True, False], ids=["pyarrow", "numpy"])
def has_pyarrow(request, monkeypatch):
    if request.param:
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("loaderx.sources.columns.run_columns.is_imported", lambda: request.param)
    return request.param


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (0, 60), (60, 600), (0, 1200)])
@pytest.mark.parametrize("size", [1, 17, 96, COUNT])
def test_all_lengths_and_orders(shortest, longest, size, has_pyarrow):
    values = texts_of(longest, shortest=shortest)
    column = column_of(values)
    for order in (np.arange(COUNT), order_of(COUNT), np.arange(COUNT)[::-1], np.repeat(5, COUNT)):
        for start in range(0, COUNT, size):
            part = order[start : start + size]
            assert list(read(column, part)) == [values[n] for n in part.tolist()]


@pytest.mark.parametrize("value", ["", "x", "é" * 700])
def test_equal_texts(value, has_pyarrow):
    column = column_of([value] * COUNT)
    assert list(read(column, order_of(COUNT))) == [value] * COUNT
    assert list(read(column, np.empty(0, np.int64))) == []


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc3", b"ok\x80"])
@pytest.mark.parametrize("pieces", [2, 200])
def test_what_is_not_utf8_is_said_as_of_one(bad, pieces, has_pyarrow):
    values = [value.encode() for value in texts_of(pieces, shortest=pieces)]
    values[7] += bad
    with pytest.raises(UnicodeDecodeError) as alone:
        str(values[7], "utf-8")
    for order in (np.arange(COUNT), order_of(COUNT), np.array([7])):
        with pytest.raises(UnicodeDecodeError) as found:
            read(column_of(values), order)
        assert str(found.value) == str(alone.value)


@pytest.mark.parametrize("damaged", [(3, -1), (3, 1 << 60), (3, -(1 << 63)), (COUNT, 1 << 62)])
def test_damaged_offsets(damaged, has_pyarrow):
    values = texts_of(20)
    data, offsets = laid_out(values)
    offsets[damaged[0]] = damaged[1]
    column = run_column(TextColumn, Parts([COUNT]), ListedArrays([data]), ListedArrays([offsets]))
    with pytest.raises(BadRecordError, match="offsets of a column are damaged"):
        read(column, order_of(COUNT))
    whole = np.delete(order_of(COUNT), order_of(COUNT).argsort()[[2, 3, COUNT - 1]])
    assert list(read(column, whole)) == [values[n] for n in whole.tolist()]


def test_which_way_is_taken():
    pytest.importorskip("pyarrow")
    data, offsets = laid_out(["word"] * COUNT)
    assert can_be_taken(data, offsets, COUNT)
    assert not can_be_taken(data, offsets, 50)
    assert not can_be_taken(data, offsets.astype(np.int32), COUNT)
    assert not can_be_viewed(data, np.diff(offsets))
    data, offsets = laid_out(["word" * 200] * COUNT)
    assert not can_be_taken(data, offsets, COUNT)
    lengths = np.diff(offsets)
    assert not can_be_viewed(data, lengths[:50])
    lengths[0] = 12  # Arrow has such short ones elsewhere
    assert not can_be_viewed(data, lengths)


def test_views_in_several_buffers(monkeypatch):
    pytest.importorskip("pyarrow", "19")
    monkeypatch.setattr("loaderx.sources.columns.text.BUFFER", 1 << 12)
    values = texts_of(600, shortest=10)
    data, offsets = laid_out(values)
    order = order_of(COUNT)
    fits = order[np.diff(offsets)[order] <= 1 << 12]
    assert len(data) > 20 << 12
    assert len(fits) > 100
    found = viewed_texts(data, offsets[fits], np.diff(offsets)[fits])
    assert found == [values[n] for n in fits.tolist()]


def test_all_ways_agree():
    pytest.importorskip("pyarrow", "19")
    values = texts_of(300, shortest=100)
    data, offsets = laid_out(values)
    starts, stops = offsets[:-1], offsets[1:]
    assert breaks_in(starts, stops) == []
    assert breaks_in(starts[::-1], stops[::-1]) is None
    turned = np.concatenate([np.arange(100, COUNT), np.arange(100)])
    assert breaks_in(starts[turned], stops[turned]) == [COUNT - 100]
    assert can_be_viewed(data, stops - starts)
    order = order_of(COUNT)
    assert texts_in_order(data, starts, stops, []) == values
    found = texts_in_order(data, starts[turned], stops[turned], [COUNT - 100])
    assert found == values[100:] + values[:100]
    assert texts_one_by_one(data, starts, stops) == values
    assert viewed_texts(data, starts, stops - starts) == values
    taken = bulk_values(data, offsets, is_text=True, rows=order)
    assert taken == [values[n] for n in order.tolist()]


def test_runs_at_the_end_of_much_data_are_touched():
    data = np.zeros((1 << 22) + 100, np.uint8)
    starts = np.full(100, len(data) - 3)
    starts[0] = 0
    touch(data, starts, np.full(100, 3))
    touch(data, starts, np.full(100, 1 << 20))
    assert texts_one_by_one(data, starts, starts + 3) == ["\0\0\0"] * 100


@pytest.mark.parametrize(
    "options", [{"engine": "inline"}, {"engine": "threads", "num_workers": 2}], ids=str
)
def test_loaders(options, has_pyarrow, tmp_path):
    """Batches, records and streams of texts in several parts."""
    values = texts_of(150, shortest=50)
    halves = [values[:110], values[110:]]
    columns = [{"t": runs(half)} for half in halves]
    write(tmp_path / "d", kinds_of(columns[0]), *columns)
    dataset = Dataset.open(tmp_path / "d").shuffle(0)
    order = [record["t"] for record in dataset]
    assert sorted(order) == sorted(values)
    with DataLoader(dataset.batch(128, drop_remainder=False), **options) as loader:
        assert [text for batch in loader for text in batch["t"]] == order
    upper = dataset.map(lambda record: record["t"].upper()).filter(bool).batch(64)
    with DataLoader(upper, **options) as loader:
        assert [text for batch in loader for text in batch] == [text.upper() for text in order]


def test_pyarrow_is_imported_once_it_pays(monkeypatch):
    asked = []
    monkeypatch.setattr("importlib.import_module", asked.append)
    later = ImportLater(worth=100)
    later.count(99)
    assert asked == []
    later.count(1)
    later.count(1000)
    assert asked == ["pyarrow"]


def test_nothing_behind_a_run_of_foreign_memory_is_touched():
    """An object of Hugging Face's is read as all memory of the process: a page may be missing."""
    pa = pytest.importorskip("pyarrow")
    seen = []

    class Noted(np.ndarray):
        def take(self, places, mode):
            seen.append(places)

    memory = np.zeros(5 << 20, np.uint8)
    data = np.frombuffer(pa.foreign_buffer(memory.ctypes.data, memory.nbytes, memory), np.uint8)
    starts, lengths = np.arange(100) * 50_000, np.arange(100) * 13 % 900
    touch(data.view(Noted), starts, lengths)
    (places,) = seen
    some = lengths > 0
    assert not some.all()
    assert (places >= starts[some, None]).all()
    assert (places < (starts + lengths)[some, None]).all()


def test_pyarrow_that_cannot_be_imported_is_not_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ImportLater(worth=1).count(1)


def test_only_batches_count(monkeypatch):
    counted = []
    monkeypatch.setattr("loaderx.sources.columns.run_columns.is_imported", lambda: False)
    monkeypatch.setattr(import_later, "count", counted.append)
    column = column_of(texts_of(20))
    read(column, order_of(COUNT)[:20])
    read(column, order_of(COUNT))
    assert counted == [COUNT]
