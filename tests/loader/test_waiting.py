"""The warning about a loop that does little but wait for its data."""

from __future__ import annotations

import warnings

import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.engines.auto import timing
from loaderx.loader import iterator as loader_iterator
from loaderx.loader import waiting
from loaderx.reading import batch_readers, context


class Clock:
    """Time that is moved by hand; it stands still for the search for an engine."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for module in (batch_readers, context, loader_iterator):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.Clock, "now", staticmethod(lambda: 1.0))

    def slow(self, record):
        self.now += 0.1
        return record


def told(loader, clock, compiles=(), step_s=0.0, batches=100_000):
    """What is told over so many batches, and when for the first time."""
    first, begun = None, clock.now
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number, _ in enumerate(loader):
            if found and first is None:
                first = clock.now - begun
            clock.now += compiles[number] if number < len(compiles) else step_s
            if number >= batches:
                break
    return [str(one.message) for one in found], first


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def chain(clock):
    return Dataset.range(1000).map(clock.slow).batch(1)


def stream(clock):
    return Dataset.range(4000).filter(lambda x: True).batch(4).map(clock.slow)


@pytest.mark.parametrize("make", [chain, stream])
def test_a_loop_that_waits_is_told_once_what_takes_the_time(make, clock):
    messages, first = told(DataLoader(make(clock)), clock, compiles=(15.0,), step_s=0.001)
    (message,) = messages
    assert message.startswith(
        "the loop has waited for data for 97% of the last 10 s. The engine is inline ("
    )
    assert "). map(slow) takes 100% of the time that batches take. Make map(slow) " in message
    assert message.endswith(
        "cheaper, or keep what it makes: .cache(path). If you know that workers can share it, "
        "write engine='threads' or engine='processes'."
    )
    assert 15 + 9.5 <= first <= 15 + 10.5  # after the first 10 s without the compilation


def test_an_iterable_is_told_how_to_get_workers(clock):
    dataset = Dataset.from_iterable(lambda: iter(range(1000))).map(clock.slow).batch(1)
    (message,), _ = told(DataLoader(dataset), clock)
    assert "inline (records are read in order, in the caller's thread). map(slow) takes" in message
    assert message.endswith(
        "or give the data as something with __len__ and __getitem__ (Dataset.from_source), which "
        "workers can share."
    )


def test_the_warning_points_to_the_loop(clock):
    with pytest.warns(LoaderxWarning, match="the loop has waited") as found:
        for _ in DataLoader(chain(clock)):
            pass
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    ("step_s", "compiles"),
    [
        (0.02, ()),  # waits for five sixths of the time
        (2.0, ()),
        (2.0, (15.0, 10.0)),
    ],
)
def test_a_loop_that_works_is_told_nothing(step_s, compiles, clock):
    assert told(DataLoader(chain(clock)), clock, compiles, step_s) == ([], None)


def test_who_asked_for_an_engine_is_told_nothing(clock):
    assert told(DataLoader(chain(clock), engine="inline"), clock) == ([], None)


def test_batches_that_nothing_could_make_faster_are_no_reason_to_warn(clock, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_S", 1.0)  # it looks twice, as in 400,000 batches of 10 s

    def quick(record):
        clock.now += 5e-5
        return record

    dataset = Dataset.range(100).map(quick).batch(1).repeat()
    assert told(DataLoader(dataset), clock, batches=40_000)[0] == []


def test_a_loader_that_is_counted_anew_goes_on(clock):
    loader = DataLoader(chain(clock))
    messages = []
    for epoch in range(4):
        messages += told(loader.epoch(epoch), clock, batches=90)[0]
        loader.stats(reset=True)
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("engine", "max_workers", "advice"),
    [
        ("threads(1)", 1, "Write num_workers=4: this machine has 4 cores."),
        (
            "processes(4)",
            None,
            "write engine='threads', num_workers=16; if it works, 4 cores do no more. Make map(f) "
            "cheaper, or keep what it makes: .cache(path).",
        ),
        ("threads(2)", None, "if it works, 4 cores do no more. Make map(f) cheaper, or "),
    ],
)
def test_what_to_write(engine, max_workers, advice, monkeypatch):
    monkeypatch.setattr(waiting, "cores", lambda: 4)
    made = waiting.Waiting(max_workers)
    now = 0.0
    while not made.note(now, now, int(now * 10)):
        now += 0.1
    with pytest.warns(LoaderxWarning) as found:
        made.warn(engine, "it is so", {"map(f)": 3.0, "source": 1.0})
    text = str(found[0].message)
    assert f"The engine is {engine} (it is so). map(f) takes 75% of the time" in text
    assert advice in text
    assert not made.note(now + 20, now + 20, 10**6)  # once
