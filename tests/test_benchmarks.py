"""The benchmarks still run.  What it measures on small sizes means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(script, tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    assert not [row for row in rows if row["verdict"] == "error"]
    return {row["name"] for row in rows}


def test_core_runs(tmp_path):
    names = run("core.py", tmp_path)
    assert {"mnist128", "mnist1024", "map_record", "trillion_seek", "state_bytes"} <= names


def test_devices_runs(tmp_path):
    names = run("devices.py", tmp_path)
    assert {"fed_wait_50", "placing_8", "loading_and_placing_1", "mlp_data_wait"} <= names
