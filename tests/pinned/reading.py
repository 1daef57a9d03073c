"""Reads chains, and makes digests of what they give."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from loaderx import DataLoader, Dataset, LoaderIterator, LoaderxError, LoaderxWarning

SAVED_AFTER = 3  # steps after which a state is pinned
FAR = 1_000_003  # a step of endless chains that are read by index
START, SECOND_EPOCH, FAR_STEP = "start", "epoch 1", f"step {FAR}"
END, RAISES = "end", "raises:"

Shard = tuple[int, int]
ONE_HOST: Shard = (0, 1)
SECOND_OF_TWO: Shard = (1, 2)
# Where an iterator may begin, and the hosts for which that is pinned.
PLACES: dict[str, list[Shard]] = {
    START: [(host, count) for count in (1, 2, 4) for host in range(count)],
    SECOND_EPOCH: [ONE_HOST, SECOND_OF_TWO],
    FAR_STEP: [ONE_HOST],
}


def key(beginning: str, shard: Shard) -> str:
    """The name of a row of the pins."""
    return f"{beginning}, host {shard[0]} of {shard[1]}"


def places() -> Iterator[tuple[str, str, Shard]]:
    """Every row that a chain may have: its name, where it begins, and the host."""
    for beginning, shards in PLACES.items():
        for shard in shards:
            yield key(beginning, shard), beginning, shard


def elements_of(row: str) -> int:
    """How many elements to read: fewer where there are many rows, to keep the file small."""
    return 12 if row == key(START, ONE_HOST) else 8


def begin(
    dataset: Dataset[Any], beginning: str, shard: Shard, engine: Any = "inline"
) -> LoaderIterator[Any] | None:
    """An iterator at one of the places; None if this dataset cannot be read from there."""
    try:
        workers = 2 if engine in ("threads", "processes") else None
        loader = DataLoader(dataset, engine=engine, num_workers=workers, shard=shard)
        if beginning == SECOND_EPOCH:
            return loader.epoch(1)
        iterator = iter(loader)
        if beginning == FAR_STEP:
            iterator.seek(FAR)
        return iterator
    except LoaderxError:
        return None


class Read:
    """Elements of a stream, and their digests; after them, whether it ended or failed."""

    def __init__(self, elements: Iterable[Any], most: int) -> None:
        self.elements: list[Any] = []
        self.digests: list[str] = []
        try:
            for element in islice(elements, most):
                self.elements.append(element)
                self.digests.append(digest(element))
            if len(self.elements) < most:
                self.digests.append(END)
        except LoaderxError as error:
            self.digests.append(f"{RAISES}{type(error).__name__}")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Some chains are built to fail, or to be warned about; here only what they give counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        yield


def digest(element: Any) -> str:
    """16 hex digits of structure, types, dtypes, shapes and bytes."""
    made = blake2b(digest_size=8)
    for part in _parts(element):
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def _parts(tree: Any) -> Iterator[bytes]:
    if isinstance(tree, (np.ndarray, np.generic)):
        kind = "array" if isinstance(tree, np.ndarray) else "scalar"
        yield f"{kind} {tree.dtype.str} {tree.shape}".encode()
        if tree.dtype.hasobject:
            for value in np.asarray(tree).ravel().tolist():
                yield from _parts(value)
        else:
            yield tree.tobytes()
    elif isinstance(tree, Mapping):
        yield from _branch("dict", tree, tree.values())
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        yield from _branch(type(tree).__name__, tree._fields, tree)
    elif isinstance(tree, (tuple, list)):
        yield from _branch(type(tree).__name__, range(len(tree)), tree)
    elif dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree)]
        yield from _branch(type(tree).__name__, names, [getattr(tree, name) for name in names])
    elif tree is None or isinstance(tree, (bool, int, float, str, bytes)):
        yield f"{type(tree).__name__} {tree!r}".encode()
    else:
        raise TypeError(f"no digest of a {type(tree).__name__}")


def _branch(kind: str, keys: Iterable[Any], values: Iterable[Any]) -> Iterator[bytes]:
    yield f"{kind} {list(keys)!r}".encode()
    for value in values:
        yield from _parts(value)
