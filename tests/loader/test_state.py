"""State: one small dict, exact at every step, for any engine and any number of hosts."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxWarning,
    PositionError,
    StateError,
    merge_states,
)
from oracle import assert_same
from plain import grow, jitter


@settings(max_examples=40)
@given(batched_chains(), st.sampled_from(["inline", "threads"]))
def test_restoring_at_every_step_gives_the_same_tail(dataset, engine):
    expected = list(dataset)
    loader = DataLoader(dataset, engine=engine, num_workers=2)
    iterator = iter(loader)
    states = [json.loads(json.dumps(iterator.get_state()))]
    for _ in expected:
        next(iterator)
        states.append(json.loads(json.dumps(iterator.get_state())))
    iterator.close()
    for step, state in enumerate(states):
        assert state["step"] == step
        fresh = iter(DataLoader(dataset, engine="inline"))
        fresh.set_state(state)
        assert fresh.step == step
        assert_same(list(fresh), expected[step:])


def pad_or_drop(dataset, size, ending):
    return dataset.batch(size, **{ending: True})


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.sampled_from(["drop_remainder", "pad_remainder"]),
    st.sampled_from([(1, 2), (2, 4), (4, 1), (2, 3), (3, 6)]),
    st.booleans(),
    st.data(),
)
def test_hosts_share_one_stream_and_states_move_between_them(n, ending, hosts, crossing, data):
    size = 12
    dataset = arrays(n).shuffle(3).random_map(jitter)
    if crossing:
        dataset = pad_or_drop(dataset.repeat(3), size, ending) if 3 * n >= size else None
    elif ending == "pad_remainder" or n >= size:
        dataset = pad_or_drop(dataset, size, ending).random_map(jitter).repeat(2)
    else:
        dataset = None
    if dataset is None:
        return
    expected = list(dataset)
    before, after = hosts
    step = data.draw(st.integers(0, len(expected)))
    iterators = [
        iter(DataLoader(dataset, shard=(h, before), engine="inline")) for h in range(before)
    ]
    head = [_join([next(i) for i in iterators]) for _ in range(step)]
    states = [i.get_state() for i in iterators]
    assert all(state == states[0] for state in states)
    tails = []
    for h in range(after):
        iterator = iter(DataLoader(dataset, shard=(h, after), engine="threads", num_workers=1))
        iterator.set_state(states[0])
        tails.append(list(iterator))
    tail = [_join(parts) for parts in zip(*tails, strict=True)]
    assert_same([*head, *tail], expected)


def _join(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def test_a_typical_state_is_small():
    dataset = (
        arrays(60_000).shuffle(0).random_map(jitter).batch(256, drop_remainder=True)
        .map(grow).repeat(10)
    )  # fmt: skip
    iterator = iter(DataLoader(dataset))
    iterator.seek(2000)
    text = json.dumps(iterator.get_state())
    assert len(text) < 400
    assert iterator.get_state() == {
        "version": 2,
        "step": 2000,
        "epoch": 8,
        "record": 128 * 256,
        "chain": [
            "order 3",
            "source(length=60000, spec={'x': '<i8[]', 'y': '<f8[2]'})",
            "shuffle(seed=0)",
            "random_map(function='jitter', seed=0)",
            "batch(size=256, drop_remainder=True)",
            "map(function='grow')",
        ],
        "data": ["#391bd949"],
    }


def base(seed=0, size=4, n=20):
    return arrays(n).shuffle(seed).map(grow).batch(size).repeat(2)


def state_at(dataset, step=3):
    iterator = iter(DataLoader(dataset, engine="inline"))
    iterator.seek(step)
    return iterator.get_state()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (base(n=21), "the source had 20 records and has 21 now"),
        (base(seed=1), r"stage 2 \(shuffle\): seed was 0 and is 1 now\."),
        (base(size=5), r"stage 4 \(batch\): size was 4 and is 5 now\."),
        (
            arrays(20).map(grow).batch(4),
            r"stage 2 was shuffle\(seed=0\) and is map\(function='grow'\) now",
        ),
        (
            arrays(20).shuffle(7).map(grow, batched=True).batch(4),
            r"stage 2 \(shuffle\): seed was 0 and is 7 now\.",
        ),
        (
            arrays(20).shuffle(0).map(grow, batched=True).batch(4),
            r"stage 3 \(map\): batched was not set and is True now\.",
        ),
        (
            arrays(20).shuffle(0).map(grow),
            r"it had a stage batch\(size=4\) that this chain does not have",
        ),
        (base().map(grow), r"it did not have the stage map\(function='grow'\)"),
        (
            Dataset.from_arrays(x=np.zeros(20), z=np.zeros(20)).shuffle(0).map(grow).batch(4),
            r"stage 1 \(source\): spec was {'x': '<i8\[\]', 'y': .* and is {'x': '<f8\[\]', 'z'",
        ),
    ],
)
def test_a_state_of_another_chain_is_refused_by_name(other, message):
    iterator = iter(DataLoader(other, engine="inline"))
    with pytest.raises(StateError, match=message):
        iterator.set_state(state_at(base()))
    assert iterator.step == 0


def test_how_long_to_run_is_not_part_of_the_state():
    state = state_at(base())
    for dataset in (
        arrays(20).shuffle(0).map(grow).batch(4).repeat(9),
        arrays(20).shuffle(0).map(grow).batch(4).repeat(),
        arrays(20).shuffle(0).map(grow).batch(4).repeat(2).take(7),
    ):
        iterator = iter(DataLoader(dataset, engine="inline"))
        iterator.set_state(state)
        assert iterator.step == 3


def test_a_repeat_below_other_stages_may_change_its_count():
    for stages in (lambda d: d.batch(4), lambda d: d.map(grow).random_map(jitter).batch(4)):
        one, other = stages(arrays(9).shuffle(1).repeat(2)), stages(arrays(9).shuffle(1).repeat())
        iterator = iter(DataLoader(other.take(5), engine="inline"))
        iterator.set_state(state_at(one, 2))
        assert_same(list(iterator)[:2], list(one)[2:4])


def test_a_repeat_below_a_shuffle_may_not():
    one, other = arrays(9).repeat(2).shuffle(1).batch(4), arrays(9).repeat(3).shuffle(1).batch(4)
    with pytest.raises(StateError, match=r"\(repeat\): epochs was 2 and is 3 now"):
        iter(DataLoader(other)).set_state(state_at(one, 2))


def test_stages_after_a_repeat_belong_to_each_epoch():
    loader = DataLoader(arrays(9).shuffle(1).batch(3).repeat(4).map(grow).random_map(jitter))
    expected = list(arrays(9).shuffle(1).batch(3).map(grow).random_map(jitter).repeat(4))
    assert_same(loader.epoch(2), expected[6:9])
    iterator = iter(loader)
    assert_same(iterator, expected)
    iterator.seek(7)
    assert (iterator.epoch, iterator.get_state()["record"]) == (2, 3)


def test_the_seed_of_a_chain_is_in_its_state():
    one, other = arrays(9).shuffle().batch(3), arrays(9).shuffle().batch(3).seed(5)
    with pytest.raises(StateError, match=r"\(shuffle\): seed was 0 and is 5 now"):
        iter(DataLoader(other)).set_state(state_at(one, 1))
    iter(DataLoader(arrays(9).shuffle(5).batch(3))).set_state(state_at(other, 1))


def test_a_component_of_a_mix_is_in_its_state():
    def mixed(seed, weights):
        return Dataset.mix([arrays(9).shuffle(seed), arrays(9)], weights).batch(3)

    state = state_at(mixed(0, [1, 1]), 1)
    iter(DataLoader(mixed(0, [2, 2]))).set_state(state)
    with pytest.raises(StateError, match=r"stage 1 \(mix\): dataset 0 was a different one\."):
        iter(DataLoader(mixed(1, [1, 1]))).set_state(state)
    with pytest.raises(
        StateError, match=r"stage 1 \(mix\): tickets was \[1, 1\] and is \[1, 2\] now"
    ):
        iter(DataLoader(mixed(0, [1, 2]))).set_state(state)


def test_a_renamed_function_only_warns():
    def renamed(element):
        return grow(element)

    other = arrays(20).shuffle(0).map(renamed).batch(4).repeat(2)
    iterator = iter(DataLoader(other, engine="inline"))
    with pytest.warns(
        LoaderxWarning,
        match="with map.function='grow'., and the chain now has map.function='renamed'",
    ):
        iterator.set_state(state_at(base()))
    assert_same(list(iterator), list(base())[3:])


def test_not_strict_goes_on_at_the_same_record():
    old = arrays(24).shuffle(0).batch(4).repeat(3)
    state = state_at(old, 6 + 2)  # epoch 1, record 8
    iterator = iter(DataLoader(arrays(24).shuffle(0).batch(8).repeat(3), engine="inline"))
    with pytest.warns(LoaderxWarning, match="Continuing at step 4 "):
        iterator.set_state(state, strict=False)
    expected = list(arrays(24).shuffle(0).batch(8).repeat(3))[4:]
    assert_same(list(iterator), expected)


def test_a_state_that_is_still_text():
    iterator = iter(DataLoader(base()))
    with pytest.raises(StateError, match=r"Write json\.loads\(state\)\.$"):
        iterator.set_state(json.dumps(iterator.get_state()))


@pytest.mark.parametrize("state", [None, {}, [1], {"step": 3}, {"version": 2, "step": 1}])
def test_what_is_no_state(state):
    with pytest.raises(StateError, match="this is not the state of a loader"):
        iter(DataLoader(base())).set_state(state)


def test_a_state_of_another_version():
    with pytest.raises(StateError, match="the state has version 9; this loaderx reads 2"):
        iter(DataLoader(base())).set_state({**state_at(base()), "version": 9})


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("stages", "advice"),
    [
        (lambda d: d, r"If the dataset is the same, use iterator\.seek\(state\['step'\]\)\.$"),
        (lambda d: d.filter(bool), r"The stream must be read from its beginning\.$"),
    ],
    ids=["index", "stream"],
)
def test_a_state_of_version_1(stages, advice, strict):
    dataset = stages(arrays(100)).batch(10)
    iterator = iter(DataLoader(dataset, engine="inline"))
    next(iterator)
    state = {**iterator.get_state(), "version": 1}
    said = (
        "the state has version 1; this loaderx reads 2. Version 1 was saved by loaderx 0.1 before "
        "its first release and cannot be read: it describes the dataset differently. "
    ) + advice
    with pytest.raises(StateError, match=said):
        iterator.set_state(state, strict=strict)
    with pytest.raises(StateError, match=said):
        merge_states([state])


@pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
def test_a_state_with_a_bad_step(step):
    with pytest.raises(StateError, match="the state's step must be a whole number"):
        iter(DataLoader(base())).set_state({**state_at(base()), "step": step})


@pytest.mark.parametrize("stages", [lambda d: d, lambda d: d.filter(bool)], ids=["index", "stream"])
def test_a_source_that_has_grown(stages):
    state = iter(DataLoader(stages(arrays(100)).batch(10))).get_state()
    with pytest.raises(StateError, match="the source had 100 records and has 101 now"):
        iter(DataLoader(stages(arrays(101)).batch(10))).set_state(state)


def test_seeking():
    iterator = iter(DataLoader(base(), engine="inline"))
    expected = list(base())
    for step in (7, 0, 9, 3):
        iterator.seek(step)
        assert_same([next(iterator)], [expected[step]])
    iterator.seek(10)
    assert list(iterator) == []
    said = "step 11 is beyond this stream, which has steps 0 to 9 and its end at 10"
    with pytest.raises(ArgumentError, match=said):
        iterator.seek(11)
    with pytest.raises(ArgumentError, match="`step` must be at least 0, got -1"):
        iterator.seek(-1)


def test_step_and_epoch():
    iterator = iter(DataLoader(base(), engine="inline"))
    assert [(iterator.step, iterator.epoch, next(iterator) and None)[:2] for _ in range(7)] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1),
    ]  # fmt: skip
    crossing = iter(DataLoader(arrays(5).repeat().batch(4), engine="inline"))
    crossing.seek(3)
    assert crossing.epoch == 2
    assert iter(DataLoader(arrays(4).batch(2))).epoch == 0


def test_a_state_of_an_epoch_goes_on_in_that_epoch():
    loader = DataLoader(arrays(12).shuffle(1).batch(3), engine="inline")
    third = loader.epoch(2)
    first = next(third)
    state = third.get_state()
    assert (state["step"], state["epoch"], state["record"]) == (9, 2, 3)
    again = loader.epoch(2)
    again.set_state(state)
    assert_same([first, *again], list(arrays(12).shuffle(1).batch(3).repeat(3))[8:])


@pytest.mark.parametrize(
    ("dataset", "shard", "error", "message"),
    [
        (arrays(9).batch(3), (0, 2), ArgumentError, "2 hosts cannot share batches of 3 records"),
        (arrays(9).batch(4), (0, 2), ChainError, "last batch of batch\\(4\\) is short"),
        (arrays(9).batch(4, drop_remainder=True), (2, 2), ArgumentError, "below its count"),
        (arrays(9).batch(4), 3, ArgumentTypeError, r"`shard` must be \(index, count\), got 3"),
        (arrays(9).batch(4), (-1, 2), ArgumentError, "`shard index` must be at least 0"),
        (arrays(9), (0, 2), ChainError, "`shard` splits batches"),
    ],
)
def test_bad_shards(dataset, shard, error, message):
    with pytest.raises(error, match=message):
        DataLoader(dataset, shard=shard)


def test_a_host_with_nothing_real_gets_padding():
    dataset = arrays(5).batch(4, pad_remainder=True)
    last = list(DataLoader(dataset, shard=(3, 4), engine="inline"))[-1]
    assert last["x"].tolist() == [0]
    assert last["mask"].tolist() == [False]


def test_a_state_does_not_know_its_engine():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for engine in ("inline", "threads", "auto"):
            iterator = iter(DataLoader(base(), engine=engine))
            iterator.set_state(state_at(base()))
            assert iterator.get_state() == state_at(base())


@pytest.mark.parametrize(
    ("one", "other", "step"),
    [
        (lambda d: d.batch(2).take(3).repeat(9), lambda d: d.batch(2).take(4).repeat(9), 7),
        (lambda d: d.batch(2).take(3).repeat(9), lambda d: d.batch(2).repeat(9), 7),
        (lambda d: d.batch(4).repeat(2).repeat(4), lambda d: d.batch(4).repeat(3).repeat(4), 4),
        (
            lambda d: d.repeat(2).batch(4).repeat(9),
            lambda d: d.repeat(4).batch(4).repeat(9),
            4,
        ),
        (
            lambda d: d.random_map(jitter).batch(4),
            lambda d: d.random_map(jitter, batched=True).batch(4),
            0,
        ),
        (
            lambda d: d.batch(4, pad_remainder=True),
            lambda d: d.batch(4, pad_remainder=True, pad_value=7),
            1,
        ),
        (
            lambda d: d.batch(4).on_error("replace"),
            lambda d: d.batch(4).on_error("replace").seed(5),
            1,
        ),
    ],
)
def test_states_of_chains_that_differ_in_small_things_are_refused(one, other, step):
    iterator = iter(DataLoader(other(arrays(10)), engine="inline"))
    with pytest.raises(StateError):
        iterator.set_state(state_at(one(arrays(10)), step))


def test_an_epoch_state_keeps_what_repeats():
    one = DataLoader(arrays(10).repeat(2).batch(4)).epoch(1)
    other = DataLoader(arrays(10).repeat(4).batch(4)).epoch(1)
    with pytest.raises(StateError):
        other.set_state(one.get_state())


def test_a_renamed_function_in_a_component_only_warns():
    def renamed(element):
        return grow(element)

    one = Dataset.mix([arrays(8).map(grow), arrays(8)]).batch(4)
    other = Dataset.mix([arrays(8).map(renamed), arrays(8)]).batch(4)
    with pytest.warns(
        LoaderxWarning, match=r"function=\['grow'\].*now has.*function=\['renamed'\]"
    ):
        iter(DataLoader(other)).set_state(state_at(one, 1))
    outer = Dataset.zip([Dataset.concatenate([one, one]), Dataset.concatenate([one, one])])
    again = Dataset.zip([Dataset.concatenate([one, other]), Dataset.concatenate([one, one])])
    with pytest.warns(LoaderxWarning, match="If the function does something else"):
        iter(DataLoader(again)).set_state(state_at(outer, 1))


def test_an_epoch_does_not_go_back_before_its_start():
    epoch = DataLoader(arrays(12).batch(4)).epoch(2)
    with pytest.raises(ArgumentError, match="which has steps 6 to 8 and its end at 9"):
        epoch.seek(0)
    with pytest.raises(StateError, match="has steps 6 to 8 and its end at 9"):
        epoch.set_state(state_at(arrays(12).batch(4), 1))


def test_not_strict_from_batches_that_cross_epochs():
    state = state_at(arrays(100).repeat().batch(10), 57)
    iterator = iter(DataLoader(arrays(100).batch(20).repeat(), engine="inline"))
    with pytest.warns(LoaderxWarning):
        iterator.set_state(state, strict=False)
    assert next(iterator)["x"][0] == 60
    assert iterator.epoch == 5


def test_the_epoch_of_batches_that_cross_a_finite_repeat():
    iterator = iter(DataLoader(arrays(5).repeat(3).batch(4), engine="inline"))
    iterator.seek(3)
    assert iterator.epoch == 2


def test_epochs_are_counted_on_where_batches_cross_their_borders():
    iterator = iter(DataLoader(arrays(100).repeat(3).batch(7)))
    seen = []
    for step in range(44):
        iterator.seek(step)
        seen.append(iterator.epoch)
    assert seen == sorted(seen)
    assert [seen.index(epoch) for epoch in range(3)] == [0, 15, 29]
    assert seen[-1] == 2  # at the end, the epoch of the last batch


def test_going_on_in_another_chain_says_what_comes_again():
    iterator = iter(DataLoader(arrays(100).batch(10)))
    iterator.seek(3)
    state = {**iterator.get_state(), "step": np.int64(3)}
    other = iter(DataLoader(arrays(100).batch(20)))
    with pytest.warns(LoaderxWarning, match="at step 1 .*; 10 records before it come again"):
        other.set_state(state, strict=False)
    assert next(other)["x"].tolist() == list(range(20, 40))
    exact = iter(DataLoader(arrays(100).batch(15)))
    with pytest.warns(LoaderxWarning, match=r"Continuing at step 2 \(it was step 3\)\.$"):
        exact.set_state(state, strict=False)


def test_new_weights_of_a_mix_by_index_are_warned_about():
    parts = [arrays(100).repeat(), arrays(60).repeat()]
    iterator = iter(DataLoader(Dataset.mix(parts, weights=[3, 1]).batch(8)))
    iterator.seek(5)
    other = iter(DataLoader(Dataset.mix(parts, weights=[1, 1]).batch(8)))
    with pytest.warns(LoaderxWarning, match="some of their records come again"):
        other.set_state(iterator.get_state(), strict=False)


def test_a_state_of_another_epoch_names_the_way():
    loader = DataLoader(arrays(100).batch(10))
    state = loader.epoch(2).get_state()
    with pytest.raises(StateError, match=r"epoch 2: continue with loader.epoch\(2\), or with iter"):
        loader.epoch(0).set_state(state)
    again = loader.epoch(2)
    again.set_state(state)
    assert again.step == 20


# Steps whose rows have no number any more ------------------------------------------------------


def test_steps_beyond_what_positions_can_number_are_refused():
    endless = Dataset.range(10).repeat().batch(64)
    last = (1 << 62) // 64  # so many batches of 64 have their rows below 2**62
    iterator = iter(DataLoader(endless, engine="inline"))
    state = iterator.get_state()
    for step in (last + 1, 1 << 58, 1 << 62, 1 << 63, 1 << 200):
        with pytest.raises(
            ArgumentError, match=f"step {step} is beyond this stream.*end at {last}"
        ):
            iterator.seek(step)
        with pytest.raises(StateError, match=f"the state is at step {step}, but this stream has"):
            iterator.set_state({**state, "step": step})
        with pytest.raises(PositionError, match=f"index {step} .* the last is {last - 1}"):
            endless[step]
        beyond = f" goes beyond the {last} elements that can be numbered here"
        with pytest.raises(ArgumentError, match=f"take\\({step}\\){beyond}"):
            endless.take(step)
        with pytest.raises(ArgumentError, match=f"skip\\({step}\\){beyond}"):
            endless[step:]
        with pytest.raises(ArgumentError, match=f"\\[5:{step + 5}:1\\]{beyond}"):
            endless[5 : step + 5]
    with pytest.raises(ArgumentError, match=r"epoch\(.*\) is too large"):
        DataLoader(Dataset.range(10).batch(4), engine="inline").epoch(1 << 61)
    with pytest.raises(
        ArgumentError, match=r"epoch\(.*\) is too large: .* epochs of a stream can be numbered"
    ):
        DataLoader(Dataset.range(10).filter(bool).batch(4), engine="inline").epoch(1 << 36)
    iterator.seek(last - 2)
    expected = [[(64 * step + row) % 10 for row in range(64)] for step in (last - 2, last - 1)]
    assert [batch.tolist() for batch in iterator] == expected
    assert endless[last - 1].tolist() == expected[1]
    assert [batch.tolist() for batch in endless.skip(last - 2).take(2)] == expected


@pytest.mark.parametrize(
    ("endless", "last"),
    [
        (lambda ds: ds.repeat(), 1 << 62),
        (lambda ds: ds.batch(4).repeat(), 1 << 62),
        (lambda ds: ds.repeat().batch(4).skip(5), (1 << 60) - 5),
        (lambda ds: ds.repeat().batch(4)[3::7], -(-((1 << 60) - 3) // 7)),
        (lambda ds: ds.repeat().batch(4).map(grow_all).unbatch().batch(3), (1 << 62) // 3),
        (lambda ds: ds.repeat()[::1000], -(-(1 << 62) // 1000)),
        (lambda ds: Dataset.mix([ds.repeat().batch(64)] * 2, [1, 3]), 4 * (1 << 56) // 3),
        (lambda ds: Dataset.zip([ds.repeat().batch(8), ds.repeat()[::2].batch(8)]), 1 << 58),
        (lambda ds: Dataset.concatenate([ds.batch(8), ds.repeat().batch(8)]), (1 << 59) + 2),
        (lambda ds: ds.repeat().shuffle(window=5).batch(4), 1 << 60),
    ],
)  # fmt: skip
def test_the_last_step_of_endless_chains(endless, last):
    dataset = endless(Dataset.range(10))
    iterator = iter(DataLoader(dataset, engine="inline"))
    with pytest.raises(ArgumentError, match=f"steps 0 to {last - 1} and its end at {last}"):
        iterator.seek(last + 1)
    iterator.seek(last - 1)
    rows = np.ravel(next(iterator))
    assert ((rows >= 0) & (rows <= 11)).all()
    with pytest.raises(StopIteration):
        next(iterator)
    assert np.array_equal(np.ravel(dataset[last - 1]), rows)


def grow_all(batch):
    return batch + 1


def test_batches_that_no_position_can_number_are_refused():
    with pytest.raises(ArgumentError, match=r"batch\(9223372036854775808\)"):
        Dataset.range(10).repeat().batch(1 << 63)


def test_a_state_of_another_order_of_records():
    iterator = iter(DataLoader(Dataset.range(8).batch(2), engine="inline"))
    state = iterator.get_state()
    state["chain"][0] = "order 1"
    with pytest.raises(StateError, match="saved by a loaderx with order 1 of records and random"):
        iterator.set_state(state)
