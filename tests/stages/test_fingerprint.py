"""Fingerprints: what a saved state says about its chain, and what must not change it."""

from __future__ import annotations

import inspect
import zlib

import numpy as np
import pytest

from chains import arrays
from chunk_sources import Chunks
from inside import dataset_of, node_of
from loaderx import DataLoader, Dataset, StateError
from loaderx.stages import nodes as stages
from loaderx.stages.bucket import Bucketing
from loaderx.stages.pack import Packing
from plain import grow, jitter, tag
from window_stages import Sample, SortBy


def odd(record):
    return record["x"] % 2 == 1


def documents(n=6):
    return Dataset.from_source([{"a": [i] * (i + 1), "b": [i] * (i + 1)} for i in range(n)])


def state_of(dataset):
    return iter(DataLoader(dataset, engine="inline")).get_state()


def texts(dataset):
    return state_of(dataset)["chain"]


def accepts(dataset, state):
    iterator = iter(DataLoader(dataset, engine="inline"))
    iterator.set_state(state)
    return iterator


# The texts --------------------------------------------------------------------------------------


def policy(error):
    return "raise"


PINNED = [
    (arrays(9), "source(length=9, spec={'x': '<i8[]', 'y': '<f8[2]'})"),
    (Dataset.range(9), "source(length=9, spec='<i8[]')"),
    (Dataset.from_source([1, 2]), "source(length=2, spec=None)"),
    (Dataset.from_iterable(range), "iterable()"),
    (arrays(9).map(grow), "map(function='grow')"),
    (arrays(9).map(grow, batched=True), "map(function='grow', batched=True)"),
    (arrays(9).cache().map(grow), "map(function='grow')"),  # of the cache, a state says nothing
    (arrays(9).map_with_index(tag), "map_with_index(function='tag')"),
    (arrays(9).random_map(jitter), "random_map(function='jitter', seed=0)"),
    (arrays(9).random_map(jitter, seed=4), "random_map(function='jitter', seed=4)"),
    (arrays(9).random_keys(), "random_keys(name='key', seed=0)"),
    (arrays(9).shuffle(), "shuffle(seed=0)"),
    (arrays(9).shuffle().seed(3), "shuffle(seed=3)"),
    (arrays(9).shuffle(window=4), "shuffle(seed=0, window=4)"),
    (arrays(9).shuffle(block=4), "shuffle(seed=0, block=4)"),
    (arrays(9).shuffle(3, block=2, window=8), "shuffle(seed=3, block=2, window=8)"),
    (
        Dataset.from_source(Chunks([4, 5])).shuffle(block="source"),
        "shuffle(seed=0, blocks=<i8[3]#68bf9d8c, block='source')",
    ),
    (arrays(9).skip(2), "slice(start=2, step=1, count=7)"),
    (arrays(9)[::2], "slice(start=0, step=2, count=5)"),
    (arrays(9).split(1 / 3, 2 / 3)[1], "split(start=3, count=6, seed=0)"),
    (arrays(9)[[1, 2]], "pick(indices=<i8[2]#00f6ddb9)"),
    (arrays(9).split(4, 5)[1], "split(start=4, count=5, seed=0)"),
    (arrays(9).window(4), "window(size=4)"),
    (arrays(9).window(3, stride=2, gap=1), "window(size=3, gap=1, stride=2)"),
    (arrays(2).sample([1, 2], 7, seed=3), "sample(weights=<f8[2]#880b85a7, n=7, seed=3)"),
    (arrays(9).repeat(2).shuffle(), "repeat(epochs=2)"),
    (arrays(9).repeat(2).batch(3), "repeat()"),
    (arrays(9).batch(3).unbatch(), "unbatch()"),
    (arrays(9).batch(3), "batch(size=3)"),
    (arrays(9).batch(3, drop_remainder=True), "batch(size=3, drop_remainder=True)"),
    (
        arrays(9).batch(3, pad_remainder=True, mask_key="real", pad_to={"y": 4}, pad_value=-1),
        "batch(size=3, mask_key='real', pad_remainder=True, pad_to={'y': 4}, pad_value=-1)",
    ),
    (arrays(99).filter(odd).batch(4, lanes=2), "batch(size=4, lanes=2)"),
    (arrays(9).on_error("replace"), "on_error(policy='replace', seed=0)"),
    (arrays(9).on_error(policy, limit=3), "on_error(policy='function', seed=0)"),
    (arrays(9).on_error("skip"), "on_error(policy='skip')"),
    (arrays(9).filter(odd).on_error("skip", limit=3), "on_error(policy='skip')"),
    (arrays(9).filter(odd), "filter(function='odd')"),
    (arrays(9).filter(odd, batched=True), "filter(function='odd', batched=True)"),
    (arrays(9).flat_map(odd), "flat_map(function='odd')"),
    (arrays(9).pack({"y": 4}), "pack(lengths={'y': 4})"),
    (
        arrays(9).pack(
            {"y": 4},
            strategy="concat",
            window=8,
            overflow="error",
            pad_value={"y": 1},
            max_segments=3,
            segment_ids=None,
            positions="p_{}",
            bos=2,
            whole_documents=True,
        ),
        "pack(lengths={'y': 4}, bos=2, max_segments=3, pad_value={'y': 1}, positions='p_{}', "
        "segment_ids=None, strategy='concat', whole_documents=True, window=8)",
    ),
    (
        arrays(9).pack(
            {"y": 4, "x": "y"},
            eos={"y": 1, "x": 2},
            continue_positions=True,
            balance=odd,
            balance_rows=4,
        ),
        "pack(lengths={'x': 'y', 'y': 4}, balance='odd', balance_rows=4, continue_positions=True, "
        "eos={'x': 2, 'y': 1})",
    ),
    (arrays(9).bucket([2, 8], 4), "bucket(boundaries=[2, 8], batch_sizes=[4, 4])"),
    (
        arrays(9).bucket(
            [2], [4], leaves="y", window=8, drop_remainder=True, pad_value=1, mask_key="real"
        ),
        "bucket(boundaries=[2], batch_sizes=[4], drop_remainder=True, leaves=['y'], "
        "mask_key='real', pad_value=1, window=8)",
    ),
    (
        arrays(9).bucket(range(1, 200), 4),
        "bucket(boundaries=#27d22a98, batch_sizes=#9dd1fdc9)",
    ),
    (arrays(9).apply(SortBy(leaf="x")), "SortBy(leaf='x')"),
    (
        arrays(9).apply(SortBy(window=4, largest_first=True, leaf="x")),
        "SortBy(leaf='x', largest_first=True, window=4)",
    ),
    (arrays(9).apply(Sample(leaf="x")).seed(5), "Sample(seed=5, leaf='x')"),
    (
        arrays(9).apply(Sample(leaf="x", share=0.25, seed=3)).seed(5),
        "Sample(seed=3, leaf='x', share=0.25)",
    ),
    (
        Dataset.concatenate([arrays(9), arrays(8)]),
        "concatenate(datasets=[#5453f912, #69e215ce])",
    ),
    (
        Dataset.mix([arrays(9), arrays(8)], [3, 1]),
        "mix(datasets=[#5453f912, #69e215ce], tickets=[3, 1])",
    ),
    (
        Dataset.mix([arrays(9), arrays(8)], stop="repeat"),
        "mix(datasets=[#5453f912, #69e215ce], tickets=[1, 1], stop='repeat')",
    ),
    (
        Dataset.zip({"a": arrays(9), "b": arrays(9)}),
        "zip(datasets=[#5453f912, #5453f912], names=['a', 'b'])",
    ),
]


