"""`run.py`: loaderx beside its peers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmarks

FOLDER = Path(__file__).parents[2] / "benchmarks"


def start(tmp_path, *options, peers=()):
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--tiny", "--peers", *peers]
    folders = ["--no-plot", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    return subprocess.Popen(
        [*command, *folders, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


def beside_peers(tmp_path, *options):
    """A tiny run with NumPy and loaderx only: nothing is installed."""
    running = start(tmp_path, *options)
    said = running.communicate(timeout=240)
    done = subprocess.CompletedProcess(running.args, running.returncode, *said)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    return done, found


def test_update(tmp_path):
    """Some workloads again: their rows are new, the others stay."""
    beside_peers(tmp_path, "--only", "mnist128", "tokens")
    file = tmp_path / "out" / "results.json"
    old = json.loads(file.read_text())
    for row in old["rows"]:
        row["value"] = 123456.0
    old["about"]["versions"]["loaderx"] = {"numpy": "0.1"}
    file.write_text(json.dumps(old))
    done, new = beside_peers(tmp_path, "--update", "--only", "mnist128")
    assert done.returncode == 0, done.stderr
    assert names_of(new) == names_of(old)
    assert {row["workload"] for row in new["rows"] if row["value"] == 123456} == {"tokens"}
    assert new["about"]["when"] == old["about"]["when"]
    assert list(new["about"]["again"]) == ["mnist128"]
    page = (tmp_path / "out" / "results.md").read_text()
    assert "Measured again, with all loaders: mnist128 (" in page
    assert "- loaderx: numpy 0.1\n" in page
    assert "- loaderx in mnist128: numpy " in page
    (tmp_path / "out" / "results.md").unlink()
    again = start(tmp_path, "--pages")
    assert again.communicate(timeout=60) == ("", "")
    assert (tmp_path / "out" / "results.md").read_text() == page


def test_resume(tmp_path):
    """A run that was stopped goes on with the workloads that it has not measured."""
    _, old = beside_peers(tmp_path, "--only", "mnist128", "tokens")
    rows = [{**row, "value": 123456.0} for row in old["rows"] if row["workload"] == "tokens"]
    old["about"].update(when="then", took_min=1000.0)
    kept = tmp_path / "out" / "unfinished.json"
    kept.write_text(json.dumps({**old, "rows": rows}))
    (tmp_path / "out" / "results.json").unlink()
    done, new = beside_peers(tmp_path, "--resume", "--only", "mnist128", "tokens")
    assert done.returncode == 0, done.stderr
    assert names_of(new) == names_of(old)
    assert {row["workload"] for row in new["rows"] if row["value"] == 123456} == {"tokens"}
    assert new["about"]["when"] == "then"
    assert new["about"]["took_min"] >= 1000
    (went_on,) = new["about"]["continued"]
    assert f"Stopped, and continued: {went_on}." in (tmp_path / "out" / "results.md").read_text()
    assert not kept.exists()
    done = start(tmp_path, "--resume", "--only", "mnist128")
    assert "--resume: unfinished.json cannot be read" in done.communicate(timeout=60)[1]


def names_of(result):
    return [(row["workload"], row["title"], row["variant"]) for row in result["rows"]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda old: old["rows"].append({**old["rows"][0], "contender": "x", "title": "X"}),
            "lose X",
        ),
        (lambda old: old["about"].update(rounds=5), "the old run has rounds 5, this one 1"),
        (lambda old: old.pop("rows"), "cannot be read: 'rows'"),
        (None, "cannot be read"),
    ],
)
def test_no_update(spoil, said, tmp_path):
    """Known before anything is measured, and nothing is written."""
    file = tmp_path / "out" / "results.json"
    file.parent.mkdir()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    about = {
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "rounds": 1,
        "quick": True,
    }
    row = {"workload": "mnist128", "contender": "loaderx_", "title": "loaderx"}
    old = {"about": about, "rows": [row]}
    if spoil:
        spoil(old)
    text = json.dumps(old) if spoil else "no JSON"
    file.write_text(text)
    done = start(tmp_path, "--update", "--only", "mnist128")
    errors = done.communicate(timeout=60)[1]
    assert done.returncode == 2
    assert said in errors
    assert file.read_text() == text


def test_peers(tmp_path):
    names = ["mnist128", "transform", "step", "gil", "transport", "remote", "resume", "images64"]
    names.append("aug32")
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
WAYS = {"arrays": {"defaults": "one pixel is wrong", "dear": "it raises", "tidy": "in order"}}
CANNOT = {"tokens": "has no tongue"}

def arrays(job):
    if job.variant == "dear":
        raise ValueError("too dear")
    if job.variant == "tidy":
        x, y = job.load("image"), job.load("label")
        for start in [*range(0, job.records, job.batch_size)] * job.epochs:
            part = slice(start, start + job.batch_size)
            yield {"image": x[part], "label": y[part]}
        return
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
    assert 'raise ValueError("too dear")' in done.stderr  # with where it happened
    assert said["mnist128", "tidy"][1].startswith("NOT SHUFFLED")
    assert said["tokens", "-"] == ("unsupported", "has no tongue")
    assert "Wrong (defaults): **ERROR**" in (tmp_path / "out" / "results.md").read_text()


STUCK = """
import pathlib, subprocess, sys, time
from contenders.numpy_by_hand import begin, note

