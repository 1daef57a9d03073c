"""The benchmarks still run.  What they measure on small sizes means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "figures"),
    [
        ("core.py", {"mnist128", "mnist1024", "map_record", "trillion_seek", "state_bytes"}),
        ("streams.py", {"pack", "pack_density", "tokens", "tokens_open", "filter"}),
    ],
)
def test_it_runs(script, figures, tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    assert figures <= {row["name"] for row in rows}
    assert not [row for row in rows if row["verdict"] == "error"]
