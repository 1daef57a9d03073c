"""`save` in processes that are killed with SIGKILL, again and again: savers, workers, shards.

A process is killed by the function that makes its records, at a record that the test chooses; so no
test depends on how fast anything is.  The test with random moments needs no luck to pass, only to
find something.
"""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from loaderx import Dataset
from saved_records import content

SCRIPT = """
import os, signal, sys
import numpy as np
from loaderx import Dataset

folder, engine, shard, kills = sys.argv[1:]
kills = dict(one.split(":") for one in kills.split(",") if one)  # record: who dies there, once
saver = os.getpid()

def make(index):
    number = int(index)
    who = kills.get(str(number))
    if who and not os.path.exists(f"{folder}.{number}"):
        open(f"{folder}.{number}", "x").close()
        os.kill(saver if who == "saver" else os.getpid(), signal.SIGKILL)
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
    folder, part_bytes=400_000, engine=engine, num_workers=2 if engine != "inline" else None,
    shard=tuple(map(int, shard.split("/"))),
)
"""


def start(folder, engine="inline", shard="0/1", kills=()) -> subprocess.Popen:
    told = ",".join(f"{record}:{who}" for record, who in dict(kills).items())
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), engine, shard, told])


def run(*arguments, **named) -> int:
    with start(*arguments, **named) as process:
        return process.wait(300)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert run(folder) == 0
    found = content(folder)
    assert len([name for name in found if name.endswith("text.npy")]) > 15
    return found


MANY = [3, pytest.param(50, marks=pytest.mark.large)]


def drawn(draw, many):
    """Records that are not in the sample, which the saver reads itself."""
    return [number for number in draw.sample(range(6000), many) if -number * 32 % 6000 >= 32]


@pytest.mark.parametrize("many", MANY)
def test_killed_savers_with_workers(many, whole, tmp_path):
    draw = random.Random(many)
    kills = dict.fromkeys(drawn(draw, many), "saver")
    ends = [run(tmp_path / "out", "processes", kills=kills) for _ in range(len(kills) + 1)]
    assert ends[-1] == 0
    assert ends.count(-9) > 0
    assert content(tmp_path / "out") == whole


@pytest.mark.parametrize("many", MANY)
def test_killed_workers(many, whole, tmp_path):
    """Their parts are made again by others, in the same run."""
    kills = dict.fromkeys(drawn(random.Random(many + 1), many), "worker")
    place = tmp_path / "out"
    while run(place, "processes", kills=kills):
        assert len(list(tmp_path.glob("out.*"))) <= len(kills)  # a task that is lost thrice fails
    assert len(list(tmp_path.glob("out.*"))) == len(kills)
    assert content(place) == whole


@pytest.mark.parametrize("many", MANY)
def test_killed_shards(many, whole, tmp_path):
    """Three shards at once, each started again until it ends."""
    kills = dict.fromkeys(drawn(random.Random(many + 2), many), "saver")
    place, left = tmp_path / "out", {"0/3", "1/3", "2/3"}
    while left:
        running = {shard: start(place, "inline", shard, kills) for shard in sorted(left)}
        left = {shard for shard, process in running.items() if process.wait(300)}
    assert len(list(tmp_path.glob("out.*"))) == len(kills)
    assert content(place) == whole


@pytest.mark.large
@pytest.mark.parametrize(("engine", "times"), [("inline", 50), ("threads", 25), ("processes", 25)])
def test_kills_at_random_moments(engine, times, whole, tmp_path):
    draw = random.Random(1)
    for number in range(times):
        shard = f"{number % 2}/2" if engine == "inline" else "0/1"
        with start(tmp_path / "out", engine, shard) as process:
            try:
                assert process.wait(draw.uniform(0.1, 1.0)) == 0
            except subprocess.TimeoutExpired:
                process.kill()
    for shard in ("0/2", "1/2") if engine == "inline" else ("0/1",):
        assert run(tmp_path / "out", engine, shard) == 0
    assert content(tmp_path / "out") == whole
    assert len(Dataset.open(tmp_path / "out")) == 6000
