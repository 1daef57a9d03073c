"""``loaderx doctor``."""

from __future__ import annotations

import json
import sys

import pytest

from loaderx import cli

SCRIPT = """
import sys, time
import numpy as np
from loaderx import DataLoader, Dataset

def slowly(record):
    time.sleep(0.0025)
    return record

if __name__ == "__main__":
    print("arguments:", *sys.argv[1:])
    train = Dataset.from_arrays(x=np.zeros((64, 2))).map(slowly).batch(8)
    with DataLoader(train, engine="inline") as loader:
        for epoch in range(int(sys.argv[1])):
            for batch in loader:
                time.sleep(0.005)
    if "--fail" in sys.argv:
        raise ValueError("this is the end")
    print("done")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_is_diagnosed(script, capsys):
    before = sys.argv, sys.path
    assert cli.main(["doctor", "--steps", "48", script, "1000", "--epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arguments: 1000 --epochs 3\n")
    assert "starved: training waits for its data." in out
    assert "map(slowly)" in out
    assert "done" not in out
    assert (sys.argv, sys.path) == before


def test_json_has_nothing_else_among_it(script, capsys):
    assert cli.main(["doctor", "--json", "--try", "--steps", "48", script, "1000"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["verdict"] == "starved"
    assert found["tried_ms"] is not None
    assert "arguments: 1000" in captured.err


def test_a_program_that_ends_too_early(script, capsys):
    assert cli.main(["doctor", script, "1"]) == 1
    out = capsys.readouterr().out
    assert out.endswith(
        "The program ended before 3 pairs of blocks were measured (0 were). It takes 20 steps of "
        "one loader to begin, and some hundred to measure; --steps 48 takes fewer.\n"
    )


def test_a_program_that_fails_shows_its_traceback(script, capsys):
    assert cli.main(["doctor", script, "1", "--fail"]) == 1
    assert "ValueError: this is the end" in capsys.readouterr().err


def test_a_missing_script_is_an_error(capsys):
    assert cli.main(["doctor", "nowhere.py"]) == 2
    assert capsys.readouterr().err == "loaderx doctor: there is no file nowhere.py.\n"
