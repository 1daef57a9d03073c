"""The benchmarks still run.  What they measure on small sizes means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("core", {"mnist128", "mnist1024", "map_record", "trillion_seek", "state_bytes"}),
        (
            "processes",
            {"transport_take", "small_batch_us", "gil_two_workers", "soak_wrong_batches"},
        ),
        ("streams", {"pack", "pack_density", "tokens", "tokens_open", "filter"}),
        ("devices", {"fed_wait_50", "placing_8", "loading_and_placing_1", "mlp_data_wait"}),
    ],
)
def test_it_runs(script, expected, tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{script}.py"), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert expected <= {row["name"] for row in rows}
    assert not [row for row in rows if row["verdict"] == "error"]


# loaderx beside its peers ---------------------------------------------------------------------


def beside_peers(tmp_path, *options):
    """A tiny run with NumPy and loaderx only: nothing is installed."""
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--tiny", "--peers"]
    folders = ["--no-plot", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, *folders, *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    return done, found


def test_peers(tmp_path):
    names = ["mnist128", "transform", "gil", "transport", "resume", "images64"]
    done, found = beside_peers(tmp_path, "--only", *names)
    assert done.returncode == 0, done.stderr
    rows = found["rows"]
    assert [row["reason"] for row in rows if row["status"] != "ok"] == []
    assert {row["workload"] for row in rows} == set(names)
    assert {row["title"] for row in rows} == {"NumPy by hand", "loaderx"}
    assert all(row["value"] > 0 for row in rows)
    page = (tmp_path / "out" / "results.md").read_text()
    assert "figures mean nothing" in page
    assert str(tmp_path) not in page + json.dumps(found)


WRONG = """
from contenders.numpy_by_hand import arrays as right, begin, note

TITLE, REQUIREMENTS, VERSIONS = "Wrong", None, ["numpy"]
WAYS = {"arrays": {"defaults": "one pixel is wrong", "dear": "it raises"}}
CANNOT = {"tokens": "has no tongue"}

def arrays(job):
    if job.variant == "dear":
        raise ValueError("too dear")
    for batch in right(job):
        batch["image"][:, 3, 4] ^= batch["label"] == 7
        yield batch
"""


def test_what_differs_is_an_error(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    only = ("--only", "mnist128", "tokens")
    done, found = beside_peers(tmp_path, *only, "--contender", str(file))
    assert done.returncode == 1
    assert "!! mnist128: Wrong (defaults): CHECKSUM DISAGREES" in done.stderr
    said = {
        (row["workload"], row["variant"]): (row["status"], row["reason"])
        for row in found["rows"]
        if row["title"] == "Wrong"
    }
    assert said["mnist128", "defaults"][1].startswith("CHECKSUM DISAGREES: checksum ")
    assert said["mnist128", "dear"] == ("error", "ValueError: too dear")
    assert said["tokens", "-"] == ("unsupported", "has no tongue")
    assert "Wrong (defaults): **ERROR**" in (tmp_path / "out" / "results.md").read_text()


@pytest.fixture
def suite(monkeypatch):
    """The modules of the benchmarks can be imported."""
    monkeypatch.syspath_prepend(str(FOLDER))


def test_digests_see_what_sums_do_not(suite):
    import numpy as np
    from suite.checks import MASK, Digest, touch

    image = np.arange(2 * 4 * 8, dtype=np.uint8).reshape(2, 4, 8)
    label = np.arange(2, dtype=np.int32)

    def digest(*batches):
        made = Digest()
        for batch in batches:
            made.add(batch)
        return made.result()["whole"]

    whole = {"image": image, "label": label}
    halves = [{"image": image[i : i + 1], "label": label[i : i + 1]} for i in (1, 0)]
    assert digest(whole) == digest(*halves)  # the order does not matter
    assert touch(whole) == sum(touch(half) for half in halves) & MASK
    flipped = {"image": image[:, ::-1].copy(), "label": label}
    swapped = {"image": image, "label": label[::-1].copy()}
    assert touch(flipped) == touch(swapped) == touch(whole)
    assert len({digest(whole), digest(flipped), digest(swapped), digest(whole, whole)}) == 4


def test_no_paths_in_results(suite):
    from suite.environments import last_line, without_places

    assert without_places("no /home/somebody/x/lib.so at https://host/simple") == (
        "no lib.so at (address)"
    )
    assert without_places("3 records/s, 1/2") == "3 records/s, 1/2"
    assert last_line("ValueError: bad\nI0000 some log\n\n") == "ValueError: bad"


def test_an_environment_that_cannot_be_made(suite, tmp_path, monkeypatch):
    from suite import environments

    def fails(command):
        raise environments.NotInstalledError("no such package")

    monkeypatch.setattr(environments, "call", fails)
    with pytest.raises(environments.NotInstalledError, match="no such package"):
        environments.environment("peer", ["peer==9"], tmp_path)
    assert not (tmp_path / "peer" / "stamp.json").exists()  # it is tried again next time


# Two runs -----------------------------------------------------------------------------------------


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


def test_figures_go_into_the_docs(suite):
    from suite.report import into_docs

    page = (FOLDER.parent / "docs" / "benchmarks.md").read_text()
    about = {"cores": 2, "when": "now", "python": "3.11.7", "load_before": 0.1}
    row = {"workload": "mnist128", "contender": "loaderx_", "status": "ok", "unit": "records/s"}
    made = into_docs(
        page, {"about": about, "rows": [{**row, "value": 123456.0, "title": "loaderx"}]}
    )
    assert "| mnist128 | 123,000 /s |" in made
    assert "no full run yet" not in made
    assert made.partition("Read them as ratios")[2] == page.partition("Read them as ratios")[2]
    assert into_docs(made, {"about": about, "rows": []}).count("<!-- end of figures -->") == 1
