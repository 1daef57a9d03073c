"""States and epochs of streams."""

from __future__ import annotations

import numpy as np
import pytest

from chains import arrays
from loaderx import ArgumentError, DataLoader, Dataset, LoaderxWarning, StateError, merge_states
from oracle import assert_same
from plain import grow, jitter
from stream_chains import mixed, odd
from streams import STREAM, even, everything, head, numbers


def test_weights_may_change_at_a_restore():
    """Every component goes on where it was; the new weights hold from that step on."""
    old = iter(DataLoader(mixed([1, 1])))
    head(old, 5)
    state = old.get_state()
    iterator = iter(DataLoader(mixed([2, 1])))
    with pytest.raises(StateError, match=r"\(mix\): tickets was \[1, 1\] and is \[2, 1\] now"):
        iterator.set_state(state)
    with pytest.warns(LoaderxWarning, match="Continuing at the same rows"):
        iterator.set_state(state, strict=False)
    assert iterator.step == 5
    rest = np.concatenate([b["x"] for b in head(iterator, 40)])
    assert abs((rest < 1000).mean() - 2 / 3) < 0.02
    # One lane shows it exactly: each component's records are its own stream, without a gap.
    before = head(DataLoader(mixed([1, 1], 4, 1)), 5)
    old = iter(DataLoader(mixed([1, 1], 4, 1)))
    head(old, 5)
    new = iter(DataLoader(mixed([3, 1], 4, 1)))
    with pytest.warns(LoaderxWarning):
        new.set_state(old.get_state(), strict=False)
    seen = np.concatenate([b["x"] for b in [*before, *head(new, 20)]])
    alone = [r["x"] for r in head(arrays(60).shuffle(1).filter(odd).repeat(), 200)]
    first = seen[seen < 1000]
    assert first.tolist() == [int(x) for x in alone[: len(first)]]


def test_new_weights_below_a_window_warn_of_its_records():
    def dataset(weights):
        mix = Dataset.mix([STREAM.repeat(), Dataset.range(1000, 1060).repeat()], weights)
        return mix.shuffle(window=8).batch(3)

    old = iter(DataLoader(dataset([1, 1])))
    next(old)
    with pytest.warns(LoaderxWarning, match="window that was begun above the mix is filled again"):
        iter(DataLoader(dataset([2, 1]))).set_state(old.get_state(), strict=False)


def test_another_batch_size_goes_on_at_the_same_rows():
    dataset = arrays(60).filter(odd).repeat()
    iterator = iter(DataLoader(dataset.batch(4)))
    head(iterator, 3)
    larger = iter(DataLoader(dataset.batch(6)))
    with pytest.warns(LoaderxWarning, match=r"\(batch\): size was 4 and is 6 now"):
        larger.set_state(iterator.get_state(), strict=False)
    ids = [int(r["x"]) for r in head(dataset, 30)]
    assert next(larger)["x"].tolist() == ids[12:18]


def test_another_batch_size_goes_on_with_the_schedule_of_a_mix():
    one, other = Dataset.range(60).filter(even).repeat(), Dataset.range(1000, 1060).repeat()
    dataset = Dataset.mix([one, other], [2, 1])
    iterator = iter(DataLoader(dataset.batch(4)))
    head(iterator, 2)
    larger = iter(DataLoader(dataset.batch(5)))
    with pytest.warns(LoaderxWarning):
        larger.set_state(iterator.get_state(), strict=False)
    assert next(larger).tolist() == numbers(head(dataset, 13))[8:]


def endless(lanes=4):
    return arrays(64).filter(odd).repeat().batch(8, lanes=lanes)


def state_of(dataset, steps=3, **more):
    iterator = iter(DataLoader(dataset, engine="inline", **more))
    head(iterator, steps)
    return iterator.get_state()


