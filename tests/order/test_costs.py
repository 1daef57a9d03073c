"""What orders cost to make, counted: memory for each weight, calls for each record."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from inside import node_of
from loaderx import Dataset
from loaderx.order.alias import alias_table
from loaderx.order.mixing import schedule, tickets, timetable
from loaderx.stages import select
from loaderx.testing.costing import cost_of
from loaderx.tree import flatten


def test_an_alias_table_takes_little_memory_for_each_weight():
    weights = np.random.default_rng(0).random(200_000)
    alias_table(weights)
    assert cost_of(lambda: alias_table(weights)).nbytes < 60 * len(weights)


def test_the_phases_of_a_mix_are_worked_out_as_far_as_they_go():
    rng = np.random.default_rng(0)
    counts, lengths = tickets(rng.random(60).tolist()), rng.integers(1, 500, 60).tolist()
    assert sum(counts) > 60_000  # of which a phase needs a few hundred

    def anew():
        timetable.cache_clear()
        timetable(((0, counts),), tuple(lengths), (True,) * len(counts))

    assert cost_of(anew).calls < 20 * sum(lengths) + 60 * 1_000


def test_the_beginning_of_a_period_is_that_of_the_whole():
    counts, most = (5, 3, 8), (2, 3, 8)
    planned = timetable(((0, counts),), most, (False,) * 3)
    whole, begun = schedule(counts), planned.phases[0].schedule
    end = len(begun.component)
    assert planned.end == end
    assert planned.used_up == {0: end}
    assert 0 < end < len(whole.component)
    np.testing.assert_array_equal(begun.component, whole.component[:end])
    np.testing.assert_array_equal(begun.rank, whole.rank[:end])
    assert whole.component[end] == 0  # it would be the third record of the first
    assert [len(slots) for slots in begun.slots] == whole.counts(end).tolist()


def seen_by_hand(table):
    counts, seen = {}, []
    for entry in table.tolist():
        seen.append(counts.get(entry, 0))
        counts[entry] = seen[-1] + 1
    return seen


@pytest.mark.parametrize(
    "table",
    [
        np.array([3, 1, 3, 3, 0, 1]),
        np.random.default_rng(0).integers(0, 40, 300),
        np.array([2**61, 5, 2**61, 2**61]),  # entry and place do not fit into one number
    ],
)
def test_how_often_an_entry_was_there_before(table):
    picked = select.Picked(node_of(Dataset.range(2**62 - 1)), table)
    assert picked.seen.tolist() == seen_by_hand(table)


@pytest.mark.parametrize("table", [np.arange(50)[::-1], np.array([7]), np.array([0, 2**61])])
def test_entries_that_differ(table):
    assert select.Picked(node_of(Dataset.range(2**62 - 1)), table).seen is None


def test_a_permutation_is_not_sorted(monkeypatch):
    monkeypatch.setattr(select, "sorted_table", None)
    dataset = Dataset.range(1_000)[np.random.default_rng(0).permutation(1_000)]
    assert sorted(map(int, dataset)) == list(range(1_000))


def test_structures_are_kept_for_a_while():
    """Each unit of a stream would make them anew."""
    kept = weakref.ref(flatten({"a name": (1, [np.zeros(1)])})[1])
    assert kept() is not None
