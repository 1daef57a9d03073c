"""The examples run, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

RESUMED = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import language_model as example

whole = example.train(9, Path("whole"), quiet=True)
first = example.train(4, Path("parts"), quiet=True)
rest = example.train(9, Path("parts"), quiet=True)
assert first + rest == whole, (first, rest, whole)
assert whole[-1] < whole[0]
assert example.train(9, Path("parts")) == []
print("same losses")
"""


def test_the_language_model_trains_stops_and_goes_on(tmp_path):
    pytest.importorskip("flax", reason="flax is not installed")
    done = subprocess.run(
        [sys.executable, "-c", RESUMED.format(folder=str(EXAMPLES))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "same losses\n"
