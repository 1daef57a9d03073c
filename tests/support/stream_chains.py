"""Generated streams, small enough to read in full."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from chains import arrays, objects, quietly
from loaderx import Dataset, LoaderxError
from plain import drop_extras, grow, jitter, tag
from window_stages import Rearrange, Scatter

WINDOWS = (2, 4, 8)


def odd(record: dict[str, Any]) -> Any:
    return record["x"] % 3 != 1


def few(record: dict[str, Any]) -> Any:
    return record["x"] % 7 == 2


def copies(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**record, "y": record["y"] + i} for i in range(int(record["x"]) % 3)]


def again(record: dict[str, Any]) -> Any:
    yield record
    if record["x"] % 2:
        yield {**record, "y": -record["y"]}


@st.composite
def inputs(draw: Any) -> Dataset[Any]:
    """What streams are made of: records by index."""
    make = draw(st.sampled_from([arrays, objects]))
    dataset = make(draw(st.integers(1, 40)), draw(st.integers(0, 3)) * 1000)
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from(["map", "random_map", "shuffle", "window", "repeat", "index"])):
            case "map":
                dataset = dataset.map(grow)
            case "random_map":
                dataset = dataset.random_map(jitter)
            case "shuffle":
                dataset = dataset.shuffle(draw(st.sampled_from([None, 3])))
            case "window":
                dataset = dataset.shuffle(window=draw(st.integers(1, 9)))
            case "repeat":
                dataset = quietly(dataset.repeat, 2)
            case "index":
                dataset = dataset.map_with_index(tag)
    return dataset


@st.composite
def record_streams(draw: Any, depth: int = 1, lanes: int = 1) -> Dataset[Any]:
    """A stream of records {"x", "y"} that ends."""
    if depth and draw(st.integers(0, 3)) == 0:
        dataset = draw(mixes(depth - 1, lanes))
    elif lanes == 1 and draw(st.integers(0, 4)) == 0:
        numbers = range(draw(st.integers(0, 20)))
        dataset = Dataset.from_iterable(
            lambda: ({"x": np.int64(i), "y": np.array([i * 0.5, -i])} for i in numbers)
        )
    else:
        dataset = draw(inputs())
        first = draw(st.sampled_from(["filter", "batched", "skip"]))
        if first == "skip":
            dataset = dataset.on_error("skip")
        else:
            dataset = dataset.filter(odd, batched=first == "batched")
    for _ in range(draw(st.integers(0, 4))):
        dataset = draw(stage(dataset, lanes))
    return dataset


@st.composite
def mixes(draw: Any, depth: int, lanes: int) -> Dataset[Any]:
    parts = [draw(record_streams(depth, lanes)) for _ in range(draw(st.integers(1, 2)))]
    parts.append(draw(inputs()))
    parts = [part.map(drop_extras) for part in parts]
    weights = [draw(st.integers(1, 4)) for _ in parts]
    return Dataset.mix(parts, weights)


@st.composite
def stage(draw: Any, dataset: Dataset[Any], lanes: int) -> Dataset[Any]:
    seed = draw(st.sampled_from([None, 0, 7]))
    kinds = ["map", "random_map", "batched_map", "batched_random", "filter", "few", "flat_map"]
    kinds += ["again", "shuffle", "shuffle", "rearrange", "scatter", "repeat", "seed"]
    kinds += ["take", "skip"] if lanes == 1 else []
    match draw(st.sampled_from(kinds)):
        case "map":
            return dataset.map(grow)
        case "random_map":
            return dataset.random_map(jitter, seed=seed)
        case "batched_map":
            return dataset.map(grow, batched=True)
        case "batched_random":
            return dataset.random_map(jitter, seed=seed, batched=True)
        case "filter":
            return dataset.filter(odd, batched=draw(st.booleans()))
        case "few":
            return dataset.filter(few)
        case "flat_map":
            return dataset.flat_map(copies, window=draw(st.sampled_from([None, *WINDOWS])))
        case "again":
            return dataset.flat_map(again)
        case "shuffle":
            return dataset.shuffle(seed, window=draw(st.sampled_from(WINDOWS)))
        case "rearrange":
            return dataset.apply(Rearrange(window=draw(st.sampled_from(WINDOWS))))
        case "scatter":
            return dataset.apply(Scatter(window=draw(st.sampled_from(WINDOWS)), seed=seed))
        case "repeat":
            return quietly(dataset.repeat, 2)
        case "seed":
            return dataset.seed(draw(st.integers(0, 5)))
        case "take":
            return dataset.take(draw(st.integers(1, 30)))
        case "skip":
            return dataset.skip(draw(st.integers(0, 9)))
    raise AssertionError


@st.composite
def batched_streams(draw: Any, lanes: int | None = None) -> Dataset[Any]:
    """A stream of batches that ends."""
    if lanes is None:
        lanes = draw(st.sampled_from([1, 1, 2, 3]))
    dataset = draw(record_streams(lanes=lanes)).map(drop_extras)
    ending = draw(st.sampled_from([{}, {"drop_remainder": True}, {"pad_remainder": True}]))
    size = lanes * draw(st.integers(1, 4))
    try:
        dataset = dataset.batch(size, lanes=lanes, **ending)
    except LoaderxError:  # too few units
        dataset = dataset.batch(size, **ending)
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from(["map", "random_map", "index", "take", "skip", "repeat"])):
            case "map":
                dataset = dataset.map(grow)
            case "random_map":
                dataset = dataset.random_map(jitter)
            case "index":
                dataset = dataset.map_with_index(tag)
            case "take":
                dataset = dataset.take(draw(st.integers(1, 9)))
            case "skip":
                dataset = dataset.skip(draw(st.integers(0, 3)))
            case "repeat":
                dataset = quietly(dataset.repeat, 2)
    return dataset


def mixed(weights: list[int], size: int = 6, lanes: int = 3) -> Dataset[Any]:
    one = arrays(60).shuffle(1).filter(odd).repeat()
    other = arrays(60, 1000).filter(odd).repeat()
    return Dataset.mix([one, other], weights).batch(size, lanes=lanes)
