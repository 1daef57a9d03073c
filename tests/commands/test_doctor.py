"""``loaderx doctor``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loaderx import cli
from loaderx.loader.doctor import replay
from measured import measured

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


def test_only_the_script_is_required(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor"])
    assert capsys.readouterr().err.endswith("arguments are required: script\n")


@measured
def test_a_script_is_diagnosed(script, capsys):
    before = sys.argv, sys.path
    assert cli.main(["doctor", "--steps", "48", script, "1000", "--epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arguments: 1000 --epochs 3\n")
    assert "starved: training waits for its data." in out
    assert "map(slowly)" in out
    assert "done" not in out
    assert (sys.argv, sys.path) == before


@measured
def test_json_has_nothing_else_among_it(script, capsys):
    assert cli.main(["doctor", "--json", "--try", "--steps", "48", script, "1000"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["verdict"] == "starved"
    assert found["tried_ms"] is not None
    assert "arguments: 1000" in captured.err


def test_json_has_nothing_else_of_children_among_it(script, capfd):
    with open(script, "a") as file:
        file.write("import os; os.system('echo of a child'); print('of the script')\n")
    assert cli.main(["doctor", "--json", script, "1"]) == 1
    captured = capfd.readouterr()
    assert json.loads(captured.out)["verdict"] == "unknown"
    assert "of a child\n" in captured.err
    assert "of the script\n" in captured.err


THREADS = """
import queue, threading
import numpy as np
from loaderx import DataLoader, Dataset

chain, batches = Dataset.from_arrays(x=np.zeros((64, 2))).batch(8).repeat(), queue.Queue(4)

def produce():
    for batch in DataLoader(chain, engine="inline"):
        batches.put(batch)

def log():
    while batches.get() is not None:
        pass
"""


@pytest.mark.parametrize(
    "ending",
    [
        "threading.Thread(target=produce, daemon=True).start()\nlog()",
        "threading.Thread(target=log).start()\nproduce()",
    ],
    ids=["in another thread", "with a thread that never ends"],
)
def test_programs_with_threads_end(ending, tmp_path):
    (tmp_path / "train.py").write_text(THREADS + ending)
    command = [sys.executable, "-m", "loaderx", "doctor", "--steps", "48", "train.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "batches were repeated" in ended.stdout
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_several_processes_are_refused(script, capsys, monkeypatch):
    monkeypatch.setattr(replay, "processes", lambda: (0, 2))
    assert cli.main(["doctor", script, "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("loaderx doctor: jax runs in several processes, ")


def test_a_message_of_sys_exit_is_shown(script, capsys):
    with open(script, "w") as file:
        file.write("import sys; sys.exit('there is no such dataset')")
    assert cli.main(["doctor", script]) == 1
    assert capsys.readouterr().err == "there is no such dataset\n"


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