def nodes(node):
    return {type(below) for below in node.below()}


@pytest.mark.parametrize(("dataset", "expected"), PINNED, ids=[text for _, text in PINNED])
def test_the_text_of_a_stage(dataset, expected):
    """States are kept: a text, or a default, changes with the version of states only."""
    assert expected in texts(dataset)


def test_every_kind_of_node_has_a_text():
    every = {getattr(stages, name) for name in stages.__all__}
    every.remove(stages.Narrowed)  # a loader puts it on top for devices; no state has it
    every.remove(stages.StepsSkipped)  # a loader takes it off
    every.remove(stages.Without)  # a state names what is removed apart from the chain
    assert set().union(*(nodes(node_of(dataset)) for dataset, _ in PINNED)) == every


def test_the_defaults_are_those_that_users_know():
    """What `Dataset` takes for its default must be what the text leaves out."""
    assert texts(documents().pack({"a": 8}))[-2] == "pack(lengths={'a': 8})"
    for name, record in (("pack", Packing), ("bucket", Bucketing), ("batch", stages.Batched)):
        for parameter in inspect.signature(getattr(Dataset, name)).parameters.values():
            if parameter.name in record._fields and parameter.default is not parameter.empty:
                assert getattr(record, parameter.name) == parameter.default


# New options ------------------------------------------------------------------------------------


