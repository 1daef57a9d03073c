"""`auto`: what it decides, what a trial may cost, and what it tells those who asked for workers."""

from __future__ import annotations

import os
import threading
import time
import types
import warnings
from typing import Any

import numpy as np
import pytest

from chains import arrays
from inside import stream_work_of, work_of
from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError
from loaderx.engines import Auto, Threads, auto, auto_price, auto_search, threads_session
from loaderx.engines.auto_decision import PAYS_BACK, Facts, say, why_inline, why_no_processes
from loaderx.engines.base import Measured, Timing
from oracle import assert_same
from plain import grow
from timed import TimedSession


def facts(**changes):
    """Python that holds the GIL for 20 ms a batch, before a consumer that takes no time."""
    known = Facts(
        made_s=0.02,
        period_s=0.02,
        best_s=0.02,
        max_workers=2,
        cores=2,
        thread_safe=True,
        only_gathers=False,
        left_s=None,
        ran_s=0.0,
        start_s=0.3,
        share_s=0.0,
    )
    return known.replace(**changes)


# Decisions: pure functions of what is known.


def test_processes_must_pay_for_their_start_twice():
    """Two workers could save half of the time; both start at once, on two cores."""
    needed_s = PAYS_BACK * 0.3 / 0.5
    assert why_no_processes(facts(left_s=needed_s * 1.01)) is None
    assert why_no_processes(facts(left_s=needed_s * 0.99)) == (
        "the stream is too short for worker processes, which would take 300 ms to start"
    )


def test_an_endless_stream_is_expected_to_go_on_for_as_long_as_it_has():
    assert why_no_processes(facts(ran_s=1.1)) is not None
    assert why_no_processes(facts(ran_s=1.3)) is None
    assert why_no_processes(facts(left_s=0.1, ran_s=1.3)) is None  # short epochs, again and again


def test_dear_workers_are_tried_later():
    assert why_no_processes(facts(ran_s=10, start_s=3.0)) == (
        "the stream is too short for worker processes, which would take 3 s to start"
    )
    assert why_no_processes(facts(ran_s=13, start_s=3.0)) is None
    assert why_no_processes(facts(ran_s=13, start_s=3.0, share_s=1.0)) is not None
    # Eight at a time on two cores take four times as long.
    assert facts(max_workers=8).price_s() == pytest.approx(4 * 0.3)


def test_no_processes_for_what_threads_can_do():
    assert why_no_processes(facts(left_s=1e6, only_gathers=True)) == ""
    assert why_no_processes(facts(left_s=1e6, only_gathers=True, thread_safe=False)) is None
    assert why_no_processes(facts(left_s=1e6, made_s=0.001, period_s=0.001, best_s=0.001)) == ""
    assert why_no_processes(facts(left_s=1e6, best_s=0.011)) == ""  # two threads have done it
    assert why_no_processes(facts(left_s=1e6, no_processes="it is Windows")) == "it is Windows"


def test_reasons_to_stay_inline():
    assert why_inline(facts()) == ""
    assert why_inline(facts(period_s=0.0)) == "the stream ended before it was measured"
    assert why_inline(facts(made_s=1e-4)) == (
        "making a batch takes 100 us, less than handing it over would"
    )
    assert why_inline(facts(period_s=1.0)) == "making a batch takes 20 ms of every 1 s"
    unsafe = facts(made_s=1e-3, thread_safe=False)
    assert why_inline(unsafe) == (
        "the source is not thread-safe, and making a batch takes 1 ms, too little for worker "
        "processes"
    )
    assert why_inline(unsafe.replace(is_unsure=True)).startswith(
        "the source is not known to be thread-safe, and making a batch takes 1 ms, too little"
    )
    assert why_inline(facts(made_s=1e-4, noun="unit of the stream")) == (
        "making a unit of the stream takes 100 us, less than handing it over would"
    )


