"""``loaderx verify``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from loaderx import cli
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
    *bad, last = lines
    assert last == f"7 records checked, {len(bad)} bad"
    assert len(bad) > 1
    assert all("shard.00000.mds, sample " in line for line in bad)
    code, lines = verified(capsys, place, "--most", 1)
    assert code == 1
    assert len(lines) == 3
    assert lines[1] == f"... and {len(bad) - 1} more (--most {len(bad)} lists them all)"


def test_what_cannot_be_opened(capsys):
    code, lines = verified(capsys, FILES / "mds" / "pickles")
    assert code == 1
    assert "column 'bad' has pickles" in lines[0]
    assert lines[-1] == "0 records checked, 1 bad"


def test_csv(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000 + "\n1,x\n3\n4,5\n")
    code, lines = verified(capsys, path)
    assert code == 1
    assert lines[0].startswith(f"{path}, line 1003: column 'b': 'x' is not an integer")
    assert lines[1:] == [
        f"{path}, line 1004: it has 1 cells, and the header has 2",
        "1,003 records checked, 2 bad",
    ]


def test_checksums_need_a_package(tmp_path, capsys, monkeypatch):
    path = write_tfrecord(tmp_path / "x.tfrecord", [example({"a": [1]}), example({"a": [2]})])
    assert verified(capsys, path) == (0, ["2 records, all good"])
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert cli.main(["verify", str(path)]) == cli.UNUSABLE
    assert "pip install 'loaderx-jax[tfrecord]'" in capsys.readouterr().err
