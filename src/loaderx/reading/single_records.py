"""Records that are handed out one by one, without a batch.

Taking a single record through all operators costs ten times as much as most functions.  So
operators can also give the records of many addresses one after the other (`RecordOperator.each`),
as nested generators: each record is made when it is asked for.  Errors name record and stage as
elsewhere.

Where a source reads many records faster than one by one, a few are read at a time: as many as it
reads in `AHEAD_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import TypeAlias

import numpy as np

from loaderx.reading.error_text import USER_ERRORS
from loaderx.reading.rows import Positions, Record
from loaderx.tree import Array, Tree, map_leaves

AHEAD_S = 100e-6  # the time to spend on reading records ahead
MOST = 64

UNCHANGED = {bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
"""Types of leaves that cannot be changed."""


Again: TypeAlias = Callable[[int, BaseException], Record]
"""Reads a record that failed, by its number, once more; or raises the reason."""


def one_by_one(
    read: Callable[[int], Record],
    indices: Sequence[int],
    lock: AbstractContextManager[object],
    again: Again,
) -> Iterator[Record]:
    """The records at ``indices``, each when it is asked for."""
    for number, index in enumerate(indices):
        failure: BaseException | None = None
        try:
            with lock:
                record = read(index)
        except USER_ERRORS as error:
            failure = error  # outside of `except`: the next error is not raised from this one
        yield record if failure is None else again(number, failure)


def in_groups(
    read: Callable[[Positions], list[Record]],
    index: Positions,
    lock: AbstractContextManager[object],
    again: Again,
) -> Iterator[Record]:
    """The records at ``index``, read a few at a time."""
    first, size = 0, 1
    while first < len(index):
        failure: BaseException | None = None
        begun = perf_counter()
        try:
            with lock:
                records = read(index[first : first + size])
        except USER_ERRORS as error:
            failure = error
        took = perf_counter() - begun
        if failure is not None:
            yield again(first, failure)
            first, size = first + 1, 1
            continue
        first += len(records)
        is_alone = size == 1
        records = records[::-1]
        while records:
            yield records.pop() if is_alone else detached(records.pop())
        size = min(2 * size, MOST) if 2 * took < AHEAD_S else max(1, size // 2)


def detached(record: Record) -> Record:
    """The record without views of a larger array: it must not keep its neighbours alive."""
    return _copied(record, _is_part)


def owned(record: Record) -> Record:
    """The record with a copy of each leaf that is a view of a source, which is read-only."""
    return _copied(record, _is_read_only)


def copy_of(record: Record) -> Record:
    """The record with a copy of every array."""
    return _copied(record, _is_any)


def _is_any(leaf: Array) -> bool:
    return True


def _is_part(leaf: Array) -> bool:
    return leaf.base is not None and leaf.flags.writeable  # a read-only one is the source's own


def _is_read_only(leaf: Array) -> bool:
    return not leaf.flags.writeable


def _copied(record: Tree, is_copied: Callable[[Array], bool]) -> Record:
    """The record with a copy of each array that `is_copied` selects."""
    kind = type(record)
    if kind is np.ndarray:
        return record.copy() if is_copied(record) else record
    if kind in UNCHANGED:
        return record
    if kind is dict:  # the usual records, without the general walk
        made = {}
        for key, leaf in record.items():
            if type(leaf) in UNCHANGED:
                made[key] = leaf
            else:
                made[key] = _copied(leaf, is_copied)
        return made
    if kind is tuple or kind is list:
        if UNCHANGED.issuperset(map(type, record)):
            return record
        return kind([_copied(leaf, is_copied) for leaf in record])
    return map_leaves(partial(_copied_leaf, is_copied), record)


def _copied_leaf(is_copied: Callable[[Array], bool], leaf: object) -> object:
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_copied(leaf) else leaf
