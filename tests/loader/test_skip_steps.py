"""Steps that are skipped: all others keep their numbers."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, quietly
from inside import node_of
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    RecordError,
    merge_states,
)
from loaderx.order.epochs import SkippedSteps
from oracle import assert_same
from plain import grow
from stream_chains import batched_streams, odd

RANGES = [(3, 5), (8, 13)]
BATCHES = arrays(40).shuffle(1).batch(4).repeat()
STREAM = arrays(40).shuffle(1).filter(odd).repeat().batch(4, lanes=2)
BOTH = pytest.mark.parametrize("dataset", [BATCHES, STREAM], ids=["chain", "stream"])


def is_skipped(step, ranges=RANGES):
    return any(start <= step < stop for start, stop in ranges)


def kept(elements, ranges=RANGES):
    return [each for step, each in enumerate(elements) if not is_skipped(step, ranges)]


def loaded(dataset, **how):
    return iter(DataLoader(dataset, **{"engine": "inline", **how}))


def some_ranges():
    pair = st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda p: (p[0], sum(p)))
    return st.lists(pair, min_size=1, max_size=4)


# The ranges -----------------------------------------------------------------------------------


@given(some_ranges(), st.integers(0, 50))
def test_the_arithmetic_of_ranges(ranges, step):
    skipped = SkippedSteps.joined(ranges)
    left = [n for n in range(100) if not is_skipped(n, ranges)]
    assert skipped.kept_before(step) == sum(n < step for n in left)
    assert skipped.first_from(step) == next(n for n in left if n >= step)
    assert skipped.steps_of(np.arange(len(left))).tolist() == left
    assert skipped.kept_in(range(3, 3 + step)) == sum(3 <= n < 3 + step for n in left)
    if step in left:
        nexts = [start for start, _ in skipped.ranges if start > step]
        assert skipped.next_start(step) == min([*nexts, 1 << 62])


# What comes -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("engine", ["inline", "threads", "processes", "auto"])
def test_other_steps_are_as_before(dataset, engine):
    expected = kept(islice(DataLoader(dataset, engine="inline"), 30))
    steps = [step for step in range(30) if not is_skipped(step)]
    with DataLoader(dataset.skip_steps(RANGES), engine=engine) as loader:
        iterator, found = iter(loader), []
        for step in steps:
            assert iterator.step == step
            found.append(next(iterator))
        assert loader.stats().batches == len(steps)
    assert_same(found, expected)


@pytest.mark.filterwarnings("ignore:.*draws a new order in every epoch")
@settings(max_examples=50)
@given(batched_chains(), some_ranges())
def test_generated_chains(dataset, ranges):
    """With and without a loader, in its first loop and in the second."""
    n = len(dataset)
    both = [*DataLoader(dataset).epoch(0), *DataLoader(dataset).epoch(1)]
    first, second = kept(both[:n], ranges), kept(both, ranges)[n - _count(ranges, n) :]
    less = dataset.skip_steps(ranges)
    assert len(less) == len(first)
    assert_same(less, first)
    loader = DataLoader(less, engine="inline")
    if node_of(dataset).one_epoch() is node_of(dataset):
        for expected in (first, second):
            assert len(loader) == len(expected)
            assert_same(loader, expected)
    for number in (0, -1) if first else ():
        assert_same([less[number]], [first[number]])


def _count(ranges, n):
    return sum(is_skipped(step, ranges) for step in range(n))


@settings(max_examples=40)
@given(batched_streams(), some_ranges())
def test_generated_streams(dataset, ranges):
    expected = kept(dataset, ranges)
    less = dataset.skip_steps(ranges)
    assert_same(less, expected)
    assert_same(DataLoader(less, engine="inline"), expected)


@BOTH
def test_hosts_skip_the_same_steps(dataset):
    ranges = [(1, 3), (4, 9)]
    for host in range(2):
        whole = loaded(dataset, shard=(host, 2))
        less = loaded(dataset.skip_steps(ranges), shard=(host, 2))
        assert_same(islice(less, 6), kept(islice(whole, 14), ranges)[:6])


def test_with_sharding():
    jax = pytest.importorskip("jax")
    for dataset in (BATCHES, STREAM):
        batches = dataset.map(lambda batch: {"x": batch["x"].astype(np.int32)})
        less = loaded(batches.skip_steps(RANGES), sharding=jax.devices()[0])
        expected = kept(islice(loaded(batches), 18))
        for each in expected:
            state, step = less.get_state(), less.step
            np.testing.assert_array_equal(next(less)["x"], each["x"])
            again = loaded(batches.skip_steps(RANGES), sharding=jax.devices()[0])
            again.set_state(state)
            assert again.step == step
            np.testing.assert_array_equal(next(again)["x"], each["x"])


def test_skipped_steps_of_a_chain_are_not_read():
    def fails(batch):
        if (batch >= 6).any() and (batch < 12).any():
            raise ValueError("bad")
        return batch

    dataset = Dataset.range(20).batch(2).map(fails)
    assert [int(batch[0]) for batch in DataLoader(dataset.skip_steps([(3, 6)]))] == [
        *(0, 2, 4),
        *(12, 14, 16, 18),
    ]
    iterator = loaded(dataset.skip_steps([(0, 3)]))
    with pytest.raises(RecordError, match="bad") as caught:
        next(iterator)
    assert (caught.value.step, iterator.step) == (3, 3)


# Positions ------------------------------------------------------------------------------------


@BOTH
def test_states_of_either_are_good_for_both(dataset):
    """Each step's state, with and without skipped steps; also one from between these."""
    less = dataset.skip_steps(RANGES)
    before = []
    iterator = loaded(dataset)
    for _ in range(16):
        before.append(json.loads(json.dumps(iterator.get_state())))
        next(iterator)
    elements = list(islice(dataset, 24))
    for step, state in enumerate(before):
        iterator = loaded(less)
        iterator.set_state(state)
        following = [n for n in range(step, 24) if not is_skipped(n)]
        assert iterator.step == following[0]
        assert_same(islice(iterator, 3), [elements[n] for n in following[:3]])
    iterator = loaded(less)
    for step in [n for n in range(16) if not is_skipped(n)]:
        state = iterator.get_state()
        assert state["chain"] == before[0]["chain"]
        whole = loaded(dataset)
        whole.set_state(state)
        # After the step before a range, the state of a stream is that of the range's start.
        assert whole.step == state["step"] <= step
        assert dataset is STREAM or whole.step == step
        assert_same([next(iterator)], [elements[step]])


