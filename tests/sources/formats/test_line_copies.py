"""Copies of JSON lines and CSV: the same records as without one, whatever the lines hold."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from loaderx import Dataset, RecordError
from loaderx.errors import LoaderxWarning, StackError
from loaderx.sources import Csv, Jsonl
from loaderx.sources.formats.lines import copies as line_copies
from loaderx.sources.native import copies as native_copies


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch):
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def copies(folder):
    """The copies in a cache folder."""
    return sorted((folder / "files").glob("*/loaderx.json"))


def test_records_without_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", [{}, {}, {}])
    assert list(Dataset.open(path, cache=tmp_path / "cache")) == [{}, {}, {}]
    assert not copies(tmp_path / "cache")


def outcome(source, index):
    """A record with the types of its values, or the error in place of one."""
    try:
        record = source[index]
    except Exception as error:
        return type(error).__name__, str(error)
    types = {
        name: getattr(value, "dtype", None) or type(value).__name__
        for name, value in record.items()
    }
    return repr(record), types


def batch_of(source, indices):
    try:
        (batch,) = Dataset.from_source(source)[indices].batch(len(indices))
    except Exception as error:
        return type(error).__name__, str(error)
    return repr(batch), {name: array.dtype for name, array in batch.items()}


USUAL = {"id": 7, "x": 0.5, "ok": True, "text": "naïve \u2028 \U0001f600", "tokens": [1, -2, 3]}
ODD = {
    "beyond 64 bits": {"id": 2**63},
    "far beyond": {"id": -(2**90)},
    "the largest": {"id": 2**63 - 1},
    "beyond int32": {"id": 2**40},
    "a float for an integer": {"id": 7.0},
    "an integer for a float": {"x": 3},
    "a huge integer for a float": {"x": 10**400},
    "negative zero": {"x": -0.0},
    "beyond float32": {"x": 1e300},
    "no number": {"x": float("nan")},
    "infinity": {"x": float("-inf")},
    "text for a number": {"id": "7"},
    "a bool for a number": {"id": True},
    "a number for a bool": {"ok": 1},
    "null": {"text": None},
    "empty text": {"text": ""},
    "half of a pair": {"text": "a\ud800"},
    "zero bytes": {"text": "a\0b\0"},
    "an empty list": {"tokens": []},
    "a float in a list": {"tokens": [1.5]},
    "text in a list": {"tokens": ["1"]},
    "beyond int32 in a list": {"tokens": [2**31]},
    "a list in a list": {"tokens": [[1]]},
    "a number for a list": {"tokens": 5},
    "an object": {"text": {"a": 1}},
    "one key more": {"more": 1},
}


@pytest.mark.parametrize("odd", ODD, ids=list(ODD))
@pytest.mark.parametrize("fill", [{}, {"text": "none"}, {"text": None}], ids=["", "fill", "None"])
def test_odd_values(odd, fill, tmp_path):
    rows = [{**USUAL, "id": n} for n in range(150)]
    rows[120].update(ODD[odd])
    path = write(tmp_path / "x.jsonl", rows)
    copied = Jsonl(path, fill=fill, cache=tmp_path / "cache")
    plain = Jsonl(path, fill=fill, cache=False)
    assert len(copies(tmp_path / "cache")) == 1
    looked_at = [*range(0, 110, 10), *range(110, 130), 149]
    assert [outcome(copied, n) for n in looked_at] == [outcome(plain, n) for n in looked_at]
    assert repr(list(copied.problems())) == repr(list(plain.problems()))


@pytest.mark.parametrize("odd", ["beyond 64 bits", "beyond int32", "beyond float32", "null"])
def test_batches_of_odd_values(odd, tmp_path):
    rows = [{**USUAL, "id": n} for n in range(150)]
    rows[120].update(ODD[odd])
    path = write(tmp_path / "x.jsonl", rows)
    columns = ["id", "x", "ok", "text"]
    copied, plain = (Jsonl(path, columns, cache=cache) for cache in (tmp_path / "cache", False))
    assert copied.gathers
    for indices in (range(100, 110), range(115, 125), [120], [149, 120, 0, 120]):
        assert batch_of(copied, indices) == batch_of(plain, indices)


def test_numbers_of_chosen_types(tmp_path):
    rows = [{"a": n, "b": [n, 2], "c": n / 4} for n in range(50)]
    rows[30]["a"] = 300
    path = write(tmp_path / "x.jsonl", rows)
    types = {"a": "uint8", "b": "float64", "c": "float16"}
    copied, plain = (Jsonl(path, types=types, cache=cache) for cache in (tmp_path / "c", False))
    assert [outcome(copied, n) for n in range(50)] == [outcome(plain, n) for n in range(50)]
    assert copied[3]["a"].dtype == np.uint8
    other = Jsonl(path, types={"a": "int16"}, cache=tmp_path / "c")
    assert other[30]["a"] == 300
    assert len(copies(tmp_path / "c")) == 2


def test_objects_and_mixed_types(tmp_path):
    """They are kept as JSON, beside columns that are gathered."""
    rows = [
        {"text": f"t{n}", "meta": {"n": n, "deep": [{"x": [None, 2**80, 1e-7, "\ud800"]}]},
         "mixed": [n, str(n), None, 1.5, {}, []][n % 6] or [n]}
        for n in range(60)
    ]  # fmt: skip
    rows[40]["meta"] = float("nan")
    path = write(tmp_path / "x.jsonl", rows)
    copied, plain = (Jsonl(path, cache=cache) for cache in (tmp_path / "c", False))
    assert len(copies(tmp_path / "c")) == 1
    assert [outcome(copied, n) for n in range(60)] == [outcome(plain, n) for n in range(60)]
    copied[3]["meta"]["n"] = "changed by a user"
    assert copied[3]["meta"]["n"] == 3


def test_missing_keys_and_fill(tmp_path):
    rows = [{"a": n, "b": [n]} for n in range(40)]
    del rows[7]["b"], rows[20]["a"]
    rows[9]["a"] = None
    path = write(tmp_path / "x.jsonl", rows)
    fill = {"a": -1, "b": [5, 6], "new": 0.5}
    copied, plain = (Jsonl(path, fill=fill, cache=cache) for cache in (tmp_path / "c", False))
    assert [outcome(copied, n) for n in range(40)] == [outcome(plain, n) for n in range(40)]
    other = Jsonl(path, fill={**fill, "a": -2}, cache=tmp_path / "c")
    assert other[9]["a"] == -2


def test_lines_and_files_of_all_kinds(tmp_path):
    """Blank lines, carriage returns, several files, one of them empty, one an array."""
    (tmp_path / "x-0.jsonl").write_bytes(
        b'\xef\xbb\xbf{"a": 1, "t": "x"}\r\n\r\n{"t": "y", "a": 2}'
    )
    (tmp_path / "x-1.jsonl").write_bytes(b"\n")
    (tmp_path / "x-2.jsonl").write_text('[{"a": 3, "t": "z"}, {"a": 2000000000000, "t": ""}]')
    paths = [tmp_path / f"x-{n}.jsonl" for n in range(3)]
    copied, plain = (Jsonl(paths, cache=cache) for cache in (tmp_path / "c", False))
    assert [outcome(copied, n) for n in range(4)] == [outcome(plain, n) for n in range(4)]
    assert [copied.where(n) for n in range(4)] == [plain.where(n) for n in range(4)]
    assert copied.shard_counts == [2, 0, 2]


def test_csv(tmp_path):
    lines = [f'{n},"text, {n}",{n / 8},{"true" if n % 2 else "false"}' for n in range(1500)]
    lines[1200] = "x,y,1.0,true"
    lines[1300] = "1,y,,true"
    lines[1400] = "1,y,2.0,true,more"
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["id,text,x,ok", *lines]))
    copied, plain = (Csv(path, cache=cache) for cache in (tmp_path / "c", False))
    assert len(copies(tmp_path / "c")) == 1
    for n in (0, 999, 1199, 1200, 1201, 1300, 1400, 1499):
        assert outcome(copied, n) == outcome(plain, n)
    for indices in (range(50), range(1190, 1210), [1300], [1499, 3]):
        assert batch_of(copied, indices) == batch_of(plain, indices)
    assert repr(list(copied.problems())) == repr(list(plain.problems()))
    filled = Csv(path, fill={"x": 0.5}, cache=tmp_path / "c")
    assert filled[1300]["x"] == 0.5
    assert copied[5] == plain[5]


def test_small_files_and_no_cache(tmp_path, monkeypatch):
    path = write(tmp_path / "x.jsonl", [USUAL] * 10)
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 1 << 20)
    Jsonl(path, cache=tmp_path / "c")
    assert not copies(tmp_path / "c")
    write(path, [USUAL] * 20_000)
    Dataset.open(path, cache=tmp_path / "c")
    (found,) = copies(tmp_path / "c")
    assert json.loads(found.read_text())["records"] == 20_000
    Dataset.open(path, cache=False)


def test_a_file_that_changes_is_copied_again(tmp_path):
    path = write(tmp_path / "x.jsonl", [USUAL] * 10)
    Jsonl(path, cache=tmp_path / "c")
    write(path, [{**USUAL, "id": 1}] * 12)
    again = Jsonl(path, cache=tmp_path / "c")
    assert (len(again), again[11]["id"]) == (12, 1)
    assert len(copies(tmp_path / "c")) == 2


def test_a_damaged_copy_is_made_again(tmp_path):
    path = write(tmp_path / "x.jsonl", [{**USUAL, "id": n} for n in range(10)])
    expected = repr(list(Dataset.open(path, cache=False)))
    for name in ("loaderx.json", "odd.npy", "part-00000/text.npy", "part-00000/id.npy"):
        Jsonl(path, cache=tmp_path / "c")
        (found,) = copies(tmp_path / "c")
        (found.parent / name).write_bytes(b"damaged")
        assert repr(list(Dataset.open(path, cache=tmp_path / "c"))) == expected
        assert (found.parent / name).read_bytes() != b"damaged"


def test_lines_of_which_many_are_odd_are_not_copied(tmp_path, monkeypatch):
    rows = [{"a": 1 if n % 3 or n < 100 else "x"} for n in range(3000)]
    path = write(tmp_path / "x.jsonl", rows)
    source = Jsonl(path, cache=tmp_path / "c")
    assert not copies(tmp_path / "c")
    assert source[101] == {"a": 1}
    with pytest.raises(RecordError, match=r"line 103: 'a' is 'x', and an integer in the first"):
        list(Dataset.from_source(source).batch(3000))

    def again(*args, **named):
        raise AssertionError("it was tried again")

    monkeypatch.setattr(line_copies, "write_copy", again)
    assert Jsonl(path, cache=tmp_path / "c")[101] == {"a": 1}


def test_a_cache_folder_that_cannot_be_written_to(tmp_path):
    path = write(tmp_path / "x.jsonl", [USUAL] * 10)
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(LoaderxWarning, match="cannot be written to") as warned:
        source = Jsonl(path, cache=tmp_path / "file" / "cache")
    assert len(warned) == 1
    assert source[9]["id"] == 7


def test_no_room_for_the_copy(tmp_path, monkeypatch):
    def full(*args, **named):
        raise OSError(28, "No space left on device")

    path = write(tmp_path / "x.jsonl", [USUAL] * 10)
    monkeypatch.setattr(line_copies, "write_copy", full)
    with pytest.warns(LoaderxWarning, match="No space left on device"):
        source = Jsonl(path, cache=tmp_path / "full")
    assert source[9]["id"] == 7
    assert not os.listdir(tmp_path / "full" / "files")


def test_the_file_may_be_gone(tmp_path):
    """A dataset that is open reads its copy."""
    path = write(tmp_path / "x.jsonl", [{**USUAL, "id": n} for n in range(10)])
    source = Jsonl(path, cache=tmp_path / "c")
    expected = source[4]
    shutil.move(path, tmp_path / "elsewhere")
    assert repr(source[4]) == repr(expected)


def test_numbers_that_do_not_fit_into_a_batch(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"a": 1}, {"a": 2**40}])
    with pytest.raises(StackError, match="1099511627776 does not fit into int32"):
        list(Dataset.open(path, cache=tmp_path / "c").batch(2))
