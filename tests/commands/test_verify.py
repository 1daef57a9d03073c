"""``loaderx verify``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx import cli
from loaderx.sources import Jsonl
from tf_files import example, write_tfrecord

FILES = Path(__file__).parents[1] / "files"


def verified(capsys, *arguments):
    code = cli.main(["verify", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


def test_good_files(capsys):
    assert verified(capsys, FILES / "mds" / "mixed") == (0, ["7 records, all good"])
    assert verified(capsys, FILES / "mds" / "splits") == (0, ["10 records, all good"])


def test_bad_records_are_listed(tmp_path, capsys):
    place = tmp_path / "mds"
    shutil.copytree(FILES / "mds" / "mixed", place)
    shard = place / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-2500])
    code, lines = verified(capsys, place)
    assert code == 1
    *bad, last, advice = lines
    assert advice == 'leave them out: loaderx convert SRC DST --skip-bad, or .on_error("skip")'
    assert last == f"7 records checked, {len(bad)} bad"
    assert len(bad) > 1
    assert all("shard.00000.mds, sample " in line for line in bad)
    code, lines = verified(capsys, place, "--most", 1)
    assert code == 1
    assert len(lines) == 4
    assert lines[1] == f"... and {len(bad) - 1} more (--most {len(bad)} lists them all)"


def test_what_cannot_be_opened(capsys):
    code, lines = verified(capsys, FILES / "mds" / "pickles")
    assert code == 1
    assert "column 'bad' has pickles" in lines[0]
    assert lines[-1] == "no record was checked: the files cannot be opened"


def test_csv(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000 + "\n1,x\n3\n4,5\n")
    code, lines = verified(capsys, path)
    assert code == 1
    assert lines[0].startswith(f"{path}, line 1003: column 'b': 'x' is not an integer")
    assert lines[1:3] == [
        f"{path}, line 1004: it has 1 cells, and the header has 2",
        "1,003 records checked, 2 bad",
    ]


def test_checksums_need_a_package(tmp_path, capsys, monkeypatch):
    path = write_tfrecord(tmp_path / "x.tfrecord", [example({"a": [1]}), example({"a": [2]})])
    assert verified(capsys, path) == (0, ["2 records, all good"])
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert cli.main(["verify", str(path)]) == cli.UNUSABLE
    assert "pip install 'loaderx-jax[tfrecord]'" in capsys.readouterr().err


def test_workers_find_the_same(tmp_path, capsys):
    lines = [f'{{"x": {n}}}' for n in range(3000)]
    for number in (0, 17, 2999):
        lines[number] = "{"
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    alone = verified(capsys, tmp_path / "x.jsonl")
    assert alone[0] == 1
    assert "x.jsonl, line 18: it is not JSON" in alone[1][1]
    assert verified(capsys, tmp_path / "x.jsonl", "--workers", 2) == alone
    code, lines = verified(capsys, tmp_path / "x.jsonl", "--json")
    told = json.loads("\n".join(lines))
    assert code == 1
    assert (told["checked"], told["unopened"]) == (3000, [])
    assert [one["record"] for one in told["problems"]] == [0, 17, 2999]


def test_a_part_of_the_files(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text('{"x": 1}\n' * 5 + '{"x": null}\n')
    assert verified(capsys, tmp_path / "x.jsonl")[0] == 1
    assert verified(capsys, tmp_path / "x.jsonl", "--split", "[:5]")[0] == 0
    code, lines = verified(capsys, tmp_path / "x.jsonl", "--fill", "x=0")
    assert (code, lines) == (0, ["6 records, all good"])


@settings(max_examples=40)
@given(st.sets(st.integers(0, 69)), st.integers(1, 70))
def test_every_bad_record_is_found(bad, count):
    """Several records are read at once: those beside a bad one are good nevertheless."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        good = min(set(range(count)) - bad, default=None)
        path.write_text("\n".join("{" if n in bad else '{"x": 1}' for n in range(count)))
        if good is None:
            return  # it is no file of JSON lines at all
        source = Jsonl(path, cache=False)
        assert [one and one.record for one in source.problems()] == [
            n if n in bad else None for n in range(count)
        ]
