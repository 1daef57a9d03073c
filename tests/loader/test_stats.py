"""Statistics: what they count, what they estimate, and how they look."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chains import arrays
from loaderx import ArgumentTypeError, DataLoader, Dataset
from loaderx.engines import Processes, Threads
from loaderx.engines.base import Timing
from loaderx.loader import iterator as loader_iterator
from loaderx.loader.sampling import MOST, Estimate, Sampler
from loaderx.plans import index_plan
from loaderx.reading import batch_readers, context
from plain import grow
from stream_chains import odd


class Clock:
    """Time that is moved by hand; a look at it takes none."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for module in (batch_readers, context, loader_iterator, index_plan):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def cost(self, seconds):
        """A function of a record that takes as long as ``seconds(number)`` says."""
        calls = iter(range(1 << 30))

        def work(record):
            self.now += seconds(next(calls))
            return record

        return work


def estimated(costs, *, limit_s=float("inf")):
    """What a sampler makes of batches that take so long each."""
    sampler, estimate, timed = Sampler(), Estimate(), 0
    for cost in costs:
        if sampler.is_due():
            estimate.add(Timing({"map": cost}, sampler.weight))
            sampler.took(cost)
            timed += 1
    return estimate.seconds(len(costs), limit_s)["map"], timed


# Times of stages.


def test_a_cold_first_batch_is_not_multiplied(monkeypatch):
    """It took 1.36 s in all, and was once reported as a minute."""
    clock = Clock(monkeypatch)
    work = clock.cost(lambda call: 1.0 if call == 0 else 0.0001)
    loader = DataLoader(Dataset.range(60).map(work).batch(1), engine="inline")
    list(loader)
    stats = loader.stats()
    assert stats.seconds == pytest.approx(1.0059)
    assert stats.stage_s["map(work)"] == pytest.approx(1.0059)


def test_slow_batches_are_all_timed(monkeypatch):
    """Then nothing is estimated, and nothing is said to be."""
    clock = Clock(monkeypatch)
    work = clock.cost(lambda call: 0.01 * (call + 1))
    loader = DataLoader(Dataset.range(9).map(work).batch(1), engine="inline")
    list(loader)
    stats = loader.stats()
    assert stats.timed == stats.batches == 9
    assert stats.stage_s["map(work)"] == pytest.approx(0.45)
    assert "time per stage, all workers together:" in str(stats)
    assert "~" not in str(stats)


def test_what_is_estimated_says_so(monkeypatch):
    clock = Clock(monkeypatch)
    work = clock.cost(lambda call: 1e-5)
    loader = DataLoader(Dataset.range(1000).map(work).batch(1), engine="inline")
    list(loader)
    stats = loader.stats()
    assert 0 < stats.timed < 40
    assert stats.stage_s["map(work)"] == pytest.approx(0.01)
    assert f"(~ estimated, timed on {stats.timed} of 1,000 batches):" in str(stats)
    assert "~0.010 s  map(work)" in str(stats)


def test_a_run_of_one_batch_shows_what_was_measured(monkeypatch):
    clock = Clock(monkeypatch)
    work = clock.cost(lambda call: 0.5)
    loader = DataLoader(Dataset.range(9).map(work).batch(3), engine="inline")
    next(iter(loader))
    stats = loader.stats()
    assert (stats.timed, stats.batches) == (1, 1)
    assert stats.stage_s["map(work)"] == pytest.approx(1.5)


@pytest.mark.parametrize("period", [2, 3, 7, 10, 32, 50, 63, 64, 65, 128])
def test_a_cost_that_comes_and_goes_is_neither_hit_each_time_nor_missed(period):
    costs = [2e-4 if step % period == 0 else 1e-5 for step in range(200_000)]
    found, timed = estimated(costs)
    assert found == pytest.approx(sum(costs), rel=0.25)
    assert timed < len(costs) / MOST * 3


def test_costs_that_differ_widely_are_estimated_without_a_bias():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(1000):
        costs = np.where(rng.random(400) < 0.1, 0.1, 1e-4).tolist()
        ratios.append(estimated(costs)[0] / sum(costs))
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_the_first_batch_counts_for_itself_alone():
    assert estimated([5.0, 1e-5])[0] == pytest.approx(5.00001)
    assert estimated([5.0, *[1e-5] * 2000])[0] == pytest.approx(5.02)


