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


def with_cpu(path, *rounds, method=3):
    """The same results, where loaderx has taken so much CPU time."""
    found = json.loads(Path(path).read_text())
    for row in found["rows"]:
        if row["unit"] == "records/s":
            own = [10.0] * 5 if row["contender"] == "numpy_by_hand" else list(rounds)
            row |= {"cpu_us_per_record": sorted(own)[len(own) // 2], "cpu_rounds": own}
        row["method"] = method
    Path(path).write_text(json.dumps(found))
    return path


def test_compare_cpu_time(tmp_path):
    old = with_cpu(run_of(tmp_path, "old", loaderx_=(90, 100, 110)), 1.9, 2.0, 2.1)
    within = with_cpu(run_of(tmp_path, "within", loaderx_=(90, 100, 110)), 1.8, 2.05, 2.3)
    more = with_cpu(run_of(tmp_path, "more", loaderx_=(90, 100, 110)), 2.4, 2.5, 2.6)
    assert compared(old, within) == (0, "0 regressions\n")
    said = "2 -> 2.5 µs of CPU (+25 %); spread 1.9 to 2.1, now 2.4 to 2.6"
    text = f"more CPU: mnist128: loaderx_ (defaults): {said}\n1 regression\n"
    assert compared(old, more) == (1, text)
    assert "less CPU: mnist128: loaderx_ (defaults)" in compared(more, old)[1]
    code, text = compared(old, more, "--relative")
    assert code == 1
    assert "0.2 -> 0.25 CPU by hand (+25 %)" in text


def test_compare_cpu_time_of_other_methods_and_without_rounds(tmp_path):
    old = with_cpu(run_of(tmp_path, "old", loaderx_=(90, 100, 110)), 2.0, method=2)
    new = with_cpu(run_of(tmp_path, "new", loaderx_=(90, 100, 110)), 9.0)
    note = "note: measured in another way, so that CPU time is not compared: mnist128, resume\n"
    assert compared(old, new) == (0, f"{note}0 regressions\n")
    found = json.loads(Path(new).read_text())
    for row in found["rows"]:  # medians alone: a tenth is taken for their spread
        row.pop("cpu_rounds", None)
        row["cpu_us_per_record"] = 10.5
    (tmp_path / "medians").write_text(json.dumps(found))
    tenth = with_cpu(run_of(tmp_path, "tenth", loaderx_=(90, 100, 110)), 9.8, 10.0, 10.2)
    assert compared(tenth, str(tmp_path / "medians")) == (0, "0 regressions\n")


def test_compare_with_the_last_release(tmp_path):
    """Git has the results of a commit; of this checkout's HEAD, they are those of the folder."""
    shown = subprocess.run(
        ["git", "show", "HEAD:benchmarks/results/results.json"],
        cwd=FOLDER,
        capture_output=True,
        check=False,
    )
    if shown.returncode:
        pytest.skip("no git here")
    (tmp_path / "new").write_bytes(shown.stdout)
    code, text = compared(str(tmp_path / "new"), "--release", "HEAD")
    assert (code, text) == (0, "note: the old run is that of HEAD\n0 regressions\n")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "compare.py"), str(tmp_path / "new"), "--release", "nobody"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "nobody: git has no benchmarks/results/results.json there\n"


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
