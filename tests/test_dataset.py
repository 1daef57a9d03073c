"""The description: what it refuses, and what it says of itself."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from chains import arrays, ids
from inside import node_of
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    Dataset,
    LoaderxError,
    PositionError,
)
from oracle import assert_same
from plain import grow, jitter
from stream_chains import odd
from streams import STREAM


def test_reprs():
    assert ".skip(0)\n" in repr(STREAM.skip(0))
    dataset = STREAM.shuffle(1, window=8).repeat().batch(4, lanes=2)
    assert repr(dataset).splitlines() == [
        "Dataset.range(0, 100)",
        "  .filter(even)",
        "  .shuffle(seed=1, window=8)",
        "  .repeat()",
        "  .batch(4, lanes=2)",
        "  # an endless stream of batches",
    ]
    assert repr(STREAM).endswith("# a stream of records")


def test_element_spec_reads_the_first_element():
    assert repr(arrays(9).filter(odd).batch(2).element_spec) == "{'x': int64[?], 'y': float64[?,2]}"
    assert repr(arrays(9).flat_map(lambda r: [r]).element_spec) == "{'x': int64[], 'y': float64[2]}"


def test_an_empty_stream_has_no_spec():
    with pytest.raises(LoaderxError, match="the stream is empty: there is no element to look at"):
        Dataset.range(9).filter(lambda x: False).map(lambda x: x).element_spec  # noqa: B018


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: d.batch(0), ArgumentError, "`batch_size` must be at least 1, got 0"),
        (lambda d: d.batch(-3), ArgumentError, "`batch_size` must be at least 1, got -3"),
        (lambda d: d.batch(2.0), ArgumentTypeError, r"`batch_size` must be an integer, got 2.0 \(float\)"),
        (lambda d: d.batch(True), ArgumentTypeError, "`batch_size` must be an integer, got True"),
        (
            lambda d: d.batch(11, drop_remainder=True),
            ArgumentError,
            r"batch\(11, drop_remainder=True\) over 10 records leaves an empty stream. Use a small",
        ),
        (lambda d: d.batch(2).batch(2), ChainError, r"batch after batch.*\.unbatch\(\) before"),
        (lambda d: d.unbatch(), ChainError, "unbatch needs batches"),
        (lambda d: d.repeat().shuffle(), ChainError, r"put it before .repeat\(\)"),
        (lambda d: d.repeat().repeat(2), ChainError, "this one is endless already"),
        (lambda d: d.repeat(0), ArgumentError, "`num_epochs` must be at least 1, got 0"),
        (lambda d: d.shuffle("a"), ArgumentTypeError, r"`seed` must be an integer, got 'a' \(str\)"),
        (lambda d: d.shuffle(1.5), ArgumentTypeError, "`seed` must be an integer, got 1.5"),
        (lambda d: d.shuffle(-1), ArgumentError, "`seed` must be at least 0, got -1"),
        (lambda d: d.seed(2**64), ArgumentError, r"`seed` must be below 2\*\*64"),
        (lambda d: d.random_map(jitter, seed="x"), ArgumentTypeError, "`seed` must be an integer"),
        (lambda d: d.take(0), ArgumentError, "`n` must be at least 1, got 0"),
        (lambda d: d.skip(10), ArgumentError, r"skip\(10\) leaves nothing of 10 elements"),
        (lambda d: d[5:5], ArgumentError, r"the slice \[5:5\] leaves nothing"),
        (lambda d: d[10], PositionError, "index 10 is out of range for 10 elements"),
        (lambda d: d[-11], PositionError, "index -11 is out of range for 10 elements"),
        (lambda d: d["x"], ArgumentTypeError, "a dataset is indexed by number, got 'x'"),
        (lambda d: d[[1, 10]], PositionError, "index 10 is out of range for 10 elements"),
        (lambda d: d[np.zeros(9, bool)], PositionError, "the mask has 9 entries for 10 elements"),
        (lambda d: d[np.zeros(10, bool)], ArgumentError, "the indices select no elements"),
        (lambda d: d[[0.5]], ArgumentTypeError, "integers or bools, got float64"),
        (lambda d: d[np.zeros((2, 2), int)], ArgumentError, "one-dimensional, got shape"),
        (lambda d: d.repeat()[-1], PositionError, "has no last element to count from"),
        (lambda d: d.repeat()[[1]], ChainError, r"indices of an endless dataset: write .take\(n\)"),
        (lambda d: len(d.repeat()), TypeError, r"an endless dataset has no length; .take\(n\)"),
        (lambda d: d.map(3), ArgumentTypeError, "`map` needs a function, or an object with a .map"),
        (lambda d: d.map(AddOne), ArgumentTypeError, r"pass an instance: AddOne\(...\)"),
        (lambda d: d.random_map(None), ArgumentTypeError, "`random_map` needs a function"),
        (lambda d: d.batch(2).map(grow, batched=True), ChainError, "Leave `batched` out"),
        (lambda d: d.apply([3]), ArgumentTypeError, "`apply` takes functions and objects with"),
        (lambda d: d.on_error("drop"), ArgumentError, "must be one of 'raise', 'replace', 'skip'"),
        (lambda d: d.on_error("skip", limit=0), ArgumentError, "`limit` must be at least 1, got 0"),
        (lambda d: d.on_error("raise", limit=1), ArgumentError, r"needs on_error\('replace'\) or"),
        (lambda d: d.batch(2).on_error("skip"), ChainError, "on_error after batch: it works on"),
        (lambda d: d.split(0.5), ArgumentError, r"must add up to 1, got 0.5; write .split\(0.5, 0.5"),
        (lambda d: d.split(0.8, 0.4), ArgumentError, "must add up to 1, got 1.2"),
        (lambda d: d.split(1.2, -0.2), ArgumentError, "between 0 and 1, got 1.2"),
        (lambda d: d.split([0.8, 0.2]), ArgumentTypeError, r"separate numbers, not a list: .split\(0.8, 0.2\)"),
        (lambda d: d.split(0.99, 0.01), ArgumentError, "part 1 would be empty"),
        (lambda d: d.shuffle().split(0.5, 0.5), ChainError, r"split after .shuffle\(\): the parts"),
        (lambda d: d.repeat(2).split(0.5, 0.5), ChainError, r"split after .repeat\(2\)"),
        (lambda d: d.repeat().split(0.5, 0.5), ChainError, "split needs a dataset that ends"),
        (
            lambda d: d.batch(2, drop_remainder=True, pad_remainder=True),
            ArgumentError,
            "cannot be used together",
        ),
        (lambda d: d.batch(2, drop_remainder="no"), ArgumentTypeError, "must be True or False"),
        (lambda d: d.batch(2, pad_remainder=None), ArgumentTypeError, "`pad_remainder` must be True"),
        (lambda d: d.batch(np.arange(3)), ArgumentTypeError, r"`batch_size` must be an integer, got array"),
        (lambda d: d.batch(2, pad_to=5), ArgumentTypeError, "`pad_to` must be a dict such as"),
        (lambda d: d.batch(2, pad_to={"x": 0}), ArgumentError, r"`pad_to\['x'\]` must be at least 1"),
        (lambda d: d.batch(2, pad_to={3: 4}), ArgumentTypeError, "`pad_to` must be a string, got 3"),
        (lambda d: d.batch(2, mask_key=3), ArgumentTypeError, "`mask_key` must be a string, got 3"),
        (lambda d: d.batch(2, collate_fn=3), ArgumentTypeError, "`collate_fn` must be a function"),
        (lambda d: d.batch(2, collate_fn=len, pad_to={"x": 3}), ArgumentError, "pad in that function"),
        (lambda d: d.random_keys(3), ArgumentTypeError, "`name` must be a string"),
        (lambda d: Dataset.from_source([d, d]), ArgumentTypeError, "a list of datasets is not a source"),
        (lambda d: Dataset.mix([d, d], [1]), ArgumentError, "`weights` has 1 numbers for 2 datasets"),
        (lambda d: Dataset.mix([d], {"a": 1}), ArgumentTypeError, "has names, and the datasets have"),
        (lambda d: Dataset.mix([d, d], ["a", 1]), ArgumentTypeError, r"weight 0 is 'a' \(str\)"),
        (lambda d: Dataset.mix([d, d], [1, None]), ArgumentTypeError, "`weights` .*weight 1 is None"),
        (lambda d: Dataset.mix([d, d], 3), ArgumentTypeError, "`weights` must be a list of numbers"),
        (lambda d: Dataset.mix([d, d], "12"), ArgumentTypeError, "`weights` must be a list of numb"),
        (lambda d: Dataset.mix([d, d], [1, -1]), ArgumentError, "numbers, or 0; weight 1 is -1.0"),
        (lambda d: Dataset.mix([d, d], [0, 0]), ArgumentError, "`weights` are 0 for every dataset"),
        (lambda d: Dataset.mix([d, d], [1, -2]), ArgumentError, "weight 1 is -2.0"),
        (lambda d: Dataset.mix([d, d], [float("nan"), 1]), ArgumentError, "weight 0 is nan"),
        (lambda d: Dataset.mix([d, d], [float("inf"), 1]), ArgumentError, "weight 0 is inf"),
        (lambda d: Dataset.mix([]), ArgumentError, "mix needs at least one dataset"),
        (lambda d: Dataset.mix([d], stop="x"), ArgumentError, "`stop` must be one of"),
        (lambda d: Dataset.mix([d, [1]]), ArgumentTypeError, "item 1 is list, not a Dataset"),
        (lambda d: Dataset.concatenate(d), ArgumentTypeError, "concatenate needs several datasets"),
        (lambda d: Dataset.concatenate([d, d.batch(2)]), ChainError, "some datasets are batched"),
        (lambda d: Dataset.concatenate([d.repeat(), d]), ChainError, "dataset 0 is endless"),
        (
            lambda d: Dataset.concatenate([d, Dataset.from_arrays(x=np.zeros(3))]),
            ChainError,
            r"elements of dataset 1 look like {'x': \*}, those of dataset 0 like {'x': \*, 'y': \*}",
        ),
        (
            lambda d: Dataset.mix([Dataset.range(3), Dataset.from_arrays(np.zeros((3, 2)))]),
            ChainError,
            'leaf "" is float64',
        ),
        (lambda d: Dataset.zip([d, d.take(3)]), ChainError, r"of one length, got 10, 3. Cut with"),
        (lambda d: Dataset.zip([d.batch(2), d.batch(5)[[0, 1, 1, 0, 0]]]), ChainError, "sizes differ"),
        (lambda d: d.batch(3).shuffle().unbatch(), ChainError, "a short last batch was moved"),
        (
            lambda d: Dataset.concatenate([d.batch(2), d.batch(5)]).unbatch(),
            ChainError,
            "unbatch after joining batched datasets",
        ),
        (lambda d: d.batch(2).map_with_index(lambda i, b: b).unbatch(), ChainError, "no batch index"),
        (lambda d: Dataset.range(2**62).repeat(4), ArgumentError, r"at most 2\*\*62 elements"),
    ],
)  # fmt: skip
def test_what_is_refused_at_construction(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make(arrays(10))
    assert isinstance(caught.value, LoaderxError)


class AddOne:
    def map(self, element):
        return {**element, "y": element["y"] + 1}


def test_seeds():
    d = arrays(40)
    default = ids(d.shuffle())
    assert default == ids(d.shuffle(0))
    assert default == ids(d.shuffle().seed(0))
    seeded = ids(d.shuffle().seed(7))
    assert seeded == ids(d.seed(7).shuffle()) == ids(d.shuffle(7))
    assert ids(d.shuffle(3).seed(7)) == ids(d.shuffle(3))
    mixed = Dataset.mix([d.shuffle(), d.shuffle().seed(5)]).seed(7)
    assert ids(mixed)[::2] == seeded
    assert ids(mixed)[1::2] == ids(d.shuffle(5))


def test_random_keys_need_dicts_and_a_free_name():
    with pytest.raises(ChainError, match="so elements must be dicts"):
        list(Dataset.range(3).random_keys())
    with pytest.raises(ChainError, match="have a leaf 'x' already"):
        list(arrays(3).random_keys("x"))


def test_repr_of_one():
    assert repr(Dataset.range(1)).endswith("# 1 record")
    assert repr(Dataset.range(3).batch(4)).endswith("# 1 batch")


def test_repr():
    mix = Dataset.mix([arrays(4).shuffle(2), Dataset.range(9).map(grow)], [3, 1])
    text = repr(mix.batch(2, drop_remainder=True).map(grow).repeat())
    assert text == (
        "Dataset.mix(2 datasets, 3:1)\n"
        "  0: Dataset.from_arrays(x=int64[], y=float64[2])\n"
        "       .shuffle(seed=2)\n"
        "  1: Dataset.range(0, 9)\n"
        "       .map(grow)\n"
        "  .batch(2, drop_remainder=True)\n"
        "  .map(grow)\n"
        "  .repeat()\n"
        "  # endless batches"
    )
    chain = arrays(9).take(8).skip(1)[::2][[0, 1]].random_map(jitter, seed=1).seed(3)
    assert repr(chain.random_keys().on_error("replace").batch(2).unbatch()).splitlines()[1:] == [
        "  .take(8)", "  .skip(1)", "  [0:8:2]", "  [2 chosen]", "  .random_map(jitter, seed=1)",
        "  .seed(3)", "  .random_keys('key')", "  .on_error('replace')", "  .batch(2)",
        "  .unbatch()", "  # 2 records",
    ]  # fmt: skip


def test_a_dataset_is_frozen_and_building_it_runs_nothing():
    def explode(record):
        raise AssertionError("ran")

    dataset = arrays(4).map(explode).batch(2).repeat()
    with pytest.raises(AttributeError, match="a Dataset is frozen"):
        dataset.x = 1
    assert len(dataset.take(3)) == 3
    with pytest.raises(AttributeError):
        node_of(dataset).epochs = 3


def test_an_empty_list_does_not_tell_its_dtype():
    """It was float32."""
    tags = [[], [], ["a"], [1]]
    records = [{"x": 1, "tags": one} for one in tags]
    for dataset in (Dataset.from_source(records), Dataset.from_iterable(lambda: iter(records))):
        assert repr(dataset.element_spec) == "{'x': int32[], 'tags': object[?]}"
    told = Dataset.from_source(records[:2]).map(lambda record: record)
    assert repr(told.element_spec) == "{'x': int32[], 'tags': float32[0]}"
    other = [{"turns": []}, {"turns": [{"role": "a"}]}]
    assert repr(Dataset.from_source(other).element_spec) == "{'turns': float32[0]}"


def test_element_spec_of_a_mapped_chain_reads_one_element():
    calls = []
    dataset = arrays(9).map(lambda r: calls.append(1) or r).batch(4)
    assert repr(dataset.element_spec) == "{'x': int64[?], 'y': float64[?,2]}"
    assert len(calls) == 4
    assert repr(arrays(8).map(grow).batch(4).element_spec["x"]) == "int64[4]"


def test_pickling_a_description():
    dataset = arrays(20).shuffle(1).map(grow).batch(3)
    assert_same(pickle.loads(pickle.dumps(dataset)), dataset)
