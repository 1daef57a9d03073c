"""``loaderx cache``."""

from __future__ import annotations

import gzip
import json
import os
import time

import pytest

from loaderx import Dataset, cli

DAY_S = 86_400


@pytest.fixture
def cache(tmp_path):
    """A cache folder with an index of two files, and the copy of a packed one."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("one\ntwo\n")
    packed = gzip.compress(b'{"x": 1, "y": 2}\n{"x": 3, "y": 4}\n')
    (tmp_path / "x.jsonl.gz").write_bytes(packed)
    folder = tmp_path / "cache"
    Dataset.open(tmp_path / "*.txt", cache=folder)
    Dataset.open(tmp_path / "x.jsonl.gz", cache=folder)
    return folder


def shown(capsys, cache, *arguments):
    assert cli.main(["cache", "--cache", str(cache), *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def entries(cache):
    return sorted(str(one.relative_to(cache)) for one in cache.glob("*/*"))


def age(place, days):
    for file in (place, *place.iterdir()):
        os.utime(file, (time.time() - days * DAY_S,) * 2)


def test_a_file_is_no_cache(capsys, tmp_path):
    (tmp_path / "x").write_text("")
    assert cli.main(["cache", "--cache", str(tmp_path / "x")]) == 2
    expected = f"loaderx cache: the cache must be a folder, and {tmp_path / 'x'} is a file.\n"
    assert capsys.readouterr().err == expected


def test_entries_are_listed(capsys, cache, tmp_path):
    *rows, total, advice = shown(capsys, cache)
    assert total.startswith("3 entries, ")
    assert total.endswith(f"B in {cache}")
    assert advice == "remove them: the same command with --clear"
    assert all("used today" in row for row in rows)
    assert sum(row.endswith(f"{tmp_path / 'a.txt'} and 1 more") for row in rows) == 1
    assert sum("  index  " in row for row in rows) == 2
    assert sum("unpacked" in row and row.endswith("x.jsonl.gz") for row in rows) == 1
    assert shown(capsys, tmp_path / "none") == [f"0 entries, 0 bytes in {tmp_path / 'none'}"]


def test_all_are_removed(capsys, cache, tmp_path):
    (told,) = shown(capsys, cache, "--clear")
    assert told.startswith("removed 3 entries, ")
    assert entries(cache) == []
    assert Dataset.open(tmp_path / "x.jsonl.gz", cache=cache)[1] == {"x": 3, "y": 4}


def test_what_was_used_lately_stays(capsys, cache, tmp_path):
    for place in cache.glob("*/*"):
        age(place, days=5)
    Dataset.open(tmp_path / "*.txt", cache=cache)
    (told,) = shown(capsys, cache, "--older-than", "4", "--clear")
    assert told.startswith("removed 2 entries, ")
    (left, total, _) = shown(capsys, cache)
    assert "a.txt and 1 more" in left
    assert total.startswith("1 entry, ")


def test_unfinished_entries_are_removed_after_a_day(capsys, cache):
    place = cache / "index" / "0123.77-abcd.tmp"
    place.mkdir()
    (place / "ends.npy").write_bytes(b"123")
    assert "unfinished" in "\n".join(shown(capsys, cache))
    shown(capsys, cache, "--clear")
    assert entries(cache) == ["index/0123.77-abcd.tmp"]
    age(place, days=2)
    shown(capsys, cache, "--clear")
    assert entries(cache) == []


def test_damaged_entries_are_listed_and_removed(capsys, cache):
    for place in cache.glob("*/*/index.json"):
        place.write_text("{")
    *rows, _, _ = shown(capsys, cache)
    assert len(rows) == 3
    assert all("unknown" in row for row in rows)
    shown(capsys, cache, "--clear")
    assert entries(cache) == []


def test_json_and_order(capsys, cache):
    (cache / "index" / "0123").mkdir()
    (cache / "index" / "0123" / "ends.npy").write_bytes(b"1" * 100_000)
    told = json.loads("\n".join(shown(capsys, cache, "--json")))
    sizes = [one["nbytes"] for one in told["entries"]]
    assert sizes == sorted(sizes)
    assert (sizes[-1], sum(sizes), told["removed"]) == (100_000, told["bytes"], False)
    assert shown(capsys, cache)[-3].lstrip().startswith("100.0 kB  used today")
    assert json.loads("\n".join(shown(capsys, cache, "--clear", "--json")))["removed"]
    assert entries(cache) == []


@pytest.mark.parametrize("days", ["-1", "soon", "nan"])
def test_wrong_days(capsys, cache, days):
    with pytest.raises(SystemExit):
        cli.main(["cache", f"--older-than={days}"])
    assert f"--older-than: must be a number of days, got '{days}'" in capsys.readouterr().err
