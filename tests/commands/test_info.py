"""``loaderx info``."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from PIL import Image

from loaderx import cli

FILES = Path(__file__).parents[1] / "files"


def shown(capsys, *arguments):
    code = cli.main(["info", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out.splitlines(), told.err


def test_columns_and_shards(capsys):
    code, lines, _ = shown(capsys, FILES / "mds" / "fixed")
    assert code == 0
    assert lines == [
        "format   mds",
        "records  11 in 12 shards",
        "columns  image   uint8[4,3]",
        "         label   int64[]",
        "         weight  float32[]",
    ]


def test_splits(capsys):
    code, lines, _ = shown(capsys, FILES / "mds" / "splits")
    assert code == 0
    assert lines[1:] == [
        "split    train  5 records",
        "split    val  5 records",
        "columns  text  str",
        "         x     int64[]",
    ]


def test_columns_that_differ_between_records(capsys):
    code, lines, _ = shown(capsys, FILES / "mds" / "mixed")
    assert code == 0
    told = {line[9:].split()[0]: line[9:].split(maxsplit=1)[1] for line in lines[2:]}
    assert told["floats"] == "float64[?]"
    assert told["png"] == "uint8[6,5,3]"
    assert told["text"] == "str"
    assert told["raw"] == "bytes"
    assert told["digits"] == "int"


def test_what_cannot_be_opened_is_said(capsys):
    code, lines, _ = shown(capsys, FILES / "mds" / "pickles")
    assert code == 1
    assert lines[1].startswith("data     cannot be opened: ")
    code, lines, error = shown(capsys, FILES / "none")
    assert (code, lines) == (2, [])
    assert error.startswith("loaderx info: there is no file or folder")


def test_copies_in_the_cache(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(5))
    with gzip.open(tmp_path / "y.npy.gz", "wb") as file:
        file.write((tmp_path / "x.npy").read_bytes())
    code, lines, _ = shown(capsys, tmp_path / "y.npy.gz", "--cache", tmp_path / "cache")
    assert code == 0
    assert lines[-1] == f"copies   0.0 MB in {tmp_path / 'cache'}"


def test_a_record_that_cannot_be_read_hides_nothing_else(tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 3)).save(tmp_path / name / "1.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    assert cli.main(["info", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "image" in told
    assert "2 classes: cat, dog" in told
    assert "damaged" in told
    assert "record 0 cannot be read: " in told


def test_an_empty_list_does_not_tell_what_is_in_others(tmp_path, capsys):
    lines = ['{"tags": []}', '{"tags": ["a"]}', '{"tags": []}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    _, told, _ = shown(capsys, tmp_path / "a.jsonl")
    assert told[2] == "columns  tags  object[?]"
