"""A state knows a few records of its data, and warns if they are others."""

from __future__ import annotations

import json
import os
import signal
import warnings
from itertools import islice

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning, merge_states

OTHERS = "the state was saved with other data: Dataset"


def even(record):
    return record["x"] % 2 == 0


def numbers(start=0, n=100):
    return Dataset.from_arrays(x=np.arange(start, start + n))


def state_of(dataset, steps=2, **how):
    with DataLoader(dataset, engine="inline", **how) as loader:
        iterator = iter(loader)
        for _ in islice(iterator, steps):
            pass
        return json.loads(json.dumps(iterator.get_state()))


def warned(state, dataset, *, strict=True):
    """The warnings of a state that is set, and the steps after which it goes on."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        iterator = iter(DataLoader(dataset, engine="inline"))
        iterator.set_state(state, strict=strict)
    assert iterator.step == state["step"]
    return [str(one.message) for one in said]


CHAINS = {
    "chain": lambda start: numbers(start).shuffle(0).batch(4),
    "stream": lambda start: numbers(start).filter(even).repeat().batch(4),
    "cache": lambda start: numbers(start).cache().batch(4),
    "zip": lambda start: Dataset.zip((numbers(), numbers(start))).batch(4),
    "mix": lambda start: Dataset.mix([numbers(), numbers(start).map(dict)]).batch(4),
    "list": lambda start: Dataset.from_source([{"x": start + i} for i in range(100)]).batch(4),
    "range": lambda start: Dataset.range(start, start + 100).batch(4),
}


@pytest.mark.parametrize("name", CHAINS)
def test_other_records_are_warned_of(name):
    make = CHAINS[name]
    state = state_of(make(0))
    assert warned(state, make(0)) == []
    (said,) = warned(state, make(7))
    assert said.startswith(OTHERS)
    assert said.endswith("The stream goes on at the same place in the new ones.")


def test_rewritten_files_are_noticed(tmp_path):
    for name, word in [("a", "first"), ("b", "other")]:
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"text": "{word} {i}"}}\n' for i in range(50))
        )
        Dataset.from_arrays(x=np.full(50, len(name + word) + ord(name))).save(tmp_path / name)
    for form in ("{}.jsonl", "{}"):
        first, second = (Dataset.open(tmp_path / form.format(name)).batch(5) for name in "ab")
        state = state_of(first)
        assert warned(state, first) == []
        assert OTHERS in warned(state, second)[0]


def test_the_same_records_in_another_form_are_the_same(tmp_path):
    dataset = numbers()
    dataset.save(tmp_path / "saved")
    state = state_of(dataset.batch(4))
    assert warned(state, Dataset.open(tmp_path / "saved").batch(4)) == []
    assert warned(state, dataset.cache(tmp_path / "kept").batch(4)) == []


def test_only_the_sources_that_differ_are_named():
    def make(second):
        return Dataset.zip((numbers(n=9), Dataset.range(second, second + 9))).batch(4)

    (said,) = warned(state_of(make(0)), make(5))
    assert "other data: Dataset.range(5, 14) (source 1) had other records, of the same" in said


def test_a_state_without_digests_is_accepted():
    state = state_of(numbers().batch(4))
    assert state["data"] == ["#2eeb7fb3"]
    del state["data"]
    assert warned(state, numbers(7).batch(4)) == []


@pytest.mark.parametrize("data", [None, 3, "#00000000", {}, [], [3], [[1]], [None], ["a", "b"]])
def test_damaged_digests_are_left_out(data):
    state = {**state_of(numbers().batch(4)), "data": data}
    assert warned(state, numbers().batch(4)) == []


def test_another_batch_size_and_other_data():
    state = state_of(numbers().batch(4))
    iterator = iter(DataLoader(numbers(7).batch(2), engine="inline"))
    with pytest.warns(LoaderxWarning, match="size was 4"), pytest.warns(match=OTHERS):
        iterator.set_state(state, strict=False)


def test_another_number_of_records_is_said_once():
    iterator = iter(DataLoader(numbers(7, 90).batch(4), engine="inline"))
    with pytest.warns(LoaderxWarning) as said:
        iterator.set_state(state_of(numbers().batch(4)), strict=False)
    assert len(said) == 1


class Odd:
    """An object of the user's, of which nothing is known."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.read += 1
        return {"x": index + self.read}


def test_objects_and_iterables_are_not_read():
    source = Odd()
    state = state_of(Dataset.from_source(source).batch(4), steps=0)
    assert source.read == 0
    assert "data" not in state
    assert "data" not in state_of(Dataset.from_iterable([1, 2, 3]).batch(1), steps=0)


def test_records_that_fail_are_no_matter():
    records = [{"x": np.ones(2)}, object(), {"x": 3}] * 9
    assert warned(state_of(Dataset.from_source(records)), Dataset.from_source(records)) == []


def test_many_sources_have_few_digests():
    many = [numbers(start) for start in range(1000)]
    state = state_of(Dataset.concatenate(many).batch(4))
    assert len(state["data"]) == 32


def test_hosts_have_the_same_digests():
    dataset = numbers().batch(4)
    states = [state_of(dataset, shard=(host, 2)) for host in range(2)]
    assert states[0] == states[1]
    assert merge_states(states) == states[0]


@pytest.mark.parametrize("first", [0, 1])
def test_hosts_with_files_of_their_own(first):
    """A state is for all of them, so it says nothing of their data."""
    states = [state_of(numbers(start).batch(4)) for start in (0, 7)]
    merged = merge_states([states[first], states[1 - first]])
    assert "data" not in merged
    assert warned(merged, numbers(7).batch(4)) == []
    older = {key: value for key, value in states[0].items() if key != "data"}
    assert "data" not in merge_states([older, states[0]])


def test_nothing_is_read_while_something_is_read():
    """A lock may be held that reading needs."""
    found = []

    def look(record):
        if not found:
            os.kill(os.getpid(), signal.SIGUSR1)
        return record

    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(iterator.get_state()))
    try:
        iterator = iter(DataLoader(numbers().map(look).batch(4), engine="inline"))
        next(iterator)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "data" not in found[0]
    assert "data" in iterator.get_state()
