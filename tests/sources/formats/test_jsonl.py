"""JSON files: objects one a line, or one array of objects."""

from __future__ import annotations

import gzip
import json
import math
import sys

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import StackError
from loaderx.sources import Jsonl
from loaderx.sources.formats.lines.json_parsing import fast_parser
from loaderx.sources.native import copies as native_copies
from loaderx.testing import SourceContract
from oracle import assert_same

ROWS = [
    {"id": n, "text": f"line {n} é \u2028", "score": n / 2, "tokens": list(range(n)), "ok": n > 2}
    for n in range(7)
]
RECORDS = [{**row, "tokens": np.array(row["tokens"], np.int32)} for row in ROWS]


@pytest.fixture(params=["msgspec", "json", "msgspec copied", "json copied"], autouse=True)
def parser(request, monkeypatch):
    """Every test runs with msgspec and as if it were not installed, with and without a copy."""
    if request.param.startswith("msgspec"):
        pytest.importorskip("msgspec")
    else:
        monkeypatch.setitem(sys.modules, "msgspec", None)
    if request.param.endswith("copied"):
        monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    fast_parser.cache_clear()
    yield request.param
    monkeypatch.undo()
    fast_parser.cache_clear()


def write(path, rows, end="\n", last="\n"):
    path.write_bytes((end.join(json.dumps(row) for row in rows) + last).encode())
    return path


def bad(message):
    return pytest.raises(RecordError, match=message)


class TestLists(SourceContract):
    """Lists of various lengths: records are not stacked."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder = tmp_path
        write(tmp_path / "x-2.jsonl", ROWS[:3], end="\r\n", last="")
        write(tmp_path / "x-9.ndjson", [])
        write(tmp_path / "x-10.jsonl", ROWS[3:])

    def make_source(self):
        return Dataset.open(self.folder)

    def expected_records(self):
        return RECORDS


class TestScalars(SourceContract):
    """Numbers and text, which are gathered."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.path = write(tmp_path / "x.jsonl", ROWS)

    def make_source(self):
        return Jsonl(self.path, ["text", "id", "score", "ok"], types={"id": "int64"})

    def expected_records(self):
        names = ("text", "id", "score", "ok")
        return [{name: row[name] for name in names} | {"id": np.int64(row["id"])} for row in ROWS]


