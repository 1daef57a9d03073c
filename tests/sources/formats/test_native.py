"""The native layout: what is written is read again, by loaderx and by NumPy alone."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from descriptors import few_descriptors, room
from loaderx import ArgumentError, Dataset, FileError
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType
from loaderx.sources.native.layout import file_name
from loaderx.sources.native.writer import PartWriter
from loaderx.testing import SourceContract
from native_files import fixed, kinds_of, lines, runs, write

TEXTS = ["a", "", "é" * 40, "d"]
TOKENS = [[1, 2], [], [3], [4, 5, 6]]


def numbers(count=7, start=0):
    rows = np.arange(start, start + count)
    return {"x": fixed(rows), "image": fixed(np.stack([rows] * 12, 1).reshape(-1, 2, 6), "u1")}


class TestFixed(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path / "data"
        write(self.folder, kinds_of(numbers()), numbers(4), numbers(0), numbers(3, 4))

    def make_source(self):
        return Dataset.open(self.folder)

    def expected_records(self):
        return [
            {"x": np.int64(n), "image": np.full((2, 6), n, np.uint8)} for n in range(7)
        ]  # fmt: skip


class TestEveryKind(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path / "data"
        words = [["a", "bc"], [], ["", "d"], ["é"]]
        items = runs([word for one in words for word in one])
        nested = ColumnData(4, None, np.cumsum([0, *map(len, words)]), {ITEMS: items})
        records = {
            "text": runs(TEXTS),
            "raw.data": runs([one.encode() for one in TEXTS]),
            "tokens": runs(TOKENS, np.int32),
            "when": fixed(np.arange(4).astype("M8[s]")),
            "words": nested,
            "box": ColumnData(4, fields={"x": fixed(np.arange(4.0)), "name": runs(TEXTS)}),
        }
        plain = {name: data for name, data in records.items() if not data.fields}
        kinds = kinds_of(plain, tokens="ragged", **{"raw.data": "bytes"})
        kinds["words"] = ColumnType("list", fields={ITEMS: ColumnType("text")})
        fields = {"x": ColumnType("fixed", np.dtype(float)), "name": ColumnType("text")}
        kinds["box"] = ColumnType("struct", fields=fields)
        write(self.folder, {name: kinds[name] for name in records}, records, records)
        self.words = words

    def make_source(self):
        return Dataset.open(self.folder)

    def expected_records(self):
        return [
            {
                "text": TEXTS[n],
                "raw.data": TEXTS[n].encode(),
                "tokens": np.array(TOKENS[n], np.int32),
                "when": np.datetime64(n, "s"),
                "words": self.words[n],
                "box": {"x": np.float64(n), "name": TEXTS[n]},
            }
            for n in range(4)
        ] * 2

    def test_numpy_alone_reads_it(self):
        part = self.folder / "part-00001"
        assert np.load(part / "tokens.npy").tolist() == [1, 2, 3, 4, 5, 6]
        assert np.load(part / "tokens.offsets.npy").tolist() == [0, 2, 2, 3, 6]
        assert np.load(part / "box.x.npy").tolist() == [0, 1, 2, 3]
        assert (part / "raw%2Edata.npy").exists()
        assert (part / "words.items.offsets.npy").exists()

    def test_columns(self):
        dataset = Dataset.open(self.folder, columns=["tokens", "text"])
        assert list(dataset[3]) == ["tokens", "text"]
        os.remove(self.folder / "part-00000" / "box.x.npy")
        assert Dataset.open(self.folder, columns=["text"])[2]["text"] == TEXTS[2]
        with pytest.raises(ArgumentError, match="has no column 'no'; it has 'text', 'raw.data'"):
            Dataset.open(self.folder, columns=["no"])


def test_names_of_files():
    assert file_name(("a/b", "c.d"), "values") == "a%2Fb.c%2Ed.npy"
    assert file_name(("",), "offsets") == "%.offsets.npy"
    assert file_name(("Größe 1",), "valid") == "Größe 1.valid.npy"
    assert file_name(("..", "\0"), "values") == "%2E%2E.%00.npy"


def test_classes_and_shards(tmp_path):
    write(tmp_path / "d", kinds_of(numbers()), numbers(4), numbers(3), classes={"x": ("a", "b")})
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.classes == {"x": ("a", "b")}
    assert Dataset.open(tmp_path / "d", columns=["image"]).classes == {}
    assert [int(one["x"]) for one in Dataset.open(tmp_path / "d", split="[1shard:]")] == [0, 1, 2]


def test_nulls_are_refused_or_filled(tmp_path):
    valid = np.array([True, False, True])
    records = {
        "age": ColumnData(3, np.array([5, 0, 7]), valid=valid),
        "name": ColumnData(3, np.frombuffer(b"ac", "u1"), np.array([0, 1, 1, 2]), valid=valid),
        "box": ColumnData(3, np.zeros((3, 2), np.float32), valid=valid),
    }
    kinds = {
        "age": ColumnType("fixed", np.dtype(np.int64), nulls=1),
        "name": ColumnType("text", nulls=1),
        "box": ColumnType("fixed", np.dtype(np.float32), (2,), nulls=1),
    }
    write(tmp_path / "d", kinds, records, records)
    assert np.load(tmp_path / "d/part-00000/age.valid.npy").tolist() == valid.tolist()
    with pytest.raises(FileError, match=r"d: column 'age' has 1 null, column 'name' has 1 "):
        Dataset.open(tmp_path / "d")
    fill = {"age": -1, "name": "?", "box": [1, 2]}
    dataset = Dataset.open(tmp_path / "d", fill=fill)
    assert [int(one["age"]) for one in dataset] == [5, -1, 7] * 2
    assert [one["name"] for one in dataset] == ["a", "?", "c"] * 2
    assert dataset[4]["box"].tolist() == [1, 2]
    (batch,) = dataset.batch(6)
    assert batch["age"].tolist() == [5, -1, 7] * 2
    assert batch["name"].tolist() == ["a", "?", "c"] * 2
    for value in ("x", 0.5, [1, 2], None):
        with pytest.raises(ArgumentError, match=r"`fill` has .* for the column 'age'"):
            Dataset.open(tmp_path / "d", columns=["age"], fill={"age": value})


def test_many_parts_need_few_descriptors(tmp_path):
    count = room() + 20
    write(tmp_path / "d", kinds_of(numbers()), *(numbers(2, 2 * n) for n in range(count)))
    with few_descriptors():
        found = [int(one["x"]) for one in Dataset.open(tmp_path / "d")]
    assert found == list(range(2 * count))


def test_a_part_that_fails_leaves_nothing(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        PartWriter(str(tmp_path), 0, kinds_of(numbers())) as part,
    ):
        part.append(numbers())
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileError, match="is an empty folder"):
        Dataset.open(tmp_path)


# Damage -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    records = {**numbers(4), "text": runs(TEXTS)}
    write(tmp_path / "d", kinds_of(records), records)
    return tmp_path / "d"


def change(folder, **changes):
    path = folder / "loaderx.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "has version 3 of the layout, and this loaderx reads 1 and 2"),
        ({"format": "x"}, "does not describe a dataset of loaderx"),
        ({"records": 5}, "is damaged or cut off: the numbers of records differ"),
        ({"columns": {}}, "is damaged or cut off"),
        ({"columns": {"x": {"kind": "new"}}}, "is damaged or cut off"),
        ({"columns": {"x": {"kind": "fixed"}}}, "is damaged or cut off"),
        ({"columns": {"x": {"kind": "list", "fields": {}}}}, "is damaged or cut off"),
        ({"columns": {"x": {"kind": "fixed", "dtype": "O", "shape": []}}}, "has the dtype"),
        ({"columns": {"x": {"kind": "fixed", "dtype": "<f8", "shape": []}}}, r"npy has int64\[4\]"),
        ({"columns": {"y": {"kind": "text"}}}, r"loaderx.json has no y.npy in part-00000"),
        ({"parts": [{"name": "../x", "records": 4, "files": {}}]}, "is damaged or cut off"),
        ({"parts": []}, "is damaged or cut off"),
        ({"parts": 3}, "is damaged or cut off"),
    ],
)  # fmt: skip
def test_damaged_descriptions(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(FileError, match=message) as caught:
        Dataset.open(folder)
    assert str(folder) in str(caught.value)


def test_a_file_that_was_cut_off(folder):
    path = folder / "part-00000" / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"x.npy has 159 bytes, and loaderx.json says 160"):
        Dataset.open(folder)
    path.unlink()
    with pytest.raises(FileError, match=r"there is no file .*x.npy"):
        Dataset.open(folder)


def test_offsets_that_lead_elsewhere(folder):
    path = folder / "part-00000" / "text.offsets.npy"
    offsets = np.load(path)
    for wrong in ([0, 1, 1, 90, 10**9], [0, 1, -5, 3, 4], [0, 9, 1, 2, 3]):
        np.save(path, np.array(wrong, offsets.dtype))
        change(folder, parts=[_sizes(folder, 4)])
        with pytest.raises(Exception, match="the offsets of a column are damaged"):
            list(Dataset.open(folder))


def _sizes(folder, records):
    part = folder / "part-00000"
    files = {one.name: one.stat().st_size for one in part.iterdir()}
    return {"name": part.name, "records": records, "files": files}


@pytest.fixture
def linear(tmp_path):
    records = {
        "x": fixed(np.arange(3)),
        "p": lines([[(8, 5, 1)], [(3, 0, 1), (8, 7, 0)], [(2, 9, 0), (8, -3, 1)]]),
    }
    write(tmp_path / "d", kinds_of(records, p="linear 8"), records)
    return tmp_path / "d"


def test_rows_of_lines(linear):
    dataset = Dataset.open(linear)
    assert json.loads((linear / "loaderx.json").read_text())["version"] == 2
    assert repr(dataset.element_spec) == "{'x': int64[], 'p': int32[8]}"
    (batch,) = dataset.batch(3)
    rows = [[5, 6, 7, 8, 9, 10, 11, 12], [0, 1, 2] + [7] * 5, [9, 9, -3, -2, -1, 0, 1, 2]]
    assert batch["p"].tolist() == rows
    assert dataset[1]["p"].tolist() == rows[1]


@pytest.mark.parametrize(
    "wrong",
    [
        (2, 7, 0),  # stops before the row does
        (9, 7, 0),  # or behind it
        (-1, 7, 0),
        (3, 7, 0),  # where the line before it does
        (8, 7, 2),
        (8, 7, -1),
    ],
)
def test_damaged_lines(linear, wrong):
    path = linear / "part-00000" / "p.npy"
    found = np.load(path)
    found[2] = wrong
    np.save(path, found)
    dataset = Dataset.open(linear)
    with pytest.raises(Exception, match="record 1: .*the lines of a row of 8 numbers are damaged"):
        list(dataset.batch(3))
    assert len(list(dataset.on_error("replace"))) == 3
    offsets = linear / "part-00000" / "p.offsets.npy"
    for wrong in ([0, 1, 1, 5], [0, 1, 3, 90], [0, 3, 1, 5]):
        np.save(offsets, np.array(wrong))
        with pytest.raises(Exception, match="lines of a row|offsets of a column are damaged"):
            list(Dataset.open(linear).batch(3))


@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "<i4", "shape": [9]},
        {"dtype": "<i4", "shape": []},
        {"dtype": "<i4", "shape": [4, 2]},
        {"dtype": "<i4", "shape": [0]},
        {"dtype": "<i4", "shape": [1 << 40]},
        {"dtype": "<f4", "shape": [8]},
        {"dtype": "<i8", "shape": [8]},
    ],
)
def test_damaged_types_of_lines(linear, kind):
    change(linear, columns={"p": {"kind": "linear", **kind}})
    with pytest.raises(Exception, match=r"is damaged|npy has int32|are damaged"):
        list(Dataset.open(linear))


def test_text_that_is_not_utf8_fails_alone(folder):
    path = folder / "part-00000" / "text.npy"
    raw = bytearray(path.read_bytes())
    raw[128] = 0xFF
    path.write_bytes(bytes(raw))
    dataset = Dataset.open(folder)
    with pytest.raises(Exception, match=r"record 0: .*part-00000, record 0: UnicodeDecodeError"):
        list(dataset.batch(4))
    kept = dataset.on_error("replace")
    assert len(list(kept)) == 4


def test_many_columns_need_few_descriptors(tmp_path):
    records = {f"c{n}": fixed(np.arange(n, n + 5)) for n in range(max(150, room() + 20))}
    with few_descriptors():
        write(tmp_path / "d", kinds_of(records), records)
        (batch,) = Dataset.open(tmp_path / "d").batch(5)
    assert batch["c149"].tolist() == [149, 150, 151, 152, 153]


@pytest.mark.parametrize("has_pyarrow", [True, False])
def test_text_in_order(has_pyarrow, tmp_path, monkeypatch):
    """With and without pyarrow, in order and in any other order: the same texts."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    texts = [f"é{n}" * (n % 5) for n in range(300)]
    pq.write_table(pa.table({"t": texts}), tmp_path / "x.parquet")
    dataset = Dataset.open(tmp_path / "x.parquet")
    monkeypatch.setattr("loaderx.sources.columns.run_columns.is_imported", lambda: has_pyarrow)
    order = np.random.default_rng(0).permutation(300)
    for size in (3, 64, 300):
        assert [t for batch in dataset.batch(size) for t in batch["t"]] == texts
        shuffled = [t for batch in dataset[order].batch(size) for t in batch["t"]]
        assert shuffled == [texts[n] for n in order]
