"""``loaderx convert``."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest

from loaderx import Dataset, LoaderxWarning, cli, engines, image
from loaderx.testing.comparing import check_all_equal
from saved_records import content


def run(capsys, *arguments):
    code = cli.main(["convert", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"x": {n}, "text": "line {n}"}}\n' for n in range(20)))
    return path


def test_records_of_files(capsys, tmp_path, lines):
    code, out, err = run(capsys, lines, tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("20 records, ")
    found = Dataset.open(tmp_path / "out")
    assert [(int(one["x"]), one["text"]) for one in found] == [(n, f"line {n}") for n in range(20)]
    assert run(capsys, lines, tmp_path / "out")[0] == 0  # it is there already


def test_columns_and_splits(capsys, tmp_path, lines):
    code, _, _ = run(capsys, lines, tmp_path / "out", "--columns", "text", "--split", "[:5]")
    assert code == 0
    found = Dataset.open(tmp_path / "out")
    assert (len(found), list(found[0])) == (5, ["text"])


def test_messages(capsys, tmp_path, lines):
    code, _, err = run(capsys, tmp_path / "none", tmp_path / "out")
    assert code == 2
    assert err.startswith("loaderx convert: there is no file or folder")
    code, _, err = run(capsys, lines, tmp_path)
    assert code == 2
    assert "it has other files, such as in.jsonl. Give a folder that is new or empty." in err
    code, _, err = run(capsys, lines, tmp_path / "out", "--columns", "y")
    assert code == 2
    assert err.startswith("loaderx convert: --columns names 'y', and ")


def test_images_stay_as_they_are_in_their_files(capsys, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        folder = tmp_path / "in" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((3 + number, 4 + number, 3), number * 40, np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    code, _, err = run(capsys, tmp_path / "in", tmp_path / "out")
    assert (code, err) == (0, "")
    found, expected = Dataset.open(tmp_path / "out"), Dataset.open(tmp_path / "in")
    check_all_equal(list(found), list(expected), "record")
    assert found.classes == expected.classes
    raw = Dataset.open(tmp_path / "out", decode=False)[0]["image"]
    assert image.open(io.BytesIO(raw)).format == "PNG"
    code, _, err = run(capsys, tmp_path / "in", tmp_path / "pixels", "--decode")
    assert code == 2
    assert "images can be saved as the bytes of their files" in err
    assert err.endswith("Or leave the column out, with --columns a,b,c.\n")


def test_parquet_is_decoded_once(capsys, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"x": np.arange(100), "t": [f"row {n}" for n in range(100)], "l": [[1, 2]] * 100}
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=30)
    code, _, err = run(capsys, tmp_path / "in.parquet", tmp_path / "out", "--cache", tmp_path / "c")
    assert (code, err) == (0, "")
    assert not (tmp_path / "c" / "files").exists()
    expected = list(Dataset.open(tmp_path / "in.parquet"))
    check_all_equal(list(Dataset.open(tmp_path / "out")), expected, "record")


def test_ctrl_c_leaves_a_state_that_goes_on(tmp_path, lines, capsys):
    script = (
        "import os, signal, sys\n"
        "from loaderx import cli\n"
        "from loaderx.sources.native import writer\n"
        "append = writer.PartWriter.append\n"
        "def stopped(self, records):\n"
        "    append(self, records)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "writer.PartWriter.append = stopped\n"
        "sys.exit(cli.main(['convert', *sys.argv[1:]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, lines, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LOADERX_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 130
    assert done.stderr == "\nstopped: run the same command to resume\n"
    assert run(capsys, lines, tmp_path / "out")[0] == 0
    assert len(Dataset.open(tmp_path / "out")) == 20


def test_advice_is_that_of_the_command(capsys, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("train", "test"):
        (tmp_path / "set" / f"{name}.jsonl").write_text('{"x": 1}\n{"x": null}\n')
    code, _, err = run(capsys, tmp_path / "set", tmp_path / "out")
    assert code == 2
    assert "choose one, --split" in err
    assert "split=" not in err
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"x": [1, None], "y": [1, 2]}), tmp_path / "x.parquet")
    code, _, err = run(capsys, tmp_path / "x.parquet", tmp_path / "out")
    assert code == 2
    assert "leave the column out with --columns a,b,c." in err
    assert "Fill them, --fill x=..., or" in err
    code, _, err = run(capsys, tmp_path / "x.parquet", tmp_path / "out", "--fill", "x=7")
    assert (code, err) == (0, "")
    assert [int(record["x"]) for record in Dataset.open(tmp_path / "out")] == [1, 7]


def test_engines_and_shards(capsys, tmp_path, lines):
    assert run(capsys, lines, tmp_path / "one")[0] == 0
    for engine in ("inline", "threads", "processes"):
        code, _, _ = run(capsys, lines, tmp_path / engine, "--engine", engine, "--workers", 1)
        assert code == 0
        assert content(tmp_path / engine) == content(tmp_path / "one")
    with pytest.warns(LoaderxWarning, match=r"shard=\(0, 2\) has nothing to save"):
        code, out, _ = run(capsys, lines, tmp_path / "two", "--shard", "0/2")
    assert (code, out) == (0, f"shard 0/2 is saved, others are not yet: {tmp_path / 'two'}\n")
    code, out, _ = run(capsys, lines, tmp_path / "two", "--shard", "1/2")
    assert code == 0
    assert out.startswith("20 records, ")
    assert content(tmp_path / "two") == content(tmp_path / "one")


@pytest.fixture
def photos(tmp_path):
    """Six images, of which the first and the fourth are damaged."""
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((30 + number, 40, 3), number * 40, np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    for path in ("cat/1.png", "dog/0.png"):
        (tmp_path / "photos" / path).write_bytes(b"no image")
    return tmp_path / "photos"


def test_bad_records_are_left_out(capsys, tmp_path, photos):
    code, out, err = run(capsys, photos, tmp_path / "out", "--skip-bad")
    assert code == 0
    assert [line.partition("): ")[0] for line in err.splitlines()] == [
        f"left out: record 0 ({photos / 'cat' / '1.png'}",
        f"left out: record 3 ({photos / 'dog' / '0.png'}",
    ]
    assert out.splitlines()[0].startswith("4 records, ")
    assert out.splitlines()[1:] == [
        f"2 bad records were left out: loaderx verify {photos} lists them",
        f'open it: Dataset.open("{tmp_path / "out"}")',
    ]
    expected = list(Dataset.open(photos).on_error("skip"))
    check_all_equal(list(Dataset.open(tmp_path / "out")), expected, "record")
    code, out, _ = run(capsys, photos, tmp_path / "all")
    assert code == 0
    assert f"images were copied unseen: loaderx verify {tmp_path / 'all'} decodes them" in out
    assert len(Dataset.open(tmp_path / "all")) == 6
    code, _, err = run(capsys, photos, tmp_path / "part", "--skip-bad", "--shard", "0/2")
    assert code == 2
    assert "--skip-bad and --shard cannot be used together" in err


def test_images_are_resized(capsys, tmp_path, photos, lines):
    code, _, err = run(capsys, photos, tmp_path / "out", "--resize", "8x9")
    assert code == 2
    assert "the image is damaged" in err or "it is no image" in err
    assert err.endswith("To leave out such records, say --skip-bad.\n")
    code, _, err = run(capsys, photos, tmp_path / "good", "--resize", "8x9", "--skip-bad")
    assert code == 0
    assert len(err.splitlines()) == 2
    resize = image.resize((8, 9))
    expected = list(Dataset.open(photos, decode=False).map(resize).on_error("skip"))
    check_all_equal(list(Dataset.open(tmp_path / "good")), expected, "record")
    code, _, err = run(capsys, lines, tmp_path / "none", "--resize", "8")
    assert code == 2
    assert err == f"loaderx convert: --resize needs images, and {lines} has none.\n"
    with pytest.raises(SystemExit):
        run(capsys, photos, tmp_path / "none", "--resize", "8x")
    assert "must be a side or HEIGHTxWIDTH, such as 256, got '8x'" in capsys.readouterr().err


def test_cells_between_other_delimiters(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text("a;b\n1;2\n3;4\n")
    code, _, err = run(capsys, tmp_path / "x.csv", tmp_path / "out")
    assert code == 2
    assert """If its delimiter is ";", say --delimiter ";"; if it is one""" in err
    code, _, err = run(capsys, tmp_path / "x.csv", tmp_path / "out", "--delimiter", ";")
    assert (code, err) == (0, "")
    assert [int(record["b"]) for record in Dataset.open(tmp_path / "out")] == [2, 4]


def test_delimiters_are_for_csv_files(capsys, tmp_path, lines):
    for path, more, found in (
        (lines, (), "jsonl"),
        (f"{tmp_path}/*.parquet", (), "parquet"),
        ("x.csv", ("--format", "jsonl"), "jsonl"),
    ):
        code, _, err = run(capsys, path, tmp_path / "out", "--delimiter", ";", *more)
        assert code == 2
        assert err == f"loaderx convert: --delimiter is for CSV files, and the format is {found}.\n"
    (tmp_path / "x.txt").write_text("a;b\n1;2\n")
    assert cli.main(["head", str(tmp_path / "x.txt"), "--delimiter", ";"]) == 0
    lines.write_text("a;b\n1;2\n")
    assert cli.main(["head", str(lines), "--delimiter", ";", "--format", "csv"]) == 0


@pytest.mark.parametrize("shard", ["2/2", "1", "a/b", "-1/2", "1/2/3"])
def test_wrong_shards(capsys, tmp_path, lines, shard):
    with pytest.raises(SystemExit):
        run(capsys, lines, tmp_path / "out", f"--shard={shard}")
    assert "must be one of 0/N to (N - 1)/N, such as 0/8, got" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cluster(capsys, tmp_path, lines, monkeypatch):
    begun = []

    def ray(**options):
        begun.append(options)
        return engines.Inline()

    monkeypatch.setattr(engines, "Ray", ray, raising=False)
    code, _, err = run(capsys, lines, tmp_path / "out", "--engine", "ray", "--workers", 64)
    assert (code, err, begun) == (0, "", [{"num_workers": 64}])
