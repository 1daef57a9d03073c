"""Which steps are shared, and how they are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from chains import arrays
from inside import node_of
from loaderx import Dataset
from loaderx.engines import base, sharing
from loaderx.engines.base import OrderedRun
from loaderx.engines.sharing import StepSharing, cut
from loaderx.loader.work import PlanWork
from plain import grow, jitter

SLOW_S = 2 * sharing.SHARED_S


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


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_ranges_cover_all_rows_once(rows, count):
    ranges = cut(rows, count)
    assert [row for first, stop in ranges for row in range(first, stop)] == list(range(rows))
    assert len(ranges) == min(rows, count)
    sizes = [stop - first for first, stop in ranges]
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("dataset", "rows"),
    [
        (arrays(40).map(grow).batch(10), 10),
        (arrays(40).random_map(jitter).batch(10), 10),
        (arrays(40).map(grow).batch(10).map(grow), 10),
        (arrays(40).map(grow).on_error("replace").batch(10), 10),
        (Dataset.from_source(Records()).batch(10), 10),
        (Dataset.concatenate([arrays(20), arrays(20).map(grow)]).batch(10), 10),
        (Dataset.zip([arrays(20), arrays(20).map(grow)]).batch(10), 10),
        # Nothing but gathers, and bulk reads:
        (arrays(40).batch(10), 0),
        (arrays(40).shuffle(0).batch(10).map(grow), 0),
        (Dataset.from_source(list(range(40))).batch(10), 0),
        (Dataset.from_source(Bulk()).batch(10), 0),
        (Dataset.concatenate([arrays(20), arrays(20)]).batch(10), 0),
        # Functions that are given all rows of a batch:
        (arrays(40).map(grow, batched=True).batch(10), 0),
        (arrays(40).map(grow, batched=True).map(grow).batch(10), 0),
        (arrays(40).map(grow).batch(5).unbatch().batch(10), 0),
        # Batches of several datasets, and records that are handed out as they are:
        (Dataset.zip([arrays(40).map(grow).batch(10), arrays(40).batch(10)]), 0),
        (arrays(40).map(grow), 0),
    ],
    ids=repr,
)
def test_only_functions_of_single_records_are_shared(dataset, rows):
    assert work_of(dataset).shared_rows((1,)) == rows


def test_a_host_and_a_small_dataset_have_fewer_rows():
    dataset = arrays(25).map(grow)
    assert work_of(dataset.batch(10, pad_remainder=True), (1, 2)).shared_rows((0,)) == 5
    assert work_of(dataset.batch(100)).shared_rows((0,)) == 25


def test_a_session_shares_long_steps_alone():
    decide = StepSharing(work_of(arrays(4000).map(grow).batch(1000)), 2)
    assert decide.sharers == 2
    assert len(decide.ranges((0,))) == 4  # nothing is known yet
    decide.took(SLOW_S)
    assert len(decide.ranges((0,))) == int(SLOW_S / sharing.RANGE_S)
    decide.took(1000.0)
    assert len(decide.ranges((0,))) == sharing.RANGES
    for _ in range(100):
        decide.took(sharing.SHARED_S / 2)
    assert decide.ranges((0,)) == []


def test_after_a_failure_nothing_is_shared():
    decide = StepSharing(work_of(arrays(40).map(grow).batch(10)), 2)
    assert decide.ranges((0,))
    decide.give_up()
    assert decide.ranges((0,)) == []


def test_one_worker_shares_nothing():
    decide = StepSharing(work_of(arrays(40).map(grow).batch(10)), 1)
    assert decide.sharers == 0
    assert decide.ranges((0,)) == []


class Submitted:
    """A session that takes note of what is submitted, and how."""

    window, sharers = 4, 2

    def __init__(self, *, is_slow, shares_first=True):
        self.is_slow, self.shares_first = is_slow, shares_first
        self.whole, self.shared = [], []

    def submit(self, task):
        self.whole += task
        return Result(task, is_done=not self.is_slow)

    def submit_shared(self, task):
        self.shared += task
        return Result(task, is_done=not self.is_slow)


class Result(NamedTuple):
    task: tuple[int, ...]
    is_done: bool

    def result(self):
        return self.task[0]

    def done(self):
        return self.is_done

    def cancel(self):
        pass


@pytest.mark.parametrize(
    ("steps", "is_slow", "shared"),
    [(1, True, [0]), (2, True, [0, 1]), (6, True, [0, 5]), (6, False, [0])],
)
def test_the_first_step_is_shared_and_the_last_if_the_consumer_waits(steps, is_slow, shared):
    session = Submitted(is_slow=is_slow)
    run = OrderedRun(session, range(steps))
    assert [run.next() for _ in range(steps)] == list(range(steps))
    assert session.shared == shared
    assert session.whole == [step for step in range(steps) if step not in shared]


@pytest.mark.parametrize(("steps", "shared"), [(1, [0]), (2, [1]), (6, [5])])
def test_only_the_last_step_is_shared_where_a_free_worker_joins_its_ranges(steps, shared):
    session = Submitted(is_slow=True, shares_first=False)
    run = OrderedRun(session, range(steps))
    assert [run.next() for _ in range(steps)] == list(range(steps))
    assert session.shared == shared


def test_with_a_window_of_one_ready_says_whether_the_next_step_is_done():
    for is_slow in (False, True):
        session = Submitted(is_slow=is_slow)
        session.window = 1
        run = OrderedRun(session, range(2))
        assert run.ready() is not is_slow
        assert run.next() == 0
        assert run.ready() is not is_slow  # the next step is submitted by now
        assert run.next() == 1
        assert run.ready()  # there is nothing to wait for


def test_steps_are_shared_for_a_while_after_one_that_all_others_waited_for(monkeypatch):
    monkeypatch.setattr(base, "SHARED_S", -1.0)  # every wait is long
    monkeypatch.setattr(base, "UNEVEN", -1)
    monkeypatch.setattr(base, "UNEVEN_STEPS", 3)
    session = Submitted(is_slow=False)
    run = OrderedRun(session, range(100))
    assert run.next() == 0
    assert (session.shared, session.whole) == ([0], [1, 2, 3])
    for step in range(1, 20):
        assert run.next() == step
    assert session.shared == [0, *range(4, 23)]  # it was seen again each time
    waiting = Submitted(is_slow=True)  # others of the window are still being made
    run = OrderedRun(waiting, range(100))
    for step in range(20):
        assert run.next() == step
    assert waiting.shared == [0]
