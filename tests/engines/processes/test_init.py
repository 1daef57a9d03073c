"""`Processes(init=...)`: a function that runs in each worker before all else."""

from __future__ import annotations

import os
import signal
import threading
import traceback

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Processes
from loaderx.engines.processes.pickling import PicklingError
from shared_steps import meet


def number_it(index, count):
    os.environ["LOADERX_TEST_WORKER"] = f"{index} of {count}"


def test_each_worker_is_told_its_number(tmp_path):
    path = tmp_path / "meeting"
    os.mkfifo(path)

    def which(number):
        meet(path, first=number == 0)  # so each worker has one of them
        return os.environ["LOADERX_TEST_WORKER"]

    engine = Processes(2, prefetch=2, init=number_it)
    with DataLoader(Dataset.range(2).map(which).batch(1), engine=engine) as loader:
        found = sorted(batch[0] for batch in loader)
    assert found == ["0 of 2", "1 of 2"]
    assert "LOADERX_TEST_WORKER" not in os.environ


class Late:
    """Says what the environment was when it was unpickled."""

    def __init__(self, found=""):
        self.found = found

    def __reduce__(self):
        return _unpickled, ()

    def __call__(self, record):
        return self.found


def _unpickled():
    return Late(os.environ.get("LOADERX_TEST_WORKER", "nothing"))


def test_it_runs_before_the_work_is_unpickled():
    engine = Processes(1, init=number_it)
    with DataLoader(arrays(2).map(Late()).batch(2), engine=engine) as loader:
        assert next(iter(loader)).tolist() == ["0 of 1"] * 2


@pytest.mark.filterwarnings("ignore:worker 0 died")
def test_it_runs_once_in_each_process(tmp_path):
    calls = str(tmp_path / "calls")

    def count(index, count):
        with open(calls, "a") as file:
            file.write(f"{index}\n")

    def die_once(number):
        try:
            os.close(os.open(f"{calls}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    dataset = Dataset.range(8).map(die_once).batch(2)
    with DataLoader(dataset, engine=Processes(1, init=count)) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(8))
        assert len(list(loader)) == 4  # the same worker
    with open(calls) as file:
        assert file.read() == "0\n0\n"  # and one that took the place of the first


def test_a_failure_of_it_is_said_with_its_frames():
    def fail(index, count):
        raise KeyError("no such thing")

    loader = DataLoader(arrays(4).batch(2), engine=Processes(1, init=fail))
    for _ in range(2):
        with pytest.raises(LoaderxError) as caught:
            next(iter(loader))
        said = str(caught.value)
        assert said.startswith("`init` of engines.Processes failed in worker 0 (pid ")
        assert said.endswith("): KeyError: 'no such thing'")
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["fail"]


def test_an_exit_in_it_is_a_failure_too():
    def leave(index, count):
        raise SystemExit(3)

    with pytest.raises(LoaderxError, match="SystemExit: 3"):
        next(iter(DataLoader(arrays(4).batch(2), engine=Processes(1, init=leave))))


def test_one_that_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(PicklingError, match="`init` of engines.Processes cannot be sent") as caught:
        next(iter(DataLoader(arrays(4).batch(2), engine=Processes(1, init=lambda i, n: lock))))
    assert isinstance(caught.value.__cause__, TypeError)


def test_one_that_is_no_function():
    with pytest.raises(LoaderxError, match=r"`init` must be a function of \(index, count\), got 3"):
        Processes(1, init=3)
