"""`auto`: what it decides, what a trial may cost, and what it tells those who asked for workers."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque

import numpy as np
import pytest

from chains import arrays
from inside import stream_work_of, work_of
from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError
from loaderx.engines import Auto, Threads
from loaderx.engines.auto.decision import PAYS_BACK, Facts, say
from loaderx.engines.auto.session import AutoSession
from loaderx.engines.auto.timing import Trial
from loaderx.engines.base import Measured, Timing, Work
from loaderx.engines.threads import session as threads_session
from oracle import assert_same
from plain import grow
from runs import run_of_steps
from timed import TimedSession, World


def facts(**changes):
    """Python that holds the GIL for 20 ms a batch, before a consumer that takes no time."""
    known = Facts(
        made_s=0.02,
        own_s=0.0,
        best_s=0.02,
        max_workers=2,
        cores=2,
        work=Work(),
        left_s=None,
        ran_s=0.0,
        start_s=0.3,
    )
    for name in {*changes} & {"thread_safe", "only_gathers", "unsure", "noun"}:
        setattr(known.work, name, changes.pop(name))
    return known.replace(**changes)


# Decisions: pure functions of what is known.


def test_processes_must_pay_for_their_start_twice():
    """Two workers could save half of the time; both start at once, on two cores."""
    needed_s = PAYS_BACK * 0.3 / 0.5
    assert facts(left_s=needed_s * 1.01).why_no_processes() is None
    assert facts(left_s=needed_s * 0.99).why_no_processes() == (
        "the stream is too short for worker processes, which would take 300 ms to start"
    )


def test_how_long_a_stream_is_expected_to_go_on():
    assert facts(ran_s=0.11).why_no_processes() is not None
    assert facts(ran_s=0.13).why_no_processes() is None  # endless: ten times as long
    assert facts(left_s=0.1, ran_s=1.1).why_no_processes() is not None
    assert facts(left_s=0.1, ran_s=1.3).why_no_processes() is None  # short epochs, again and again


def test_dear_workers_are_tried_later():
    assert facts(ran_s=1.0, start_s=3.0).why_no_processes() == (
        "the stream is too short for worker processes, which would take 3 s to start"
    )
    assert facts(ran_s=1.3, start_s=3.0).why_no_processes() is None
    # Eight at a time on two cores take four times as long.
    assert facts(max_workers=8).price_s() == pytest.approx(4 * 0.3)


def test_no_processes_for_what_threads_can_do():
    assert facts(left_s=1e6, only_gathers=True).why_no_processes() == ""
    assert facts(left_s=1e6, only_gathers=True, thread_safe=False).why_no_processes() is None
    assert facts(left_s=1e6, made_s=0.001, best_s=0.001).why_no_processes() == ""
    assert facts(left_s=1e6, best_s=0.011).why_no_processes() == ""  # two threads have done it
    assert facts(left_s=1e6, no_processes="it is Windows").why_no_processes() == "it is Windows"


def test_how_many_threads_are_worth_a_trial():
    assert facts(max_workers=8).threads() == 8
    assert facts(max_workers=8, own_s=0.01, best_s=0.03).threads() == 3
    assert facts(max_workers=8, own_s=0.03, best_s=0.05).threads() == 1
    assert facts(max_workers=8, own_s=1.0, best_s=1.02).threads() == 0
    assert facts(thread_safe=False).threads() == 0
    assert facts(holds_gil=True).threads() == 0
    assert facts(holds_gil=True, own_s=0.02, best_s=0.04).threads() == 1  # beside the consumer


def test_reasons_to_stay_inline():
    assert facts().why_inline() == ""
    assert facts(made_s=1e-4).why_inline() == (
        "making a batch takes 100 us, less than handing it over would"
    )
    assert facts(own_s=0.98).why_inline() == "making a batch takes 20 ms of every 1 s"
    unsafe = facts(made_s=1e-3, thread_safe=False)
    assert unsafe.why_inline() == (
        "the source is not thread-safe, and making a batch takes 1 ms, too little for worker "
        "processes"
    )
    unsafe.work.unsure = "Plain"
    assert unsafe.why_inline().startswith(
        "the source is not known to be thread-safe, and making a batch takes 1 ms, too little"
    )
    assert facts(made_s=1e-4, noun="unit of the stream").why_inline() == (
        "making a unit of the stream takes 100 us, less than handing it over would"
    )


def test_times_as_people_write_them():
    assert [say(s) for s in (2e-6, 0.0125, 1.0, 12.3)] == ["2 us", "12.5 ms", "1 s", "12 s"]


# What is decided, and when: simulated loops, on a clock that is moved by hand.


class Loop:
    """A loop that takes each batch, compiles for as long as ``compiles`` says, and then steps."""

    def __init__(self, session, batches, compiles=(), step_s=0.002):
        self.session, self.world = session, session.world
        self._batches, self.step_s = batches, step_s
        self._compiles = deque(compiles)
        self.steady_at = None  # when the first step began that was not compiled

    def run_for(self, seconds, until=lambda: False):
        """Steady steps for so long, or until something is so; the number of batches."""
        count, begun = 0, self.world.time
        for _ in self._batches:
            count += 1
            if self._compiles:
                self.world.time += self._compiles.popleft()
                continue
            if self.steady_at is None:
                self.steady_at = self.world.time
            self.world.time += self.step_s
            if self.world.time >= max(begun, self.steady_at) + seconds or until():
                break
        return count


def run_for(session, seconds, stop=1 << 62):
    """An iterator that is read for so long, or until an engine is found."""
    until = session.world.time + seconds
    for _ in session.read(stop):
        if session.world.time >= until or session.found:
            return


KINDS = {
    "sleeps": ({}, "threads"),
    "holds the GIL": ({"holds_gil": True}, "processes"),
    "no threads": ({"thread_safe": False}, "processes"),
}
COMPILES = [(5,), (15,), (12, 8), ()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiles", COMPILES)
@pytest.mark.parametrize("made_s", [0.04, 0.3, 0.32])
def test_a_chain_is_where_it_belongs_within_two_seconds_of_steady_steps(made_s, compiles, kind):
    options, right = KINDS[kind]
    session = TimedSession(made_s, **options)
    loop = Loop(session, session.read(), compiles, step_s=0.02 if made_s == 0.32 else 0.002)
    loop.run_for(60, until=lambda: session.found is not None)
    assert session.found == (right, 2)
    assert session.world.time - loop.steady_at < 2
    before = session.world.time
    assert loop.run_for(1e9, until=lambda: session.world.time > before + 10) > 0.95 * 20 / made_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiles", COMPILES)
@pytest.mark.parametrize("unit_s", [0.4, 3.0, 132.0])
def test_a_stream_leaves_inline_after_one_long_unit(unit_s, compiles, kind):
    """Ten batches of every unit: workers have the following ones from the second unit on."""
    options, right = KINDS[kind]
    session = TimedSession(unit_s, makes_units=True, **options)
    loop = Loop(session, session.read_units(10), compiles)
    loop.run_for(1e9, until=lambda: session.search.engine == (right, 2))
    units = 3 if unit_s < 1 else 2  # a unit of less than half a second is not enough by itself
    assert session.world.time < (units + 1) * unit_s + sum(compiles) + 1.5
    begun = session.world.time
    count = loop.run_for(1e9, until=lambda: session.world.time > begun + 20 * unit_s)
    assert count > 0.9 * 10 * 2 * 20
    assert session.found == (right, 2)


@pytest.mark.parametrize("max_workers", [2, 8])
def test_a_number_of_workers_is_a_maximum_for_the_same_decision(max_workers):
    session = TimedSession(0.32, max_workers=max_workers)
    loop = Loop(session, session.read(), (12,), step_s=0.05)
    loop.run_for(2)
    assert session.found == ("threads", max_workers)


@pytest.mark.parametrize("made_s", [60e-6, 300e-6, 0.01, 0.3])
def test_steps_that_are_slow_for_long_and_then_fast(made_s):
    """Whatever was decided before, and for however many batches."""
    session = TimedSession(made_s)
    loop = Loop(session, session.read(), [12] * 300, step_s=made_s / 10)
    loop.run_for(2, until=lambda: session.found is not None)
    assert (session.found is not None) == (made_s > 150e-6)
    assert session.tried == ([] if made_s < 150e-6 else [("threads", 2)])


def test_batches_that_become_slow_while_nobody_measures():
    session = TimedSession(20e-6)
    loop = Loop(session, session.read(), step_s=0.001)
    loop.run_for(1)
    assert session.search.resting > 0
    session.made_s, slow_from = 0.1, session.world.time
    loop.run_for(1e9, until=lambda: session.found is not None)
    # What takes a quarter of a second is made without a look, at most.
    assert session.world.time - slow_from < 0.25 / 0.001 * 0.101 + 2


def test_steps_that_are_really_slow_need_no_workers():
    session = TimedSession(0.3)
    loop = Loop(session, session.read(), step_s=12.0)
    loop.run_for(600)
    assert session.found is None
    assert session.tried == []
    assert session.reason == "making a batch takes 300 ms of every 12 s"


def test_slow_batches_before_slow_steps_are_read_ahead_by_one_thread():
    session = TimedSession(0.3, max_workers=8)
    loop = Loop(session, session.read(), (15,), step_s=1.0)
    loop.run_for(20)
    assert session.found == ("threads", 1)


@pytest.mark.parametrize("first_s", [60e-6, 2.0])
def test_gathers_get_no_workers(first_s):
    """As those of small vectorised batches, even if the first of them opens files."""
    session = TimedSession(first_s, only_gathers=True)
    loop = Loop(session, session.read(), step_s=0.0)
    loop.run_for(0)
    session.world.time += 5.0
    session.made_s = 60e-6
    loop.run_for(5)
    assert session.tried == []
    assert session.search.resting > 0  # most of them are not even looked at
    assert session.reason == "making a batch takes 60 us, less than handing it over would"


def test_gathers_on_a_busy_machine_get_no_workers():
    """Two of three batches are held up, for as long as a time slice of somebody else."""
    session = TimedSession(60e-6, only_gathers=True)
    for number in session.read(20_000):
        session.made_s = 60e-6 if number % 3 else 4e-3
        session.made_s = 4e-3 if number % 3 == 1 else session.made_s
    assert session.tried == []


def test_a_step_that_compiles_in_the_middle_of_a_trial_says_nothing():
    """What is ready after that was made meanwhile: threads that win nothing are not taken."""
    session = TimedSession(0.05, slower={"threads": 2.0, "processes": 2.0})
    loop = Loop(session, session.read())
    loop.run_for(60, until=lambda: session.search.trial is not None)
    for _ in range(6):
        loop.run_for(1e9, until=lambda: True)
        session.world.time += 10.0
    loop.run_for(1e9, until=lambda: session.search.trial is None)
    assert session.found is None


@pytest.fixture
def holds_the_gil():
    """Python that holds the GIL: threads win nothing, two processes halve the time."""

    def make(takes_s):
        return TimedSession(0.02, holds_gil=True, takes_s=takes_s)

    return make


def test_cheap_workers_are_found_soon(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    run_for(session, 60)
    assert session.found == ("processes", 2)
    assert session.world.time < 1


def test_work_that_is_not_for_processes_says_so():
    """Threads win a little; processes could win more."""
    session = TimedSession(
        0.02,
        max_workers=8,
        slower={"threads": 6.0, "processes": 1.0},
        not_for_processes="it is not for processes",
    )
    for _ in session.read(2_000):
        pass
    assert session.found == ("threads", 8)
    assert session.started == 0
    assert session.reason == (
        "a batch is handed out every 15 ms, inline every 20 ms; it is not for processes"
    )


@pytest.mark.parametrize("steps", [1 << 62, 40])
def test_threads_that_win_early_do_not_keep_processes_out(steps):
    """In one endless stream, and in the short epochs of a loader."""
    session = TimedSession(0.02, slower={"threads": 1.5, "processes": 1.0})
    found = []
    while session.world.time < 60 and session.found != ("processes", 2):
        for _ in session.read(steps):
            if session.found not in found:
                found.append(session.found)
            if session.world.time > 60 or session.found == ("processes", 2):
                break
    assert found == [None, ("threads", 2), ("processes", 2)]


def test_what_is_timed_of_a_stream_is_a_unit_not_a_batch():
    noun = stream_work_of(Dataset.range(8).filter(bool).batch(2)).noun
    session = TimedSession(0.02, noun=noun, handover_s=0.0)
    run_for(session, 60)
    assert session.reason == "a unit of the stream is handed out every 10 ms, inline every 20 ms"


def test_workers_that_take_too_long_to_start_are_stopped(holds_the_gil):
    session = holds_the_gil(takes_s=30.0)
    spent, close = 0.0, session.close

    def stopped():
        nonlocal spent
        spent += session.start_s
        session.start_s = 0.0
        close()

    session.close = stopped
    run_for(session, 30, stop=1_500)
    assert 0 < spent < 30 * 0.5
    assert session.started <= 4
    assert "the stream is too short for worker processes" in session.reason
    run_for(session, 600)
    assert session.found == ("processes", 2)  # in the end it pays


def test_a_stream_that_ends_soon_starts_no_process(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    run_for(session, 60, stop=40)
    assert session.started == 0


def test_a_stream_that_is_long_enough_starts_processes(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    run_for(session, 60, stop=1000)
    assert session.found == ("processes", 2)


def test_a_gather_is_not_tried_in_processes(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    session.only_gathers = True
    run_for(session, 60)
    assert session.started == 0


@pytest.mark.parametrize(("slower", "found"), [(20.0, None), (1.0, ("threads", 1))])
def test_auto_is_not_taken_in_by_a_consumer_that_warms_up(slower, found):
    """The consumer is slow until the first trial begins, which is not why it gets faster."""
    session = TimedSession(2e-4, slower={"threads": slower, "processes": 1.0}, handover_s=0.0)
    for _ in session.read(2000):
        session.world.time += 3e-3 if session.tried else 6e-3
    assert session.tried
    assert session.found == found


@pytest.mark.parametrize(("slower", "wins"), [(1.0, True), (3.0, False)])
@pytest.mark.parametrize("length", [7, 16, 100])
def test_auto_goes_on_with_its_search_over_short_epochs(length, slower, wins):
    """Python that holds the GIL: threads win nothing, processes halve the time, or lose."""
    session = TimedSession(0.02, holds_gil=True, slower={"threads": 1.0, "processes": slower})
    for _ in range(30_000 // length):  # ten minutes
        assert list(session.read(length)) == list(range(length))
        if session.found:
            break
    if wins:
        assert session.found == ("processes", 2)
        assert session.world.time < 6
    else:
        assert session.found is None
        assert 3 <= session.started <= 20  # after 5 s, 20 s, 80 s, ..., over a few epochs each


def test_workers_that_lost_are_given_up_when_inline_is_better():
    """Batches become so cheap that handing them over takes longer."""
    session = TimedSession(0.02)
    loop = Loop(session, session.read(), step_s=1e-4)
    loop.run_for(2)
    assert session.found == ("threads", 2)
    session.made_s, session.handover_s = 0.002, 0.06
    loop.run_for(10)
    assert session.found is None


def test_more_processes_for_a_consumer_that_became_faster():
    session = TimedSession(0.02, thread_safe=False, max_workers=4)
    loop = Loop(session, session.read(), step_s=0.03)
    loop.run_for(60, until=lambda: session.found is not None)
    assert session.found == ("processes", 1)
    loop.step_s = 0.001
    loop.run_for(1e9, until=lambda: session.found == ("processes", 4) or session.world.time > 60)
    assert session.world.time < 10


def test_an_element_that_breaks_the_search_off_does_not_end_it(holds_the_gil):
    """A warning that is raised as an error, or Ctrl-C, may come from within."""
    session = holds_the_gil(takes_s=0.3)
    prepare, broken = session.prepare, []

    def interrupted(count):
        if not broken:
            broken.append(count)
            raise KeyboardInterrupt
        return prepare(count)

    session.prepare = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_for(session, 60)
    run_for(session, 60)
    assert session.found == ("processes", 2)


def test_which_work_only_gathers():
    def only_gathers(dataset):
        return work_of(dataset).only_gathers

    assert only_gathers(arrays(10).shuffle(0).batch(2).repeat())
    assert only_gathers(Dataset.mix([arrays(10), arrays(4)], weights=[1, 2]).batch(2))
    assert not only_gathers(arrays(10).map(grow).batch(2))
    assert not only_gathers(arrays(10).batch(2, collate_fn=np.stack))
    assert not only_gathers(Dataset.from_source([1, 2, 3]).batch(2))


def test_a_worker_says_what_it_took_to_start():
    work = work_of(arrays(4).batch(2))
    session = Auto(2).session(work)
    workers = session.processes(2)
    until = time.monotonic() + 60
    while not workers.prepare(1) and time.monotonic() < until:
        time.sleep(0.01)
    assert 0.02 < workers.start_s < 60
    assert workers.prepare(1)
    run = run_of_steps(workers, work, range(2))  # starts the other as well
    assert [run.next().value["x"].tolist(), run.next().value["x"].tolist()] == [[0, 1], [2, 3]]
    session.close()


# A trial changes nothing.


def test_a_step_that_fails_in_a_worker_only_is_made_here(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    session.fails_in = "processes"

    def fail(engine, task):
        error = RecordError("map(f) failed", step=task[0])
        error.__cause__ = AttributeError("'NoneType' object has no attribute 'read'")
        assert session.search.is_failed_trial(engine, error)

    session.fail = fail
    run_for(session, 20)
    assert session.found is None
    assert session.reason.endswith(f"; {session.no_processes}")
    assert session.no_processes.startswith("in a worker process, step ")
    assert session.started == 1  # it is not tried again


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RecordError("three workers died of this step"), "processes"),  # there is no cause
        (RecordError("map(f) failed"), "threads"),
    ],
)
def test_a_step_that_fails_otherwise_is_an_error(error, kind, holds_the_gil):
    if kind == "threads":
        error.__cause__ = ValueError("bad")
    session = holds_the_gil(takes_s=0.3)
    for _ in session.read():
        if session.search.engine == (kind, 2):
            break
        assert session.world.time < 20
    assert not session.search.is_failed_trial((kind, 2), error)


def test_a_work_that_fails_in_worker_processes_only(tmp_path):
    """The real thing: what cannot be done in a worker is done here, and nothing is lost."""
    here = os.getpid()

    def picky(record):
        if os.getpid() != here:
            raise ValueError("not in a worker")
        return record

    session = Auto(2).session(work_of(arrays(400).map(picky).batch(2)))
    workers = session.processes(2)
    until = time.monotonic() + 60
    while not workers.prepare(2) and time.monotonic() < until:
        time.sleep(0.01)
    session.search.trial = Trial(("processes", 2), 0.01, probes=False)
    run = run_of_steps(session, session.work, range(200))
    elements = [run.next() for _ in range(200)]
    values = [getattr(one, "value", one)["x"].tolist() for one in elements]
    assert values == np.arange(400).reshape(200, 2).tolist()
    assert session.no_processes.startswith("in a worker process, step ")
    assert "not in a worker" in session.no_processes
    run.close()
    session.close()


# What is told to those who asked for workers.


class Plain:
    """Says nothing about threads."""

    seconds = 0.0005

    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return {"x": i}


class Noting(Work):
    """Work whose batches say how long reading took, of 10 ms each."""

    unsure, thread_safe, only_gathers = "Plain", False, False

    def __init__(self, reading_s, total_s=0.01):
        self.stages = {"source": reading_s, "map(f)": total_s - reading_s}

    def __call__(self, task, lend):
        return Measured(task[0], (), Timing(self.stages, 1 if task[0] else 0))


def told_by(work, engine, monkeypatch):
    """What is told over some runs of 16 batches, all of which are right."""
    told = []
    monkeypatch.setattr(threads_session, "warn_user", told.append)
    session = engine.session(work)
    for _ in range(2):
        run = run_of_steps(session, work, range(16))
        for step in range(16):
            measured = run.next()
            assert measured.value == step
            session.notice(measured)
        run.close()
    return told


def test_threads_that_wait_for_each_other_to_read_say_so_once(monkeypatch):
    told = told_by(Noting(0.005), Threads(2), monkeypatch)
    assert told == [
        "threads read Plain one at a time, since it is not known whether they may read it at once, "
        "and reading takes 50% of the time to make a batch. If threads may read Plain at once, "
        "write Dataset.from_source(obj, thread_safe=True); thread_safe=False says that they may "
        "not, and ends this warning."
    ]


def test_threads_that_hardly_read_say_nothing(monkeypatch):
    assert told_by(Noting(0.001), Threads(2), monkeypatch) == []  # a tenth of the time
    assert told_by(Noting(1e-5, 2e-5), Threads(2), monkeypatch) == []  # half of next to nothing
    assert told_by(Noting(0.005), Threads(1), monkeypatch) == []  # alone
    known = Noting(0.005)
    known.unsure = ""
    assert told_by(known, Threads(2), monkeypatch) == []


@pytest.mark.parametrize("engine", ["threads", Threads(8)])
def test_a_source_that_threads_read_one_at_a_time(engine):
    count = {"num_workers": 8} if engine == "threads" else {}
    loader = DataLoader(Dataset.from_source(Plain()).batch(4), engine=engine, **count)
    with pytest.warns(LoaderxWarning, match="threads read Plain one at a time") as told:
        assert len(list(loader)) == 100
    (warning,) = told
    assert warning.filename == __file__


@pytest.mark.parametrize("engine", ["threads", "auto"])
@pytest.mark.parametrize("is_safe", [True, False])
def test_who_has_said_it_is_not_asked(engine, is_safe):
    class Said(Plain):
        thread_safe = is_safe

    for dataset in (
        Dataset.from_source(Said()),
        Dataset.from_source(Plain(), thread_safe=is_safe),
    ):
        with DataLoader(dataset.batch(4), engine=engine, num_workers=2) as loader:
            next(iter(loader))
    with DataLoader(Dataset.from_source(Plain()).batch(4), engine=Threads(1)) as loader:
        next(iter(loader))


class OnAClock:
    """A work on a clock of its own: each batch takes ``made_s``, and is its own step."""

    def __init__(self, work, made_s):
        self.work, self.made_s, self.world = work, made_s, World()

    def __getattr__(self, name):
        return getattr(self.work, name)

    def __call__(self, task, lend):
        self.world.time += self.made_s
        return task[0]

    def session(self, *, asked):
        return AutoSession(self, 2, None, asked=asked, clock=self.world)

    def stream(self, steps, lend):
        return (self((step,), lend) for step in steps)


@pytest.mark.parametrize(
    ("is_safe", "reason"),
    [
        (None, "the source is not known to be thread-safe, and making a batch takes 1 ms, too "),
        (False, "the source is not thread-safe, and making a batch takes 1 ms, too little for "),
    ],
)
@pytest.mark.parametrize("made_s", [1e-3, 1e-5])
def test_batches_that_no_worker_could_make_sooner_are_no_reason_to_warn(is_safe, reason, made_s):
    dataset = Dataset.from_source(Plain(), thread_safe=is_safe).batch(2)
    session = OnAClock(work_of(dataset), made_s).session(asked=True)
    run = run_of_steps(session, session.work, range(1000))
    assert [run.next() for _ in range(1000)] == list(range(1000))  # a warning would be an error
    assert session.describe()[1].startswith(reason if made_s == 1e-3 else "making a batch")


@pytest.mark.parametrize(
    ("made_s", "consumer_s", "asked", "is_safe", "warns"),
    [
        (0.01, 0.0, True, None, True),
        (0.01, 0.0, False, None, False),  # nobody asked
        (0.01, 0.0, True, False, False),  # it has been said
        (0.01, 0.2, True, None, False),  # the consumer does not wait for it
        (0.001, 0.0, True, None, False),
    ],
)
def test_num_workers_that_an_unknown_source_makes_useless(
    made_s, consumer_s, asked, is_safe, warns
):
    """Where there are no worker processes, threads are all that could help."""
    dataset = Dataset.from_source(Plain(), thread_safe=is_safe).batch(2)
    work = OnAClock(work_of(dataset), made_s)
    session = work.session(asked=asked)
    session.no_processes = "they need a POSIX system"
    session.begin(500)
    run = run_of_steps(session, session.work, range(500))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(500):
            assert run.next() == step
            work.world.time += consumer_s
    assert session.search.found is None
    assert [str(one.message) for one in told] == [
        "num_workers=2 was asked for, and batches are made in the caller's thread: the source is "
        "not known to be thread-safe; they need a POSIX system. If threads may read Plain at once, "
        "write Dataset.from_source(obj, thread_safe=True); thread_safe=False says that they may "
        "not, and ends this warning."
    ][:warns]


@pytest.mark.parametrize("asked", [True, False])
def test_num_workers_that_cannot_be_had_because_the_work_cannot_be_sent(asked):
    class Locked(Plain):
        seconds = 0.0

        def __init__(self):
            self.lock = threading.Lock()

    dataset = Dataset.from_source(Locked()).batch(2).repeat()
    work = OnAClock(work_of(dataset), 0.01)
    session = work.session(asked=asked)
    run = run_of_steps(session, session.work, range(1 << 62))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        while "cannot be sent" not in session.describe()[1]:
            run.next()
            assert work.world.time < 60
        for _ in range(2000):
            run.next()
    run.close()
    assert len(told) == asked
    if asked:
        assert told[0].filename == __file__
        assert str(told[0].message).startswith(
            "num_workers=2 was asked for, and batches are made in the caller's thread: "
            "Dataset.from_source(Locked, 400 records) cannot be sent to worker processes: "
            "TypeError: cannot pickle '_thread.lock' object."
        )
        assert "or write in Locked: `def __getstate__(self)" in str(told[0].message)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"engine": "processes"}, "engine='processes'"),
        ({"engine": "processes", "num_workers": 2}, "engine='processes'"),
        ({"engine": Threads(2)}, "engine='threads'"),
        ({"num_workers": 2}, "num_workers=2"),
    ],
)
def test_workers_for_what_can_only_be_read_in_order(options, asked):
    dataset = Dataset.from_iterable(lambda: iter(range(8))).map(abs).batch(2)
    loader = DataLoader(dataset, **options)
    with pytest.warns(LoaderxWarning) as told:
        assert len(list(loader)) == 4
    (warning,) = told
    assert str(warning.message) == (
        f"{asked} was asked for, but what stands above from_iterable runs in the caller's thread. "
        "To use workers, give the data as something with __len__ and __getitem__ "
        "(Dataset.from_source)."
    )
    assert warning.filename == __file__
    assert len(list(loader)) == 4  # once is enough: another warning would be an error


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"engine": "inline"}])
def test_nobody_who_asks_for_no_workers_is_told_that_there_are_none(options):
    dataset = Dataset.from_iterable(lambda: iter(range(8))).map(abs).batch(2)
    assert len(list(DataLoader(dataset, **options))) == 4


def test_workers_for_part_of_a_stream():
    """What is indexed goes to workers; there is nothing to warn of."""
    in_order = Dataset.from_iterable(lambda: iter(np.arange(8))).repeat()
    mixed = Dataset.mix([in_order, Dataset.range(8).filter(bool).repeat()], weights=[1, 1])
    with DataLoader(mixed.batch(2).take(4), engine="threads", num_workers=2) as loader:
        assert len(list(loader)) == 4


class Refusing:
    """Can be pickled, but not unpickled in a worker."""

    def __init__(self):
        self.here = os.getpid()

    def __setstate__(self, state):
        if state["here"] != os.getpid():
            raise ImportError("there is no such module in a worker")

    def __call__(self, record):
        return record


def test_a_worker_that_cannot_build_the_dataset_is_told_to_who_asked_for_workers():
    session = Auto(2).session(work_of(arrays(8).map(Refusing()).batch(2)))
    until = time.monotonic() + 60
    while session.search.prepare(2) is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert session.no_processes == (
        "the dataset cannot be sent to worker processes: a worker failed to build it: "
        "ImportError: there is no such module in a worker"
    )
    with pytest.warns(LoaderxWarning, match="num_workers=2 was asked for, and .*failed to build"):
        session.warn_of_workers(is_unsafe=False)
    session.close()


def test_threads_that_were_given_up_end_while_an_iterator_holds_their_tasks():
    session = Auto(2).session(work_of(arrays(40).map(grow).batch(4)))
    session.search.found = ("threads", 2)
    held = [session.submit((step,)) for step in range(3)]
    started = [one for one in threading.enumerate() if one.name.startswith("loaderx")]
    assert len(started) == 2
    session.keep_only(None)
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    made = [one.result() for one in held]
    made = [one.value if isinstance(one, Measured) else one for one in made]
    assert_same(made, list(arrays(40).map(grow).batch(4))[:3])
    session.close()
