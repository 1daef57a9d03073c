"""`cache(path)` in processes that are killed at random moments, again and again."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from loaderx import Dataset

pytestmark = pytest.mark.large

SCRIPT = """
import sys
import zlib
import numpy as np
from loaderx import DataLoader, Dataset

def make(index):
    number = int(index)
    length = 50 if number < 3000 else number % 90
    return {"x": np.arange(length), "text": "t" * (number % 50), "none": None if number % 2 else 1}

def chain(ds):
    return ds.shuffle(seed=3).batch(50, collate_fn=list)

def checksum(ds, engine):
    found = 0
    with DataLoader(chain(ds), engine=engine, num_workers=2) as loader:
        for batch in loader:
            for record in batch:
                found = zlib.crc32(record["x"].tobytes() + record["text"].encode(), found)
    return found

folder, engine = sys.argv[1:]
ds = Dataset.range(6000).map(make)
if engine == "save":
    ds.save(folder, engine="inline")
else:
    assert checksum(ds.cache(folder), engine) == checksum(ds, "inline")
"""


def content(folder):
    found = Path(folder).rglob("*")
    return {str(one.relative_to(folder)): one.read_bytes() for one in found if one.is_file()}


def run(*arguments) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)])


@pytest.mark.parametrize(
    ("engines", "times"), [(["inline"], 50), (["processes"], 25), (["inline", "threads"], 15)]
)
def test_kills_change_nothing(engines, times, tmp_path):
    """Several processes fill it at once where there are several engines."""
    with run(tmp_path / "whole", "save") as whole:
        assert whole.wait(300) == 0
    draw, kills, places = random.Random(1), 0, [tmp_path / "0"]
    for _ in range(times):
        if (places[-1] / "loaderx.json").exists():
            places.append(tmp_path / str(len(places)))
        processes = [run(places[-1], engine) for engine in engines]
        for process in processes:
            with process:
                try:
                    assert process.wait(draw.uniform(0.2, 1.2)) == 0
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
    assert kills
    expected = content(tmp_path / "whole")
    for place in places:
        with run(place, engines[-1]) as process:
            assert process.wait(300) == 0
        assert content(place) == expected
    assert len(Dataset.open(places[0])) == 6000
