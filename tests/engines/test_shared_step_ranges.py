"""Which steps are shared, and how they are cut."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from chains import arrays
from inside import node_of
from loaderx import Dataset
from loaderx.engines import Session
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.plan_work import PlanWork
from loaderx.loader.tasks.shared_steps import (
    RANGE_S,
    RANGES,
    SHARED_S,
    SharedStepTasks,
    StepTimes,
    cut,
)
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Pool
from plain import grow, jitter


def work_of(dataset, shard=(0, 1)):
    return PlanWork(node_of(dataset), shard)


class Records:
    """A source that runs code of the user's for each record."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": np.full(3, index)}


class Bulk(Records):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Waiting(Session):
    """A session that makes tasks when their results are asked for, and takes note of them."""

    shares_sources = True

    def __init__(self, work, *, window=4, is_slow=True):
        self.work, self.window, self.is_slow = work, window, is_slow
        self.submitted = []

    def submit(self, task):
        self.submitted.append(task)
        return SimpleNamespace(
            result=lambda: self.work(task, Pool().lend),
            done=lambda: not self.is_slow,
            cancel=lambda: None,
        )


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_ranges_cover_all_rows_once(rows, count):
    ranges = cut(5, rows, count)
    assert len(ranges) == min(rows, count)
    assert ranges[-1][2:] == (6, 0)
    bounds = [(first, stop or rows) for _, first, _, stop in ranges]
    assert [row for first, stop in bounds for row in range(first, stop)] == list(range(rows))
    sizes = [stop - first for first, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("dataset", "is_shared"),
    [
        (arrays(40).map(grow).batch(10), True),
        (arrays(40).random_map(jitter).batch(10), True),
        (arrays(40).map(grow).batch(10).map(grow), True),
        (arrays(40).map(grow).on_error("replace").batch(10), True),
        (Dataset.from_source(Records()).batch(10), True),
        (Dataset.concatenate([arrays(20), arrays(20).map(grow)]).batch(10), True),
        (Dataset.zip([arrays(20), arrays(20).map(grow)]).batch(10), True),
        # Nothing but gathers, and bulk reads:
        (arrays(40).batch(10), False),
        (arrays(40).shuffle(0).batch(10).map(grow), False),
        (Dataset.from_source(list(range(40))).batch(10), False),
        (Dataset.from_source(Bulk()).batch(10), False),
        (Dataset.concatenate([arrays(20), arrays(20)]).batch(10), False),
        # Functions that are given all rows of a batch:
        (arrays(40).map(grow, batched=True).batch(10), False),
        (arrays(40).map(grow, batched=True).map(grow).batch(10), False),
        (arrays(40).map(grow).batch(5).unbatch().batch(10), False),
        # Batches of several datasets:
        (Dataset.zip([arrays(40).map(grow).batch(10), arrays(40).batch(10)]), False),
    ],
    ids=repr,
)
def test_only_functions_of_single_records_are_shared(dataset, is_shared):
    work = work_of(dataset)
    session = Waiting(work)
    assert (type(work.tasks(session, range(4))) is SharedStepTasks) == is_shared
    # Other processes have no part in what the consumer calls for whole batches.
    session.shares_sources = False
    is_shared = is_shared and "batch(10)\n  .map" not in repr(dataset)
    assert (type(work.tasks(session, range(4))) is SharedStepTasks) == is_shared


def test_a_host_and_a_small_dataset_have_fewer_rows():
    dataset = arrays(25).map(grow)
    for chain, shard, rows in [
        (dataset.batch(10, pad_remainder=True), (1, 2), 5),
        (dataset.batch(100), (0, 1), 25),
    ]:
        work = work_of(chain, shard)
        session = Waiting(work, window=1000)
        TaskRun(session, work, work.tasks(session, range(1))).start()
        assert len(session.submitted) == rows


def first_ranges(step_s, window=4):
    times = StepTimes()
    if step_s is not None:
        times.took(step_s)
    work = work_of(arrays(4000).map(grow).batch(1000))
    session = Waiting(work, window=window)
    tasks = SharedStepTasks(session, work, range(4), 1000, times)
    found = [tasks.next([])]
    while found[-1] is not None and found[-1][0] == 0:
        found.append(tasks.next([]))
    return found[:-1]


@pytest.mark.parametrize(
    ("step_s", "window", "count"),
    [
        (None, 4, 4),  # nothing is known yet
        (SHARED_S / 2, 4, 1),
        (8 * RANGE_S, 4, 8),
        (1000.0, 4, RANGES),
        (1000.0, 100, 100),
        (1000.0, 1, 1),
    ],
)
def test_long_steps_are_cut_into_more_ranges(step_s, window, count):
    found = first_ranges(step_s, window)
    assert len(found) == count
    assert (found == [(0,)]) == (count == 1)


@pytest.mark.parametrize(
    ("steps", "is_slow", "shared"),
    [(1, True, {0}), (2, True, {0, 1}), (6, True, {0, 5}), (6, False, {0})],
)
def test_the_first_step_is_shared_and_the_last_if_the_consumer_waits(
    steps, is_slow, shared, monkeypatch
):
    monkeypatch.setattr("loaderx.loader.tasks.shared_steps.SHARED_S", 0.0)
    dataset = arrays(40 * steps).map(grow).batch(40)
    work = work_of(dataset)
    session = Waiting(work, is_slow=is_slow)
    run = TaskRun(session, work, work.tasks(session, range(steps)))
    for _ in range(steps):
        run.next()
    with pytest.raises(StopIteration):
        run.next()
    assert {task[0] for task in session.submitted if len(task) > 1} == shared
    assert {task[0] for task in session.submitted} == set(range(steps))


def test_a_caller_that_goes_on_by_itself_begins_a_cut_step_again():
    """As where `auto` gives up its workers in the middle of a step."""
    work = work_of(arrays(40).map(grow).batch(10))
    session = Waiting(work)
    tasks = work.tasks(session, range(4))
    for _ in range(2):
        task = tasks.next([])
        assert task[0] == task[2] == 0
        assert tasks.collect(task, work(task, Pool().lend)) == []
    assert tasks.take(1) == range(1)
    assert tasks.next([]) == (1,)
    assert len(tasks.collect((1,), work((1,), Pool().lend))) == 1
    assert tasks.take(10) == range(2, 4)
    assert tasks.next([]) is None


def test_after_a_failure_nothing_is_shared():
    def fail(record):
        if record["x"] == 3:
            raise ValueError("bad")
        return record

    work = work_of(arrays(40).map(fail).batch(10))
    for is_shared in (True, False):
        session = Waiting(work)
        run = TaskRun(session, work, work.tasks(session, range(4)))
        with pytest.raises(Exception, match="bad"):
            run.next()
        assert (len(session.submitted[0]) > 1) == is_shared


def test_with_a_window_of_one_ready_says_whether_the_next_step_is_done():
    work = work_of(arrays(20).batch(10))
    for is_slow in (False, True):
        session = Waiting(work, window=1, is_slow=is_slow)
        run = TaskRun(session, work, StepTasks(session, range(2)))
        assert run.ready() is not is_slow
        run.next()
        assert run.ready() is not is_slow  # the next step is submitted by now
        run.next()
        assert run.ready()  # there is nothing to wait for
