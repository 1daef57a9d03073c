"""Loading from files of every family: all engines, killed workers, states and hosts agree."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from file_families import WRITERS
from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.engines import Processes
from oracle import assert_same
from workers import once

COUNT, BATCH = 24, 8


def opened(family, folder):
    """Records 0 to 23 in three shards; the native layout has its parts in one folder."""
    bounds = [(0, COUNT)] if family == "native" else [(0, 7), (7, 15), (15, COUNT)]
    for number, (start, stop) in enumerate(bounds):
        WRITERS[family](folder / f"part-{number}", list(range(start, stop)))
    return Dataset.open(folder / "part-0" if family == "native" else folder)


@pytest.fixture(params=[*WRITERS, "row groups"])
def batches(request, tmp_path):
    """Six batches of two epochs in random order."""
    folder = tmp_path / "data"
    folder.mkdir()
    if request.param == "row groups":
        opened("parquet", folder)
        dataset = Dataset.open(folder, cache=False).shuffle(5, window=12)
    else:
        dataset = opened(request.param, folder).shuffle(5)
    return dataset.batch(BATCH, drop_remainder=True).repeat(2)


@pytest.fixture
def expected(batches):
    made = list(DataLoader(batches, engine="inline"))
    assert len(made) == 6
    return made


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_engines(batches, expected, engine):
    with DataLoader(batches, engine=engine) as loader:
        assert_same(loader, expected)


def test_a_worker_that_is_killed(tmp_path, batches, expected):
    def die(batch):
        if once(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    with (
        pytest.warns(LoaderxWarning, match=r"killed by SIGKILL.*It has been replaced"),
        DataLoader(batches.map(die), engine=Processes(1)) as loader,
    ):
        assert_same(loader, expected)


def test_states_at_every_step(batches, expected):
    iterator = iter(DataLoader(batches, engine="inline"))
    for step in range(len(expected) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        with DataLoader(batches, engine="threads") as loader:
            again = iter(loader)
            again.set_state(state)
            assert_same(again, expected[step:])
        next(iterator, None)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts(batches, expected, hosts):
    """Each host has its rows of every batch, also after a state that one host has saved."""
    saved = iter(DataLoader(batches, engine="inline"))
    next(saved)
    for state, left in ((None, expected), (saved.get_state(), expected[1:])):
        iterators = [iter(DataLoader(batches, shard=(host, hosts))) for host in range(hosts)]
        for iterator in iterators if state is not None else ():
            iterator.set_state(state)
        joined = [
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*iterators, strict=True)
        ]
        assert_same(joined, left)