def test_times_as_people_write_them():
    assert [say(s) for s in (2e-6, 0.0125, 1.0, 12.3)] == ["2 us", "12.5 ms", "1 s", "12 s"]


# What a trial may cost.


@pytest.fixture
def timed(monkeypatch):
    """Makes sessions on a clock that is moved by hand."""
    made: list[TimedSession] = []
    monkeypatch.setattr(auto_search, "perf_counter", lambda: made[0].now)

    class Clocked(TimedSession):
        def __init__(self, *costs: float, **more: Any) -> None:
            made.append(self)
            self.now = 0.0
            super().__init__(*costs)
            for name, value in more.items():
                setattr(self, name, value)

    return Clocked


def run_for(session, seconds, stop=1 << 62):
    """An iterator that is read for so long, or until an engine is found."""
    until = session.now + seconds
    for _ in session.read(stop):
        if session.now >= until or session.found:
            return


@pytest.fixture
def holds_the_gil(timed):
    """Python that holds the GIL: threads win nothing, two processes halve the time."""

    def make(takes_s):
        return timed(0.02, 0.02, 0.01, max_workers=2, takes_s=takes_s)

    return make


def test_cheap_workers_are_found_soon(holds_the_gil):
    session = holds_the_gil(takes_s=0.3)
    run_for(session, 60)
    assert session.found == ("processes", 2)
    assert session.now < 4


def test_work_that_is_not_for_processes_says_so(timed):
    """Threads win a little; processes could win more."""
    session = timed(0.02, 0.015, 0.001, max_workers=8, not_for_processes="it is not for processes")
    for _ in session.read(2_000):
        pass
    assert session.found[0] == "threads"
    assert session.started == 0
    assert session.reason == (
        "a batch is handed out every 15 ms, inline every 20 ms; it is not for processes"
    )


@pytest.mark.parametrize("steps", [1 << 62, 40])
def test_threads_that_win_early_do_not_keep_processes_out(timed, steps):
    """In one endless stream, and in the short epochs of a loader."""
    session = timed(0.02, 0.014, 0.0105, max_workers=2, takes_s=0.3)
    found = []
    while session.now < 60 and session.found != ("processes", 2):
        for _ in session.read(steps):
            if session.found not in found:
                found.append(session.found)
            if session.now > 60 or session.found == ("processes", 2):
                break
    assert found == [None, ("threads", 2), ("processes", 2)]
    assert 1 < session.now < 20


def test_what_is_timed_of_a_stream_is_a_unit_not_a_batch(timed):
    class OfUnits(timed):
        noun = stream_work_of(Dataset.range(8).filter(bool).batch(2)).noun

    session = OfUnits(0.02, 0.02, 0.01, max_workers=2, takes_s=0.3)
    run_for(session, 60)
    assert session.reason == "a unit of the stream is handed out every 10 ms, inline every 20 ms"


def test_one_worker_starts_first_and_is_stopped_when_it_takes_too_long(holds_the_gil):
    session = holds_the_gil(takes_s=30.0)
    spent, most = 0.0, 0
    prepare = session.prepare

    def watched(count):
        nonlocal most
        most = max(most, count)
        return prepare(count)

    def stopped():
        nonlocal spent
        spent += session.now - session.prepared[0] if session.prepared else 0.0
        session.prepared = []

    session.prepare, session.close = watched, stopped
    run_for(session, 30)
    assert most == 1  # the second would have cost as much again
    assert 0 < spent < 30 * 0.3
    assert session.started <= 4
    assert "the stream is too short for worker processes" in session.reason
    run_for(session, 600)
    assert session.found == ("processes", 2)  # in the end it pays


def test_what_a_worker_took_to_start_is_remembered(holds_the_gil):
    session = holds_the_gil(takes_s=2.0)
    session.price = auto_price.Price(2.0, 0.0)  # as was estimated
    run_for(session, 7)
    assert session.started == 0
    run_for(session, 60)
    assert session.found == ("processes", 2)
    assert session.price.start_s == pytest.approx(2.0)


