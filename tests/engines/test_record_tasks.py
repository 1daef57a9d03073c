"""Single records from workers: made in ranges, handed out one by one."""

from __future__ import annotations

import os
import signal
import threading
import traceback

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines import Processes, Session, Threads
from loaderx.engines.base import Work
from loaderx.engines.raised_ahead import RaisedAhead
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.records import MOST, RecordTasks

ENGINES = [Threads(2), Threads(1, prefetch=0), Processes(2)]


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and np.array_equal(one, other)


def jitter(record, rng):
    return {**record, "r": rng.random()}


CHAINS = {
    "numbers": Dataset.range(400).shuffle(1),
    "arrays": Dataset.from_arrays(x=np.arange(300), y=np.ones((300, 5))).random_map(jitter),
    "ragged": Dataset.range(300).map(lambda i: {"x": np.arange(i % 7), "text": "t" * (i % 3)}),
    "mix": Dataset.mix([Dataset.range(150), Dataset.range(150).map(lambda x: -x)]),
    "batches apart": Dataset.range(300).batch(7).unbatch(),
    "seeded": Dataset.range(200).random_map(lambda x: x, seed_globals=True),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("chain", CHAINS)
def test_the_stream_is_that_of_the_dataset(chain, engine):
    dataset = CHAINS[chain]
    expected = list(dataset)
    with DataLoader(dataset, engine=engine) as loader:
        iterator = iter(loader)
        found = list(iterator)
        assert len(found) == len(expected)
        assert all(map(same, found, expected))
        iterator.seek(100)
        assert same(next(iterator), expected[100])
        state = iterator.get_state()
        next(iterator)
        iterator.set_state(state)
        assert all(map(same, iterator, expected[101:]))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [0, 1, 150])
def test_a_failure_comes_after_all_records_before_it(engine, bad):
    def fail(number):
        if number == bad:
            raise ValueError("bad")
        return number

    with DataLoader(Dataset.range(300).map(fail), engine=engine) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(bad)] == list(range(bad))
        for _ in range(2):
            with pytest.raises(RecordError) as caught:
                next(iterator)
            found = caught.value
            assert str(found) == f"step {bad}: map(fail) failed on record {bad}: ValueError: bad"
            assert (found.index, found.step, iterator.step) == (bad, bad, bad)
            names = [one.name for one in traceback.extract_tb(found.__cause__.__traceback__)]
            assert names == ["fail"]
        iterator.seek(bad + 1)
        assert [int(number) for number in iterator] == list(range(bad + 1, 300))


@pytest.mark.filterwarnings("ignore:.*records have failed")
@pytest.mark.parametrize("engine", ENGINES)
def test_failures_are_counted_at_their_steps(engine):
    def fail(number):
        if number % 50 == 7:
            raise ValueError("bad")
        return number

    dataset = Dataset.range(300).map(fail).on_error("replace")
    with (
        DataLoader(dataset, engine=engine) as loader,
        DataLoader(dataset, engine="inline") as other,
    ):
        assert list(loader) == list(other)
        steps = [(one.step, one.index) for one in loader.stats().failures]
        assert steps == [(one.step, one.index) for one in other.stats().failures]
        assert len(steps) == 6
        assert loader.stats().records == 300


@pytest.mark.filterwarnings("ignore:worker . died")
def test_a_record_that_kills_its_workers_is_named_by_its_step():
    def die(number):
        if number == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with DataLoader(Dataset.range(200).map(die), engine=Processes(1)) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(100)] == list(range(100))
        with pytest.raises(RecordError, match="step 100: 3 worker processes in a row died of this"):
            next(iterator)


def test_a_record_that_cannot_be_sent_is_named_by_its_step():
    def lock(number):
        return threading.Lock() if number == 100 else number

    with DataLoader(Dataset.range(200).map(lock), engine=Processes(1)) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(100)] == list(range(100))
        with pytest.raises(RecordError, match="step 100: the element cannot be sent"):
            next(iterator)


def test_records_are_the_users_own():
    dataset = Dataset.from_arrays(x=np.ones((400, 16)))
    with DataLoader(dataset, engine=Processes(1)) as loader:
        kept = [record["x"] for record in loader]
    for leaf in kept:
        assert (leaf == 1).all()
        leaf[...] = 2  # the memory of no other
    assert all((leaf == 2).all() for leaf in kept)


# How ranges are cut -----------------------------------------------------------------------------


