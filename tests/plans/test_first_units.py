"""Which units of a stream are submitted first: those that the first batch needs, of every lane."""

from __future__ import annotations

import numpy as np
import pytest

from inside import node_of
from loaderx import Dataset
from loaderx.memory import Pool
from loaderx.plans.stream_plan import StreamPlan
from loaderx.reading.context import ReadContext
from loaderx.reading.lookahead import MakeHere
from loaderx.reading.saved_position import UNCHANGED
from oracle import assert_same
from plain import is_odd


class Recorded(MakeHere):
    """Makes units here, keeps two under way, and records what was submitted and what was used."""

    window = 2

    def __init__(self, plan):
        pool = Pool()
        super().__init__(plan.units, lambda: ReadContext(pool.lend))
        self.submitted, self.used = [], []

    def submit(self, task):
        self.submitted.append(task)
        unit = super().submit(task)
        return Noted(unit, task, self.used)


class Noted:
    def __init__(self, unit, task, used):
        self.unit, self.task, self.used = unit, task, used
        self.cancel = unit.cancel

    def result(self):
        self.used.append(self.task)
        return self.unit.result()


def part(number, length=4000):
    return Dataset.range(length * number, length * (number + 1)).filter(is_odd).repeat()


def mixed(weights=(1, 2, 3)):
    return Dataset.mix([part(number) for number in range(len(weights))], weights)


def reading_of(dataset):
    plan = StreamPlan(node_of(dataset))
    maker = Recorded(plan)
    return plan, maker, plan.read(maker)


CHAINS = {
    "one dataset": part(0).batch(8, lanes=8),
    "several rows of each lane": part(0).batch(32, lanes=8),
    "a mix": mixed().batch(8, lanes=8),
    "a mix of many": mixed([1] * 12).batch(16, lanes=8),
    "a mix, mapped and repeated": Dataset.mix(
        [Dataset.range(4000).filter(is_odd), Dataset.range(4000)], [1, 1]
    )
    .map(np.negative)
    .repeat()
    .batch(8, lanes=4),
    "a window over a mix": mixed([1, 1]).shuffle(window=4).batch(8, lanes=4),
    "one lane": mixed([1, 1]).batch(8),
    "a part of a mix": mixed([1, 1]).skip(2).take(30).batch(8),
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_units_of_the_first_batch_come_before_all_others(name):
    _, maker, reading = reading_of(CHAINS[name])
    reading.next()
    needed = set(maker.used)
    assert set(maker.submitted[: len(needed)]) == needed
    assert len(maker.submitted) > len(needed)


@pytest.mark.parametrize("name", list(CHAINS))
def test_the_same_holds_where_a_state_continues(name):
    plan, _, first = reading_of(CHAINS[name])
    for _ in range(3):
        first.next()
    maker = Recorded(plan)
    second = plan.read(maker)
    second.restore(*first.state(), changed=UNCHANGED, step=0)
    assert_same(second.next().tree, first.next().tree)
    needed = set(maker.used)
    assert set(maker.submitted[: len(needed)]) == needed


def test_every_lane_has_its_first_unit_before_any_has_its_second():
    _, maker, reading = reading_of(mixed().batch(8, lanes=8))
    reading.begin()
    first, second = maker.submitted[:24], maker.submitted[24:]
    assert len(set(first)) == len(first) == 24  # eight lanes of three datasets
    assert sorted(unit for _, _, unit in first) == sorted([*range(8)] * 3)
    assert all(unit >= 8 for _, _, unit in second)
    assert len(second) == 24


def test_a_dataset_that_is_hardly_used_is_left_for_later():
    _, maker, reading = reading_of(mixed([1, 10_000]).batch(8, lanes=8))
    reading.begin()
    assert [plan for plan, _, _ in maker.submitted].count(0) <= 1