def test_no_more_is_claimed_than_passed():
    """One batch of 64 was interrupted for a minute just while it was timed."""
    sampler, costs = Sampler(), []
    for _ in range(4000):
        costs.append(60.0 if sampler.is_due() and len(costs) > 3000 else 1e-5)
        if costs[-1] > 1:
            break
    costs += [1e-5] * (4000 - len(costs))
    assert estimated(costs)[0] > 600
    assert estimated(costs, limit_s=60.04)[0] == pytest.approx(60.04)


@pytest.mark.parametrize("engine", ["inline", Threads(3), Processes(2), "auto"])
def test_stages_take_no_longer_than_the_workers_had(engine):
    with DataLoader(arrays(600).shuffle(0).map(grow).batch(2), engine=engine) as loader:
        list(loader)
        stats = loader.stats()
    workers = {"inline": 0, "auto": 8}.get(engine) if isinstance(engine, str) else 3
    assert 0 < sum(stats.stage_s.values()) <= stats.seconds * workers + stats.waited_s + 1e-6
    assert 2 <= stats.timed <= 300


def test_a_few_batches_far_from_the_beginning_are_timed():
    loader = DataLoader(arrays(1000).map(grow).batch(2).repeat(), engine="inline")
    iterator = iter(loader)
    iterator.seek(1_000_001)
    for _ in range(5):
        next(iterator)
    assert loader.stats().timed >= 2
    assert "map(grow)" in loader.stats().stage_s


def test_the_stages_of_a_stream_are_measured(monkeypatch):
    """One unit makes many batches: its time must not be lost with the first of them."""
    clock = Clock(monkeypatch)
    keep = clock.cost(lambda call: 0.001)
    loader = DataLoader(
        Dataset.range(64).map(keep).filter(lambda x: True).batch(4), engine="inline"
    )
    list(loader)
    stats = loader.stats()
    assert stats.timed == stats.batches == 16
    assert stats.stage_s["map(work)"] == pytest.approx(0.064)


def test_the_stages_above_the_batch_of_a_stream_are_measured(monkeypatch):
    """They run in the consumer's thread, on any engine."""
    clock = Clock(monkeypatch)
    by_batch = clock.cost(lambda call: 0.5)

    def collate(records):
        clock.now += 0.25
        return np.stack(records)

    def numbered(index, batch):
        clock.now += 0.125
        return batch

    dataset = Dataset.range(16).filter(lambda x: True).batch(4, collate_fn=collate)
    loader = DataLoader(
        dataset.map(by_batch).map_with_index(numbered).take(3).repeat(2), engine="inline"
    )
    assert len(list(loader)) == 6
    stats = loader.stats()
    stages = {name: time for name, time in stats.stage_s.items() if time}
    assert stages == {
        "map(work)": pytest.approx(3.0),
        "batch(4, collate_fn='collate')": pytest.approx(1.5),
        "map_with_index(numbered)": pytest.approx(0.75),
    }
    assert stats.waited_s == pytest.approx(5.25)


# Epochs.


@pytest.mark.parametrize("engine", ["inline", Threads(2)])
def test_every_epoch_is_counted(engine):
    with DataLoader(arrays(10).shuffle(0).batch(4).repeat(3), engine=engine) as loader:
        iterator = iter(loader)
        list(iterator)
        stats = loader.stats()
        assert [(e.epoch, e.batches, e.records) for e in stats.epochs] == [
            (0, 3, 10),
            (1, 3, 10),
            (2, 3, 10),
        ]
        assert sum(e.seconds for e in stats.epochs) == pytest.approx(stats.seconds)
        assert sum(e.waited_s for e in stats.epochs) == pytest.approx(stats.waited_s)


def test_epochs_that_batches_cross_count_from_their_first_batch_on():
    loader = DataLoader(arrays(10).repeat(3).batch(4), engine="inline")
    stream, epochs = iter(loader), []
    for _ in range(8):
        epochs.append(stream.epoch)
        next(stream)
    found = {e.epoch: e.batches for e in loader.stats().epochs}
    assert found == {epoch: epochs.count(epoch) for epoch in (0, 1, 2)}


def test_each_iterator_has_its_own_epochs():
    loader = DataLoader(arrays(8).batch(4), engine="inline")
    list(loader)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    next(iterator)  # goes on after a pause
    for epoch in (5, 6):
        list(loader.epoch(epoch))
    found = [(e.epoch, e.batches) for e in loader.stats().epochs]
    assert found == [(0, 2), (1, 2), (5, 2), (6, 2)]


