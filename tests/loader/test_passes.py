"""Loops over one loader: the k-th is its k-th epoch, and a state goes on in the middle of it."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains
from inside import node_of
from loaderx import ArgumentTypeError, DataLoader, Dataset, LoaderxWarning, StateError
from oracle import assert_same
from plain import grow, jitter
from stream_chains import batched_streams

# Generated chains repeat parts of shuffled datasets: what users are warned of is drawn here.
pytestmark = pytest.mark.filterwarnings("ignore:.*draws a new order in every epoch")


def chain(n=10):
    return arrays(n).shuffle(1).random_map(jitter).batch(4)


def stream(n=10):
    return arrays(n).shuffle(1).random_map(jitter).filter(lambda r: r["x"] % 3 != 1).batch(2)


def passes(loader, count):
    return [batch for _ in range(count) for batch in loader]


def saved(iterator):
    return json.loads(json.dumps(iterator.get_state()))


@pytest.mark.parametrize("dataset", [chain(), stream()], ids=["chain", "stream"])
@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_the_k_th_loop_is_the_k_th_epoch(dataset, engine):
    with DataLoader(dataset, engine=engine) as loader:
        found = passes(loader, 3)
    assert_same(found, dataset.repeat(3))
    assert_same(found[: len(list(dataset))], dataset)


@settings(max_examples=60)
@given(batched_chains(), st.integers(2, 3))
def test_passes_over_chains_are_repeats(dataset, count):
    assume(node_of(dataset).one_epoch() is node_of(dataset))
    assert_same(passes(DataLoader(dataset, engine="inline"), count), dataset.repeat(count))


@settings(max_examples=60)
@given(batched_streams(), st.integers(2, 3))
def test_passes_over_streams_are_repeats(dataset, count):
    node = node_of(dataset)
    assume(node.ends and node.one_epoch() is node)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        assert_same(passes(DataLoader(dataset, engine="inline"), count), dataset.repeat(count))


@settings(max_examples=25)
@given(st.one_of(batched_chains(), batched_streams()))
def test_restoring_at_every_step_of_two_passes(dataset):
    node = node_of(dataset)
    assume(node.ends and node.one_epoch() is node)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        loader = DataLoader(dataset, engine="inline")
        expected = [list(loader.epoch(epoch)) for epoch in range(3)]
        for number in range(2):
            iterator = iter(loader)
            for taken in range(len(expected[number]) + 1):
                other = DataLoader(dataset, engine="inline")
                restored = iter(other)
                restored.set_state(saved(iterator))
                tail = expected[number][taken:]
                assert restored.epoch == iterator.epoch
                assert_same(restored, tail)
                if tail:
                    assert_same(other, expected[number + 1])
                next(iterator, None)


def test_a_pass_counts_when_a_batch_was_taken():
    loader = DataLoader(chain(), engine="inline")
    for _ in range(3):
        iter(loader)
    one, other = iter(loader), iter(loader)
    assert_same([next(one)], [next(loader.epoch(0))])
    assert (iter(loader).epoch, other.epoch, next(other) and other.epoch) == (1, 0, 0)
    assert iter(loader).epoch == 1  # both were made before a batch was taken: they are one epoch
    list(one)
    assert iter(loader).epoch == 1
    next(iter(loader))  # uses up a pass
    assert_same(loader, loader.epoch(2))


def test_an_empty_pass_counts_when_it_ends():
    loader = DataLoader(arrays(4).filter(lambda r: False).batch(2), engine="inline")
    assert passes(loader, 2) == []
    assert iter(loader).epoch == 2


def test_an_explicit_epoch_is_not_counted():
    loader = DataLoader(chain(), engine="inline")
    list(loader.epoch(0))
    next(loader.epoch(7))
    assert_same(loader, loader.epoch(0))
    list(loader.epoch(0))
    assert_same(loader, loader.epoch(1))


@pytest.mark.parametrize("dataset", [chain(), stream()], ids=["chain", "stream"])
def test_pinned(dataset):
    loader = DataLoader(dataset, engine="inline", reshuffle=False)
    assert_same(passes(loader, 3), [*dataset, *dataset, *dataset])
    third = loader.epoch(2)
    next(third)
    restored = iter(loader)
    restored.set_state(saved(third))
    assert_same(restored, third)  # a state says where it was taken
    assert iter(loader).epoch == 0


def test_pinning_takes_a_bool():
    with pytest.raises(ArgumentTypeError, match="`reshuffle` must be True or False"):
        DataLoader(chain(), reshuffle="no")


@pytest.mark.parametrize("make", [chain, stream])
def test_a_pass_of_several_epochs_goes_on_after_them(make):
    loader = DataLoader(make().repeat(2), engine="inline")
    assert_same(passes(loader, 3), make().repeat(6))
    broken = DataLoader(make().repeat(2), engine="inline")
    next(iter(broken))
    assert_same(broken, list(make().repeat(4))[len(list(make().repeat(2))) :])


@pytest.mark.parametrize("make", [chain, stream])
def test_an_endless_loader_begins_with_the_next_epoch(make):
    length = len(list(make()))
    loader = DataLoader(make().repeat(), engine="inline")
    for taken, first in [(length + 1, 0), (length, 2), (1, 3), (1, 4)]:
        iterator = iter(loader)
        assert iterator.epoch == first
        found = list(itertools.islice(iterator, taken))
        epochs = [batch for e in range(first, first + 2) for batch in loader.epoch(e)]
        assert_same(found, epochs[:taken])


@pytest.mark.parametrize("make", [chain, stream])
def test_a_later_pass_of_an_endless_loader_is_restored(make):
    loader = DataLoader(make().repeat(), engine="inline")
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    other = iter(DataLoader(make().repeat(), engine="inline"))
    other.set_state(saved(iterator))
    assert_same(itertools.islice(other, 9), itertools.islice(iterator, 9))


def test_an_endless_stream_goes_back_to_where_its_pass_began():
    loader = DataLoader(stream().repeat(), engine="inline")
    next(iter(loader))
    iterator = iter(loader)
    first = next(iterator)
    other = iter(DataLoader(stream().repeat(), engine="inline"))
    other.set_state(saved(iterator))
    other.seek(0)
    assert_same([next(other)], [first])
    state = {**saved(iterator), "first_epoch": 9}
    with pytest.raises(StateError, match="a pass that began with epoch 9; no stream has such"):
        other.set_state(state)


@pytest.mark.parametrize("make", [chain, stream])
def test_a_take_above_a_repeat_ends_each_pass(make):
    length = len(list(make()))
    loader = DataLoader(make().repeat().take(length + 1), engine="inline")
    expected = [batch for e in (0, 1, 2, 3) for batch in loader.epoch(e)]
    assert_same(loader, expected[: length + 1])
    second = iter(loader)
    assert second.epoch == 2
    next(second)
    other = DataLoader(make().repeat().take(length + 1), engine="inline")
    restored = iter(other)
    restored.set_state(saved(second))
    assert_same(restored, expected[2 * length + 1 : 3 * length + 1])
    assert_same(second, expected[2 * length + 1 : 3 * length + 1])


@pytest.mark.parametrize("filtered", [False, True])
def test_a_take_above_an_endless_dataset_has_epochs(filtered):
    records = arrays(10).shuffle(1)
    records = records.filter(lambda r: r["x"] > 1) if filtered else records
    dataset = records.repeat().batch(4).take(5)
    loader = DataLoader(dataset, engine="inline")
    assert_same(passes(loader, 3), dataset.repeat(3))
    assert_same(loader.epoch(2), list(dataset.repeat(3))[10:])


@pytest.mark.parametrize("filtered", [False, True])
def test_without_epochs_a_second_loop_begins_again_and_warns_once(filtered):
    records = arrays(10).shuffle(1)
    records = records.filter(lambda r: r["x"] > 1) if filtered else records
    loader = DataLoader(records.repeat().batch(4), engine="inline")
    first = next(iter(loader))  # a look at one batch does not warn
    assert_same(itertools.islice(loader, 1), [first])
    list(itertools.islice(loader, 3))
    with pytest.warns(LoaderxWarning) as caught:
        assert_same(itertools.islice(loader, 1), [first])
    (warning,) = caught
    assert "endless and has no epochs, so a second loop" in str(warning.message)
    assert "`it = iter(loader)`; or put .repeat() after .batch(...)" in str(warning.message)
    assert warning.filename == __file__
    iter(loader)  # once is enough


def test_data_in_their_own_order_do_not_change():
    loader = DataLoader(arrays(10).map(grow).batch(3), engine="inline")
    assert_same(passes(loader, 2), [*loader.epoch(0), *loader.epoch(0)])


def test_a_finished_run_is_finished_when_restored():
    done = iter(DataLoader(chain().repeat(3), engine="inline"))
    list(done)
    loader = DataLoader(chain().repeat(3), engine="inline")
    again = iter(loader)
    again.set_state(saved(done))
    assert (list(again), again.epoch, len(again)) == ([], 2, 0)
    longer = iter(DataLoader(chain().repeat(4), engine="inline"))
    longer.set_state(saved(done))
    assert_same(longer, loader.epoch(3))


def test_the_end_of_a_pass_and_the_start_of_the_next_are_two_states():
    loader = DataLoader(chain(), engine="inline")
    ended = iter(loader)
    list(ended)
    begun = iter(loader)
    assert (ended.step, begun.step) == (3, 3)
    for state, left, epoch in [(saved(ended), 0, 0), (saved(begun), 3, 1)]:
        restored = iter(DataLoader(chain(), engine="inline"))
        restored.set_state(state)
        assert (len(restored), restored.epoch) == (left, epoch)


@pytest.mark.parametrize("make", [chain, stream])
def test_going_on_after_the_end_of_a_pass(make):
    """What is saved after each epoch: the loop goes on with the following one."""
    done = iter(DataLoader(make(), engine="inline"))
    list(done)
    loader = DataLoader(make(), engine="inline")
    batches, found = iter(loader), []
    batches.set_state(saved(done))
    for _ in range(batches.epoch, 3):
        found += batches
        batches = iter(loader)
    assert_same(found, [*loader.epoch(1), *loader.epoch(2)])


def test_a_state_of_epochs_of_another_length_is_refused():
    state = saved(iter_at(chain(40).take(5), 2, 3))
    iterator = iter(DataLoader(chain(40).take(7), engine="inline"))
    said = r"step 13 was record 12 of epoch 2, and is record 24 of epoch 1 now: an epoch had anoth"
    with pytest.raises(StateError, match=said):
        iterator.set_state(state)
    with pytest.warns(LoaderxWarning, match=r"Continuing at step 17 \(it was step 13\)\.$"):
        iterator.set_state(state, strict=False)
    assert iterator.epoch == 2


def iter_at(dataset, epoch, step):
    iterator = DataLoader(dataset, engine="inline").epoch(epoch)
    for _ in range(step):
        next(iterator)
    return iterator


def test_hosts_count_alike():
    dataset = arrays(16).shuffle(1).batch(4)
    hosts = [DataLoader(dataset, shard=(host, 2), engine="inline") for host in range(2)]
    whole = [batch["x"].tolist() for batch in dataset.repeat(2)]
    parts = [[b["x"].tolist() for b in passes(host, 2)] for host in hosts]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize("make", [lambda: arrays(9).shuffle(1).batch(4), lambda: small()])
@pytest.mark.parametrize("copied", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_loader_counts_for_itself(make, copied):
    dataset = make()
    loader = DataLoader(dataset, engine="inline")
    list(loader)
    other = copied(loader)
    assert iter(other).epoch == 0
    list(other)
    assert (iter(loader).epoch, iter(other).epoch) == (1, 1)


def is_small(record):
    return record["x"] < 7


def small():
    return arrays(10).filter(is_small).batch(2)


def test_a_part_that_changes_from_pass_to_pass_is_warned_of():
    loader = DataLoader(Dataset.range(10).shuffle(1).take(5).batch(2), engine="inline")
    list(loader)
    with pytest.warns(LoaderxWarning, match="draws a new order in every epoch"):
        iter(loader)
