"""Hugging Face datasets: slices in place of lists of indices, with the same results."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inside import source_of
from loaderx import Dataset, StackError
from oracle import assert_same, stack

pytestmark = pytest.mark.foreign

N = 60
COLUMNS = {
    "text": [f"record {i}" for i in range(N)],
    "number": list(range(N)),
    "vector": [[i, i + 0.5] for i in range(N)],
    "ragged": [list(range(i % 4)) for i in range(N)],
    "nested": [{"a": i, "b": [str(i)]} for i in range(N)],
    "missing": [None if i % 3 else i for i in range(N)],
}


@pytest.fixture(scope="module")
def sets():
    plain = datasets.Dataset.from_dict(COLUMNS)
    simple = plain.select_columns(["text", "number", "vector"])
    features = datasets.Features(
        {
            "file": datasets.Value("binary"),
            "pixels": datasets.Array2D((2, 3), "uint8"),
            "label": datasets.ClassLabel(2),
        }
    )
    pictures = {
        "file": [bytes([i, i]) for i in range(N)],
        "pixels": [np.full((2, 3), i, np.uint8) for i in range(N)],
        "label": [i % 2 for i in range(N)],
    }
    return {
        "plain": plain,
        "numpy": plain.with_format("numpy"),
        "some columns": plain.with_format("numpy", columns=["number", "vector"]),
        "all columns": plain.with_format("numpy", columns=["number"], output_all_columns=True),
        "pandas": simple.with_format("pandas"),
        "transform": simple.with_transform(lambda b: {"n": [2 * n for n in b["number"]]}),
        "shuffled": simple.shuffle(seed=1),
        "selected": plain.select(range(0, N, 2)),
        "joined": datasets.concatenate_datasets([simple.take(20), simple.skip(20)]),
        "features": datasets.Dataset.from_dict(pictures, features=features),
        "features, numpy": datasets.Dataset.from_dict(pictures, features=features).with_format(
            "numpy"
        ),
    }


NAMES = [
    "plain", "numpy", "some columns", "all columns", "pandas", "transform", "shuffled", "selected",
    "joined", "features", "features, numpy",
]  # fmt: skip


def same(one, other):
    """The same values of the same types, containers included."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        for a, b in zip(one.ravel(), other.ravel(), strict=True):
            same(a, b)
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, (float, np.floating)) and np.isnan(one):
        assert np.isnan(other)
    else:
        assert one == other


@pytest.mark.parametrize("name", NAMES)
@given(runs=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), min_size=1, max_size=3))
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_slices_give_what_indices_give(sets, name, runs):
    data = sets[name]
    indices = [i for start, count in runs for i in range(start, min(start + count, len(data)))]
    found = source_of(Dataset.from_source(data)).records(np.array(indices))
    expected = data.__getitems__(indices)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, dict(other))


@pytest.mark.parametrize("name", ["shuffled", "joined", "transform"])
def test_batches(sets, name):
    data = sets[name]
    records = data.__getitems__(list(range(N)))
    expected = [stack(records[i : i + 16]) for i in range(0, N, 16)]
    assert_same(Dataset.from_source(data).batch(16), expected)
    mixed = Dataset.from_source(data).shuffle(3)
    assert_same(mixed.batch(16), [stack(list(mixed)[i : i + 16]) for i in range(0, N, 16)])


class Counting(datasets.Dataset):
    """Remembers what it was asked for, below `__getitem__`."""

    asked: list

    def _getitem(self, key, **options):
        self.asked.append(key)
        return super()._getitem(key, **options)


class Other(datasets.Dataset):
    """Has a mind of its own about slices."""

    def __getitem__(self, key):
        if isinstance(key, slice):
            raise AssertionError("a slice")
        return super().__getitem__(key)


def of(kind):
    plain = datasets.Dataset.from_dict({"x": list(range(N))})
    return kind(plain.data, info=plain.info, split=plain.split, fingerprint="f")


def test_what_is_asked_for():
    data = of(Counting)
    data.asked = asked = []
    dataset = Dataset.from_source(data)
    asked.clear()
    assert [len(b["x"]) for b in dataset.batch(25)] == [25, 25, 10]
    assert asked == [slice(0, 25), slice(25, 50), slice(50, 60)]
    asked.clear()
    list(dataset.repeat(2).batch(40, drop_remainder=True))
    assert asked == [slice(0, 40), [*range(40, 60), *range(20)], slice(20, 60)]
    asked.clear()
    list(dataset.shuffle(0).batch(30))
    assert [type(key) for key in asked] == [list, list]
    asked.clear()
    assert int(dataset[7]["x"]) == 7
    assert asked == [slice(7, 8)]


def test_a_class_with_its_own_indexing_is_asked_as_before():
    assert [len(b["x"]) for b in Dataset.from_source(of(Other)).batch(40)] == [40, 20]


def test_none_is_reported_as_before(sets):
    with pytest.raises(StackError, match="record 1"):
        list(Dataset.from_source(sets["plain"].select_columns(["missing"])).batch(4))
