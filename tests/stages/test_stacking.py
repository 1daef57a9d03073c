"""Trees, leaves, stacking, padding."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import DataLoader, Dataset, LoaderxError, RecordError, StackError
from loaderx.memory import Pool
from loaderx.reading import stacking
from loaderx.reading.stacking import stack as fast_stack
from loaderx.testing.costing import cost_of
from loaderx.tree import LEAF, as_array, describe, flatten, map_leaves, same_structure
from oracle import assert_same, stack
from streams import everything


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Box:
    a: object
    b: object


def batch_of(records, **options):
    return Dataset.from_source(records).batch(len(records), **options)[0]


leaves = st.sampled_from([1, 2.5, True, np.float32(3), np.arange(3), [1, 2], np.zeros((2, 2))])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, inner),
        st.lists(inner.filter(lambda t: isinstance(t, dict)), min_size=1, max_size=2),
    ),
    max_leaves=5,
)


@given(trees)
def test_flatten_and_build_are_inverse(tree):
    parts, structure = flatten(tree)
    again, same = flatten(structure.build(parts))
    assert same is structure
    assert all(a is b for a, b in zip(parts, again, strict=True))
    assert pickle.loads(pickle.dumps(structure)) is structure
    assert len(structure.paths()) == len(parts)
    assert describe(structure)


@given(trees, st.integers(1, 5))
def test_stacking_is_np_stack(tree, n):
    records = [map_leaves(lambda leaf, i=i: _shift(leaf, i), tree) for i in range(n)]
    assert_same([fast_stack(records, Pool().lend, str)], [stack(records)])


def _shift(leaf, i):
    if isinstance(leaf, list):
        return [value + i for value in leaf]
    return leaf if isinstance(leaf, bool) else leaf + i


def test_leaf_rules():
    assert as_array(3).dtype == np.int32
    assert as_array(3.5).dtype == np.float32
    assert as_array(True).dtype == np.bool_
    assert as_array(1j).dtype == np.complex64
    assert as_array(np.int64(3)).dtype == np.int64
    assert as_array([1, 2]).dtype == np.int32
    assert as_array([1.0, 2]).dtype == np.float32
    assert as_array(np.arange(2.0)).dtype == np.float64
    assert as_array("text").dtype == object
    assert as_array(["a", "long text"]).tolist() == ["a", "long text"]
    assert flatten([1, 2])[1] is LEAF
    assert flatten([np.zeros(2), 1])[1] is not LEAF
    assert flatten({"a": None, "b": 1})[0] == [1]


class Tensor:
    def __array__(self, dtype=None, copy=None):
        return np.arange(4, dtype=np.float32)


def test_anything_with_array_is_a_leaf():
    batch = batch_of([{"t": Tensor()}, {"t": Tensor()}])
    assert batch["t"].shape == (2, 4)
    assert batch["t"].dtype == np.float32


def test_python_numbers_become_what_jax_makes_of_them():
    batch = batch_of([{"i": 1, "f": 1.5, "b": True, "n": np.float64(2)}] * 2)
    kinds = {key: str(value.dtype) for key, value in batch.items()}
    assert kinds == {"i": "int32", "f": "float32", "b": "bool", "n": "float64"}


def test_text_is_never_cut():
    batch = batch_of([{"t": "a", "b": b"x"}, {"t": "a much longer text", "b": b"\x00yz"}])
    assert batch["t"].tolist() == ["a", "a much longer text"]
    assert batch["b"].tolist() == [b"x", b"\x00yz"]
    fixed = Dataset.from_arrays(t=np.array(["a", "longer"])).batch(2)[0]
    assert fixed["t"].tolist() == ["a", "longer"]


def test_none_is_structure():
    assert batch_of([{"x": 1, "m": None}] * 2)["m"] is None


def test_a_record_that_holds_nothing():
    with pytest.raises(StackError, match=r"record 0 is None; did .* forget its `return`"):
        batch_of([None] * 2)
    assert batch_of([{}] * 2) == {}


@pytest.mark.parametrize("dataset", [Dataset.range(4), Dataset.range(4).filter(lambda x: True)])
def test_a_collate_function_without_return(dataset):
    with pytest.raises(RecordError, match=r"collate_fn failed on a run of 4 .*forget its `return`"):
        list(dataset.batch(4, collate_fn=lambda records: None))


def test_keys_may_come_in_another_order():
    batch = batch_of([{"a": 1, "b": 2}, {"b": 20, "a": 10}])
    assert batch["a"].tolist() == [1, 10]
    nested = batch_of([({"a": 1, "b": 2},), ({"b": 20, "a": 10},)])
    assert nested[0]["b"].tolist() == [2, 20]
    assert same_structure({"a": 1}, flatten({"b": 1})[1]) is None


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"image": np.zeros((32, 32))}] * 3 + [{"image": np.zeros((28, 28))}],
            r'cannot stack leaf "image": record 3 has shape \(28, 28\), the others \(32, 32\). '
            r"Resize it in .map\(\), or pad with batch\(..., pad_to=...\)",
        ),
        (
            [{"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}],
            r'cannot stack leaf "a": record 1 has dtype float32, the others float64. Cast it',
        ),
        (
            [{"a": 1}, {"a": 1, "b": 2}],
            r"record 1 has the structure {'a': \*, 'b': \*}, record 0 has {'a': \*}",
        ),
        ([{"a": 1}, {"b": 1}], r"record 1 has the structure {'b': \*}, record 0 has {'a': \*}"),
        ([{"a": 1}, (1,)], r"record 1 has the structure \(\*,\), record 0 has {'a': \*}"),
        (
            [{"a": np.zeros(1)}, {"a": None}],
            r'^cannot stack: leaf "a" of record 1 is None \(missing\?\). Fill it in with .map',
        ),
        ([{"a": 1, "b": None}, {"a": 1, "b": 2}], 'leaf "b" of record 0 is None'),
        ([{"a": {"b": 1}, "c": 1}, {"a": {"b": None}, "c": 1}], 'leaf "a.b" of record 1 is None'),
        ([{"a": np.zeros(1)}, {"a": {"b": 1}}], r'leaf "a": record 1 has a dict there'),
        ([{"a": 2**31}] * 2, r'leaf "a": the Python integer 2147483648 does not fit into int32'),
        ([{"a": 1e300}] * 2, r"the Python number .* does not fit into float32"),
        ([{"a": 2**70}] * 2, r"does not fit into int32.* np.int64"),
        ([{"a": [1, 2**40]}] * 2, r'leaf "a", record 0: the Python integer 1099511627776 does'),
        ([np.zeros(2), np.zeros(3)], r"cannot stack records: record 1 has shape \(3,\)"),
        ([{"a": {"b": np.zeros(2)}}, {"a": {"b": np.zeros(3)}}], r'leaf "a.b": record 1'),
    ],
)
def test_records_that_do_not_stack(records, message):
    with pytest.raises(StackError, match=message):
        batch_of(records)


def test_the_record_is_named_by_its_index_in_the_source():
    records = [np.zeros(3) if i == 7 else np.zeros(2) for i in range(12)]
    with pytest.raises(StackError, match="record 7 has shape|the others"):
        list(Dataset.from_source(records).shuffle(1).batch(12))
    mix = Dataset.mix([Dataset.from_source(records), Dataset.from_source(records[:3])])
    with pytest.raises(StackError, match="record 1 of dataset 1|record 7 of dataset 0"):
        list(mix.map(lambda r: r if len(r) == 2 else np.zeros(2)).map(_odd).batch(6))


def _odd(record):
    _odd.calls = getattr(_odd, "calls", 0) + 1
    return np.zeros(4) if _odd.calls == 4 else record


def test_pad_to():
    records = [{"t": [1, 2], "y": 1}, {"t": [3], "y": 2}, {"t": [], "y": 3}]
    batch = batch_of(records, pad_to={"t": 4}, pad_value=-1)
    assert batch["t"].tolist() == [[1, 2, -1, -1], [3, -1, -1, -1], [-1] * 4]
    assert batch["t_length"].tolist() == [2, 1, 0]
    assert batch["t_length"].dtype == np.int32
    assert list(batch) == ["t", "y", "t_length"]
    nested = [{"in": {"t": np.ones((n, 2), np.float32)}} for n in (1, 3)]
    batch = batch_of(nested, pad_to={"in.t": 3}, pad_value={"in.t": 9})
    assert batch["in"]["t"].shape == (2, 3, 2)
    assert batch["in"]["t"][0, 1:].tolist() == [[9, 9], [9, 9]]
    assert batch["in"]["t_length"].tolist() == [1, 3]
    fixed = Dataset.from_arrays(t=np.ones((4, 2))).batch(4, pad_to={"t": 3})[0]
    assert fixed["t"][0].tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": {"t": 1}}, r'cannot pad leaf "t" to 1: record 0 has length 2. Cut it'),
        ({"pad_to": {"t": 3, "y": 3}}, r'cannot pad leaf "y": in record 0 it has no axis to pad'),
        ({"pad_to": {"t": 3, "n": 3}}, r'cannot pad leaf "n": in record 0 it has no axis to pad'),
        ({"pad_to": {"z": 3}}, r"`pad_to` names a leaf 'z' that records do not have"),
    ],
)
def test_bad_padding(options, message):
    records = [{"t": np.array(t), "y": np.array(1), "n": np.int64(1)} for t in ([1, 2], [3])]
    with pytest.raises(StackError, match=message):
        batch_of(records, **options)


def test_pad_remainder():
    dataset = Dataset.from_arrays(x=np.arange(1, 6), t=np.array(list("abcde"), object))
    first, last = dataset.batch(3, pad_remainder=True)
    assert first["mask"].tolist() == [True, True, True]
    assert last["mask"].tolist() == [True, True, False]
    assert last["x"].tolist() == [4, 5, 0]
    assert last["t"].tolist() == ["d", "e", ""]
    assert repr(dataset.batch(3, pad_remainder=True).element_spec["x"]) == "int64[3]"
    other = dataset.batch(3, pad_remainder=True, mask_key="real", pad_value=7)
    assert other[1]["real"].tolist() == [True, True, False]
    assert other[1]["x"].tolist() == [4, 5, 7]
    assert [int(r["x"]) for r in other.unbatch()] == [1, 2, 3, 4, 5]
    with pytest.raises(StackError, match="one already. Give the new one another name: mask_k"):
        list(dataset.batch(3, pad_remainder=True, mask_key="x"))
    with pytest.raises(StackError, match="records must be dicts; these are ndarray"):
        list(Dataset.range(5).batch(3, pad_remainder=True))


def test_collate_fn():
    def collate(records):
        return {"n": np.array([len(r["t"]) for r in records])}

    dataset = Dataset.from_source([{"t": "ab"}, {"t": "c"}]).batch(2, collate_fn=collate)
    assert dataset[0]["n"].tolist() == [2, 1]
    padded = Dataset.from_source([{"t": "a"}] * 3).batch(2, collate_fn=collate, pad_remainder=True)
    assert padded[1]["mask"].tolist() == [True, False]

    def broken(records):
        raise KeyError("t")

    with pytest.raises(Exception, match="collate_fn failed on a run of 2 records: KeyError: 't'"):
        list(Dataset.range(2).batch(2, collate_fn=broken))


def test_records_can_be_named_tuples_and_dataclasses():
    batch = batch_of([Point(1, 2.0), Point(3, 4.0)])
    assert isinstance(batch, Point)
    assert batch.x.tolist() == [1, 3]
    batch = batch_of([Box(1, Point(1, 2)), Box(3, Point(5, 6))])
    assert batch.b.y.tolist() == [2, 6]
    assert len(list(DataLoader([Box(1, 2)] * 4, batch_size=2))) == 2


def slow_stack(column):
    """Each value alone, by the rules of `as_array`: the twin of what stacks whole columns."""
    arrays = [as_array(value) for value in column]
    out = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for row, array in enumerate(arrays):
        if (array.shape, array.dtype) != (out.shape[1:], out.dtype):
            raise StackError("they differ")
        out[row] = array[()] if array.ndim == 0 else array
    return out


numbers = st.one_of(
    st.integers(-5, 5),
    st.floats(width=32, allow_nan=False),
    st.booleans(),
    st.sampled_from([2**31, 1e300]),
)
columns = st.one_of(
    st.lists(st.text(max_size=3), min_size=1),
    st.lists(st.one_of(st.text(max_size=2), st.binary(max_size=2)), min_size=1),
    st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1),
    st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), min_size=1),
    st.lists(st.lists(st.integers(-9, 9), max_size=2), min_size=1),
    st.lists(st.lists(numbers, min_size=1, max_size=2), min_size=1, max_size=4),
)


@given(columns)
def test_whole_columns_are_stacked_as_single_values_are(column):
    records = [{"leaf": value} for value in column]
    try:
        expected = slow_stack(column)
    except StackError:
        with pytest.raises(StackError, match='leaf "leaf"'):
            fast_stack(records, Pool().lend, str)
    else:
        assert_same([fast_stack(records, Pool().lend, str)], [{"leaf": expected}])


def test_the_record_with_a_number_that_does_not_fit_is_named():
    with pytest.raises(StackError, match=r'leaf "t", record 2: the Python integer 4294967296'):
        batch_of([{"t": [1, 2]}, {"t": [3, 4]}, {"t": [5, 2**32]}])


def test_records_that_cannot_be_stacked_are_named():
    dataset = Dataset.from_source([{"t": [1] * n} for n in (2, 2, 3, 3)]).filter(lambda r: True)
    assert [b["t"].shape for b in dataset.batch(2)] == [(2, 2), (2, 3)]  # the batch decides
    with pytest.raises(LoaderxError, match=r'leaf "t": row 2 of the batch has shape \(3,\)'):
        list(dataset.batch(3))


@pytest.mark.parametrize("makes_stream", [False, True])
def test_a_stage_of_stacked_runs_that_cannot_be_stacked_is_named(makes_stream):
    dataset = Dataset.from_source([np.zeros(n) for n in [2, 3] * 100])
    if makes_stream:
        with pytest.raises(StackError, match=r"filter\(len, batched=True\) .*: record 1 has shape"):
            list(dataset.filter(len, batched=True).batch(4))
        dataset = dataset.filter(everything)
    with pytest.raises(StackError, match=r"map\(len, batched=True\) is given .*: record 1 has sh"):
        list(dataset.map(len, batched=True).batch(4))


def test_mixed_python_numbers_are_refused():
    records = [{"x": 1}, {"x": 2.5}]
    with pytest.raises(LoaderxError, match="record 0 has the int 1, record 1 the float 2.5"):
        list(Dataset.from_source(records).batch(2))


# Leaves of all records at once --------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["image", "label"])


@dataclasses.dataclass
class Sample:
    image: object
    label: object


class Foreign:
    """An array of another library."""

    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype)


BUILT = {
    "tuple": lambda i: (np.full((2, 3), i), i),
    "named tuple": lambda i: Pair(np.full(3, i), float(i)),
    "dataclass": lambda i: Sample(np.full(3, i), np.int64(i)),
    "list of arrays": lambda i: [np.full(3, i), np.full(2, i)],
    "tuple in a dict": lambda i: {"a": (np.full(3, i), {"b": i}), "c": None},
    "tensors": lambda i: (Foreign([i, i]), i),
    "array alone": lambda i: np.full(3, i),
    "lists of numbers": lambda i: ([i, i + 1], [float(i)] * 3, [True, i > 3]),
    "lists of both numbers": lambda i: ([i, 0.5], i),
    "list alone": lambda i: [i, i],
    "texts": lambda i: (str(i), [str(i), "x"], b"y"),
    "empty containers": lambda i: ((), {}, [], i),
}


@pytest.mark.parametrize("kind", BUILT)
def test_leaves_of_all_records_at_once_are_those_of_each(kind, monkeypatch):
    records = [BUILT[kind](i) for i in range(20)]
    found = fast_stack(records, Pool().lend, str)
    monkeypatch.setattr(stacking, "columns_at_once", lambda values, structure: None)
    monkeypatch.setattr(stacking, "rows_of_numbers", lambda column: None)
    assert_same([found], [fast_stack(records, Pool().lend, str)])


EACH = ("tensors", "texts", "empty containers", "lists of both numbers")  # are made arrays singly


@pytest.mark.parametrize("kind", [kind for kind in BUILT if kind not in EACH])
def test_stacking_makes_no_calls_for_each_record(kind):
    def calls(count):
        records = [BUILT[kind](i) for i in range(count)]
        lend = Pool().lend
        fast_stack(records, lend, str)
        return cost_of(lambda: fast_stack(records, lend, str)).calls

    assert calls(400) <= calls(100) + 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), (1, 2, 3)),
        ((1, 2), [1, 2]),
        ((1, [1, (2,)]), (1, [1, 2])),
        ((1, {"a": 1}), (1, {"b": 1})),
        (Pair(1, 2), (1, 2)),
        ((1, 2), (1, None)),
        (([1, 2],), ([1, 2**40],)),
        (([1, 2],), ([1, 2.5],)),
        (([1, 2],), ([1],)),
    ],
)
def test_records_that_are_built_otherwise_are_refused_as_before(one, other, monkeypatch):
    def message():
        with pytest.raises(StackError) as caught:
            fast_stack([one, one, other], Pool().lend, "record {}".format)
        return str(caught.value)

    found = message()
    monkeypatch.setattr(stacking, "columns_at_once", lambda values, structure: None)
    monkeypatch.setattr(stacking, "rows_of_numbers", lambda column: None)
    assert found == message()
    assert "record 2" in found