def test_more_steps_may_be_skipped_later():
    """The next range is written with the numbers that the log has."""
    first = loaded(BATCHES.skip_steps(RANGES))
    for _ in range(8):
        next(first)
    assert first.step == 15
    second = loaded(BATCHES.skip_steps([(16, 18)]).skip_steps(RANGES))
    second.set_state(first.get_state())
    assert_same(islice(second, 3), [BATCHES[step] for step in (15, 18, 19)])


def test_seek_to_a_skipped_step_goes_on_after_it():
    iterator = loaded(BATCHES.skip_steps(RANGES))
    for step, expected in [(2, 2), (3, 5), (12, 13), (9, 13), (0, 0)]:
        iterator.seek(step)
        assert iterator.step == expected
        iterator.start()
        assert_same([next(iterator)], [BATCHES[expected]])


def test_a_counted_stream_has_a_length_and_can_seek(tmp_path):
    stream = arrays(40).filter(odd).batch(2)
    expected = list(stream)
    loader = DataLoader(stream.skip_steps([(1, 4)]), engine="inline")
    loader.counts()
    assert len(loader) == len(expected) - 3
    iterator = iter(loader)
    iterator.seek(2)
    assert (iterator.step, len(iterator)) == (4, len(expected) - 4)
    assert_same(iterator, expected[4:])


@BOTH
def test_the_end_may_be_skipped(dataset):
    less = dataset.take(10).skip_steps([(7, 20)])
    iterator = loaded(less)
    assert len(list(islice(iterator, 7))) == 7
    assert iterator.step == 10
    assert list(iterator) == []


