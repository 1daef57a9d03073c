"""Mixes whose weights change: the law of every prefix, against counting in exact numbers."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mix_oracle
from loaderx.order.mixing import RAMP_STEPS, ramp_phases, schedule, tickets, timetable


def planned(weights, most=None, others_go_on=None):
    count = len(weights[0][1])
    return timetable(tuple(weights), most or (None,) * count, others_go_on or (True,) * count)


def located(plan, count):
    return plan.locate(np.arange(count))[0].tolist()


def furthest(weights, which):
    """How far any component is ahead and behind in any prefix, counted in whole numbers."""
    several, ahead, behind = range(len(weights[0][1])), Fraction(-1), Fraction(-1)
    demand, seen = [Fraction(0) for _ in several], [0 for _ in several]
    ends = [*(start for start, _ in weights[1:]), len(which)]
    for (start, counts), end in zip(weights, ends, strict=True):
        period, steps = sum(counts), np.arange(1, end - start + 1, dtype=np.int64)
        for c in several:
            # All as multiples of 1 / period, apart from what was there before.
            came = np.cumsum(which[start:end] == c, dtype=np.int64)
            extra = steps * counts[c] - came * period
            before = demand[c] - seen[c]
            behind = max(behind, before + Fraction(int(extra.max()), period))
            ahead = max(ahead, -before - Fraction(int(extra.min()), period))
            seen[c] += int(came[-1])
            demand[c] += Fraction((end - start) * counts[c], period)
    return ahead, behind


@st.composite
def changing_weights(draw, most_parts=5, longest=40):
    parts = draw(st.integers(1, most_parts))
    some = st.lists(st.integers(0, 9), min_size=parts, max_size=parts).filter(any)
    lengths = draw(st.lists(st.integers(1, longest), max_size=6))
    starts = [0, *itertools.accumulate(lengths)]
    return [(start, tuple(draw(some))) for start in starts]


@settings(max_examples=200, deadline=None)
@given(changing_weights())
def test_a_plan_is_what_is_due_position_by_position(weights):
    plan = planned(weights)
    expected = list(itertools.islice(mix_oracle.components(weights), 400))
    assert located(plan, 400) == expected
    which, inside = plan.locate(np.arange(400)[::-1])
    for position, c, index in zip(range(399, -1, -1), which.tolist(), inside.tolist()):
        assert index == expected[:position].count(c)
        assert plan.position(c, index) == position
    for position in (0, 1, 57, 399):
        assert plan.counts(position).tolist() == [
            expected[:position].count(c) for c in range(len(weights[0][1]))
        ]


@settings(max_examples=200, deadline=None)
@given(changing_weights(most_parts=3, longest=90))
def test_three_parts_are_never_one_ahead_or_behind(weights):
    ahead, behind = furthest(weights, planned(weights).locate(np.arange(1500))[0])
    assert ahead < 1
    assert behind < 1


@settings(max_examples=100, deadline=None)
@given(changing_weights(), st.data())
def test_the_past_does_not_depend_on_the_future(weights, data):
    cut = data.draw(st.integers(1, len(weights)))
    position = weights[cut][0] if cut < len(weights) else weights[-1][0] + 30
    counts = data.draw(st.permutations(weights[0][1]))
    other = [*weights[:cut], (position, tuple(counts)), (position + 5, weights[0][1])]
    assert located(planned(weights), position) == located(planned(other), position)


@settings(max_examples=150, deadline=None)
@given(changing_weights(longest=20), st.data())
def test_parts_that_end(weights, data):
    parts = len(weights[0][1])
    most = tuple(data.draw(st.none() | st.integers(0, 30)) for _ in range(parts))
    others_go_on = tuple(data.draw(st.booleans()) for _ in range(parts))
    plan = planned(weights, most, others_go_on)
    expected = list(itertools.islice(mix_oracle.components(weights, most, others_go_on), 500))
    assert located(plan, len(expected)) == expected
    assert plan.end == (len(expected) if len(expected) < 500 else plan.end)
    assert plan.end is None or plan.end >= len(expected)
    for c, position in plan.used_up.items():
        assert plan.counts(position)[c] == most[c]


@settings(max_examples=60, deadline=None)
@given(changing_weights(longest=20), st.data())
def test_positions_of_many_records_are_those_of_each(weights, data):
    several = len(weights[0][1])
    most = data.draw(st.lists(st.integers(0, 60), min_size=several, max_size=several))
    for plan in (planned(weights), planned(weights, tuple(most))):
        end = 300 if plan.end is None else plan.end
        which, numbers = plan.locate(np.arange(end))
        for component in np.unique(which).tolist():
            mine = numbers[which == component]
            found = plan.positions(component, mine)
            assert found.tolist() == np.flatnonzero(which == component).tolist()
            assert found.tolist() == [plan.position(component, n) for n in mine.tolist()]


def test_a_mix_of_nothing():
    plan = planned([(0, (1, 0, 2)), (5, (1, 1, 1))], (0, 9, 0))
    assert plan.end == 0
    assert located(plan, 0) == []
    assert plan.counts(0).tolist() == [0, 0, 0]


def test_a_thousand_phases_over_a_million_positions():
    rng = random.Random(0)
    starts = sorted({0, *rng.sample(range(1_000_000), 999)})
    weights = [(n, (*rng.choices(range(41), k=2), rng.randint(1, 9))) for n in starts]
    ahead, behind = furthest(weights, planned(weights).locate(np.arange(1_000_000))[0])
    assert max(ahead, behind) < 1


def test_many_parts_are_hardly_ever_one_behind():
    rng = random.Random(1)
    weights = [(start, tuple(rng.choices(range(41), k=8))) for start in range(0, 100_000, 100)]
    ahead, behind = furthest(weights, planned(weights).locate(np.arange(100_000))[0])
    assert ahead < 1
    assert behind < 1.5
    # No plan that does not know the future can do better than 1 here.
    weights = [(0, (1, 1, 1, 1)), (2, (0, 0, 1, 1))]
    assert furthest(weights, planned(weights).locate(np.arange(100))[0])[1] == 1


def test_a_thousand_parts():
    rng = random.Random(2)
    weights = [(start, tuple(rng.choices(range(1, 60), k=1_000))) for start in (0, 40_007, 90_001)]
    which = planned(weights).locate(np.arange(200_000))[0]
    ahead, behind = furthest(weights[:1], which[:40_007])
    assert max(ahead, behind) < 1
    ahead, behind = furthest(weights, which)
    assert ahead < 1
    assert behind < 1.5


@pytest.mark.parametrize("far", [10**6, 10**12, 2**61])
def test_a_long_phase_is_a_period(far):
    weights = [(0, (7, 2, 1)), (33, (5, 0, 4)), (far + 3, (1, 1, 1))]
    plan = planned(weights)
    assert max(len(phase.schedule.component) for phase in plan.phases) <= 33
    assert sum(plan.counts(far + 50).tolist()) == far + 50
    before, after = plan.counts(far - 9 * 10**5).tolist(), plan.counts(far).tolist()
    assert [b - a for a, b in zip(before, after)] == [5 * 10**5, 0, 4 * 10**5]
    which, inside = plan.locate(np.arange(far - 40, far + 40))
    for position, c, index in zip(range(far - 40, far + 40), which.tolist(), inside.tolist()):
        assert plan.position(c, index) == position
        assert plan.counts(position)[c] == index


def test_flat_weights_are_as_before():
    counts = tickets([0.5, 0.3, 0.2])
    plan = planned([(0, counts), (1_000, (1, 1, 1))])
    expected = np.resize(schedule(counts).component, 1_000).tolist()
    assert located(plan, 1_000) == expected


@pytest.mark.parametrize("length", [1, 10, 255, 1_000, 99_999, 5_000_000])
@pytest.mark.parametrize("is_cosine", [False, True])
@pytest.mark.parametrize(
    ("before", "after"), [((7, 2, 1), (4, 3, 3)), ((1, 0, 0, 0), (0, 1, 1, 5)), ((1, 1), (1, 3))]
)
def test_a_ramp_follows_its_line(before, after, length, is_cosine):
    phases = ramp_phases(100, 100 + length, before, after, is_cosine=is_cosine)
    assert len(phases) == min(RAMP_STEPS, length)
    assert len({sum(counts) for _, counts in phases}) == 1
    starts = [*(start for start, _ in phases), 100 + length]
    widest = max(b - a for a, b in itertools.pairwise(starts))
    demand = [Fraction(0) for _ in before]
    for (start, counts), stop in zip(phases, starts[1:], strict=True):
        for c, count in enumerate(counts):
            demand[c] += Fraction((stop - start) * count, sum(counts))
            one, other = Fraction(before[c], sum(before)), Fraction(after[c], sum(after))
            x = Fraction(stop - 100, length)
            # The integral of one + (other - one) f(t) from 0 to x, with f(t) = t, or a cosine.
            area = x * x / 2
            if is_cosine:
                area = Fraction(float(x) / 2 - math.sin(math.pi * float(x)) / (2 * math.pi))
            expected = (one * x + (other - one) * area) * length
            # Rounded to tickets, and to phases that differ in length by one position.
            assert abs(demand[c] - expected) <= Fraction(widest, 300) + Fraction(1, 2)


def test_a_ramp_changes_little_by_little():
    phases = ramp_phases(0, 10**6, (1, 0), (0, 1), is_cosine=False)
    counts = [one for _, (one, _) in phases]
    assert counts == sorted(counts, reverse=True)
    assert max(a - b for a, b in itertools.pairwise(counts)) <= 5