TITLE, REQUIREMENTS, VERSIONS = "Stuck", None, ["numpy"]
WAYS, CANNOT = {"arrays": {"defaults": "it hangs"}}, {}

def arrays(job):
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    helper = subprocess.Popen(sleeps, process_group=0)
    part = pathlib.Path(__file__).with_suffix(".part")
    part.write_text(str(helper.pid))
    part.rename(part.with_suffix(".pid"))
    print("waiting for a sign", file=sys.stderr, flush=True)
    time.sleep(600)
    yield {}
"""


def stuck(tmp_path):
    """A run that hangs in a contender, which has a helper; and the helper's number."""
    file = tmp_path / "stuck.py"
    file.write_text(STUCK)
    run = start(tmp_path, "--only", "mnist128", "--contender", str(file))
    pid = file.with_suffix(".pid")
    while not pid.exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    return run, int(pid.read_text())


def assert_gone(pid):
    """It may be a zombie for a moment, if somebody else has to collect it."""
    status = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 30
    with contextlib.suppress(OSError):  # gone
        while status.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(number, tmp_path):
    run, helper = stuck(tmp_path)
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert not (tmp_path / "out").exists()
    assert_gone(helper)


HANGS = """
import pathlib, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("waiting for a sign", file=sys.stderr, flush=True)
pathlib.Path("part").write_text(str(helper.pid))
pathlib.Path("part").rename("pid")
time.sleep(600)
"""


def test_what_hangs_is_ended(suite, tmp_path, monkeypatch):
    from suite import tree

    pid = tmp_path / "pid"
    times = itertools.count(1)
    monkeypatch.setattr(
        tree, "perf_counter", lambda: 1e3 + next(times) / 1e3 if pid.exists() else 0.0
    )
    command = [sys.executable, "-c", HANGS]
    outcome = tree.run(command, dict(os.environ), tmp_path, timeout_s=100)
    assert outcome.late
    assert outcome.code == -signal.SIGKILL
    assert "waiting for a sign" in outcome.errors
    assert_gone(int(pid.read_text()))


def test_a_process_may_end_while_it_is_looked_at(suite):
    from suite import tree

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert tree.descendants(gone.pid) == [gone.pid]
    assert tree.pss_mb(gone.pid) == 0


