"""Stacking as ``np.stack`` does it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from inside import dataset_of, node_of
from loaderx import DataLoader, Dataset, RecordError, StackError
from loaderx.memory import Pool
from loaderx.reading.numpy_rules import NumpyRules
from loaderx.reading.stacking import stack
from loaderx.tree import flatten_all


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class Plain:
    """A dataclass that jax knows nothing of."""

    value: int


def as_numpy(dataset, size):
    """What `loaderx.compat` makes of `batch`."""
    return dataset_of(node_of(dataset.batch(size)).replace(rules="numpy"))


def stacked(records, rules=None):
    return stack(records, Pool().lend, "record {}".format, rules=rules or NumpyRules())


COLUMNS = {
    "ints": [1, 2, -3],
    "floats": [1.0, 2.5, 3.0],
    "bools": [True, False, True],
    "complex": [1j, 2j, 3j],
    "ints and floats": [1, 2.5, 3],
    "bools and ints": [True, 2, 3],
    "large": [1, 2, 2**63],
    "text": ["a", "abc", ""],
    "bytes": [b"a", b"abc", b""],
    "numpy scalars": [np.int16(1), np.int16(2), np.int16(3)],
    "numpy scalars of two types": [np.int16(1), np.float32(2), np.int16(3)],
    "numpy text": [np.str_("ab"), np.str_("c"), np.str_("d")],
    "dates": [np.datetime64("2020"), np.datetime64("2021-05"), np.datetime64("2022")],
    "arrays": [np.arange(6, dtype=np.uint8).reshape(2, 3)] * 3,
    "arrays of two types": [np.zeros(3, np.float32), np.zeros(3, np.float64), np.ones(3, "i2")],
    "arrays without axes": [np.array(1, "i2"), np.array(2, "i2"), np.array(3, "i2")],
    "other byte order": [np.arange(3, dtype=">i4")] * 3,
    "empty arrays": [np.zeros((0, 3))] * 3,
    "objects": [Plain(1), Plain(2), Plain(3)],
    "text and numbers": ["a", 1, 2.5],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_leaf_is_what_np_stack_makes_of_it(name):
    column = COLUMNS[name]
    expected = np.stack(column)
    found = stacked([{"x": value} for value in column])["x"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


def test_lists_and_other_containers_are_structure():
    records = [[1, {"t": ("a", [])}, Pair(None, [1.5])], [2, {"t": ("b", [])}, Pair(None, [2.5])]]
    found = stacked(records)
    assert type(found) is list
    assert found[0].tolist() == [1, 2]
    assert found[1]["t"][0].tolist() == ["a", "b"]
    assert found[1]["t"][1] == []
    assert type(found[2]) is Pair
    assert found[2].a is None
    assert found[2].b[0].tolist() == [1.5, 2.5]


def test_dicts_in_another_order():
    found = stacked([{"a": 1, "b": 2}, {"b": 3, "a": 4}])
    assert {key: leaf.tolist() for key, leaf in found.items()} == {"a": [1, 4], "b": [2, 3]}


def test_classes_that_jax_knows_are_structure():
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, x, y, name):
            self.x, self.y, self.name = x, y, name

        def tree_flatten(self):
            return (self.x, self.y), self.name

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children, name)

    found = stacked([{"n": Node(i, [float(i)], "a")} for i in range(3)])["n"]
    assert (type(found), found.name) == (Node, "a")
    assert found.x.dtype == np.int64
    assert found.x.tolist() == [0, 1, 2]
    assert found.y[0].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(StackError, match="record 1 has the structure"):
        stacked([Node(1, 2, "a"), Node(1, 2, "b")])
    made = jax.tree_util.register_dataclass(
        dataclasses.make_dataclass("Made", ["x", ("name", str)]), ["x"], ["name"]
    )
    both = stacked([made(np.zeros(2), "a"), made(np.ones(2), "a")])
    assert (type(both), both.x.tolist(), both.name) == (made, [[0, 0], [1, 1]], "a")
    leaves, structure = flatten_all(Node(1, Node(2, 3, "in"), "out"))
    again = structure.build(leaves)
    assert (again.name, again.y.name, again.y.y) == ("out", "in", 3)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([[1, 2], [1, 2, 3]], "record 1 has the structure"),
        ([{"x": [1]}, {"x": 1}], "record 1 has the structure"),
        ([np.zeros(2), np.zeros(3)], r"record 1 has shape \(3,\), the others \(2,\)"),
        ([np.zeros(2, "M8[s]"), np.zeros(2, "f4")], "have none in common"),
    ],
)
def test_what_cannot_be_stacked(records, message):
    with pytest.raises(StackError, match=message):
        stacked(records)


def test_exact_rules_change_no_dtype():
    exact = NumpyRules(is_exact=True)
    assert stacked([1, 2], exact).dtype == np.int64
    assert stacked(["ab", "cd"], exact).dtype == "<U2"
    for records in (["a", "abc"], [1, 2.5], [np.float32(1), np.float64(1)]):
        with pytest.raises(StackError, match="has dtype"):
            stacked(records, exact)


def words(count):
    """Records whose text and numbers differ in width and type from batch to batch."""
    return [{"t": "w" * (i % 7), "n": i if i % 5 else i + 0.5, "l": [i, -i]} for i in range(count)]


def expected_batches(records, size):
    for first in range(0, len(records), size):
        rows = records[first : first + size]
        yield {
            "t": np.stack([row["t"] for row in rows]),
            "n": np.stack([row["n"] for row in rows]),
            "l": [np.stack([row["l"][i] for row in rows]) for i in range(2)],
        }


def check_equal(found, expected):
    for name in ("t", "n"):
        assert found[name].dtype == expected[name].dtype
        assert found[name].tolist() == expected[name].tolist()
    assert type(found["l"]) is list
    for one, other in zip(found["l"], expected["l"], strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_batches_of_every_engine(engine, is_stream):
    records = words(83)
    dataset = Dataset.from_source(records)
    if is_stream:
        dataset, records = dataset.filter(lambda r: r["n"] % 3 > 0), words(83)
        records = [record for record in records if record["n"] % 3 > 0]
    batches = as_numpy(dataset, 4)
    workers = None if engine == "inline" else 2
    with DataLoader(batches, engine=engine, num_workers=workers) as loader:
        found = list(loader)
    expected = list(expected_batches(records, 4))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        check_equal(one, other)


@pytest.mark.parametrize("is_stream", [False, True])
def test_buffers_are_aligned_and_used_again(is_stream):
    dataset = Dataset.from_source([[i, float(i)] for i in range(400)])
    if is_stream:
        dataset = dataset.filter(lambda r: True)
    seen = set()
    for batch in DataLoader(as_numpy(dataset, 4), engine="inline"):
        places = [leaf.ctypes.data for leaf in batch]
        assert [place % 64 for place in places] == [0, 0]
        seen.add(places[0])
        del batch
    assert len(seen) < 10  # of 100


def test_a_batch_of_a_worker_lies_in_shared_memory():
    dataset = as_numpy(Dataset.from_source([[i, float(i)] for i in range(40)]), 4)
    with DataLoader(dataset, engine="processes", num_workers=1) as loader:
        batch = next(iter(loader))
        root = batch[0]
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        assert not isinstance(root, np.ndarray)  # a map of the file of slots
        assert np.shares_memory(batch[0], batch[0].base)


def test_the_rules_are_part_of_the_chain():
    dataset = Dataset.range(8)
    own, other = dataset.batch(4), as_numpy(dataset, 4)
    assert repr(other).count("batch(4, rules='numpy')") == 1
    state = iter(DataLoader(other)).get_state()
    assert state["chain"][-1] == "batch(size=4, rules='numpy')"
    assert iter(DataLoader(own)).get_state()["chain"][-1] == "batch(size=4)"


def test_a_record_that_does_not_fit_is_named():
    dataset = as_numpy(Dataset.from_source([[1, 2], [1, 2, 3]]), 2)
    with pytest.raises((StackError, RecordError), match="record 1 has the structure"):
        next(iter(DataLoader(dataset, engine="inline")))
