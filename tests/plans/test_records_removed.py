"""Records of steps and steps of records, where records are removed or steps are skipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import DataLoader, Dataset

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
