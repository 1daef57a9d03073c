"""Generated chains: any dataset that the stages can make, small enough to read in full."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st

from inside import node_of
from loaderx import Dataset, LoaderxError, LoaderxWarning
from plain import drop_extras, ends_of_window, first_of_two, grow, jitter, tag


def arrays(n: int, base: int = 0) -> Dataset[Any]:
    x = np.arange(base, base + n, dtype=np.int64)
    return Dataset.from_arrays(x=x, y=np.stack([x * 0.25, -x * 1.0], 1))


def objects(n: int, base: int = 0) -> Dataset[Any]:
    made = [{"x": np.int64(i), "y": np.array([i * 0.25, -i * 1.0])} for i in range(base, base + n)]
    return Dataset.from_source(made)


def quietly(make: Any, *arguments: Any, **named: Any) -> Dataset[Any]:
    """A part of a shuffled dataset, repeated or joined, may be a mistake; here it is drawn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*draws a new order in every epoch", LoaderxWarning)
        warnings.filterwarnings("ignore", ".*are parts of the same", LoaderxWarning)
        return make(*arguments, **named)


@st.composite
def sources(draw: Any) -> Dataset[Any]:
    make = draw(st.sampled_from([arrays, objects]))
    return make(draw(st.integers(1, 25)), draw(st.integers(0, 3)) * 1000)


@st.composite
def chains(draw: Any, depth: int = 2, most: int = 6) -> Dataset[Any]:
    """A finite dataset of records or batches {"x": id, "y": two floats (and "mask")}."""
    if depth and draw(st.integers(0, 3)) == 0:
        dataset = draw(joins(depth - 1))
    else:
        dataset = draw(sources())
    for _ in range(draw(st.integers(0, most))):
        grown = draw(stage(dataset))
        if len(grown) <= 150:
            dataset = grown
    return dataset


@st.composite
def batched_chains(draw: Any) -> Dataset[Any]:
    dataset = draw(chains())
    if not node_of(dataset).batched:
        dataset = draw(batches(dataset))
    return dataset


@st.composite
def joins(draw: Any, depth: int) -> Dataset[Any]:
    parts = [draw(chains(depth, 3)) for _ in range(draw(st.integers(1, 3)))]
    parts = [part.unbatch() if node_of(part).batched else part for part in map(_plain, parts)]
    parts = [part.map(drop_extras) for part in parts]
    kind = draw(st.sampled_from(["concatenate", "mix", "zip"]))
    if kind == "concatenate":
        return quietly(Dataset.concatenate, parts)
    if kind == "zip":
        n = min(map(len, parts))
        pair = [parts[0].take(n), parts[-1].take(n)]
        return quietly(Dataset.zip, pair).map(first_of_two)
    weights = [draw(st.integers(1, 5)) for _ in parts]
    stop = draw(st.sampled_from(["first_exhausted", "repeat", "all_exhausted"]))
    try:
        return quietly(Dataset.mix, parts, weights, stop=stop).take(100)
    except LoaderxError:
        return parts[0]


def _plain(dataset: Dataset[Any]) -> Dataset[Any]:
    """Batches that cannot be unbatched are left out: their first record stands for them."""
    if not node_of(dataset).batched:
        return dataset
    try:
        dataset.unbatch()
    except LoaderxError:
        return arrays(5)
    return dataset


@st.composite
def batches(draw: Any, dataset: Dataset[Any]) -> Dataset[Any]:
    size = draw(st.integers(1, 8))
    ending = draw(st.sampled_from(["short", "drop", "pad"]))
    has_mask = "mask" in dataset[0]
    if ending == "pad" and not has_mask:
        return dataset.batch(size, pad_remainder=True)
    if ending == "drop" and size <= len(dataset):
        return dataset.batch(size, drop_remainder=True)
    return dataset.batch(size)


@st.composite
def stage(draw: Any, dataset: Dataset[Any]) -> Dataset[Any]:
    n, batched = len(dataset), node_of(dataset).batched
    seed = draw(st.sampled_from([None, 0, 7]))
    kinds = [
        "map",
        "random_map",
        "index",
        "shuffle",
        "window",
        "block",
        "take",
        "skip",
        "step",
        "pick",
        "repeat",
    ]
    if all(node.shuffle_span is None for node in node_of(dataset).below()):
        kinds.append("sample")
    kinds += ["seed", "unbatch"] if batched else ["seed", "batch", "batched_map", "batched_random"]
    if not (batched or node_of(dataset).random_stages or node_of(dataset).repeats):
        kinds.append("cache")
    if not batched and not any(
        node.shuffle_span or node.is_repeat for node in node_of(dataset).below()
    ):
        kinds.append("windows")
    match draw(st.sampled_from(kinds)):
        case "cache":
            return dataset.cache()
        case "map":
            return dataset.map(grow)
        case "random_map":
            return dataset.random_map(jitter, seed=seed)
        case "index":
            return dataset.map_with_index(tag)
        case "batched_map":
            return dataset.map(grow, batched=True)
        case "batched_random":
            return dataset.random_map(jitter, seed=seed, batched=True)
        case "shuffle":
            return dataset.shuffle(seed)
        case "window":
            return dataset.shuffle(seed, window=draw(st.integers(1, 9)))
        case "block":
            block = draw(st.integers(1, min(n, 6)))
            blocks = draw(st.sampled_from([None, 1, 2, 3]))
            return dataset.shuffle(seed, block=block, window=blocks and blocks * block)
        case "windows":
            size, gap = draw(st.integers(1, min(n, 4))), draw(st.integers(0, 2))
            gap = max(0, min(gap, (n - 1) // max(1, size - 1) - 1))
            return dataset.window(size, stride=draw(st.integers(1, 3)), gap=gap).map(ends_of_window)
        case "take":
            return dataset.take(draw(st.integers(1, n)))
        case "skip":
            return dataset.skip(draw(st.integers(0, n - 1)))
        case "step":
            return dataset[:: draw(st.sampled_from([-3, -1, 2, 3]))]
        case "pick":
            return dataset[draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=12))]
        case "sample":
            weights = draw(st.lists(st.sampled_from([0, 1, 2, 0.3, 1e-9]), min_size=n, max_size=n))
            if not any(weights):
                weights[draw(st.integers(0, n - 1))] = 5
            return dataset.sample(weights, draw(st.sampled_from([None, 1, 9, 40])), seed=seed)
        case "repeat":
            return quietly(dataset.repeat, draw(st.integers(1, 3)))
        case "seed":
            return dataset.seed(draw(st.integers(0, 5)))
        case "batch":
            return draw(batches(dataset))
        case "unbatch":
            try:
                return dataset.unbatch()
            except LoaderxError:
                return dataset
    raise AssertionError


def ids(dataset: Any) -> list[int]:
    """The ids of all records."""
    return [int(e["x"]) for e in dataset]
