"""`auto` with worker processes: when it moves there, and when it stays inline."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from chains import arrays
from inside import work_of
from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.engines import Auto, Measured
from oracle import assert_same
from plain import grow, hold
from workers import pids


def goes_to_processes(dataset, expected):
    """A loader that has chosen processes.  It measures: on a busy machine a trial may be lost."""
    for _ in range(5):
        loader = DataLoader(dataset, num_workers=2)
        for step, batch in enumerate(loader):
            assert batch["x"].tolist() == expected(step)
            if loader.stats().engine == "processes(2)":
                return loader
            if step == 600 or "did not help" in loader.stats().reason:
                break
        loader.close()
    raise AssertionError(loader.stats())


def test_auto_moves_python_that_holds_the_gil_to_processes_and_remembers():
    rows = np.arange(60).reshape(-1, 2).tolist()
    dataset = arrays(60).map(hold).batch(2).repeat()
    with goes_to_processes(dataset, lambda step: rows[step % 30]) as loader:
        assert "inline every" in loader.stats().reason
        gc.collect()
        workers = pids()
        assert len(workers) == 2
        again = iter(loader)  # a new iterator starts with what was found
        assert [next(again)["x"].tolist() for _ in range(32)] == (rows * 2)[:32]
        assert pids() == workers
    assert pids() == []


def test_auto_reads_an_unknown_source_in_processes_never_in_threads(tmp_path):
    class Unknown:
        def __len__(self):
            return 100_000

        def __getitem__(self, i):
            if threading.current_thread() is not threading.main_thread():
                (tmp_path / "thread").touch()
            return {"x": hold(i)}

    dataset = Dataset.from_source(Unknown()).batch(2)
    goes_to_processes(dataset, lambda step: [2 * step, 2 * step + 1]).close()
    assert not list(tmp_path.iterdir())


def test_auto_stays_inline_where_the_work_cannot_be_sent():
    class Unknown:
        def __init__(self):
            self.lock = threading.Lock()

        def __len__(self):
            return 100_000

        def __getitem__(self, i):
            return {"x": hold(i)}

    def iterate():
        for step, batch in enumerate(loader):
            assert batch["x"].tolist() == [step]
            if "cannot be sent" in loader.stats().reason or step == 600:
                break

    with DataLoader(Dataset.from_source(Unknown()).batch(1), num_workers=2) as loader:
        with pytest.warns(LoaderxWarning, match="num_workers=2 was asked for, and batches are"):
            iterate()
        assert loader.stats().engine == "inline"
        assert "cannot be sent to worker processes" in loader.stats().reason
    assert pids() == []


def test_processes_that_were_given_up_end_after_their_last_task():
    session = Auto(2).session(work_of(arrays(40).map(grow).batch(4)))
    session.search.found = ("processes", 2)
    held = [session.submit((step,)) for step in range(3)]
    assert len(pids()) == 2
    session.keep_only(None)
    session.search.found = None
    assert len(pids()) == 2
    made = [one.result() for one in held]
    made = [one.value if isinstance(one, Measured) else one for one in made]
    assert_same(made, list(arrays(40).map(grow).batch(4))[:3])
    del held
    assert pids() == []
    session.close()
