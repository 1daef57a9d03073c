"""`from_iterable`: records that are read in order."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import stream_oracle
from loaderx import DataLoader, Dataset, RecordError, StateError
from oracle import assert_same
from streams import even, head


def shard_up(shard, count):
    yield from range(shard, 40, count)


class Stateful:
    """As torch's and Hugging Face's are: the iterable itself saves and loads."""

    def __init__(self, n=30):
        self.n, self.at, self.read = n, 0, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            self.read += 1
            yield np.int64(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Cursor:
    """As Grain's are: the iterator gets and sets."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= 30:
            raise StopIteration
        self.at += 1
        return np.int64(self.at - 1)

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore:.*what stands above from_iterable runs in the caller")
@pytest.mark.parametrize("make", [lambda: iter(range(30)), Stateful, Cursor, lambda: range(30)])
@pytest.mark.parametrize(
    "stages",
    [
        lambda d: d,
        lambda d: d.filter(even),
        lambda d: d.shuffle(1, window=7),
        lambda d: d.flat_map(lambda x: [x, x + 100]).shuffle(window=4).filter(even),
        lambda d: d.map(lambda x: x * 2).repeat(2),
        lambda d: d.random_map(lambda x, rng: x + rng.random()),
    ],
)
def test_iterables_resume_at_every_step(make, stages):
    dataset = stages(Dataset.from_iterable(make)).batch(4)
    expected = list(dataset)
    assert_same(expected, list(stream_oracle.elements(dataset)))
    iterator = iter(DataLoader(dataset))
    for step in range(len(expected) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        fresh = iter(DataLoader(dataset, engine="threads"))
        fresh.set_state(state)
        assert_same(list(fresh), expected[step:])
        again = iter(DataLoader(dataset))
        again.set_state(state)
        again.set_state(json.loads(json.dumps(again.get_state())))
        assert_same(list(again), expected[step:])
        next(iterator, None)


def test_an_iterable_with_a_state_is_not_read_again():
    made = []

    def make():
        made.append(Stateful())
        return made[-1]

    dataset = Dataset.from_iterable(make).batch(5)
    iterator = iter(DataLoader(dataset))
    head(iterator, 4)
    fresh = iter(DataLoader(dataset))
    fresh.set_state(iterator.get_state())
    assert [b.tolist() for b in fresh] == [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]
    assert made[-1].read == 10


class Kept(Stateful):
    """As Hugging Face's are: what was loaded is where every pass begins from then on."""

    begin = 0

    def __iter__(self):
        self.at = self.begin
        return super().__iter__()

    def load_state_dict(self, state):
        self.begin = state["at"]


@pytest.mark.parametrize("make", [Stateful, Kept])
def test_an_object_with_a_state_begins_where_it_was_given(make):
    """Whoever reads it for the second time loads the state that it had before the first."""
    dataset = Dataset.from_iterable(make()).repeat(2).batch(4)
    expected = list(DataLoader(Dataset.from_iterable(make).repeat(2).batch(4)))
    iterator = iter(DataLoader(dataset))
    for step in range(len(expected) + 1):
        iterator.seek(0)
        assert_same([next(iterator) for _ in range(step)], expected[:step])
        iterator.set_state(iterator.get_state())
        iterator.set_state(json.loads(json.dumps(iterator.get_state())))
        assert_same(list(iterator), expected[step:])
    head(DataLoader(dataset), 1)
    assert_same(list(DataLoader(dataset)), expected)


def test_an_iterable_that_is_shorter_now():
    length = 20
    dataset = Dataset.from_iterable(lambda: range(length)).batch(5)
    iterator = iter(DataLoader(dataset))
    head(iterator, 3)
    state, length = iterator.get_state(), 10
    with pytest.raises(
        StateError, match="taken after 15 records, but now the iterable ends after 10"
    ):
        fresh = iter(DataLoader(dataset))
        fresh.set_state(state)
        next(fresh)


def test_endless_iterables():
    dataset = Dataset.from_iterable(itertools.count).filter(even).batch(3)
    assert [b.tolist() for b in head(dataset, 2)] == [[0, 2, 4], [6, 8, 10]]


def test_an_iterable_is_read_no_further_than_needed():
    read = []

    def source():
        for i in range(100):
            read.append(i)
            yield i

    iterator = iter(DataLoader(Dataset.from_iterable(source).batch(4)))
    next(iterator)
    assert len(read) == 4


def test_a_stage_above_an_iterable_names_the_record():
    def picky(x):
        if x == 30:
            raise ValueError("thirty")
        return x

    for stream in (
        Dataset.from_iterable(lambda: range(50)).map(picky),
        Dataset.from_iterable(lambda: range(50)).shuffle(window=8).map(picky),
    ):
        with pytest.raises(RecordError, match=r"map\(picky\) failed on record 30: ") as caught:
            list(DataLoader(stream.batch(4)))
        assert caught.value.index == 30


def test_parts_of_an_iterable_on_hosts():
    dataset = Dataset.from_iterable(shard_up).repeat().batch(8, lanes=4)
    whole = [b.tolist() for b in head(dataset, 4)]
    assert whole[0] == [0, 4, 1, 5, 2, 6, 3, 7]
    hosts = [iter(DataLoader(dataset, shard=(h, 2))) for h in range(2)]
    assert [[x for h in hosts for x in next(h).tolist()] for _ in range(4)] == whole


@pytest.mark.filterwarnings("ignore:.*what stands above from_iterable runs in the caller")
def test_a_failing_iterable():
    def broken():
        yield from (1, 2)
        raise OSError("the network is gone")

    message = r"step 1: Dataset.from_iterable\(broken\) failed on record 2: OSError: the network is"
    for engine in ("inline", "threads"):
        iterator = iter(DataLoader(Dataset.from_iterable(broken).batch(2), engine=engine))
        assert next(iterator).tolist() == [1, 2]
        for _ in range(2):  # it goes on where it was, and fails again
            with pytest.raises(RecordError, match=message) as caught:
                next(iterator)
            assert (caught.value.index, caught.value.step) == (2, 1)
            assert isinstance(caught.value.__cause__, OSError)

    def closed():
        raise OSError("no such host")

    with pytest.raises(
        RecordError, match=r"\(closed\) failed when it was opened: OSError: no such"
    ):
        list(Dataset.from_iterable(closed))


def test_an_iterable_that_failed_and_is_healthy_again():
    healthy = False

    def broken():
        yield from range(5)
        if not healthy:
            raise OSError("the network is gone")
        yield from range(5, 8)

    iterator = iter(DataLoader(Dataset.from_iterable(broken).batch(2)))
    assert [b.tolist() for b in head(iterator, 2)] == [[0, 1], [2, 3]]
    message = r"step 2: Dataset.from_iterable\(broken\) failed on record 5: OSError: the network is"
    with pytest.raises(RecordError, match=message) as caught:
        next(iterator)
    assert caught.value.index == 5
    assert isinstance(caught.value.__cause__, OSError)
    healthy = True
    assert [b.tolist() for b in iterator] == [[4, 5], [6, 7]]