class LaterPacking(Packing):
    fill: str = "none"
    a_first_option: int | None = None


class LaterBucketing(Bucketing):
    fill: str = "none"


class LaterBatched(stages.Batched):
    fill: str = "none"


class LaterFiltered(stages.Filtered):
    fill: str = "none"


def with_options(node, later, **more):
    """The node with an options class of a later version."""
    values = {name: getattr(node.options, name) for name in node.options._fields}
    return dataset_of(node.replace(options=later(**values, **more)))


def as_later(node, later, **more):
    """The node as the class of a later version has it."""
    values = {name: getattr(node, name) for name in node._fields}
    return dataset_of(later(**values, **more))


LATER = {
    "pack": (
        documents().pack({"a": 8, "b": 8}, window=4, strategy="first_fit"),
        lambda node, **more: with_options(node, LaterPacking, **more).batch(2),
    ),
    "bucket": (
        documents().bucket([2, 8], [3, 2], window=4),
        lambda node, **more: with_options(node, LaterBucketing, **more),
    ),
    "batch": (
        arrays(20).batch(4, drop_remainder=True),
        lambda node, **more: as_later(node, LaterBatched, **more),
    ),
    "filter": (
        arrays(20).filter(odd),
        lambda node, **more: as_later(node, LaterFiltered, **more).batch(2),
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_a_new_option_leaves_saved_states_valid(name):
    today, later = LATER[name]
    state = state_of(today if node_of(today).batched else today.batch(2))
    assert texts(later(node_of(today))) == state["chain"]
    accepts(later(node_of(today)), state)
    assert texts(later(node_of(today), fill="none")) == state["chain"]  # the default, written out


@pytest.mark.parametrize("name", LATER)
def test_a_new_option_that_is_used_makes_another_chain(name):
    today, later = LATER[name]
    state = state_of(today if node_of(today).batched else today.batch(2))
    with pytest.raises(StateError, match=rf"\({name}\): fill was not set and is 'zeros' now"):
        accepts(later(node_of(today), fill="zeros"), state)
    state = state_of(later(node_of(today), fill="zeros"))
    with pytest.raises(StateError, match=rf"\({name}\): fill was 'zeros' and is not set now"):
        accepts(later(node_of(today)), state)


# Values that mean the same ----------------------------------------------------------------------


def padded(value):
    return documents().batch(2, pad_to={"a": 8, "b": 8}, pad_value=value)


def packed(value):
    return documents().pack({"a": 8, "b": 8}, pad_value=value).batch(2)


def bucketed(value):
    return documents().bucket([2, 8], [3, 2], pad_value=value)


@pytest.mark.parametrize("make", [padded, packed, bucketed])
@pytest.mark.parametrize(
    "same",
    [
        [0, 0.0, np.float32(0), np.float64(0), np.int64(0), np.uint8(0), np.array(0)],
        [3, 3.0, np.int64(3), np.float32(3), np.array(3.0), np.array(3, ">i4")],
        [0.5, np.float32(0.5), np.float64(0.5), np.float16(0.5)],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": np.int8(2), "a": np.float32(1)}],
        [np.arange(3), np.arange(3).astype(">i8"), np.arange(6)[::2] // 2],
        ["x", np.str_("x")],
    ],
    ids=lambda values: str(values[0]),
)
def test_values_that_mean_the_same(make, same):
    first, *others = (make(value) for value in same)
    for other in others:
        assert texts(other) == texts(first)
        accepts(other, state_of(first))


@pytest.mark.parametrize("make", [padded, packed, bucketed])
def test_values_that_differ(make):
    values = [
        0, -0.0, 1, -1, 0.5, float("nan"), float("inf"), 1j, 2**70, np.float32(0.1), 0.1, None, "",
        "0", b"0", "x", [0], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1},
        np.arange(3), np.arange(4), np.arange(3.0), np.arange(3).reshape(3, 1),
        np.array([0, 1, 2], object), np.datetime64("2020-01-01"), np.datetime64("2020-01-02"),
        np.zeros(2, "f4,i4"), np.zeros(2, "f4,u4"), "long " * 50, "long " * 51,
    ]  # fmt: skip
    found = [tuple(texts(make(value))) for value in values]
    assert len(set(found)) == len(found)


def test_the_order_of_names_does_not_matter():
    def made(order):
        source = Dataset.from_arrays(**{name: np.zeros((9, len(name))) for name in order})
        return source.batch(3, pad_to=dict.fromkeys(order, 4))

    assert texts(made(["x", "yy"])) == texts(made(["yy", "x"]))
    one = documents().pack({"a": 8, "b": 9}).batch(2)
    assert texts(one) == texts(documents().pack({"b": 9, "a": np.int64(8)}).batch(2))


def test_a_dtype_has_one_name():
    def made(dtype):
        return Dataset.from_arrays(x=np.zeros(9, dtype)).batch(3)

    for same in (["int64", "q", "l", "<i8"], ["f4", "float32", "=f4"]):
        assert len({tuple(texts(made(dtype))) for dtype in same}) == 1
    others = ["i8", "i4", "u8", "f8", "M8[s]", "M8[ns]", "U3", "S3", "i4,f4", "i4,i4", "?", "O"]
    assert len({tuple(texts(made(dtype))) for dtype in others}) == len(others)


# Large values -----------------------------------------------------------------------------------


def test_chosen_indices_are_digested_once(monkeypatch):
    table = np.arange(20_000)[::-1].copy()
    seen = []
    digest = zlib.crc32

    def counted(data, *more):
        if len(data) >= table.nbytes:
            seen.append(bytes(data))
        return digest(data, *more)

    monkeypatch.setattr(zlib, "crc32", counted)
    dataset = arrays(20_000)[table].map(grow).batch(100)
    for loader in (DataLoader(dataset, engine="inline"), DataLoader(dataset, engine="inline")):
        for epoch in range(4):
            loader.epoch(epoch).get_state()
        iter(loader).get_state()
    assert seen == [table.astype("<i8").tobytes()]


def test_chosen_indices_are_part_of_the_chain():
    state = state_of(arrays(9)[[3, 1, 2]].batch(3))
    accepts(arrays(9)[np.array([3, 1, 2], np.uint8)].batch(3), state)
    for other in ([3, 1, 4], [1, 2, 3], [3, 1, 2, 4]):
        with pytest.raises(StateError, match=r"stage 2 \(pick\): indices was <i8\[3\]#.{8} and is"):
            accepts(arrays(9)[other].batch(3), state)