def test_a_state_in_full():
    state = state_of(endless(2))
    assert state == {
        "version": 2,
        "step": 3,
        "epoch": 0,
        "above": [],
        "lanes": {"0": [0, [2, 2]], "1": [0, [2, 1]]},
        "chain": [
            "order 3",
            state["chain"][1],
            "filter(function='odd')",
            "repeat()",
            "batch(size=8, lanes=2)",
            "units 8/8, deal 2",
        ],
        "data": ["#c460f67f"],
    }


def test_states_that_do_not_fit():
    state = state_of(endless())
    iterator = iter(DataLoader(endless()))
    with pytest.raises(
        StateError, match="this loader reads 0 to 3. Join the states of all hosts wi"
    ):
        iterator.set_state({**state, "lanes": {"0": state["lanes"]["0"]}})
    with pytest.raises(StateError, match="belongs to another chain"):
        iter(DataLoader(endless(2))).set_state(state)
    with pytest.raises(StateError, match="it belongs to a dataset that is not a stream"):
        iterator.set_state(iter(DataLoader(arrays(9).batch(3))).get_state())
    with pytest.raises(StateError, match="belongs to a stream, and this dataset is not one"):
        iter(DataLoader(arrays(9).batch(3))).set_state(state)
    expected, steps = iter(endless()), 0
    for wrong in ([1], [0, [1, -1]], [0, [1, True]], "x", None):
        with pytest.raises(StateError, match="does not fit this chain|a whole number is expected"):
            iterator.set_state({**state, "lanes": dict.fromkeys("0123", wrong)})
        # What was refused leaves the iterator where it was.
        assert_same([next(iterator)], [next(expected)])
        assert iterator.step == (steps := steps + 1)


def test_other_units_are_refused_even_if_not_strict():
    """Their numbers mean other rows: going on would leave records out, or read them twice."""
    dataset = Dataset.range(1000).filter(even)
    state = state_of(dataset.shuffle(window=8).batch(4), 20)
    for other in (
        dataset.shuffle(window=16).batch(4),
        Dataset.range(3000).filter(even).shuffle(window=4).batch(4),
    ):
        iterator = iter(DataLoader(other))
        refusal = r"in units of 8 records, and this chain .* of (16|4).* or begin a new run\."
        with pytest.raises(StateError, match=refusal):
            iterator.set_state(state, strict=False)
        assert iterator.step == 0
    lines = Dataset.from_iterable(lambda: range(40))
    iterator = iter(DataLoader(lines.shuffle(window=16).batch(3)))
    with pytest.raises(StateError, match="in units of 8 records, and this chain in units of 16:"):
        iterator.set_state(state_of(lines.shuffle(window=8).batch(3), 4), strict=False)
    longer = iter(DataLoader(Dataset.range(3000).filter(even).shuffle(window=8).batch(4)))
    with pytest.warns(LoaderxWarning, match="Continuing at the same rows"):
        longer.set_state(state, strict=False)
    assert sorted(next(longer).tolist()) == [160, 162, 164, 166]


@pytest.mark.parametrize("strict", [True, False])
def test_states_of_the_earlier_deal_are_refused(strict):
    state = state_of(endless())
    chain = [*state["chain"][:-1], state["chain"][-1].partition(", deal")[0]]
    assert chain != state["chain"]
    with pytest.raises(StateError, match=r"dealt records to lanes in another way \(deal 1; this"):
        iter(DataLoader(endless())).set_state({**state, "chain": chain}, strict=strict)


def test_a_renamed_function_only_warns():
    def renamed(record):
        return odd(record)

    iterator = iter(DataLoader(arrays(64).filter(renamed).repeat().batch(8, lanes=4)))
    with pytest.warns(
        LoaderxWarning,
        match="saved with filter.function='odd'., and the chain now has filter.function='renamed",
    ):
        iterator.set_state(state_of(endless()))


def test_how_long_to_run_is_not_part_of_the_state():
    state = state_of(endless().take(7))
    for dataset in (endless(), endless().take(9)):
        iterator = iter(DataLoader(dataset))
        iterator.set_state(state)
        assert_same(head(iterator, 2), head(endless(), 5)[3:])


