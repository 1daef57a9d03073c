"""States that are damaged, or were made by hand: a `StateError` that says what is wrong."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxWarning, StateError, merge_states
from oracle import assert_same


def even(x):
    return x % 2 == 0


def twice(x):
    return [x, x]


def numbers():
    yield from range(40)


STREAM = Dataset.range(64).filter(even)  # 4 units of 16
STREAMS = {
    "units": STREAM.batch(4),
    "repeat": STREAM.repeat(3).batch(4),
    "endless": STREAM.repeat().batch(4),
    "endless below": Dataset.range(64).repeat().filter(even).batch(4),
    "lanes": STREAM.repeat().batch(4, lanes=2),
    "take": STREAM.repeat().take(50).batch(4),
    "skip": STREAM.skip(3).repeat().batch(4),
    "window": Dataset.from_iterable(numbers).shuffle(window=8).batch(3),
    "counted": Dataset.from_iterable(itertools.count).batch(3),
    "runs": Dataset.from_iterable(numbers).flat_map(twice).batch(3),
    "window over endless": STREAM.repeat().skip(2).shuffle(window=8).batch(3),
    "runs over endless": STREAM.repeat().skip(2).flat_map(twice).batch(3),
    "mix": Dataset.mix([STREAM.repeat(), Dataset.range(9).repeat()], [2, 1]).batch(4),
    "again": Dataset.mix([STREAM, Dataset.range(9)], [2, 1], stop="repeat").batch(4),
    "above": STREAM.batch(4).skip(1).take(5).repeat().map_with_index(lambda i, b: b),
}


def state_after(name, steps=3):
    iterator = iter(DataLoader(STREAMS[name], engine="inline"))
    for _ in range(steps):
        next(iterator)
    return iterator.get_state()


def lane(position):
    return {"lanes": {"0": position}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        # Beyond the data.
        ("units", lane([5, 0]), "lane 0: the state has 5 for the unit of a lane, and 4 is the mo"),
        ("units", lane([4, 1]), "lane 0: the state has used 1 rows of unit 4 .* are 4 units"),
        ("repeat", lane([0, [9999, 0]]), "lane 0: the state has 9999 for the unit of a lane"),
        ("endless", lane([0, [9999, 0]]), "lane 0: the state has 9999 for the unit of a lane"),
        ("endless", lane([1 << 61, [0, 0]]), "lane 0: the state has .* for the epoch, and"),
        ("endless below", lane([1 << 61, 0]), "lane 0: the state has .* for the unit"),
        ("lanes", {"lanes": {"0": [0, [0, 0]], "1": [0, [5, 0]]}}, "lane 1: the state has 5 for"),
        ("take", lane([51, [1, [0, 0]]]), "lane 0: the state has 51 for the rows that a take"),
        ("take", lane([1 << 70, [1, [0, 0]]]), "lane 0: the state has .* for the rows that a take"),
        ("skip", lane([0, [1 << 63, [0, 0]]]), "lane 0: the state has .* for the rows that a take"),
        ("again", lane([9, [1, [0, 3]], [1, [0, 2]]]), "dataset of a mix in its second epoch"),
        ("above", {"above": [1, 0, 7]}, "the state has 7 for a counter of a take, .* 5 is the m"),
        ("above", {"epoch": 1}, "the state is in epoch 1; this iterator reads epoch 0"),
        ("units", {"step": 1 << 63}, "the state is at step 9223372036854775808, and this stream"),
        ("window", lane([9, 0, [8, False, None]]), "in window 9, which begins after 72 records"),
        ("window", lane([1, 0, [40, True, None]]), "in window 1, which begins after 8 records"),
        ("counted", lane([9, 0, [1 << 61, False, None]]), "has 2305843009213693952 for records re"),
        # Other shapes.
        ("units", lane([0]), r"lane 0: .* it has \[0\] where \[unit, rows used\] is expected"),
        ("units", lane([0, 0, 0]), r"where \[unit, rows used\] is expected"),
        ("units", lane({"unit": 0}), r"where \[unit, rows used\] is expected"),
        ("mix", lane([3, [0, [0, 0]]]), r"where \[rows given, dataset 0, dataset 1\] is expected"),
        ("units", lane([1.0, 0]), r"has 1.0 where a whole number is expected \(the unit of a lan"),
        ("units", lane([True, 0]), "has True where a whole number is expected"),
        ("units", lane(["1", 0]), "has '1' where a whole number is expected"),
        ("units", lane([0, None]), r"has None where a whole number is expected \(rows used\)"),
        ("units", lane([0, -1]), "has -1 where a whole number is expected"),
        ("units", lane([10**5000, 0]), "has a number of 16610 bits for the unit of a lane"),
        ("window", lane([0, 0, [0, 1, None]]), "has 1 where True or False is expected"),
        ("window", lane([5, 0, [40, True, 7]]), "which then has no state of its own"),
        ("units", {"above": [3]}, "has 1 counters in `above`, and this dataset needs 0"),
        ("above", {"above": [0, 0]}, "it has too few counters of takes, skips, repeats"),
        ("above", {"above": [0, 0, True]}, "has True where a whole number is expected"),
        ("above", {"above": "000"}, "the state's `above` must be a list of counters, got '000'"),
        ("units", {"lanes": {"zero": [0, 0]}}, "this is not the state of a loader"),
        ("units", {"lanes": {0: [0, 0]}}, "this is not the state of a loader"),
        ("units", {"lanes": {"9" * 5000: [0, 0]}}, "this is not the state of a loader"),
        ("units", {"version": True}, "the state has version True; this loaderx reads 2"),
        ("units", {"version": np.arange(2)}, "the state has version array"),
        ("units", {"step": np.zeros(3)}, "the state's step must be a whole number, got array"),
        ("units", {"chain": []}, r"one for each stage; it is \[\]"),
        ("units", {"chain": [1, 2]}, r"one for each stage; it is \[1, 2\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_positions_that_cannot_be(name, change, message, strict):
    iterator = iter(DataLoader(STREAMS[name], engine="inline"))
    with pytest.raises(StateError, match=message):
        iterator.set_state({**state_after(name), **change}, strict=strict)
    assert iterator.step == 0  # what was refused leaves the iterator where it was
    assert_same([next(iterator)], [next(iter(STREAMS[name]))])


def test_a_position_that_is_nested_without_end():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    iterator = iter(DataLoader(STREAMS["units"], engine="inline"))
    for change in (lane(deep), {"above": deep}, {"step": deep}, {"chain": deep}, {"lanes": deep}):
        with pytest.raises(StateError):
            iterator.set_state({**state_after("units"), **change})
        with pytest.raises(StateError):
            merge_states([state_after("units"), {**state_after("units"), **change}])
    with pytest.raises(StateError, match="this is not the state of a loader"):
        iterator.set_state(deep)  # type: ignore[arg-type]
    while deep:
        deep = deep.pop()  # else freeing it would need a deep stack


@pytest.mark.parametrize(
    ("name", "position", "message"),
    [
        ("units", [1, 9], "has used 9 rows of unit 1 of its lane, which has 8"),
        ("repeat", [1, [1, 1 << 40]], "has used 1099511627776 rows of unit 1 .* which has 8"),
        ("endless", [1, [1, 9]], "has used 9 rows of unit 1 of its lane, which has 8"),
        (
            "window",
            [1, 9, [8, False, None]],
            r"has used more rows than window 1 of its lane has \(by 1\)",
        ),
        ("window", [0, 1 << 61, None], "more rows than window 0 of its lane has"),
        ("runs", [2, 1 << 61, [6, False, None]], "more rows than window"),
        (
            "window over endless",
            [0, 9, [2, [0, [0, 2]]]],
            r"more rows than window 0 of its lane has \(by 1\)",
        ),
        ("window over endless", [0, 1 << 61, [2, [0, [0, 2]]]], "more rows than window 0"),
        ("runs over endless", [0, 1 << 61, [2, [0, [0, 2]]]], "more rows than window"),
    ],
)
def test_more_rows_used_than_there_are_is_said_when_they_are_made(name, position, message):
    iterator = iter(DataLoader(STREAMS[name], engine="inline"))
    iterator.set_state({**state_after(name), **lane(position)})
    with pytest.raises(StateError, match=message):
        next(iterator)


@pytest.mark.parametrize(
    ("name", "position", "following"),
    [
        ("units", [1, 8], [32, 34, 36, 38]),  # all rows of a unit
        ("units", [4, 0], None),  # the end
        ("take", [50, [1, [2, 2]]], None),
        ("window", [5, 0, [40, True, None]], None),
        ("window", [5, 0, [40, False, None]], None),  # nobody has asked whether there is more
        ("endless", [10**6, [0, 0]], [0, 2, 4, 6]),
    ],
)
def test_positions_that_can_be(name, position, following):
    iterator = iter(DataLoader(STREAMS[name], engine="inline"))
    iterator.set_state({**state_after(name), **lane(position)})
    batch = next(iterator, None)
    assert following == (None if batch is None else batch.tolist())


def test_an_empty_chain_and_one_without_units_are_damaged():
    state = state_after("units")
    iterator = iter(DataLoader(STREAMS["units"], engine="inline"))
    with pytest.raises(StateError, match="the state's `chain` must be a list of strings"):
        iterator.set_state({**state, "chain": []}, strict=False)
    with pytest.raises(
        StateError, match="its chain ends with 'batch.size=4.' instead of the size of the units"
    ):
        iterator.set_state({**state, "chain": state["chain"][:-1]}, strict=False)
    with pytest.raises(StateError, match="the state's `chain` must be a list of strings"):
        merge_states([{**state, "chain": []}])


def test_going_on_elsewhere_needs_the_record():
    state = iter(DataLoader(arrays(24).batch(4), engine="inline")).get_state()
    for name in ("epoch", "record"):
        less = {key: value for key, value in state.items() if key != name}
        other = iter(DataLoader(arrays(24).batch(8), engine="inline"))
        with pytest.raises(StateError, match="the state has no `epoch` and `record`"):
            other.set_state(less, strict=False)
        iter(DataLoader(arrays(24).batch(4), engine="inline")).set_state(less)  # it has its step


def test_merging_odd_parts():
    state = state_after("lanes")
    for key in ("above", "epoch", "more"):
        odd = {**copy.deepcopy(state), key: np.arange(3)}
        with pytest.raises(StateError):
            merge_states([state, odd])
    with pytest.raises(StateError, match="this is not the state of a loader"):
        merge_states([state, {**state, "lanes": {"²": [0, 0]}}])


def test_new_weights_over_a_window_that_held_more():
    """The window is filled again; if it has fewer rows now, the stream goes on after it."""

    def mixed(weights):
        small = Dataset.range(64).filter(even).repeat()
        large = Dataset.range(1000, 1064).repeat()
        return Dataset.mix([small, large], weights).filter(lambda x: x < 1000).shuffle(window=8)

    iterator = iter(DataLoader(mixed([7, 1]).batch(6), engine="inline"))
    next(iterator)
    state = iterator.get_state()
    assert state["lanes"]["0"][1] == 6  # rows used of 7
    other = iter(DataLoader(mixed([1, 7]).batch(6), engine="inline"))
    with pytest.warns(LoaderxWarning, match="The window that was begun above the mix is filled"):
        other.set_state(state, strict=False)
    assert (next(other) < 1000).all()


def test_steps_that_no_stream_gets_to():
    for step in (1 << 62, 10**5000):
        for name in ("units", "endless"):
            with pytest.raises(StateError, match="the state is at step|step must be a whole numb"):
                iter(DataLoader(STREAMS[name])).set_state({**state_after(name), "step": step})
        plain = iter(DataLoader(arrays(24).batch(4), engine="inline"))
        with pytest.raises(StateError, match="the state is at step|step must be a whole number"):
            plain.set_state({**plain.get_state(), "step": step})
