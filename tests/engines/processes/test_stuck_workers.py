"""Workers that are stuck: reported, replaced, and never waited for."""

from __future__ import annotations

import re
import time
import warnings

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, LoaderxWarning, RecordError
from loaderx.engines import Processes
from workers import once, pids


@pytest.mark.parametrize("shown", ["", "full"])
def test_a_stuck_worker_is_reported_with_its_stack(shown, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_TRACEBACK", shown)

    def get_stuck(record):
        if record["x"] == 5:
            while not (tmp_path / "go").exists():
                time.sleep(0.001)
        return record

    with DataLoader(arrays(12).map(get_stuck).batch(2), engine=Processes(1, 0, 0.2)) as loader:
        iterator = iter(loader)
        with warnings.catch_warnings():  # a worker that gets no core for a while is reported, too
            warnings.simplefilter("ignore", LoaderxWarning)
            next(iterator)
            next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LoaderxWarning)
            with pytest.raises(LoaderxWarning) as caught:
                next(iterator)
        assert re.match(
            r"step 2 \(records 4 to 5 of the stream\) has kept worker 0 \(pid \d+\) busy for "
            r"[\d.]+ s; it may be stuck\. It is here:\n",
            str(caught.value),
        )
        stack = str(caught.value).partition("It is here:\n")[2].partition("\n(Processes(")[0]
        assert " in get_stuck" in stack
        # The thread that watches the consumer, and loaderx's own frames, are for those who ask.
        assert ("threading.py" in stack) == ("/loaderx/" in stack) == (shown == "full")
        (tmp_path / "go").touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoaderxWarning)
            assert [b["x"].tolist() for b in iterator] == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_stuck_worker_can_be_replaced(tmp_path):
    def get_stuck(record):
        if record["x"] == 5 and once(tmp_path / "stuck"):
            time.sleep(3600)
        return record

    engine = Processes(2, timeout_s=0.3, replace_stuck=True)
    dataset = arrays(12).map(get_stuck).batch(2)
    with pytest.warns(LoaderxWarning) as said, DataLoader(dataset, engine=engine) as loader:
        assert [b["x"].tolist() for b in loader] == np.arange(12).reshape(-1, 2).tolist()
    messages = [str(one.message) for one in said]
    assert any("It is stopped. It was here:\n" in m and "in get_stuck" in m for m in messages)


def test_a_step_that_is_stuck_for_ever_ends_in_an_error():
    def get_stuck(record):
        time.sleep(3600)

    engine = Processes(1, timeout_s=0.05, replace_stuck=True)
    with (
        pytest.warns(LoaderxWarning),
        pytest.raises(RecordError, match=r"3 worker processes in a row .* \(stuck for [\d.]+ s\)"),
        DataLoader(arrays(4).map(get_stuck).batch(2), engine=engine) as loader,
    ):
        next(iter(loader))


def test_closing_does_not_wait_for_a_stuck_worker():
    def slow(record):
        time.sleep(3600 if record["x"] > 3 else 0)
        return record

    with DataLoader(arrays(40).map(slow).batch(2), engine=Processes(2)) as loader:
        next(iter(loader))
    assert pids() == []