def test_a_state_of_more_passes():
    stream = Dataset.range(10).filter(everything)
    state = state_of(stream.repeat().batch(5), 9)
    fewer = iter(DataLoader(stream.repeat(2).batch(5)))
    with pytest.raises(StateError, match=r"4 \(counted from 0\), but .repeat\(2\) has only 2"):
        fewer.set_state(state)
    enough = iter(DataLoader(stream.repeat(5).batch(5)))
    enough.set_state(state)
    assert [batch.tolist() for batch in enough] == [[5, 6, 7, 8, 9]]


def test_merging_states():
    parts = [state_of(endless(), shard=(h, 4)) for h in range(4)]
    assert merge_states(parts) == merge_states(parts[::-1]) == state_of(endless())
    plain = state_of(arrays(24).batch(8, drop_remainder=True), 2)
    assert merge_states([plain, dict(plain)]) == plain
    with pytest.raises(StateError, match="different steps: number 0 at 3, number 1 at 4"):
        merge_states([parts[0], state_of(endless(), 4, shard=(1, 4))])
    with pytest.raises(StateError, match="state 1 belongs to another chain than state 0"):
        merge_states([parts[0], state_of(endless(2), 3)])
    moved = {**parts[0], "lanes": {"0": [0, [9, 9]]}}
    with pytest.raises(StateError, match="lane 0 is in two states, at different positions"):
        merge_states([parts[0], moved])
    for wrong in ([], None, parts[0]):
        with pytest.raises(ArgumentError, match="needs a list of the states of all hosts"):
            merge_states(wrong)
    for wrong in ([1, 2], {"a": [0, 1]}):
        with pytest.raises(StateError, match="this is not the state of a loader"):
            merge_states([parts[0], {**parts[1], "lanes": wrong}])
    bare = {key: value for key, value in parts[1].items() if key != "lanes"}
    for both in ([parts[0], bare], [bare, parts[0]]):
        with pytest.raises(StateError, match="only one of them has lanes"):
            merge_states(both)
    with pytest.raises(StateError, match="this is not the state of a loader"):
        merge_states([{}])


def test_seeking_a_stream():
    iterator = iter(DataLoader(endless()))
    first = head(iterator, 3)
    iterator.seek(3)
    with pytest.raises(ArgumentError, match="a stream cannot seek to step 7.*use set_state"):
        iterator.seek(7)
    iterator.seek(0)
    assert_same(head(iterator, 3), first)


def test_epochs_of_a_stream():
    dataset = arrays(30).shuffle(1).filter(odd).random_map(jitter).batch(4)
    loader = DataLoader(dataset)
    twice = list(dataset.repeat(2))
    assert_same([*loader.epoch(0), *loader.epoch(1)], twice)
    assert_same(list(DataLoader(dataset.repeat(2).map(grow))), list(dataset.map(grow).repeat(2)))
    epoch = loader.epoch(1)
    next(epoch)
    state = epoch.get_state()
    assert (state["epoch"], state["step"], epoch.epoch) == (1, 1, 1)
    again = loader.epoch(1)
    again.set_state(state)
    assert_same(list(again), list(epoch))
    with pytest.raises(StateError, match="the state is in epoch 1; this iterator reads epoch 0"):
        loader.epoch(0).set_state(state)


def test_the_epoch_of_an_endless_stream():
    iterator = iter(DataLoader(arrays(30).filter(odd).repeat().map(grow).batch(4)))
    epochs = []
    for _ in range(11):
        epochs.append(iterator.epoch)
        next(iterator)
    assert epochs == [0] * 6 + [1] * 5
    assert iter(DataLoader(arrays(30).repeat().filter(odd).batch(4))).epoch == 0
    skipped = iter(DataLoader(arrays(30).filter(odd).repeat().batch(5).skip(2).map(grow)))
    head(skipped, 3)
    assert skipped.epoch == 1