class TestArray(SourceContract):
    """One array in a file."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.path = tmp_path / "x.json"
        self.path.write_text(json.dumps(ROWS, indent=1, ensure_ascii=False), encoding="utf-8")

    def make_source(self):
        return Dataset.open(self.path)

    def expected_records(self):
        return RECORDS


def test_batches(tmp_path):
    dataset = Dataset.open(write(tmp_path / "x.jsonl", ROWS))
    (batch,) = dataset.batch(7, pad_to={"tokens": 6})
    assert_same(batch["id"], np.arange(7, dtype=np.int32))
    assert_same(batch["score"], np.arange(7, dtype=np.float32) / 2)
    assert batch["tokens"].dtype == np.int32
    assert batch["tokens_length"].tolist() == list(range(7))
    (batch,) = Dataset.open(tmp_path / "x.jsonl", columns=["text", "id"]).batch(7)
    assert list(batch) == ["text", "id"]
    assert batch["text"].tolist() == [row["text"] for row in ROWS]


def test_odd_lines(tmp_path):
    """A BOM, blank lines, whitespace, any order of keys, and what only `json` takes."""
    lines = [
        b'\xef\xbb\xbf{"a": 1.5, "t": "x"}',
        b"",
        b' \t\r\n  {"t": "\\ud800", "a": 2}  \r',
        b'{"a": NaN, "t": "\\u2028"}',
        b'{"a": -Infinity, "t": "a\\nb"}',
        b'{"a": 1e400, "a": 3, "t": ""}',
        b'{"a": 1e400, "t": "\xe2\x80\xa8"}',
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n \n\n")
    records = list(Dataset.open(tmp_path / "x.jsonl"))
    assert [record["t"] for record in records] == ["x", "\ud800", "\u2028", "a\nb", "", "\u2028"]
    assert all(type(record["a"]) is float for record in records)
    assert [record["a"] for record in records if not math.isnan(record["a"])] == [
        1.5, 2.0, -math.inf, 3.0, math.inf,
    ]  # fmt: skip


def test_large_integers(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"a": 1, "b": 1}, {"a": 2**80, "b": 2**40}])
    dataset = Dataset.open(path)
    assert dataset[1] == {"a": 2**80, "b": 2**40}
    with pytest.raises(
        StackError, match=r"2\*\*80|1208925819614629174706176 does not fit into int32"
    ):
        list(dataset.batch(2))
    (batch,) = Dataset.from_source(Jsonl(path, ["b"], {"b": "int64"})).batch(2)
    assert_same(batch["b"], np.array([1, 2**40]))
    with bad(r"x\.jsonl, line 2: 'a': 1208925819614629174706176 does not fit into int64"):
        list(Dataset.from_source(Jsonl(path, types={"a": "int64"})))


def test_lists(tmp_path):
    rows = [
        {"i": [], "f": [1, 2], "m": [[1, 2], [3, 4]], "s": ["a"], "r": [[1], []], "n": {"x": [1]}},
        {"i": [-3], "f": [0.5], "m": [[5, 6]], "s": [], "r": [], "n": {}},
    ]
    first, second = Dataset.open(write(tmp_path / "x.jsonl", rows))
    assert_same(first["i"], np.array([], np.int32))
    assert_same(second["i"], np.array([-3], np.int32))
    assert_same(first["f"], np.array([1, 2], np.float32))
    assert_same(first["m"], np.array([[1, 2], [3, 4]], np.int32))
    assert_same(second["m"], np.array([[5, 6]], np.int32))
    assert [first[name] for name in "srn"] == [["a"], [[1], []], {"x": [1]}]
    (batch,) = Dataset.from_source(Jsonl(tmp_path / "x.jsonl", ["f"], {"f": "float64"})).batch(
        2, pad_to={"f": 2}
    )
    assert_same(batch["f"], np.array([[1, 2], [0.5, 0]]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1, "b": [1]', "it is not JSON: Expecting ',' delimiter"),
        (b'{"a": 1, "b": [1]} {}', "it is not JSON: Extra data at character 19"),
        (b"[1, 2]", r"it is \[1, 2\], and records are objects"),
        (
            b'{"a": 1}',
            r"it has no 'b'\. Fill them, fill=\{'b': \.\.\.\}, keep them, missing=",
        ),
        (b'{"a": 1, "b": [1], "c": 0}', "it has 'c', which most of the first records do not have"),
        (b'{"a": null, "b": [1]}', r"'a' is null\. Fill them, fill=\{'a': "),
        (b'{"a": 1.5, "b": [1]}', "'a' is 1.5, and an integer in the first records"),
        (b'{"a": "1", "b": [1]}', "'a' is '1', and an integer in the first records"),
        (b'{"a": true, "b": [1]}', "'a' is True, and an integer in the first records"),
        (b'{"a": 1, "b": 5}', "'b' is 5, and a list in the first records"),
        (b'{"a": 1, "b": "12"}', "'b' is '12', and a list in the first records"),
        (b'{"a": 1, "b": [[1]]}', r"'b': \[1\] is not an integer"),
        (b'{"a": 1, "b": [1.5]}', "'b': 1.5 is not an integer"),
        (b'{"a": 1, "b": [1, null]}', "'b': None is not an integer"),
        (b'{"a": 1, "b": [3000000000]}', "'b': 3000000000 does not fit into int32"),
        (b'{"a": 1, "b": [%d]}' % 2**70, "'b': 1180591620717411303424 does not fit into int32"),
        (b'{"a": 1, "b": "\xff"}', r"it is not UTF-8 \(byte 0xff at 15: invalid start byte\)"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_bad_line_fails_alone(line, message, tmp_path):
    rows = [json.dumps({"a": n, "b": [n]}).encode() for n in range(105)]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([*rows[:103], b"", line, *rows[103:]]))
    dataset = Dataset.open(path)
    where = rf"on record 103: BadRecordError: .*x\.jsonl, line 105: {message}"
    with bad(where):
        list(dataset)
    with bad(where):
        list(dataset.shuffle(0).batch(106))
    (batch,) = dataset.on_error("replace").batch(106)
    assert np.delete(batch["a"], 103).tolist() == list(range(105))


def test_fill(tmp_path):
    rows = [{"a": 1, "b": [1]}, {"a": None}, {"b": None, "a": 3}, {"a": 4, "b": [2], "new": "x"}]
    path = write(tmp_path / "x.jsonl", rows)
    dataset = Dataset.open(path, fill={"a": -1, "b": [], "new": None})
    assert [record["a"] for record in dataset] == [1, -1, 3, 4]
    assert [record["b"].tolist() for record in dataset] == [[1], [], [], [2]]
    assert [record["new"] for record in dataset] == [None, None, None, "x"]
    with pytest.raises(ArgumentError, match="`fill`: 'a' is 'x', and an integer in the first"):
        Dataset.open(path, fill={"a": "x"})


def test_columns(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"a": 1, "b": "x"}, {"a": 2, "c": []}, {"a": 3}])
    assert list(Dataset.open(path, columns=["a"])) == [{"a": 1}, {"a": 2}, {"a": 3}]
    with pytest.raises(
        ArgumentError, match=r"`columns` names 'z', and .*x\.jsonl has 'a', 'b', 'c'"
    ):
        Dataset.open(path, columns=["z"])
    with pytest.raises(ArgumentTypeError, match="`columns` must be a list of names"):
        Jsonl(path, columns="a")


def test_types(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"a": 1, "b": [1, 2]}, {"a": "x", "b": [3]}])
    source = Jsonl(path, types={"a": object, "b": np.uint16})
    assert [record["a"] for record in Dataset.from_source(source)] == [1, "x"]
    assert_same(source[0]["b"], np.array([1, 2], np.uint16))
    for types, error, message in (
        ({"b": "text"}, ArgumentTypeError, "`types` says 'text' for 'b', which is not a dtype"),
        ({"b": "M8[Y]"}, ArgumentError, "it must be a dtype of integers, floats or bools, 'date"),
        ({"z": int}, ArgumentError, "`types` names 'z', and"),
        ([int], ArgumentTypeError, "`types` must be a dict of dtypes by column"),
    ):
        with pytest.raises(error, match=message):
            Jsonl(path, types=types)


def test_lines_that_make_up_for_each_other(tmp_path):
    """Two objects in one line and one in two: as many objects as lines, and yet wrong."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2} {"a": 3}\n{"a":\n4}\n{"a": 5}\n{"a": 6}\n')
    dataset = Dataset.open(path)
    with bad(r"on record 1: .*x\.jsonl, line 2: it is not JSON: Extra data"):
        list(dataset.batch(6))
    assert [dataset[n]["a"] for n in (0, 4, 5)] == [1, 5, 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there are no records in it"),
        (b" \n\r\n", "there are no records in it"),
        (b"[]", "there are no records in it"),
        (
            b"hello\nworld\n",
            r"line 1: it is not JSON: .*\. JSON objects are expected, one a line\.",
        ),
        (b'{\n  "data": 1\n}\n', r"line 1: it is not JSON"),
        (b'[{"a": 1}, 2]', "neither an array of objects nor objects one a line: element 1 of the"),
        (b'[{"a": 1}, ]', "element 1 of the array is not an object"),
        (b'[{"a": 1} {}]', "element 0 has neither a comma nor the end behind it"),
        (b'[{"a": 1}', "element 0 has neither a comma nor the end behind it"),
        (b'[{"a": 1}] []', "something follows the array"),
        (b"[1, 2]\n[3]\n", "element 0 of the array is not an object"),
        (b'\xff\xfe{\0"\0', "is UTF-16"),
    ],
)
def test_files_that_are_refused(content, message, tmp_path):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(FileError, match=rf"x\.json.*{message}"):
        Dataset.open(tmp_path / "x.json")