def test_a_stream_that_ends_soon_starts_no_process(holds_the_gil, timed):
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


@pytest.mark.parametrize(
    ("made_s", "handed_s", "found"), [(2e-4, 2e-4, None), (2e-4, 0.0, ("threads", 1))]
)
def test_auto_is_not_taken_in_by_a_consumer_that_warms_up(made_s, handed_s, found, timed):
    """The consumer is slow until the first trial begins, which is not why it gets faster."""
    session = timed(made_s, handed_s)
    for _ in session.read(2000):
        session.now += 3e-3 if session.tried else 6e-3
    assert session.tried >= 2
    assert session.found == found


@pytest.mark.parametrize(("by_processes_s", "wins"), [(0.01, True), (0.03, False)])
@pytest.mark.parametrize("length", [7, 16, 100])
def test_auto_goes_on_with_its_search_over_short_epochs(length, by_processes_s, wins, timed):
    """Python that holds the GIL: threads win nothing, processes halve the time, or lose."""
    session = timed(0.02, 0.02, by_processes_s, max_workers=2)
    for _ in range(30_000 // length):  # ten minutes
        assert list(session.read(length)) == list(range(length))
        if session.found:
            break
    if wins:
        assert session.found == ("processes", 2)
        assert session.now < 6
    else:
        assert session.found is None
        assert 3 <= session.started <= 20  # after 5 s, 20 s, 80 s, ..., over a few epochs each


def test_an_element_that_breaks_the_search_off_does_not_end_it(timed):
    """A warning that is raised as an error, or Ctrl-C, may come from within."""
    session = timed(0.02, 0.02, 0.01, max_workers=2, takes_s=0.3)
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


# What importing costs is seen here, where it has been imported.


def test_the_modules_that_come_with_one():
    heavy, engine, other = (types.ModuleType(n) for n in ("heavy", "heavy.engine", "other"))
    inner = types.ModuleType("heavy.inner")
    heavy.inner = inner
    engine.function = types.FunctionType((lambda: 0).__code__, {"__name__": "other"})
    loaded = {m.__name__: m for m in (heavy, engine, inner, other)} | {"lonely": heavy}
    assert auto_price.imported_with(["heavy.engine", "numpy", "json"], loaded) == {
        "heavy",
        "heavy.engine",
        "heavy.inner",
        "other",
    }
    assert auto_price.imported_with(["heavy.missing"], loaded) == set()


def test_an_object_that_warns_when_it_is_asked_for_its_class():
    class Deprecated:
        @property
        def __class__(self):
            raise AssertionError("asked")

    heavy = types.ModuleType("heavy")
    heavy.old = Deprecated()
    assert auto_price.imported_with(["heavy"], {"heavy": heavy}) == {"heavy"}


def test_a_heavy_package_makes_workers_dear():
    pandas = pytest.importorskip("pandas")

    def light(record):
        return grow(record)

    def heavy(record):
        return {"x": pandas.Series(record["x"]).to_numpy()}

    for function in (light, heavy):
        function.__module__ = "__main__"  # sent by value: this module, and pytest, are not imported

    class Frame:
        def __init__(self):
            self.frame = pandas.DataFrame({"x": [1, 2]})

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return {"x": self.frame["x"][i]}

    def start_s(dataset):
        return auto_price.estimate(work_of(dataset.batch(2))).start_s

    bare = start_s(arrays(4))
    assert bare <= start_s(arrays(4).map(light)) < bare + 0.1
    assert start_s(arrays(4).map(heavy)) > bare + 0.2
    assert start_s(Dataset.from_source(Frame())) > bare + 0.2


def test_data_in_memory_makes_them_dear_and_files_do_not(tmp_path):
    x = np.zeros((1000, 1000))
    np.save(tmp_path / "x.npy", x)

    def share_s(dataset):
        return auto_price.estimate(work_of(dataset.batch(2))).share_s

    assert share_s(Dataset.from_arrays(x=x)) == pytest.approx(8e-3, rel=0.1)
    assert share_s(Dataset.open(tmp_path / "x.npy")) < 1e-5


def test_a_worker_says_what_it_took_to_start():
    session = Auto(2).session(work_of(arrays(4).batch(2)))
    workers = session.processes(2)
    until = time.monotonic() + 60
    while not workers.prepare(1) and time.monotonic() < until:
        time.sleep(0.01)
    assert 0.02 < workers.start_s < 60
    assert workers.prepare(1)
    run = workers.run(range(2))  # starts the other as well
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
        assert session.now < 20
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
    trials = session.search.trials
    trials.engine, trials.is_trying = ("processes", 2), True

    def course():
        with pytest.raises(auto_search.TrialFailedError, match="not in a worker"):
            while True:
                yield
        trials.engine, trials.is_trying = None, False
        yield

    session.search.start(course())
    run = session.run(range(200))
    elements = [run.next() for _ in range(200)]
    values = [getattr(one, "value", one)["x"].tolist() for one in elements]
    assert values == np.arange(400).reshape(200, 2).tolist()
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


class Noting:
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
        run = session.run(range(16))
        assert [run.next().value for _ in range(16)] == list(range(16))
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

    def __init__(self, work, made_s, monkeypatch):
        self.work, self.made_s, self.now = work, made_s, 0.0
        for module in (auto, auto_search):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def __getattr__(self, name):
        return getattr(self.work, name)

    def __call__(self, task, lend):
        self.now += self.made_s
        return task[0]

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
def test_batches_that_no_worker_could_make_sooner_are_no_reason_to_warn(
    is_safe, reason, made_s, monkeypatch
):
    dataset = Dataset.from_source(Plain(), thread_safe=is_safe).batch(2)
    work = OnAClock(work_of(dataset), made_s, monkeypatch)
    session = Auto(2).session(work)
    run = session.run(range(1000))
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
    made_s, consumer_s, asked, is_safe, warns, monkeypatch
):
    """Where there are no worker processes, threads are all that could help."""
    dataset = Dataset.from_source(Plain(), thread_safe=is_safe).batch(2)
    work = OnAClock(work_of(dataset), made_s, monkeypatch)
    session = Auto(2 if asked else None).session(work)
    session.no_processes = "they need a POSIX system"
    session.begin(500)
    run = session.run(range(500))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(500):
            assert run.next() == step
            work.now += consumer_s
    assert session.search.found is None
    assert [str(one.message) for one in told] == [
        "num_workers=2 was asked for, and batches are made in the caller's thread: the source is "
        "not known to be thread-safe; they need a POSIX system. If threads may read Plain at once, "
        "write Dataset.from_source(obj, thread_safe=True); thread_safe=False says that they may "
        "not, and ends this warning."
    ][:warns]


@pytest.mark.parametrize("asked", [True, False])
def test_num_workers_that_cannot_be_had_because_the_work_cannot_be_sent(asked, monkeypatch):
    class Locked(Plain):
        seconds = 0.0

        def __init__(self):
            self.lock = threading.Lock()

    dataset = Dataset.from_source(Locked()).batch(2).repeat()
    work = OnAClock(work_of(dataset), 0.01, monkeypatch)
    session = Auto(2 if asked else None).session(work)
    run = session.run(range(1 << 62))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        while "cannot be sent" not in session.describe()[1]:
            run.next()
            assert work.now < 60
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
    while session.search.trials.can_have(1, 1) and time.monotonic() < until:
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
    session.search.trials.engine = ("threads", 2)
    held = [session.submit((step,)) for step in range(3)]
    started = [one for one in threading.enumerate() if one.name.startswith("loaderx")]
    assert len(started) == 2
    session.stop_using(session.session_of(("threads", 2)))
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    made = [one.result() for one in held]
    made = [one.value if isinstance(one, Measured) else one for one in made]
    assert_same(made, list(arrays(40).map(grow).batch(4))[:3])
    session.close()
