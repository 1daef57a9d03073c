"""``loaderx head``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loaderx import cli


def shown(capsys, *arguments):
    code = cli.main(["head", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out.splitlines(), told.err


@pytest.fixture
def lines(tmp_path):
    rows = [{"id": n, "text": f"line {n}", "tags": ["a"] * n} for n in range(9)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "x.jsonl"


def test_a_table(capsys, lines):
    code, told, _ = shown(capsys, lines, "-n", 3)
    assert code == 0
    assert told == [
        "   id  text    tags",
        "0  0   line 0  []",
        "1  1   line 1  [a]",
        "2  2   line 2  [a, a]",
        "3 of 9 records",
    ]
    assert len(shown(capsys, lines)[1]) == 1 + 5 + 1
    assert shown(capsys, lines, "-n", 100)[1][-1] == "9 of 9 records"


def test_json(capsys, lines):
    code, told, error = shown(capsys, lines, "--json", "-n", 2)
    assert (code, error) == (0, "")
    assert [json.loads(line) for line in told] == [
        {"id": 0, "text": "line 0", "tags": []},
        {"id": 1, "text": "line 1", "tags": ["a"]},
    ]


def test_kinds_of_values_as_json(capsys, tmp_path):
    large = np.zeros((2, 40, 40), np.uint8)
    numbers = np.array([[1, np.nan], [np.inf, 2]], np.float32)
    np.savez(tmp_path / "x.npz", large=large, numbers=numbers, yes=np.array([True, False]))
    code, told, _ = shown(capsys, tmp_path / "x.npz", "--json", "-n", 1)
    assert code == 0
    assert json.loads(told[0]) == {
        "large": {"array": "uint8[40,40]"},
        "numbers": [1, None],
        "yes": True,
    }


def test_lists_and_dicts_in_records(capsys, tmp_path):
    row = {"box": {"x": 1, "y": [2, 3]}, "list": [[1], [2, 3]], "some": [1, None], "of": [{"a": 1}]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    code, told, _ = shown(capsys, tmp_path / "x.jsonl", "--json")
    assert code == 0
    assert json.loads(told[0]) == {"box.x": 1, "box.y": [2, 3], **dict(list(row.items())[1:])}
    assert cli.main(["info", str(tmp_path / "x.jsonl")]) == 0
    assert shown(capsys, tmp_path / "x.jsonl")[0] == 0


def test_long_values_stand_below_each_other(capsys, tmp_path):
    text = "word " * 60
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": 1, "text": text, "n\x1b": "\x1b[31m\n"}))
    code, told, _ = shown(capsys, tmp_path / "x.jsonl")
    assert code == 0
    assert told == [
        "record 0",
        "  id: 1",
        f"  text: {text}",
        r"  n\x1b: \x1b[31m\n",
        "1 of 1 records",
    ]


def test_one_bad_record(capsys, lines):
    rows = lines.read_text().splitlines()
    lines.write_text("\n".join([rows[0], "{", *rows[2:]]))
    code, told, error = shown(capsys, lines, "-n", 3)
    assert code == 1
    assert [row.split()[0] for row in told[1:3]] == ["0", "2"]
    assert error.startswith(f"record 1 cannot be read: {lines}, line 2: it is not JSON")


def test_splits_and_classes(capsys, tmp_path):
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (4, 3)).save(folder / "1.png")
    code, told, _ = shown(capsys, tmp_path)
    assert code == 0
    assert told[1].split() == ["0", "uint8[3,4,3]", "cat"]
    assert told[-1] == "2 of 2 records of train; other splits: test (--split test)"
    assert shown(capsys, tmp_path, "--split", "test")[1][-1] == "2 of 2 records of test"
    code, _, error = shown(capsys, tmp_path, "--split", "dev")
    assert code == 2
    assert error == f"loaderx head: {tmp_path} has no split 'dev': it has 'train', 'test'.\n"


def test_missing_values(capsys, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": null}')
    code, told, error = shown(capsys, tmp_path / "x.jsonl")
    assert (code, error) == (0, "")
    assert told == ["   a", "0  1", "1  null", "2 of 2 records"]
    _, told, _ = shown(capsys, tmp_path / "x.jsonl", "--fill", "a=8", "--json")
    assert told == ['{"a": 1}', '{"a": 8}']


def test_columns_in_a_terminal(capsys, lines, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    _, told, _ = shown(capsys, lines, "-n", 9)
    assert told[-2].strip() == "8  8   line 8  [a, a, a, a,..."
    assert all(len(line) <= 30 for line in told)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    _, told, _ = shown(capsys, lines, "-n", 1)
    assert told[0].startswith("\x1b[1m")


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_wrong_numbers(capsys, lines, number):
    with pytest.raises(SystemExit):
        shown(capsys, lines, f"-n={number}")
    assert f"must be a number of at least 1, got '{number}'" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_a_pipe_that_ends(lines):
    import subprocess
    import sys

    code = "import sys; from loaderx import cli; sys.exit(cli.main(sys.argv[1:]))"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", code, "head", str(lines)],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (cli.CLOSED, "")


CELLS = {
    "int": st.integers(-9, 9),
    "float": st.integers(-9, 9).map(lambda n: n / 4),
    "text": st.sampled_from(["", "-", "a", "ü", "\n"]),
    "yes": st.booleans(),
    "list": st.lists(st.integers(0, 3), max_size=3),
}


@settings(max_examples=40)
@given(st.data(), st.sampled_from(["parquet", "jsonl"]), st.integers(1, 9))
def test_values_are_those_of_the_file_missing_ones_included(data, kind, count):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = data.draw(st.sets(st.sampled_from(sorted(CELLS)), min_size=1))
    cells = {name: st.none() | CELLS[name] for name in sorted(names)}
    rows = data.draw(st.lists(st.fixed_dictionaries(cells), min_size=count, max_size=count))
    for name in names:
        rows[0][name] = data.draw(CELLS[name])  # else no type is known
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"x.{kind}")
        if kind == "parquet":
            types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
            types.update(yes=pa.bool_(), list=pa.list_(pa.int32()))
            schema = pa.schema([(name, types[name]) for name in cells])
            pq.write_table(pa.Table.from_pylist(rows, schema), path)
        else:
            with open(path, "w") as file:
                file.write("\n".join(map(json.dumps, rows)))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main(["head", path, "--json", "-n", "99", "--cache", folder])
    assert code == 0
    assert [json.loads(line) for line in out.getvalue().splitlines()] == rows