def test_damage_in_an_array_is_named_by_element(tmp_path):
    (tmp_path / "x.json").write_bytes(b'[{"a": "x"}, {"a": "\xff"}, {"a": 1}]')
    dataset = Dataset.open(tmp_path / "x.json")
    with bad(r"x\.json, element 1: it is not UTF-8"):
        list(dataset)


def test_compressed_and_split(tmp_path):
    for name, rows in (("train-0", ROWS[:4]), ("train-1", ROWS[4:]), ("test", ROWS[:2])):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(text))
    (tmp_path / "dataset_infos.json").write_text("{}")  # beside data it is no data
    (tmp_path / "LICENSE.txt").write_text("free")
    assert [record["id"] for record in Dataset.open(tmp_path, split="train")] == list(range(7))
    assert len(Dataset.open(tmp_path, split="train[1shard:]+test")) == 5


def test_zstandard_with_several_frames(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    packed = b"".join(
        zstandard.ZstdCompressor(write_content_size=False).compress(
            json.dumps(row).encode() + b"\n"
        )
        for row in ROWS
    )
    (tmp_path / "x.jsonl.zst").write_bytes(packed)
    assert [record["id"] for record in Dataset.open(tmp_path / "x.jsonl.zst")] == list(range(7))


def test_the_index_is_kept_and_follows_the_file(tmp_path):
    path = write(tmp_path / "x.jsonl", ROWS)
    dataset = Dataset.open(path, cache=tmp_path / "cache")
    assert list((tmp_path / "cache" / "index").iterdir())
    again = Dataset.open(path, cache=tmp_path / "cache")
    assert repr(list(again)) == repr(list(dataset))
    write(path, ROWS[:3])
    assert len(Dataset.open(path, cache=tmp_path / "cache")) == 3


def test_states_and_workers(tmp_path):
    rows = [{"id": n, "tokens": [n] * (n % 5)} for n in range(100)]
    dataset = (
        Dataset.open(write(tmp_path / "x.jsonl", rows)).shuffle(3).batch(7, pad_to={"tokens": 4})
    )
    expected = [batch["id"].tolist() for batch in dataset]
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        iterator = iter(loader)
        begun = [next(iterator)["id"].tolist() for _ in range(4)]
        state = iterator.get_state()
    iterator = iter(DataLoader(dataset, engine="threads"))
    iterator.set_state(state)
    assert begun + [batch["id"].tolist() for batch in iterator] == expected
