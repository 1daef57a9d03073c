"""`save` in a process that is killed at random moments, again and again."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from loaderx import Dataset
from saved_records import content

pytestmark = pytest.mark.large

SCRIPT = """
import sys
import numpy as np
from loaderx import Dataset
from saved_records import content

def make(index):
    number = int(index)
    length = 50 if number < 3000 else number % 90
    row = np.arange(200) // 50 + number  # stored as lines
    return {
        "x": np.arange(length),
        "text": "t" * (number % 50),
        "words": ["w"] * (number // 5000),
        "ids": row,
        "late": row if number < 4000 else row * np.arange(200),
    }

Dataset.range(6000).map(make).save(
    sys.argv[1], part_bytes=400_000, engine=sys.argv[2], num_workers=2
)
"""


def run(*arguments) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)])


@pytest.mark.parametrize(("engine", "times"), [("inline", 50), ("processes", 25)])
def test_kills_change_no_byte(engine, times, tmp_path):
    with run(tmp_path / "whole", "inline") as whole:
        assert whole.wait(300) == 0
    draw, kills = random.Random(1), 0
    for _ in range(times):
        with run(tmp_path / "out", engine) as process:
            try:
                assert process.wait(draw.uniform(0.1, 1.0)) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
    with run(tmp_path / "out", engine) as process:
        assert process.wait(300) == 0
    assert kills > 5
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert len(Dataset.open(tmp_path / "out")) == 6000
