"""``loaderx info``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loaderx import Dataset, cli

FILES = Path(__file__).parents[1] / "files"


def shown(capsys, *arguments):
    code = cli.main(["info", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out.splitlines(), told.err


def facts(capsys, *arguments):
    code, lines, error = shown(capsys, *arguments, "--json")
    assert error == ""
    return code, json.loads("\n".join(lines))


def test_columns_and_shards(capsys):
    path = FILES / "mds" / "fixed"
    code, lines, _ = shown(capsys, path)
    assert code == 0
    assert lines[0] == "format   mds"
    assert lines[1].startswith("size     ")
    assert lines[2:] == [
        "records  11 in 12 shards",
        "columns  3",
        "  name    type        values",
        "  image   uint8[4,3]  0 to 10",
        "  label   int64       -3 to 7",
        "  weight  float32     0 to 5",
        f"open it  Dataset.open('{path}')",
    ]


def test_splits(capsys):
    path = FILES / "mds" / "splits"
    code, lines, _ = shown(capsys, path)
    assert code == 0
    assert lines[2:] == [
        "split    train  5 records",
        "split    val  5 records",
        "columns  2 of train",
        "  name  type   values",
        "  text  str    length 7",
        "  x     int64  0 to 4",
        f"open it  Dataset.open('{path}', split='train')",
    ]
    code, lines, _ = shown(capsys, path, "--split", "val[:2]", "--columns", "x")
    assert code == 0
    assert lines[2:4] == ["split    val[:2]  2 records", "columns  1"]
    assert lines[-1] == f"open it  Dataset.open('{path}', split='val[:2]', columns=['x'])"


def test_columns_that_differ_between_records(capsys):
    code, told = facts(capsys, FILES / "mds" / "mixed")
    assert code == 0
    types = {one["name"]: one["type"] for one in told["columns"]}
    assert types["floats"] == "float64[?]"
    assert types["png"] == "uint8[6,5,3]"
    assert types["text"] == "str"
    assert types["raw"] == "bytes"
    assert types["digits"] == "int"


def test_what_cannot_be_opened_is_said(tmp_path, capsys):
    code, lines, _ = shown(capsys, FILES / "mds" / "pickles")
    assert code == 1
    assert lines[0].startswith("data     cannot be opened: ")
    code, lines, error = shown(capsys, FILES / "none")
    assert (code, lines) == (2, [])
    assert error.startswith("loaderx info: there is no file or folder")
    (tmp_path / "x.bin").write_bytes(bytes(range(200)))
    code, lines, _ = shown(capsys, tmp_path / "x.bin")  # its name alone looks like Megatron's
    assert code == 1
    assert len(lines) == 1
    assert "x.bin has no x.idx beside it" in lines[0]


def test_copies_in_the_cache(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(5))
    with gzip.open(tmp_path / "y.npy.gz", "wb") as file:
        file.write((tmp_path / "x.npy").read_bytes())
    code, lines, _ = shown(capsys, tmp_path / "y.npy.gz", "--cache", tmp_path / "cache")
    assert code == 0
    assert lines[-2].startswith("copies   ")
    assert lines[-2].endswith(f" bytes in {tmp_path / 'cache'}")


def test_no_copy_of_the_data_is_made(tmp_path, capsys):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": np.arange(5000)}), tmp_path / "x.parquet", row_group_size=500)
    (tmp_path / "x.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(200_000)))
    for name in ("x.parquet", "x.jsonl"):
        assert shown(capsys, tmp_path / name, "--cache", tmp_path / "cache")[0] == 0
        assert not (tmp_path / "cache" / "files").exists()
    Dataset.open(tmp_path / "x.jsonl", cache=tmp_path / "cache")
    assert (tmp_path / "cache" / "files").exists()  # so large that opening makes one


def test_a_sample_is_spread_over_the_records(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(5000)))
    code, lines, _ = shown(capsys, tmp_path / "x.jsonl")
    assert code == 0
    assert "columns  1, from a sample of 1,024 records" in lines
    code, told = facts(capsys, tmp_path / "x.jsonl", "--sample", "5000")
    assert told["columns"][0]["range"] == [0, 4999]
    code, told = facts(capsys, tmp_path / "x.jsonl", "--sample", "100")
    least, most = told["columns"][0]["range"]
    assert (least, told["sample"]["records"]) == (0, 100)
    assert most > 4900


def test_a_record_that_cannot_be_read_hides_nothing_else(tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in (1, 2):
            Image.new("RGB", (4, 3)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    code, lines, _ = shown(capsys, tmp_path)
    assert code == 1
    assert "  image  uint8[3,4,3]  0" in lines
    assert "  label  int64         2 classes: cat 1, dog 2" in lines
    (damaged,) = (line for line in lines if line.startswith("damaged  record 0: "))
    assert f"{tmp_path / 'cat' / '1.png'}: it is no image" in damaged
    _, told = facts(capsys, tmp_path)
    assert told["columns"][1]["classes"] == {"cat": 1, "dog": 2}
    assert [one["record"] for one in told["problems"]] == [0]


def test_an_empty_list_does_not_tell_what_is_in_others(tmp_path, capsys):
    lines = ['{"tags": []}', '{"tags": ["a"]}', '{"tags": []}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    _, told, _ = shown(capsys, tmp_path / "a.jsonl")
    assert told[5] == "  tags  str[?]  length 0 to 1"


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_missing_values_are_counted(tmp_path, capsys, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        table = {"a": [1, None, 3], "t": ["x", "y", None], "c": [0.5, 1.5, 2.5]}
        pq.write_table(pa.table(table), path)
    elif kind == "jsonl":
        rows = '{"a": 1, "t": "x", "c": 0.5}', '{"a": null, "t": "y", "c": 1.5}'
        path.write_text("\n".join([*rows, '{"a": 3, "t": null, "c": 2.5}']))
    else:
        path.write_text("a,c\n1,0.5\n,1.5\n3,2.5\n")
    code, told = facts(capsys, path)
    assert (code, told["problems"]) == (0, [])
    columns = {one["name"]: one for one in told["columns"]}
    assert columns["a"]["missing"] == 1
    assert columns["a"]["range"] == [1, 3]
    assert columns["c"]["missing"] == 0
    assert columns["c"]["range"] == [0.5, 2.5]
    code, lines, _ = shown(capsys, path)
    fill = "{'a': ...}" if kind == "csv" else "{'a': ..., 't': ...}"
    assert lines[-1] == f"open it  Dataset.open('{path}', fill={fill})"
    assert "missing" in "".join(lines)
    code, told = facts(capsys, path, "--columns", "a", "--fill", "a=7")
    assert (code, told["columns"][0]["range"], told["fill"]) == (0, [1, 7], [])


def test_lists_of_images_of_several_shapes(tmp_path, capsys):
    names = ["gray.png", "colours.png"]
    for name, mode in zip(names, ("L", "RGB"), strict=True):
        Image.new(mode, (4, 3)).save(tmp_path / name)
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_names": names}))
    code, found = facts(capsys, tmp_path)
    assert code == 0
    assert [(one["name"], one["type"]) for one in found["columns"]] == [("images", "ndarray[2]")]
