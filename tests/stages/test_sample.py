"""`sample`: draws by weight, with replacement."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chains import arrays, ids, objects
from inside import node_of
from loaderx import ArgumentError, ChainError, DataLoader, Dataset, StateError
from streams import STREAM

WEIGHTS = np.array([0, 1, 2, 3, 4, 0, 0, 5])


def numbers(dataset):
    return [int(x) for x in dataset]


def test_elements_come_as_often_as_their_weights_say():
    found = np.bincount(numbers(Dataset.range(8).sample(WEIGHTS, 15_000, seed=1)), minlength=8)
    expected = WEIGHTS * 1000
    assert np.all(found[WEIGHTS == 0] == 0)
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected))


def test_every_epoch_has_new_draws():
    drawn = Dataset.range(1000).sample(np.ones(1000), seed=4)
    two = numbers(drawn.repeat(2))
    assert two[:1000] == numbers(drawn)
    assert two[1000:] != two[:1000]
    loader = DataLoader(drawn)
    assert [int(x) for x in loader.epoch(1)] == two[1000:]


def test_the_length_is_n():
    assert len(Dataset.range(5).sample(np.ones(5))) == 5
    assert len(Dataset.range(5).sample(np.ones(5), 1000)) == 1000
    assert len(numbers(Dataset.range(5).sample(np.ones(5), 3))) == 3


def test_seeds():
    def first(**options):
        return numbers(Dataset.range(50).sample(np.ones(50), **options))

    assert first() == first(seed=0) != first(seed=1)
    assert numbers(Dataset.range(50).sample(np.ones(50)).seed(1)) == first(seed=1)


def test_draws_do_not_depend_on_how_many_are_drawn():
    some = Dataset.range(9).sample(np.ones(9), 20)
    assert numbers(some) == numbers(Dataset.range(9).sample(np.ones(9), 500))[:20]


def test_weights_have_no_unit():
    for factor in (2, 0.5, 1 / 15, 0.1, 1e300, 1e-300):
        assert numbers(Dataset.range(8).sample(WEIGHTS * factor)) == numbers(
            Dataset.range(8).sample(WEIGHTS)
        )


def test_a_record_that_comes_again_has_random_numbers_of_its_own():
    drawn = arrays(3).sample([1, 1, 0], 100).random_map(lambda record, rng: rng.random())
    assert len(set(drawn.repeat(2))) == 200


def test_batches_are_drawn_as_a_whole():
    batches = arrays(10).batch(4).sample([1, 1, 5], 6)
    assert {len(batch["x"]) for batch in batches} == {4, 2}
    full = arrays(10).batch(4).sample([1, 1, 0], 6)
    assert node_of(full).uniform
    assert {len(batch["x"]) for batch in full} == {4}


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_engines_and_states(engine):
    chain = objects(20).sample(np.arange(20), 64, seed=2).batch(4).repeat()
    expected = [batch["x"].tolist() for batch in chain.take(40)]
    with DataLoader(chain, engine=engine, num_workers=1) as loader:
        iterator = iter(loader)
        assert [next(iterator)["x"].tolist() for _ in range(20)] == expected[:20]
        state = json.loads(json.dumps(iterator.get_state()))
        other = iter(loader)
        other.set_state(state)
        assert [next(other)["x"].tolist() for _ in range(20)] == expected[20:]


def test_hosts_take_their_rows():
    chain = arrays(20).sample(np.arange(20), 64).batch(8)
    whole = np.concatenate([batch["x"] for batch in DataLoader(chain)])
    parts = [[b["x"] for b in DataLoader(chain, shard=(host, 2))] for host in range(2)]
    assert np.array_equal(whole, np.concatenate([x for pair in zip(*parts) for x in pair]))


def test_a_state_of_other_weights_is_refused():
    state = iter(DataLoader(arrays(8).sample(WEIGHTS).batch(2))).get_state()
    iter(DataLoader(arrays(8).sample(WEIGHTS * 3).batch(2))).set_state(state)
    with pytest.raises(StateError, match="weights"):
        iter(DataLoader(arrays(8).sample(WEIGHTS + 1).batch(2))).set_state(state)


def test_a_failed_record_is_replaced_by_another_draw():
    def fails(record):
        if record["x"] == 2:
            raise ValueError("two")
        return record

    drawn = arrays(4).map(fails).sample([0, 1, 1, 1], 200).on_error("replace")
    assert set(ids(drawn)) == {1, 3}


def test_it_may_stand_below_a_stream():
    drawn = Dataset.range(100).sample(np.arange(100) % 2)
    assert all(x % 2 for x in numbers(drawn.filter(lambda x: x > 50)))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"one number for each of the 5 elements, got an array of shape \(2,\)"),
        (np.ones((5, 1)), r"got an array of shape \(5, 1\)"),
        (3, r"got 3\. For n different elements without weights write ds\.shuffle"),
        ([1, 2, 3, -4, 5], r"finite and not negative, got -4\.0 for element 3"),
        ([1, np.nan, 3, 4, 5], "got nan for element 1"),
        ([1, 2, np.inf, 4, 5], "got inf for element 2"),
        (np.zeros(5), "`weights` are all 0"),
        (["a"] * 5, "must be an array of numbers"),
        (None, "must have one number for each|finite"),
    ],
)
def test_weights_are_checked(weights, message):
    with pytest.raises((ArgumentError, TypeError), match=message):
        Dataset.range(5).sample(weights)


def test_where_it_cannot_stand():
    with pytest.raises(ChainError, match="sample of a stream"):
        STREAM.sample([1])
    with pytest.raises(ChainError, match=r"before \.repeat"):
        Dataset.range(5).repeat().sample(np.ones(5))
    with pytest.raises(ChainError, match=r"sample after \.shuffle\(\): weights belong"):
        Dataset.range(5).shuffle().sample(np.ones(5))
    with pytest.raises(ChainError, match=r"sample after \.sample\(weights\)"):
        Dataset.range(5).sample(np.ones(5)).sample(np.ones(5))
    with pytest.raises(ChainError, match=r"split after \.sample"):
        Dataset.range(5).sample(np.ones(5)).split(0.5, 0.5)
    with pytest.raises(ArgumentError, match="`n` must be at least 1"):
        Dataset.range(5).sample(np.ones(5), 0)


def test_its_text():
    assert ".sample(weights)" in repr(Dataset.range(5).sample(np.ones(5)))
    assert ".sample(weights, 9, seed=2)" in repr(Dataset.range(5).sample(np.ones(5), 9, seed=2))