def test_only_the_last_epochs_are_kept():
    loader = DataLoader(arrays(4).batch(2).repeat(100), engine="inline")
    list(loader)
    stats = loader.stats()
    assert [e.epoch for e in stats.epochs] == list(range(84, 100))
    assert (stats.batches, stats.records) == (200, 400)


@pytest.mark.parametrize(
    "dataset",
    [
        arrays(40).filter(odd).batch(4).repeat(3),
        arrays(40).filter(odd).batch(4, drop_remainder=True).map(grow).repeat(3),
    ],
)
def test_the_epochs_of_a_stream(dataset):
    loader = DataLoader(dataset, engine="inline")
    list(loader)
    whole = loader.stats().batches
    assert [(e.epoch, e.batches) for e in loader.stats().epochs] == [
        (epoch, whole // 3) for epoch in range(3)
    ]
    again = DataLoader(dataset, engine="inline")
    list(again.epoch(2))
    assert [(e.epoch, e.batches) for e in again.stats().epochs] == [(2, whole // 3)]


def test_a_stream_that_goes_back_counts_on():
    loader = DataLoader(arrays(40).filter(odd).batch(4).repeat(2), engine="inline")
    iterator = iter(loader)
    whole = len(list(iterator))
    iterator.seek(0)
    assert len(list(iterator)) == whole
    assert loader.stats().batches == 2 * whole
    assert sum(e.batches for e in loader.stats().epochs) == 2 * whole


# Beginning anew, and how it looks.


@pytest.mark.parametrize("engine", ["inline", Threads(2)])
def test_reset_begins_anew(engine):
    with DataLoader(arrays(400).shuffle(0).map(grow).batch(4).repeat(), engine=engine) as loader:
        iterator = iter(loader)
        for _ in range(150):
            next(iterator)
        before = loader.stats(reset=True)
        assert (before.batches, before.records) == (150, 600)
        empty = loader.stats()
        assert (empty.batches, empty.seconds, empty.stage_s, empty.epochs) == (0, 0.0, {}, ())
        assert (empty.engine, empty.reason) == (before.engine, before.reason)
        for _ in range(100):
            next(iterator)
        after = loader.stats()
    assert (after.batches, after.records) == (100, 400)
    assert [(e.epoch, e.batches) for e in after.epochs] == [(1, 50), (2, 50)]
    assert 0 < after.waited_s <= after.seconds


def test_reset_is_a_bool():
    with pytest.raises(ArgumentTypeError, match="`reset` must be True or False, got 'yes'"):
        DataLoader(arrays(4).batch(2)).stats(reset="yes")


def test_as_dict_is_json():
    loader = DataLoader(arrays(10).map(grow).batch(4).repeat(2), engine="inline")
    list(loader)
    found = json.loads(json.dumps(loader.stats().as_dict()))
    assert found["batches"] == 6
    assert [row["records"] for row in found["epochs"]] == [10, 10]
    assert set(found["epochs"][0]) == {"epoch", "batches", "records", "seconds", "waited_s"}
    assert found["engine"] == "inline"
    assert set(found["stage_s"]) >= {"map(grow)", "source", "batch(4)"}


def test_the_text():
    loader = DataLoader(arrays(10).map(grow).batch(4).repeat(6), engine="inline")
    list(loader)
    text = str(loader.stats())
    assert repr(loader.stats()) == text
    lines = text.splitlines()
    assert lines[0].startswith("18 batches, 60 records, ")
    assert lines[1].startswith("waited for data: ")
    assert lines[2] == "engine: inline (it was asked for)"
    assert lines[-5].split() == ["epoch", "batches", "records", "seconds", "waited"]
    assert [line.split()[:3] for line in lines[-4:]] == [[str(e), "3", "10"] for e in (2, 3, 4, 5)]
    assert "epoch" not in str(DataLoader(arrays(4).batch(2)).stats())


def test_a_notebook_shows_a_table_in_which_names_do_no_harm():
    def shrink(record):
        return record

    shrink.__name__ = "<script>alert(1)</script>"
    loader = DataLoader(arrays(10).map(shrink).batch(4).repeat(2), engine="inline")
    list(loader)
    page = loader.stats()._repr_html_()
    assert "<script>" not in page
    assert "map(&lt;script&gt;" in page
    assert page.count("<table>") == page.count("</table>") == 3
    assert "<th>epoch</th>" in page
    assert "<td>6 batches, 20 records, " in page
