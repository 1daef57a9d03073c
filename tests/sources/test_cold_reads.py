"""Hints for mapped files: given only while rows come from disk, and never seen in the data."""

from __future__ import annotations

import json
import mmap

import numpy as np
import pytest

from loaderx import DataLoader, Dataset
from loaderx.sources.files import cold as cold_reads
from loaderx.sources.files.cold import CAN_ADVISE, CHECK_EVERY, ColdReads, MappedRows, Span
from loaderx.sources.native import copies as native_copies

pytestmark = pytest.mark.skipif(
    not CAN_ADVISE, reason="this system takes no hints for mapped files"
)

PAGE = mmap.PAGESIZE


class Disk:
    """A disk that says when it was read from."""

    def __init__(self, monkeypatch):
        self.blocks = 0
        monkeypatch.setattr(cold_reads, "blocks_read", lambda: self.blocks)


class Hints:
    """What the kernel is told."""

    def __init__(self, monkeypatch):
        self.given = []
        monkeypatch.setattr(
            MappedRows, "will_need", lambda rows, indices: self.given.append(indices.tolist())
        )
        monkeypatch.setattr(MappedRows, "read_ahead", lambda rows, is_on: self.given.append(is_on))

    def of(self, cold, indices):
        self.given = []
        cold.before(np.array(indices))
        return self.given


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5000.0).reshape(1000, 5))
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def test_hints_follow_the_disk(mapped, monkeypatch):
    disk, hints = Disk(monkeypatch), Hints(monkeypatch)
    cold = ColdReads([mapped])
    assert hints.of(cold, [5, 2]) == [False, [5, 2]]  # at first nothing is known
    disk.blocks += 8
    assert hints.of(cold, [7, 1]) == [[7, 1]]
    assert hints.of(cold, [9, 3]) == [True]  # nothing has come from disk since
    for _ in range(CHECK_EVERY):
        disk.blocks += 1
        assert hints.of(cold, [9, 3]) == []
    assert hints.of(cold, [9, 3]) == [False, [9, 3]]
    disk.blocks += 1
    assert hints.of(cold, [4, 5, 6]) == [True]  # in sequence: the kernel reads ahead


def test_what_is_in_memory_or_has_rows_in_pieces_gets_no_hints(mapped):
    assert ColdReads([mapped]).is_needed
    assert ColdReads([mapped[::2]]).is_needed
    assert not ColdReads(
        [np.arange(5), mapped[:, ::2], np.asfortranarray(mapped), mapped[:0]]
    ).is_needed


