"""What `run.py` makes of the times of two streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmarks

FOLDER = Path(__file__).parents[2] / "benchmarks"


def stream(records, seconds, cpu_s):
    return {"records": records, "seconds": seconds, "cpu_s": cpu_s}


def test_rate_and_cpu_come_from_the_same_stretch(suite):
    from child import slope

    # Two seconds of starting, on one core; then 100 records per second on two cores.
    short, long = stream(100, 3.0, 4.0), stream(1000, 12.0, 22.0)
    assert slope(short, long) == {"rate": 100.0, "cpu_per_record": 0.02}


def test_a_short_stream_that_was_disturbed_does_not_count(suite):
    from child import slope

    short, long = stream(100, 9.0, 1.0), stream(1000, 10.0, 10.0)
    assert slope(short, long) == {"rate": 100.0, "cpu_per_record": 0.01}


@pytest.fixture
def entry(suite):
    import contenders.numpy_by_hand
    from suite.entry import Entry
    from suite.workloads import WORKLOADS

    made = Entry(contenders.numpy_by_hand, WORKLOADS["images64"], "by hand", "whole batches")
    made.firsts, made.peak_mb = [0.1], 100.0
    return made


def test_a_row_beyond_the_machine_is_invalid(entry, monkeypatch, capsys):
    from suite import report
    from suite.workloads import WORKLOADS

    monkeypatch.setattr("suite.entry.CORES", 2)
    entry.rates, entry.cpus = [100_000.0, 105_000.0, 110_000.0], [26.2e-6] * 3
    entry.judge()
    reason = (
        "IMPOSSIBLE: 105,000 records/s at 26.2 µs of CPU would take 2.75 cores, and there are 2"
    )
    assert (entry.status, entry.reason) == ("invalid", reason)
    assert capsys.readouterr().err == f"!! images64: NumPy by hand (by hand): {reason}\n"
    rows = [entry.row()]
    assert f"(by hand): **INVALID**: {reason}" in report.section(WORKLOADS["images64"], rows)
    assert report.by_hand(rows) is None


def test_a_row_that_uses_all_cores_is_valid(entry, monkeypatch):
    from suite import report
    from suite.workloads import WORKLOADS

    monkeypatch.setattr("suite.entry.CORES", 2)
    entry.rates, entry.cpus = [100_000.0] * 3, [20.5e-6] * 3  # within what a clock tick is
    entry.judge()
    assert entry.status == "ok"
    row = entry.row()
    assert row["cpu_us_per_record"] == pytest.approx(20.5)
    assert row["cores_used"] == pytest.approx(2.05)
    assert report.value_with_cpu(row) == "100,000 /s (20.5 µs)"
    assert "| 100,000 | 20.5 µs | 2.05 |" in report.section(WORKLOADS["images64"], [row])


def test_ratio_of_cpu_time(suite):
    from suite.report import cpu_ratio, value_with_cpu

    ours = {"unit": "records/s", "value": 10.0, "cpu_us_per_record": 5.0}
    assert cpu_ratio(ours, {**ours, "cpu_us_per_record": 12.0}) == "2.4×"
    assert cpu_ratio(ours, {**ours, "cpu_us_per_record": None}) == "-"
    resumed = {"unit": "s", "value": 0.5, "cpu_s": 0.004}
    assert cpu_ratio(resumed, {**resumed, "cpu_s": 0.016}) == "4×"
    assert value_with_cpu(resumed) == "0.5 s (4 ms)"


BUSY = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from suite import tree
code = "import sys, time\\nwhile time.process_time() < 0.2: pass\\nprint(1, flush=True)\\ninput()"
clock = tree.CpuClock()
ran = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
ran.stdout.readline()
alive = clock.elapsed_s()
ran.communicate(b"go on")
print(alive >= 0.19, clock.elapsed_s() >= 0.19)
"""


def test_cpu_time_of_workers_counts_before_and_after_their_end():
    command = [sys.executable, "-c", BUSY, str(FOLDER)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert done.stdout == "True True\n", done.stderr


def test_data_are_read_once(suite, tmp_path):
    import numpy as np
    from suite.workloads import Job

    np.save(tmp_path / "image.npy", np.arange(12))
    np.save(tmp_path / "label.npy", np.arange(12))
    job = Job("arrays", "best", tmp_path, batch_size=2, records=8, epochs=1)
    job.preload()
    image = job.load("image")
    assert image.tolist() == list(range(8))
    assert job.load("image") is image
    fewer = Job("arrays", "best", tmp_path, batch_size=2, records=4, epochs=1)
    assert fewer.load("image").tolist() == [0, 1, 2, 3]
