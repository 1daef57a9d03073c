"""What each stage does to a record: the way from its source to its step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import chains, quietly
from loaderx import ChainError, DataLoader, Dataset, PositionError
from loaderx.engines import Inline
from loaderx.tree import flatten
from loaderx.viewer.looking import steps_of


def same(one, other):
    (leaves, structure), (others, other_structure) = flatten(one), flatten(other)
    assert structure is other_structure
    for a, b in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def row_of(element, row, is_batched):
    return {path: leaf[row] for path, leaf in element.items()} if is_batched else element


@settings(max_examples=150)
@given(chains(), st.data())
def test_the_way_begins_at_the_source_and_ends_in_the_element(dataset, data):
    steps = steps_of(DataLoader(dataset, engine=Inline()))
    epochs = [list(quietly(steps.loader.epoch, epoch)) for epoch in (0, 1)]
    if not epochs[0]:
        return
    epoch, number = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(epochs[0]) - 1))
    step = epoch * len(epochs[0]) + number
    for place, (record, row) in enumerate(
        zip(steps.records(step).read(), steps.records(step).row.tolist(), strict=True)
    ):
        made = [one for one in steps.stages(step, place) if one.read is not None]
        same(made[0].read(), record)
        same(made[-1].read(), row_of(epochs[epoch][number], row, steps.node.batched))


def test_every_stage_is_named_with_its_place():
    dataset = Dataset.range(12).skip(2).map(lambda x: x * 2).shuffle(seed=0).batch(2).skip(1)
    steps = steps_of(DataLoader(dataset, engine=Inline()))
    index = int(steps.records(1).index[1])
    found = [(one.stage, one.position) for one in steps.stages(1, 1)]
    assert [stage for stage, _ in found] == [
        "source", "skip(2)", "map(<lambda>)", "shuffle(seed=0)", "batch(2)", "skip(1)", "repeat()",
    ]  # fmt: skip
    assert [place for _, place in found] == [index, index - 2, index - 2, 5, 2, 1, 1]


def test_random_numbers_are_those_of_the_epoch():
    dataset = Dataset.range(6).shuffle(seed=0).random_map(lambda x, rng: (x, rng.random())).batch(2)
    steps = steps_of(DataLoader(dataset, engine=Inline()))
    for step in range(6):
        (x, drawn) = steps.element(step)
        for row in range(2):
            same(steps.stages(step, row)[-2].read(), (x[row], drawn[row]))


def test_a_stage_that_fails_is_the_only_one():
    dataset = Dataset.range(4).map(lambda x: 1 // int(x - 2)).on_error("replace").batch(4)
    made = {
        one.stage: one.read for one in steps_of(DataLoader(dataset, engine=Inline())).stages(0, 2)
    }
    assert made["source"]() == 2
    with pytest.raises(Exception, match="ZeroDivisionError"):
        made["map(<lambda>)"]()
    assert made["batch(4)"]() in (-1, 1)  # another record took its place


def test_a_zip_has_the_way_of_each_part():
    dataset = Dataset.zip(
        {"a": Dataset.range(9).shuffle(1), "b": Dataset.range(9).map(lambda x: -x)}
    )
    steps = steps_of(DataLoader(dataset.batch(3), engine=Inline()))
    found = steps.records(1)
    for place, part in enumerate(found.part):
        stages = [one.stage for one in steps.stages(1, place)]
        assert ("shuffle(seed=1)" in stages) == (part == "a")
        assert ("map(<lambda>)" in stages) == (part == "b")


def test_what_is_not_known():
    steps = steps_of(DataLoader(Dataset.range(9).batch(2), engine=Inline()))
    with pytest.raises(PositionError, match="step 1 has no record 2"):
        steps.stages(1, 2)
    stream = steps_of(DataLoader(Dataset.range(9).filter(bool).batch(2), engine=Inline()))
    with pytest.raises(ChainError, match="the stages of a stream make many records at once"):
        stream.stages(1, 0)