def test_finished_workloads_are_kept_when_a_run_is_cut_short(suite, tmp_path, monkeypatch):
    import run

    def measure(self, workload, missing):
        if workload.name == "tokens":
            raise KeyboardInterrupt
        return [run.Entry(one, workload, "defaults", "", status="none") for one in self.contenders]

    monkeypatch.setattr(run.Suite, "measure", measure)
    monkeypatch.setattr(run.data, "make", lambda *_: {})
    monkeypatch.setattr(run.tree, "adopt_orphans", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    command = [
        "run.py",
        "--tiny",
        "--peers",
        "--only",
        "mnist128",
        "tokens",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(KeyboardInterrupt):
        run.main()
    rows = json.loads((tmp_path / "unfinished.json").read_text())["rows"]
    assert {row["workload"] for row in rows} == {"mnist128"}
    assert not (tmp_path / "results.json").exists()


def test_what_hangs_is_reported(suite, tmp_path, monkeypatch, capsys):
    import argparse

    import run
    from suite import tree
    from suite.workloads import WORKLOADS

    names = {"quick": True, "tiny": True, "peers": [], "contender": [], "timeout": 7}
    names |= {"seconds": None, "rounds": 1}
    folders = {"data": tmp_path, "envs": tmp_path}
    made = run.Suite(argparse.Namespace(**names, **folders))
    late = tree.Outcome(-9, 1.0, None, 7.0, True, "early\nwaiting for a sign\n")
    monkeypatch.setattr(tree, "run", lambda *_: late)
    entry = run.Entry(made.contenders[1], WORKLOADS["mnist128"], "defaults", "", Path("python"))
    assert made.ask(entry, "timed") is None
    made.states.cleanup()
    assert (entry.status, entry.reason) == ("error", "timed: not ready after 7 s, and ended")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "!! mnist128: loaderx (defaults): timed: not ready after 7 s, and ended"
    assert said[-1] == "   | waiting for a sign"


def test_no_such_peer(tmp_path):
    run = start(tmp_path, peers=["trch"])
    assert "no such peer: trch; there are cyreal, datarax, " in run.communicate(timeout=60)[1]
    assert run.returncode == 1


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


def test_only_a_whole_run_takes_the_place_of_the_results(suite):
    from argparse import Namespace

    from run import usual_place

    whole = {
        "quick": False,
        "tiny": False,
        "peers": None,
        "contender": [],
        "only": None,
        "update": False,
        "rounds": 5,
    }
    assert usual_place(Namespace(**whole)) == "results"
    assert usual_place(Namespace(**whole | {"only": ["jpeg"], "update": True})) == "results"
    for part in ({"only": ["jpeg"]}, {"peers": []}, {"rounds": 4}, {"contender": ["x.py"]}):
        assert usual_place(Namespace(**whole | part)) == "results-part"
    assert usual_place(Namespace(**whole | {"quick": True})) == "results-quick"


def test_where_a_peer_is_ahead_and_what_is_old(suite):
    from suite.report import ahead, earlier
    from suite.workloads import METHOD

    row = {
        "workload": "mnist128",
        "status": "ok",
        "unit": "records/s",
        "variant": "best",
        "value": 10.0,
        "first_batch_s": 0.1,
        "cpu_us_per_record": 5.0,
        "peak_mb": 100.0,
        "records": 8,
    }
    ours = {**row, "contender": "loaderx_", "title": "loaderx"}
    assert earlier({"rows": [ours]}).endswith("last changed: mnist128.\n")
    assert earlier({"rows": [{**ours, "method": METHOD}]}) == ""
    level = {**row, "contender": "torch_", "title": "torch"}
    slow = {**level, "value": 1.0, "peak_mb": 50.0, "records": 4}  # less memory: fewer records
    assert ahead({"rows": [ours, level, slow]}) == ""
    fast = {**level, "value": 20.0, "first_batch_s": 0.05, "peak_mb": 90.0}
    said = ahead({"rows": [ours, fast]})
    assert "| mnist128 | throughput | torch, best: 20 /s | 10 /s |" in said
    assert "| mnist128 | first batch | torch, best: 50 ms | 100 ms |" in said
    assert "| mnist128 | peak memory | torch, best: 90 MB | 100 MB |" in said
    assert "CPU" not in said


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
