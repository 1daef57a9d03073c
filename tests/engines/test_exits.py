"""`sys.exit()` in a function of the user's is an error of its record, never the consumer's exit."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, RecordError
from loaderx.engines import Processes, Threads, Work
from loaderx.sources import Source

ENGINES = ["inline", "threads", "processes"]


def leave(record):
    if record["x"] == 5:
        sys.exit("enough")
    return record


class Leaves:
    """A source that exits at one record."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            sys.exit("enough")
        return {"x": np.int64(index)}


class LeavesInBulk(Source):
    thread_safe = True

    def __len__(self):
        return 8

    def gather(self, indices):
        if 5 in indices:
            sys.exit("enough")
        return {"x": indices.copy()}


CHAINS = {
    "map": (lambda: arrays(8).map(leave), "map(leave)", 5),
    "stream": (lambda: arrays(8).filter(lambda r: True).map(leave), "map(leave)", 5),
    "filter": (lambda: arrays(8).filter(lambda r: bool(leave(r))), "filter(<lambda>)", 5),
    "flat_map": (lambda: arrays(8).flat_map(lambda r: [leave(r)]), "flat_map(<lambda>)", 5),
    "source": (lambda: Dataset.from_source(Leaves()), "reading the source", 5),
    "bulk": (lambda: Dataset.from_source(LeavesInBulk()), "reading the source", 5),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("ignore:.*LeavesInBulk|.*Leaves.*one at a time")
def test_an_exit_is_an_error_of_its_record(name, engine):
    make, stage, index = CHAINS[name]
    chain = make()
    workers = None if engine == "inline" else 1
    with (
        DataLoader(chain.batch(2), engine=engine, num_workers=workers) as loader,
        pytest.raises(RecordError) as caught,
    ):
        list(loader)
    assert (caught.value.index, caught.value.stage) == (index, stage)
    assert f"{stage} failed on record 5: SystemExit: enough" in str(caught.value)
    assert isinstance(caught.value.__cause__, SystemExit)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exit_in_a_function_of_batches(engine):
    def end(batch):
        sys.exit(3)

    with (
        DataLoader(arrays(8).batch(2).map(end), engine=engine) as loader,
        pytest.raises(RecordError, match=r"step 0: map\(end\) failed on a batch: SystemExit: 3"),
    ):
        next(iter(loader))


def test_an_exit_of_an_iterable():
    def records():
        yield {"x": 1}
        sys.exit("enough")

    with pytest.raises(RecordError, match="failed on record 1: SystemExit: enough"):
        list(DataLoader(Dataset.from_iterable(records).batch(2), engine="inline"))


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_on_error_replaces_a_record_whose_function_exits():
    batches = list(DataLoader(arrays(8).map(leave).on_error("replace").batch(8), engine="threads"))
    assert len(batches[0]["x"]) == 8
    assert 5 not in batches[0]["x"]


def test_a_signal_handler_may_exit_while_a_function_runs():
    def stop(number, frame):
        sys.exit(7)

    def interrupted(record):
        signal.raise_signal(signal.SIGUSR1)
        return record

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for chain in (
            arrays(4).map(interrupted).batch(2),
            arrays(4).filter(interrupted).batch(2),
            Dataset.from_source(Interrupted()).batch(2),
        ):
            with pytest.raises(SystemExit) as caught:
                next(iter(DataLoader(chain, engine="inline")))
            assert caught.value.code == 7
    finally:
        signal.signal(signal.SIGUSR1, before)


class Interrupted:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        signal.raise_signal(signal.SIGUSR1)
        return index


class Exits(Work):
    """A work that exits by itself."""

    def __call__(self, task, lend):
        raise SystemExit("enough")


@pytest.mark.parametrize("engine", [Threads(1), Processes(1)])
def test_an_exit_of_the_work_itself(engine):
    session = engine.session(Exits())
    with pytest.raises(RecordError) as caught:
        session.submit((4,)).result()
    session.close()
    assert str(caught.value) == "step 4: the dataset's code ended its worker: SystemExit: enough."
    assert isinstance(caught.value.__cause__, SystemExit)
