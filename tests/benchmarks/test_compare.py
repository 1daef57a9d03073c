"""`compare.py`: two runs side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmarks

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run_of(tmp_path, name, resume=(1, 2, 3), **values):
    """A file of results; a value is (lowest, median, highest), or a reason why there is none."""
    rows = []
    values = {"numpy_by_hand": (99, 100, 101), **values, "resume": resume}
    for contender, value in values.items():
        workload = "resume" if contender == "resume" else "mnist128"
        contender = contender.replace("resume", "loaderx_")
        row = {
            "workload": workload,
            "contender": contender,
            "title": contender,
            "variant": "by hand" if contender == "numpy_by_hand" else "defaults",
            "status": "error" if isinstance(value, str) else "ok",
            "reason": value if isinstance(value, str) else "",
        }
        if not isinstance(value, str):
            low, middle, high = value
            unit = "s" if workload == "resume" else "records/s"
            row |= {"low": low, "value": middle, "high": high, "unit": unit}
        rows.append(row)
    path = tmp_path / name
    about = {"cores": 2, "python": "3.11.7", "quick": False}
    path.write_text(json.dumps({"about": about, "rows": rows}))
    return str(path)


def compared(*arguments):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "compare.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr
    return done.returncode, done.stdout


def test_compare(tmp_path):
    old = run_of(tmp_path, "old", loaderx_=(90, 100, 110), torch_=(5, 6, 7))
    within = run_of(tmp_path, "within", loaderx_=(80, 88, 105), resume=(2, 3, 4))
    slow = run_of(tmp_path, "slow", loaderx_=(70, 80, 89), resume=(4, 5, 6), torch_=(1, 1, 1))
    fast = run_of(tmp_path, "fast", loaderx_=(190, 200, 210), resume="lost")
    assert compared(old, old) == (0, "0 regressions\n")
    assert compared(old, within) == (0, "0 regressions\n")  # one median is in the other's spread
    code, text = compared(old, slow)
    assert code == 1
    assert "slower: mnist128: loaderx_ (defaults): 100 -> 80 records/s (-20 %)" in text
    assert "slower: resume: loaderx_ (defaults): 2 -> 5 s (+150 %)" in text
    assert "torch" not in text
    assert "slower: mnist128: torch_ (defaults)" in compared(old, slow, "--all")[1]
    code, text = compared(old, fast)
    assert code == 1
    assert "broken: resume: loaderx_ (defaults): worked, now error: lost" in text
    assert "faster: mnist128: loaderx_ (defaults): 100 -> 200" in text


def test_compare_relative(tmp_path):
    old = run_of(tmp_path, "old", loaderx_=(90, 100, 110))
    new = run_of(tmp_path, "new", numpy_by_hand=(49, 50, 51), loaderx_=(45, 50, 55))
    assert compared(old, new)[0] == 1
    code, text = compared(old, new, "--relative")
    assert code == 0
    assert "mnist128" not in text  # the same, seen from NumPy by hand
    slow = run_of(tmp_path, "slow", numpy_by_hand=(49, 50, 51), loaderx_=(20, 22, 25))
    code, text = compared(old, slow, "--relative")
    assert code == 1
    assert "slower: mnist128: loaderx_ (defaults): 1 -> 0.44 by hand (-56 %)" in text


def test_compare_what_only_one_run_has(tmp_path):
    old = run_of(tmp_path, "old", loaderx_=(90, 100, 110), torch_="none")
    new = run_of(tmp_path, "new", torch_=(5, 6, 7), spdl_="fell over")
    code, text = compared(old, new)
    assert code == 0  # not measured is not slower, but it is said
    assert "missing: mnist128: loaderx_ (defaults): not in the new run" in text
    code, text = compared(old, new, "--all")
    assert code == 1
    assert "broken: mnist128: spdl_ (defaults): was not there, now error: fell over" in text
    assert "new: mnist128: torch_ (defaults): was error" in text
    part = json.loads(Path(new).read_text())
    part["rows"] = [row for row in part["rows"] if row["workload"] == "mnist128"]
    (tmp_path / "part").write_text(json.dumps(part))
    assert "missing: resume: not in the new run\n" in compared(old, str(tmp_path / "part"))[1]
    without = run_of(tmp_path, "without", numpy_by_hand="none", loaderx_=(1, 1, 1))
    code, text = compared(old, without, "--relative")
    assert code == 0
    assert "missing: mnist128: loaderx_ (defaults): NumPy by hand is not in both runs" in text


def test_compare_says_when_rounds_are_too_few(tmp_path):
    old = run_of(tmp_path, "old", loaderx_=(90, 100, 110))
    few = json.loads(Path(old).read_text())
    few["about"] |= {"rounds": 1, "cores": 8}
    (tmp_path / "few").write_text(json.dumps(few))
    text = compared(old, str(tmp_path / "few"))[1]
    assert "note: cores 2 -> 8\nnote: the new run has 1 rounds: too few" in text


@pytest.mark.parametrize(
    "text", [None, "", "[1]", "{}", '{"about": {}, "rows": [{"status": "ok"}]}', '{"rows": []}']
)
def test_compare_bad_files(text, tmp_path):
    good, bad = run_of(tmp_path, "good", loaderx_=(1, 2, 3)), tmp_path / "bad"
    if text is not None:
        bad.write_text(text)
    for files in ((good, str(bad)), (str(bad), good)):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "compare.py"), *files],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"{bad}: ")
        assert "Traceback" not in done.stderr
