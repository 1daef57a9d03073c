"""How many of the records that were removed since a state was saved had come before its step."""

from __future__ import annotations

import re
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, quietly
from inside import node_of
from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.loader import came_before as module

LENGTH = 12


def other():
    return arrays(5, 2000)


# Of a function that removes records of a dataset of 12.
CHAINS = {
    "epochs": lambda less: less(arrays(LENGTH)).shuffle(1).batch(4).repeat(),
    "records": lambda less: less(arrays(LENGTH)).shuffle(1).repeat(3),
    "batches": lambda less: less(arrays(LENGTH)).batch(5).shuffle(0),
    "draws": lambda less: less(arrays(LENGTH)).sample(np.ones(LENGTH), 20).batch(4).repeat(),
    "slices below": lambda less: less(arrays(40)[3::3][::-1].take(LENGTH)).shuffle(1).batch(4),
    "joins below": lambda less: less(Dataset.concatenate([arrays(7), other()])).shuffle().batch(3),
    "cache": lambda less: less(arrays(LENGTH)).cache().shuffle(1).batch(4).repeat(),
    "zip": lambda less: Dataset.zip({"a": less(arrays(LENGTH)), "b": arrays(LENGTH, 2000)}).batch(
        2
    ),
    "mix": lambda less: Dataset.mix(
        [other().shuffle(), less(arrays(LENGTH)).shuffle(), less(arrays(LENGTH, 1000))],
        [2, 3, 1],
        stop="repeat",
    ).batch(4),
    "mix of mixes": lambda less: quietly(
        Dataset.mix([other(), Dataset.mix([other(), less(arrays(LENGTH))], [1, 2])], [1, 1])
        .batch(3)
        .shuffle()
        .repeat,
        4,
    ),
}


def removing(ids, fill, found):
    """A function that removes records, and adds their values to ``found``."""

    def less(dataset):
        found.update(int(dataset[number]["x"]) for number in ids)
        return dataset.without(ids, fill=fill) if ids else dataset

    return less


@settings(max_examples=200)
@given(
    st.sampled_from([*CHAINS]),
    st.permutations(range(LENGTH)),
    st.integers(0, 5),
    st.integers(1, 6),
    st.integers(0, 14),
    st.sampled_from(["replace", "mask"]),
)
def test_they_are_those_in_earlier_steps(name, numbers, known, more, step, fill):
    if name.startswith(("mix", "zip", "joins")):
        fill = "replace"
    before, removed = set(), set()
    old = CHAINS[name](removing(numbers[:known], fill, before))
    new = CHAINS[name](removing(numbers[: known + more], fill, removed))
    was, now = (iter(DataLoader(each, engine="inline")) for each in (old, new))
    was.seek(step := min(step, node_of(new).length or 14))
    loader = DataLoader(old, engine="inline")
    read = [record for each in range(step) for record in loader.records(each).read()]
    came = {int(record["x"]) for record in read} & (removed - before)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        now.set_state(was.get_state())
    texts = [str(one.message) for one in caught if "removed" in str(one.message)]
    assert len(texts) == (step > 0)
    for text in texts:
        assert re.fullmatch(
            f"{len(removed - before)} of the records of this chain were removed since the state "
            f"was saved, and do not come again: {len(came)} of them had come before its step "
            rf"{step}\.",
            text,
        )


def warned(old, new, step):
    was, now = (iter(DataLoader(each, engine="inline")) for each in (old, new))
    was.seek(step)
    with pytest.warns(LoaderxWarning) as caught:
        now.set_state(was.get_state())
    (warning,) = caught
    return str(warning.message)


def test_skipped_steps_had_none():
    def chain(ids):
        return Dataset.range(40).without(ids).batch(4).skip_steps([(2, 4)])

    text = warned(chain([]), chain([0, 9, 12, 17, 30]), 6)
    assert text.endswith("2 of them had come before its step 6.")


MAY = "they may have come before its step"


def test_far_states_of_large_datasets():
    def chain(ids):
        return Dataset.range(10**9).without(ids).shuffle(0).batch(1000).repeat()

    ids = np.arange(0, 10**9, 10**6)
    text = warned(chain(ids[:10]), chain(ids), 2 * 10**6)
    assert "990 of the records" in text
    assert "990 of them had come before its step 2000000." in text
    half = int(re.search(r"again: (\d+) of", warned(chain([]), chain(ids), 500_000))[1])
    assert 400 < half < 600
    with mock.patch.object(module, "IndexPlan", side_effect=AssertionError):
        assert MAY in warned(chain([]), chain(ids), 10**10)
        assert MAY in warned(chain([]), chain(np.arange(10**6)), 5 * 10**6)


def test_draws_are_looked_at_one_by_one_so_not_millions():
    def chain(ids):
        source = Dataset.range(100).without(ids)
        return source.sample(np.ones(100), 10**9).batch(1000)

    with mock.patch.object(module, "IndexPlan", side_effect=AssertionError):
        assert MAY in warned(chain([]), chain([3]), 1)


def test_so_are_epochs():
    def chain(ids):
        return Dataset.range(10).without(ids).shuffle().batch(5).repeat()

    assert "1 of them had" in warned(chain([2]), chain([2, 3]), 500)
    with mock.patch.object(module, "IndexPlan", side_effect=AssertionError):
        assert MAY in warned(chain([2]), chain([2, 3]), 5000)
