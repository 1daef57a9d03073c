"""Records of steps and steps of records, where records are removed or steps are skipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import chains
from loaderx import ArgumentError, ChainError, DataLoader, Dataset
from removing import without_values

LENGTH = 30


def chain(removed, fill):
    records = Dataset.from_arrays(x=np.arange(100, 100 + LENGTH)).without(removed, fill=fill)
    return records.shuffle(seed=3).repeat(3).batch(4)


@given(
    st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=LENGTH - 1, unique=True),
    st.sampled_from(["replace", "mask"]),
)
def test_records_are_those_of_the_batch(removed, fill):
    batches = chain(removed, fill)
    expected = {}
    for step, batch in enumerate(batches):
        found = batches.records(step)
        rows = np.flatnonzero(batch.get("mask", np.ones(len(batch["x"]), bool)))
        assert found.row.tolist() == rows.tolist()
        assert (found.index + 100).tolist() == batch["x"][rows].tolist()
        assert not set(found.index.tolist()) & set(removed)
        for index in found.index.tolist():
            expected.setdefault(index, []).append(step)
    for index in range(LENGTH):
        assert list(batches.steps_of(index)) == sorted({*expected.get(index, [])})


def assert_steps_are_those_of_the_records(dataset):
    expected = {}
    for step in range(len(dataset)):
        records = dataset.records(step)
        for key in {*zip(records.part.tolist(), records.index.tolist(), strict=True)}:
            expected.setdefault(key, []).append(step)
    for part, index in [*expected][:12]:
        assert dataset.steps_of(index, part=part).tolist() == expected[part, index]
    for part in {part for part, _ in expected}:
        several = {index: steps for (name, index), steps in expected.items() if name == part}
        until = len(dataset) // 2
        found = dataset.steps_of([*several], part=part, until=until)
        assert found.tolist() == sorted({*np.concatenate([*several.values()])} & {*range(until)})


DRAWN = {  # draws are read under keys of their own, by which records are replaced
    "records": lambda ds: ds.sample([1] * 6, 12).batch(4),
    "batches": lambda ds: ds.batch(2).sample([1] * 3, 9),
    "rows of batches": lambda ds: ds.batch(2).sample([1] * 3, 9).unbatch(),
    "slices of rows": lambda ds: ds.batch(3).sample([1] * 2, 9).skip(1).shuffle().unbatch()[::3],
    "epochs": lambda ds: ds.sample([1] * 6, 12).batch(4).repeat(3).shuffle(),
    "repeats": lambda ds: ds.repeat(2).sample([1] * 12, 12).batch(4).repeat(2),
    "chosen records": lambda ds: ds[[0, 1, 1, 4, 4]].sample([1] * 5, 20).batch(3),
    "joins": lambda ds: (
        Dataset.mix({"a": ds, "b": Dataset.range(6).without([2])}, [1, 2], stop="repeat")
        .take(9)
        .sample([1] * 9, 30)
        .batch(4)
    ),
}


@pytest.mark.parametrize("fill", ["replace", "mask"])
@pytest.mark.parametrize("name", DRAWN)
def test_draws_of_records_that_are_replaced(name, fill):
    if name != "joins" or fill == "replace":
        ds = Dataset.from_arrays(x=np.arange(6)) if fill == "mask" else Dataset.range(6)
        assert_steps_are_those_of_the_records(DRAWN[name](ds.without([1, 4], fill=fill)))


VALUES = st.sets(st.sampled_from([base + i for base in (0, 1000, 2000, 3000) for i in range(25)]))


@settings(max_examples=100)
@given(chains(), VALUES)
def test_the_steps_of_records_of_any_chain(dataset, values):
    try:
        less = without_values(dataset, values, "replace")
    except (ArgumentError, ChainError) as error:
        assume("removes all" not in str(error))
        assume("the records of a window would not be neighbours" not in str(error))
        raise
    assert_steps_are_those_of_the_records(less)


def test_skipped_steps_keep_their_records_and_have_none_of_the_run():
    batches = Dataset.range(40).shuffle(seed=0).batch(4).repeat(2)
    skipped = batches.skip_steps([(3, 6)])
    plain, loader = DataLoader(batches, engine="inline"), DataLoader(skipped, engine="inline")
    iterator = iter(loader)
    for step in [0, 1, 2, *range(6, 20)]:
        batch = next(iterator)
        assert loader.records(step).index.tolist() == batch.tolist()
        assert plain.records(step).index.tolist() == batch.tolist()
    for index in range(40):
        assert set(loader.steps_of(index)) == set(plain.steps_of(index)) - {3, 4, 5}


def test_a_dataset_counts_what_comes():
    batches = Dataset.range(40).shuffle(seed=0).batch(4).skip_steps([(3, 6)])
    for number, batch in enumerate(batches):
        assert batches.records(number).index.tolist() == batch.tolist()
        assert all(number in batches.steps_of(index) for index in batch.tolist())


def test_streams_with_skipped_steps():
    stream = Dataset.range(60).filter(lambda x: x % 3 > 0).batch(4)
    loader = DataLoader(stream.skip_steps([(3, 6)]), engine="inline")
    steps = [0, 1, 2, *range(6, 10)]
    for step, batch in zip(steps, loader, strict=True):
        assert loader.records(step).index.tolist() == batch.tolist()
    assert loader.steps_of(20).tolist() == []  # it was in step 3
    assert DataLoader(stream, engine="inline").steps_of(20).tolist() == [3]


def test_a_skipped_step_has_no_records():
    batches = Dataset.range(40).batch(4).skip_steps([(3, 6)])
    with pytest.raises(ValueError, match="step 4 is skipped: it has no records"):
        DataLoader(batches).records(4)
