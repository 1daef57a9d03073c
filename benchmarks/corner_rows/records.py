"""Records of many shapes, stacked, beside `np.stack` of each leaf."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corner_rows import Corner, Side, inline
from loaderx import Dataset

BATCH = 128
Record = Callable[[int], Any]


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any


IMAGE = np.ones((28, 28), np.float32)
RECORDS: dict[str, Record] = {
    "dict": lambda i: {"image": IMAGE, "label": i},
    "tuple": lambda i: (IMAGE, i),
    "named_tuple": lambda i: Pair(IMAGE, i),
    "dataclass": lambda i: Sample(IMAGE, i),
    "nested": lambda i: {"a": (IMAGE, {"b": i})},
    "int_lists": lambda i: {"tokens": [i] * 50},
    "float_lists": lambda i: ([0.5] * 50, i),
}


class Made:
    """A source that makes each record."""

    def __init__(self, make: Record, count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def leaves_of(record: Any) -> list[Any]:
    if isinstance(record, Sample):
        return [record.image, record.label]
    if isinstance(record, list):
        return [record]
    values = record.values() if isinstance(record, dict) else record
    if isinstance(values, np.ndarray | int):
        return [values]
    return [leaf for value in values for leaf in leaves_of(value)]


def stacked(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], np.ndarray):
        return np.stack(column)
    found = np.array(column)
    return found.astype(np.float32 if found.dtype.kind == "f" else np.int32)


def by_hand(make: Record, size: int) -> Side:
    def side() -> Iterator[list[Any]]:
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(size).tolist()
            for start in range(0, size - BATCH + 1, BATCH):
                rows = [leaves_of(make(i)) for i in order[start : start + BATCH]]
                yield [stacked(column) for column in zip(*rows, strict=True)]

    return side


def of_records(make: Record) -> Callable[[int, Path], tuple[Side, Side]]:
    def sides(size: int, _: Path) -> tuple[Side, Side]:
        dataset = Dataset.from_source(Made(make, size)).shuffle(seed=0).repeat().batch(BATCH)
        return inline(dataset), by_hand(make, size)

    return sides


def cached(size: int, _: Path) -> tuple[Side, Side]:
    """Records with a Python int, kept in memory, beside arrays that were filled by hand."""
    kept = Dataset.from_source(Made(RECORDS["dict"], size)).cache()
    for _ in kept.batch(BATCH):
        pass
    image, label = np.stack([IMAGE] * size), np.arange(size, dtype=np.int32)

    def plain() -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(size)
            for start in range(0, size - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                yield {"image": image[chosen], "label": label[chosen]}

    return inline(kept.shuffle(seed=0).repeat().batch(BATCH)), plain


LISTS = "that all numbers of a list are of one type is looked at first"

CORNERS = [
    *(
        Corner(f"records_{name}", of_records(make), (1_000, 20_000), reason=LISTS)
        for name, make in RECORDS.items()
    ),
    Corner(
        "cache_python_int",
        cached,
        (1_000, 20_000),
        reason="a batch that is timed is stacked from records, so that both ways stay equal",
    ),
]
