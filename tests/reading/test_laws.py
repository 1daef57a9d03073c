"""The laws of the address algebra, on generated chains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, batches, chains
from inside import node_of
from loaderx import DataLoader, Dataset
from oracle import assert_same, elements, route, same
from plain import grow, jitter

# Generated chains repeat parts of shuffled datasets: what users are warned of is drawn here.
pytestmark = pytest.mark.filterwarnings("ignore:.*draws a new order in every epoch")


@settings(max_examples=300)
@given(chains())
def test_plan_equals_the_slow_twin(dataset):
    assert_same(dataset, elements(dataset))


@settings(max_examples=60)
@given(chains(), st.data())
def test_any_element_alone_is_the_element_in_the_stream(dataset, data):
    expected = list(dataset)
    position = data.draw(st.integers(-len(dataset), len(dataset) - 1))
    assert same(dataset[position], expected[position])


@settings(max_examples=60)
@given(chains(depth=1))
def test_repeat_once_is_the_identity(dataset):
    assert_same(dataset.repeat(1), dataset)


@settings(max_examples=60)
@given(chains(depth=1), st.integers(2, 3))
def test_epoch_0_of_a_repeat_is_the_chain(dataset, epochs):
    assert_same(dataset.repeat(epochs).take(len(dataset)), dataset)


@settings(max_examples=60)
@given(chains(depth=0), chains(depth=0), st.integers(1, 4), st.integers(1, 4))
def test_a_component_of_a_mix_is_its_own_stream(one, other, a, b):
    """The first as it is, the others if they have a seed."""
    if node_of(one).batched != node_of(other).batched or "mask" in one[0] or "mask" in other[0]:
        one, other = arrays(9).shuffle(3).random_map(jitter), arrays(7, 1000)
    other = other.seed(3)
    mix = Dataset.mix([one, other], [a, b])
    taken = [node_of(mix).schedule.component[p % (a + b) % len(node_of(mix).schedule.component)]
             for p in range(len(mix))]  # fmt: skip
    stream = list(mix)
    for component, dataset in enumerate((one, other)):
        mine = [element for element, c in zip(stream, taken) if c == component]
        assert_same(mine, list(dataset)[: len(mine)])


@settings(max_examples=60)
@given(chains(depth=0), chains(depth=0), chains(depth=0), st.data())
def test_a_mix_of_all_gives_every_element_once_and_each_dataset_in_its_order(a, b, c, data):
    parts = [a, b, c]
    if len({node_of(part).batched for part in parts}) > 1 or any(
        "mask" in part[0] for part in parts
    ):
        parts = [arrays(9).shuffle(3), arrays(7, 1000).random_map(jitter), arrays(2, 2000)]
    parts = [parts[0], *(part.seed(3) for part in parts[1:])]  # else it would draw as a component
    weights = [data.draw(st.integers(1, 5)) for _ in parts]
    mix = Dataset.mix(parts, weights, stop="all_exhausted")
    assert len(mix) == sum(map(len, parts))
    stream = list(mix)
    routes = [route(node_of(mix), 0, p)[0] for p in range(len(mix))]
    for component, dataset in enumerate(parts):
        assert_same([element for element, c in zip(stream, routes) if c == component], dataset)
    shorter = Dataset.mix(parts, weights)
    assert_same(stream[: len(shorter)], shorter)  # up to the first end the stop makes no difference


@settings(max_examples=60)
@given(chains(depth=0), chains(depth=0))
def test_concatenate_is_one_after_the_other(one, other):
    if node_of(one).batched != node_of(other).batched or "mask" in one[0] or "mask" in other[0]:
        one, other = arrays(9).shuffle(3), arrays(7, 1000).random_map(jitter)
    other = other.seed(3)
    assert_same(Dataset.concatenate([one, other]), [*one, *other])


@settings(max_examples=60)
@given(chains(depth=0), st.integers(0, 9))
def test_a_shuffle_permutes_rows_draws_included(dataset, seed):
    drawn = dataset.random_map(jitter)
    natural = [repr(element) for element in dataset.random_map(jitter, seed=5)]
    shuffled = [repr(element) for element in dataset.shuffle(seed).random_map(jitter, seed=5)]
    assert len(drawn) == len(shuffled) == len(natural)
    # The stage number differs by the shuffle below it, so compare through equal numbers.
    again = [repr(e) for e in dataset.shuffle(seed + 1).random_map(jitter, seed=5)]
    assert sorted(shuffled) == sorted(again)


@settings(max_examples=60)
@given(chains(depth=1), st.integers(1, 9), st.integers(1, 9))
def test_unbatch_then_batch_cuts_anew(dataset, first, second):
    if node_of(dataset).batched:
        return
    once = dataset.batch(first).map(grow).random_map(jitter).unbatch().batch(second)
    assert_same(once.unbatch(), dataset.map(grow).random_map(jitter, batched=True))


@settings(max_examples=40)
@given(batched_chains())
def test_epochs_make_up_a_repeat(dataset):
    loader = DataLoader(dataset, engine="inline")
    one = node_of(dataset).one_epoch()
    if one is node_of(dataset):
        assert_same([*loader.epoch(0), *loader.epoch(1)], dataset.repeat(2))
    else:  # it has epochs already
        epochs = -(-len(dataset) // one.length)
        stream = [batch for e in range(epochs) for batch in loader.epoch(e)]
        assert_same(stream[: len(dataset)], dataset)


@settings(max_examples=60)
@given(chains(depth=1), st.sampled_from([None, 1, 4]))
def test_no_two_rows_share_a_draw(dataset, seed):
    if node_of(dataset).batched:
        return
    draws = [int(e["draw"]) for e in dataset.random_map(_with_draw, seed=seed)]
    assert len(set(draws)) == len(draws)


def _with_draw(record, rng):
    return {**record, "draw": rng.integers(0, 1 << 62)}


@settings(max_examples=40)
@given(chains(depth=0), st.integers(0, 20))
def test_inserting_a_map_moves_nobodys_randomness(dataset, seed):
    one = dataset.shuffle(seed).random_map(jitter)
    other = dataset.map(lambda e: e).shuffle(seed).map(lambda e: e).random_map(jitter)
    assert_same(one, other)


@settings(max_examples=60)
@given(chains(depth=1), st.data())
def test_batches_do_not_change_what_is_in_them(dataset, data):
    if node_of(dataset).batched:
        return
    batched = data.draw(batches(dataset))
    rows = list(batched.unbatch())
    for row, record in zip(rows, dataset):
        assert same({"x": row["x"], "y": row["y"]}, {"x": record["x"], "y": record["y"]})


def test_chain_order_is_meaning():
    crossing = [len(b["x"]) for b in arrays(5).repeat(2).batch(4)]
    whole = [len(b["x"]) for b in arrays(5).batch(4).repeat(2)]
    assert crossing == [4, 4, 2]
    assert whole == [4, 1, 4, 1]
    batches_moved = list(arrays(8).batch(2).shuffle(1))
    assert sorted(b["x"].tolist() for b in batches_moved) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_new_order_in_every_epoch():
    epochs = [b["x"].tolist() for b in arrays(64).shuffle(0).batch(64).repeat(5)]
    assert len({tuple(order) for order in epochs}) == 5
    assert all(sorted(order) == list(range(64)) for order in epochs)


def test_picked_twice_draws_twice():
    twice = Dataset.range(3)[[1, 1, 2]].random_map(lambda _, rng: rng.random())
    first, second, _ = twice
    assert first != second
