"""Workers that die, or whose parent does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, LoaderxWarning, RecordError
from loaderx.engines import Processes
from loaderx.engines.processes.slot_pool import HELD_SLOTS
from oracle import assert_same
from plain import jitter
from workers import once, pids


@pytest.mark.parametrize("how", ["exit", "kill", "crash"])
def test_a_worker_that_dies_is_replaced_and_its_step_made_again(tmp_path, how):
    def die(record):
        if record["x"] == 13 and once(tmp_path / "died"):
            if how == "exit":
                os._exit(3)
            elif how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                os.kill(os.getpid(), signal.SIGSEGV)
        return record

    dataset = arrays(40).shuffle(0).random_map(jitter).map(die).batch(3)
    expected = list(arrays(40).shuffle(0).random_map(jitter).batch(3))
    step = next(i for i, b in enumerate(expected) if 13 in b["x"])
    with (
        pytest.warns(LoaderxWarning, match="It has been replaced") as said,
        DataLoader(dataset, engine=Processes(2)) as loader,
    ):
        assert_same(loader, expected)
    (warning,) = said
    fate = {"exit": "exit code 3", "kill": "killed by SIGKILL", "crash": "killed by SIGSEGV"}[how]
    assert fate in str(warning.message)
    assert f"while it made step {step}. " in str(warning.message)


def test_a_step_that_kills_three_workers_is_an_error_that_names_it():
    def die(record):
        if record["x"] == 13:
            os._exit(7)
        return record

    seen = []

    def consume(loader):
        iterator = iter(loader)
        seen.extend(next(iterator) for _ in range(3))
        with pytest.raises(RecordError) as caught:
            next(iterator)
        iterator.seek(4)
        seen.extend(iterator)
        return caught

    loader = DataLoader(arrays(40).map(die).batch(4), engine=Processes(2))
    with pytest.warns(LoaderxWarning, match="while it made step 3"):
        caught = consume(loader)
    loader.close()
    assert caught.value.step == 3
    assert str(caught.value).startswith(
        "step 3: 3 worker processes in a row died of this step (exit code 7). "
        "It is made of records 12 to 15 of the stream."
    )
    assert np.concatenate([b["x"] for b in seen]).tolist() == [*range(12), *range(16, 40)]


SLOTS = "loaderx-batches"


def descriptors() -> list[str]:
    found = []
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return found


@pytest.mark.filterwarnings("ignore::loaderx.LoaderxWarning")
def test_random_kills_change_nothing_and_leak_nothing():
    dataset = arrays(1200).shuffle(0).random_map(jitter).batch(2)
    expected = list(dataset)
    chance = random.Random(0)
    before: list[str] = []
    with DataLoader(dataset, engine=Processes(2, prefetch=2)) as loader:
        for step, batch in enumerate(loader):
            assert_same([batch], expected[step : step + 1])
            if step % 40 == 20:
                for _ in range(chance.choice([1, 2])):
                    os.kill(chance.choice(pids()), signal.SIGKILL)
            if step == 60:
                before = [one for one in descriptors() if SLOTS not in one]
        after = descriptors()
        assert len([one for one in after if SLOTS not in one]) <= len(before) + 1
        # A slot is mapped when a batch first comes in it: a descriptor for each, one for the file,
        # and one for the table of claims in it.
        assert len([one for one in after if SLOTS in one]) <= 4 + HELD_SLOTS + 2
        assert len(pids()) <= 2  # a death at the very end may not have been noticed
        assert_same(loader.epoch(0), expected)
        assert len(pids()) <= 2


def test_workers_killed_between_epochs_are_replaced():
    dataset = arrays(40).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.warns(LoaderxWarning, match="killed by SIGKILL; the system does that"):
            assert_same(loader, dataset)


def is_running(pid):
    """False for a zombie, too: when it goes is up to whoever has inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("busy", ["waiting", "spinning"])
def test_nothing_is_left_when_the_parent_is_killed(busy, tmp_path):
    script = textwrap.dedent(
        f"""
        import loaderx as lx, numpy as np, os, sys, time
        def work(record):
            os.write(1, b"%d\\n" % os.getpid())
            while record["x"] > 20:
                {"time.sleep(0.1)" if busy == "waiting" else "pass"}
            return record
        loader = lx.DataLoader(
            lx.Dataset.from_arrays(x=np.arange(100000)).map(work).batch(2), engine="processes")
        for batch in loader:
            pass
        """
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )
    workers = set()
    for _ in range(22):
        workers.add(int(child.stdout.readline()))
    child.kill()
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 60.0
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in workers if is_running(pid)]
    assert not list(tmp_path.iterdir())  # shared memory has no names, see above