def test_an_epoch_ends_where_it_does_without():
    dataset = arrays(12).shuffle(3).batch(4)
    loader = DataLoader(dataset.skip_steps([(1, 2), (3, 4)]), engine="inline")
    iterator = iter(loader)
    list(iterator)
    assert (iterator.step, iterator.epoch) == (3, 0)
    state = iterator.get_state()
    assert (state["step"], state["epoch"], state["record"]) == (3, 0, 12)
    assert_same(loader, list(DataLoader(dataset).epoch(1))[1:])  # step 3 is the first of epoch 1


@BOTH
def test_take_counts_what_comes(dataset):
    """Above it; below it the steps are counted."""
    elements = list(islice(dataset, 20))
    above = dataset.skip_steps(RANGES).map(grow).take(6)
    assert_same(above, list(map(grow, kept(elements)[:6])))
    assert_same(DataLoader(above), list(map(grow, kept(elements)[:6])))
    below = dataset.take(6).skip_steps(RANGES)
    assert_same(DataLoader(below), kept(elements[:6]))


def test_states_of_hosts_are_merged():
    hosts = [loaded(STREAM.skip_steps(RANGES), shard=(host, 2)) for host in range(2)]
    for host in hosts:
        for _ in range(5):
            next(host)
    whole = loaded(STREAM)
    whole.set_state(merge_states([host.get_state() for host in hosts]))
    assert whole.step == 7


# Refusals ---------------------------------------------------------------------------------------


def test_nothing_to_skip_changes_nothing():
    assert BATCHES.skip_steps([]) is BATCHES


def test_it_stands_last():
    less = BATCHES.skip_steps([(1, 2)])
    with pytest.raises(ChainError) as caught:
        less.take(3).repeat(2)
    assert str(caught.value) == (
        ".repeat(2) after .skip_steps(...): its numbers are steps of the loader, so only "
        ".take(...) and functions of a batch may follow. Put it last."
    )
    for refused in (
        lambda: less.skip(1),
        lambda: less.unbatch(),
        lambda: less.map_with_index(lambda index, batch: batch),
        lambda: less.take(4).shuffle(),
        lambda: quietly(Dataset.mix, [less, BATCHES]),
    ):
        with pytest.raises(ChainError, match=r"after \.skip_steps\(\.\.\.\)"):
            refused()


def test_it_counts_batches():
    with pytest.raises(ChainError, match=r"counts batches: put it after \.batch"):
        arrays(4).skip_steps([(1, 2)])


@pytest.mark.parametrize(
    ("ranges", "error", "message"),
    [
        ([(5, 5)], ArgumentError, "skip_steps: from 5 up to 5 there are no steps."),
        ([(-1, 5)], ArgumentError, "skip_steps: from -1 up to 5 there are no steps."),
        *(
            (
                given,
                ArgumentTypeError,
                "`ranges` must be pairs (first step, step after the last), as in [(81_200, "
                f"81_500)]; got {given!r}.",
            )
            for given in [(3, 5), 3, "3-5", [(1.5, 2)], [(1, 2, 3)], None]
        ),
    ],
)
def test_bad_ranges(ranges, error, message):
    with pytest.raises(error) as caught:
        BATCHES.skip_steps(ranges)
    assert str(caught.value) == message


def test_epochs_of_a_stream_are_not_numbered_through():
    stream = arrays(12).filter(odd).batch(2).repeat(2).skip_steps([(1, 2)])
    with pytest.raises(ChainError, match=r"Use iter\(loader\), and set_state\(\)"):
        DataLoader(stream).epoch(1)


def test_a_pickled_loader_skips_the_same_steps():
    stream = arrays(12).filter(odd).batch(2).repeat(2)
    copied = pickle.loads(pickle.dumps(DataLoader(stream)))
    assert_same(copied.epoch(1), DataLoader(stream).epoch(1))
    for dataset in (BATCHES, STREAM):
        copied = pickle.loads(pickle.dumps(DataLoader(dataset.skip_steps(RANGES))))
        assert_same(islice(copied, 8), kept(islice(loaded(dataset), 15))[:8])