class Made:
    def __init__(self, made):
        self.made = made

    def result(self):
        if isinstance(self.made, Exception):
            raise self.made
        return self.made

    def done(self):
        return True

    def cancel(self):
        self.made = ValueError("cancelled")


def made_of(elements, error=None, seconds=0.0):
    took, nbytes = np.array([seconds]), np.zeros(1, np.int64)
    parts = {"first": None, "last": None, "nbytes": nbytes}
    return Made({**parts, "elements": elements, "error": error, "seconds": took})


class Ranges(Session):
    """Makes ranges of the numbers of their steps, as if each step took ``step_s``."""

    window = 3

    def __init__(self, step_s=0.0, most=MOST, fails=(), lost=(), ends=False):
        self.step_s, self.most, self.fails, self.lost = step_s, most, fails, lost
        self.ends = ends
        self.tasks = []

    def is_end(self, error):
        return self.ends

    def submit(self, task):
        if len(task) == 1:
            (step,) = task
            self.tasks.append((step, 1))
            return Made(RecordError("lost", step=step) if step in self.lost else step)
        first, _, stop, _ = task
        self.tasks.append((first, stop - first))
        steps = list(range(first, min(stop, first + self.most)))
        bad = next((step for step in steps if step in self.fails), None)
        if any(step in self.lost for step in steps):
            return Made(RecordError("lost"))
        error = None
        if bad is not None:
            steps, error = steps[: steps.index(bad)], RaisedAhead(RecordError("bad", step=bad))
        return made_of(steps, error, self.step_s * len(steps))


def run(session, stop):
    return TaskRun(session, Work(), RecordTasks(session, None, range(stop)))


def taken(made):
    found = []
    while True:
        try:
            found.append(made.next())
        except StopIteration:
            return found


def test_ranges_of_quick_steps_grow():
    session = Ranges()
    assert taken(run(session, 1000)) == list(range(1000))
    sizes = [count for _, count in session.tasks]
    assert sizes[0] == 1
    assert max(sizes) == MOST
    assert sum(sizes) == 1000


def test_slow_steps_go_alone():
    session = Ranges(step_s=1.0)
    assert taken(run(session, 50)) == list(range(50))
    assert {count for _, count in session.tasks} == {1}


def test_steps_of_a_tenth_of_a_millisecond_make_ranges_of_four():
    session = Ranges(step_s=1.01e-4)
    assert taken(run(session, 100)) == list(range(100))
    assert max(count for _, count in session.tasks) == 4


def test_what_a_worker_has_not_made_is_asked_for_again():
    session = Ranges(most=3)
    assert taken(run(session, 200)) == list(range(200))


def test_a_range_that_is_lost_is_made_step_by_step():
    session = Ranges(lost=[77])
    made = run(session, 200)
    assert [made.next() for _ in range(77)] == list(range(77))
    with pytest.raises(RecordError) as caught:
        made.next()
    assert caught.value.step == 77
    assert (77, 1) in session.tasks


def test_an_error_ends_the_run_or_the_stream():
    made = run(Ranges(fails=[60]), 200)
    assert [made.next() for _ in range(60)] == list(range(60))
    assert made.ready()
    with pytest.raises(RecordError, match="step 60: bad"):
        made.next()
    ending = run(Ranges(fails=[60], ends=True), 200)
    assert taken(ending) == list(range(60))


def test_what_was_started_waits():
    session = Ranges()
    made = run(session, 100)
    made.start()
    assert session.tasks == [(0, 1), (1, 1), (2, 1)]
    assert made.ready()
    assert taken(made) == list(range(100))


class Slots(Session):
    """The rows of a range lie in one array."""

    window = 2
    shares_memory = True

    def submit(self, task):
        return made_of([{"x": row} for row in np.zeros((task[2] - task[0], 3))])


def test_a_record_keeps_no_memory_of_others():
    found = taken(run(Slots(), 200))
    sizes = [(3 if leaf.base is None else leaf.base.size) for leaf in (r["x"] for r in found)]
    assert sizes == [3] * 200


def test_a_closed_run_gives_up():
    made = run(Ranges(), 1000)
    for _ in range(100):
        made.next()
    made.interrupt()
    rest = []
    with pytest.raises(LoaderxError, match="the loader was closed"):
        while True:
            rest.append(made.next())  # what is there already
    assert rest == list(range(100, 100 + len(rest)))
    made.close()