@pytest.mark.parametrize("first", [0, 1, 700])
def test_pages_of_rows(tmp_path, monkeypatch, first):
    np.save(tmp_path / "x.npy", np.zeros((3000, 700), np.uint8))
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = MappedRows.of(whole[first:])
    told = []

    class Mapped:
        def madvise(self, option, start=0, length=0):
            told.append((start, length))

    monkeypatch.setattr(rows, "mapped", Mapped())
    indices = np.array([1200, 3, 4, 3, 2000])
    rows.will_need(indices)
    covered = {
        page for start, length in told for page in range(start // PAGE, (start + length) // PAGE)
    }
    needed = set()
    for row in indices.tolist():
        begin = whole.offset + (first + row) * 700
        needed |= set(range(begin // PAGE, (begin + 699) // PAGE + 1))
    assert covered == needed
    assert all(start % PAGE == 0 for start, _ in told)
    assert len(told) == len(set(told)) <= 3


def test_pages_of_rows_that_lie_apart(tmp_path, monkeypatch):
    table = np.zeros(4 * PAGE // 16, np.dtype([("a", "<f4", 3), ("b", "<i4")]))
    table.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", table.dtype, "r")
    told = []
    for name in ("a", "b"):
        rows = MappedRows.of(mapped[name])
        asked = "loaderx.sources.files.cold.request_pages"
        monkeypatch.setattr(asked, lambda _, start, length: told.append((start, length)))
        rows.will_need(np.array([len(table) - 1, 0]))
    assert told == [(0, PAGE), (3 * PAGE, PAGE)] * 2


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_the_data_is_the_same(tmp_path, monkeypatch, engine):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (3000, 50), np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(3000))
    counter = iter(range(1 << 30))
    monkeypatch.setattr(cold_reads, "blocks_read", lambda: next(counter))  # always cold
    dataset = Dataset.open(tmp_path / "x.npz").shuffle(1).batch(64)
    expected = list(Dataset.from_arrays(x=x, y=np.arange(3000)).shuffle(1).batch(64))
    with DataLoader(
        dataset, engine=engine, num_workers=None if engine == "inline" else 1
    ) as loader:
        for ours, theirs in zip(loader, expected, strict=True):
            assert np.array_equal(ours["x"], theirs["x"])
            assert np.array_equal(ours["y"], theirs["y"])


class Advice:
    """Which bytes of mapped files the kernel was told about, by `MappedSpans`."""

    def __init__(self, monkeypatch):
        self.runs = []
        self.read_ahead = []

        def will_need_runs(rows, starts, stops):
            self.runs.append((rows, starts.tolist(), stops.tolist()))

        monkeypatch.setattr(MappedRows, "will_need_runs", will_need_runs)
        monkeypatch.setattr(MappedRows, "read_ahead", lambda rows, on: self.read_ahead.append(on))


def json_lines(folder):
    path = folder / "x.jsonl"
    rows = [{"t": f"text {n} " * (n % 9), "n": n, "l": list(range(n % 5))} for n in range(900)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def parquet(folder):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = folder / "x.parquet"
    columns = {"t": [f"text {n} " * (n % 9) for n in range(900)], "n": list(range(900)),
               "l": [list(range(n % 5)) for n in range(900)]}  # fmt: skip
    pq.write_table(pa.table(columns), path)
    return path


def arrow(folder):
    pa = pytest.importorskip("pyarrow")
    path = folder / "x.arrow"
    rows = range(900)
    table = pa.table({
        "t": [f"text {n} " * (n % 9) for n in rows],
        "n": list(rows), "ok": [n % 3 > 0 for n in rows],
        "l": [list(range(n % 5)) for n in rows], "s": [[f"{n}"] * (n % 3) for n in rows],
        "f": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(1800.0)), 2),
    })  # fmt: skip
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return path


def text(folder):
    path = folder / "x.txt"
    path.write_text("".join(f"line {n}\n" for n in range(900)))
    return path


@pytest.mark.parametrize("make", [json_lines, parquet, arrow, text])
@pytest.mark.parametrize("least", [0, 1 << 20], ids=["copied", "parsed"])
def test_hints_of_file_formats(make, least, tmp_path, monkeypatch):
    """They are given while the disk is read, cover what is read, and change nothing."""
    monkeypatch.setattr(native_copies, "LEAST_BYTES", least)
    dataset = Dataset.open(make(tmp_path), cache=tmp_path / "cache")
    chosen = [880, 3, 4, 17, 3]
    monkeypatch.setattr(cold_reads, "blocks_read", lambda: 0)
    expected = repr([dataset[n] for n in chosen])
    again = Dataset.open(tmp_path / make(tmp_path).name, cache=tmp_path / "cache")
    advice = Advice(monkeypatch)
    counter = iter(range(1 << 30))
    monkeypatch.setattr(cold_reads, "blocks_read", lambda: next(counter))
    with DataLoader(again[chosen].batch(5, collate_fn=list), engine="inline") as loader:
        (records,) = loader
    assert repr(records) == expected
    assert advice.runs
    assert set(advice.read_ahead) == {False}
    for _, starts, stops in advice.runs:
        assert all(start < stop for start, stop in zip(starts, stops, strict=True))


def test_damage_is_told_by_the_reader_not_by_a_hint(monkeypatch):
    def find(indices):
        raise ValueError("damaged")
        yield

    monkeypatch.setattr(cold_reads, "blocks_read", iter(range(10)).__next__)
    ColdReads(find=find).before(np.array([1, 5]))


def test_read_ahead_comes_back_for_files_that_were_mapped_later(mapped, monkeypatch):
    disk, advice = Disk(monkeypatch), Advice(monkeypatch)
    told = []
    cold = ColdReads(find=lambda indices: iter([Span(mapped, indices, indices + 1)]))

    class Mapped:
        def __len__(self):
            return 0

        def madvise(self, option):
            told.append(option)

    rows = MappedRows.of(mapped)
    rows.mapped = Mapped()
    monkeypatch.setattr(MappedRows, "of", lambda array: rows)
    cold.before(np.array([5, 2]))
    assert advice.read_ahead == [False]
    assert [run[1] for run in advice.runs] == [[5, 2]]
    disk.blocks += 1
    cold.before(np.array([9, 1]))
    assert advice.read_ahead == [False]  # once for each file
    cold.before(np.array([9, 1]))
    assert told == [mmap.MADV_NORMAL]
