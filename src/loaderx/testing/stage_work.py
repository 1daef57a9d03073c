"""Functions and records for the tests of stages.  Worker processes import this module."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from loaderx import DataLoader, LoaderxWarning, RecordError
from loaderx.loader.state import State
from loaderx.tree import as_array, flatten


class Hidden:
    """A record with nothing in it: a stage that looks into it fails."""


def hide_at(place: int, index: int, record: object) -> object:
    """The record, or at one place a hidden one."""
    return Hidden() if index == place else record


def is_shown(record: object) -> bool:
    """Whether the record is not hidden."""
    return not isinstance(record, Hidden)


def is_wanted(record: object) -> bool:
    """False: no record is."""
    return False


def is_any(record: object) -> bool:
    """True: every record is."""
    return True


def fail_at(place: int, index: int, record: object) -> object:
    """The record; at one place, an error."""
    if index == place:
        raise ValueError("bad record")
    return record


def digest(record: object) -> np.uint32:
    """A number for each record of any kind, so that they can be put into batches."""
    leaves, structure = flatten(record)
    found = 0
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        array = as_array(leaf)
        values = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        found = zlib.crc32(f"{path} {array.dtype} {array.shape}".encode() + values, found)
    return np.uint32(found)


def first(elements: Iterable[object], count: int) -> list[object]:
    """The first elements of a dataset or an iterator."""
    return list(itertools.islice(elements, count))


def until_failure(loader: DataLoader[object]) -> tuple[list[object], RecordError | None]:
    """The elements before one that fails, and the error, if one does."""
    taken: list[object] = []
    try:
        for element in loader:
            taken.append(element)  # noqa: PERF402 - those before the error are wanted
    except RecordError as error:
        return taken, error
    return taken, None


@contextmanager
def without_advice() -> Iterator[None]:
    """Without warnings that most records are dropped, or rows half empty: examples are few."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        yield


def damaged_states(state: State) -> Iterator[State]:
    """States like this one, each with one impossible value."""
    for lane in ([10**9, 0], [0, 10**9], [-1, 0], [True, 0], [0.5, 0], [0], "0", None, {"0": 0}):
        yield {**state, "lanes": {"0": lane}}
    for name in ("version", "step", "chain", "lanes"):
        yield {other: value for other, value in state.items() if other != name}
        yield {**state, name: None}
    yield {**state, "chain": state["chain"][:-1]}
    yield {**state, "step": -1}
