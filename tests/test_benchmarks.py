"""The benchmark still runs.  What it measures on small sizes means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "core.py"


def test_core_runs(tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    names = {row["name"] for row in rows}
    assert {"mnist128", "mnist1024", "map_record", "trillion_seek", "state_bytes"} <= names
    assert not [row for row in rows if row["verdict"] == "error"]
