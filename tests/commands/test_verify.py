"""``loaderx verify``."""

from __future__ import annotations

import shutil
from pathlib import Path

from loaderx import cli

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
