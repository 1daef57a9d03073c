"""Padded batches of lists: rows filled up to one length, straight from the columns.

A short row is copied with what lies behind its list, and then filled from the list's end on: two
copies for all rows, and no Python for each.  Long rows are copied one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from loaderx.memory import Layout, Lend
from loaderx.sources.base import Indices, PaddedBatch
from loaderx.sources.columns.elements import Runs
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.tree import Array, ArraySpec, DType, Structure

_SHORT = 2048  # bytes of a row, up to which it is copied with what lies behind it


class PaddedLeaf(Protocol):
    """A leaf of all records, which may be lists: a column, or a decoder of Examples."""

    @property
    def items(self) -> ArraySpec | None:
        """Shape and dtype of an element, if the values are lists of numbers."""
        ...

    def take(self, found: Any, out: Array, /) -> None:
        """Writes values that are not lists."""
        ...

    def runs(self, found: Any, /) -> Iterator[Runs]:
        """The elements of lists; these may be flat, with several numbers for an element."""
        ...


class PaddedColumns:
    """Columns whose lists are padded."""

    def __init__(
        self,
        leaves: Sequence[PaddedLeaf],
        structure: Structure,
        specs: Sequence[ArraySpec],
        find: Callable[[Indices], Any],
        reads_behind: bool,
    ) -> None:
        """
        Args:
            leaves: of records.
            structure: of a record.
            specs: shape and dtype of each leaf in a row of a batch.
            find: makes of indices what leaves take; None if they do not have these records.
            reads_behind: True if the bytes behind a list are readable, to the end of its array.
        """
        self._leaves, self._structure, self._specs = leaves, structure, specs
        self._find, self._reads_behind = find, reads_behind

    def dtypes(self) -> dict[str, DType]:
        """The dtypes of the leaves, by path."""
        pairs = zip(self._structure.paths(), self._specs, strict=True)
        return {path: np.dtype(spec.dtype) for path, spec in pairs}

    def gather(
        self, indices: Indices, values: Mapping[str, Array], lend: Lend
    ) -> PaddedBatch | None:
        """The records at ``indices``, lists padded with ``values``; None if they cannot be."""
        found = self._find(indices)
        if found is None:
            return None
        lengths: dict[str, Array] = {}
        shapes = [((len(indices), *_axes(one)), np.dtype(one.dtype)) for one in self._specs]
        out = lend(Layout.of(*shapes))
        for path, leaf, target in zip(self._structure.paths(), self._leaves, out, strict=True):
            if leaf.items is None:
                leaf.take(found, target)
                continue
            is_short = self._reads_behind and target[:1].nbytes <= _SHORT
            told = _take_padded(leaf.runs(found), target, values[path], is_short)
            if told is None:
                return None
            lengths[path] = told
        return PaddedBatch(self._structure.build(out), lengths)


def padded_columns(
    leaves: Sequence[PaddedLeaf],
    structure: Structure,
    specs: Sequence[ArraySpec | None],
    lengths: Mapping[str, int],
    find: Callable[[Indices], Any],
    reads_behind: bool = True,
) -> PaddedColumns | None:
    """Columns with these lists padded; None if other leaves cannot be stacked."""
    found: list[ArraySpec] = []
    for path, leaf, spec in zip(structure.paths(), leaves, specs, strict=True):
        items = leaf.items
        if items is not None and path in lengths:
            found.append(ArraySpec((lengths[path], *items.shape), items.dtype))
        elif spec is not None and path not in lengths:
            found.append(spec)
    if len(found) < len(leaves) or not set(lengths) <= set(structure.paths()):
        return None
    return PaddedColumns(leaves, structure, found, find, reads_behind)


def _axes(spec: ArraySpec) -> tuple[int, ...]:
    return tuple(axis for axis in spec.shape if axis is not None)


# Rows -------------------------------------------------------------------------------------------


def _take_padded(found: Iterator[Runs], out: Array, value: Array, is_short: bool) -> Array | None:
    """Writes lists into rows, and returns their lengths; None if one is longer than a row."""
    lengths, whole = np.empty(len(out), np.int32), out
    for places, data, starts, stops in found:
        is_flat = data.ndim < whole.ndim - 1  # several numbers for each element of a list
        each = math.prod(whole.shape[2:]) if is_flat else 1
        out = whole.reshape(len(whole), -1) if is_flat else whole
        counts = stops - starts
        if len(counts) and (counts.max() > out.shape[1] or (counts % each).any()):
            return None
        lengths[places] = counts // each
        is_all = isinstance(places, slice)
        target = out if is_all else np.empty((len(starts), *out.shape[1:]), out.dtype)
        if is_short and data.flags.c_contiguous:
            _copy_short(data, starts, counts, target, value)
        else:
            _copy_each(data, starts, counts, target, value)
        if not is_all:
            out[places] = target
    return lengths


def _copy_short(data: Array, starts: Array, counts: Array, out: Array, value: Array) -> None:
    width = out.shape[1]
    near_end = np.flatnonzero(starts + width > len(data))  # the array ends too soon behind them
    if len(near_end):
        if len(near_end) == len(starts):
            _copy_each(data, starts, counts, out, value)
            return
        starts = starts.copy()
        ends, starts[near_end] = starts[near_end], 0
    item = data.dtype.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))
    gather_rows(data.reshape(-1).view(np.uint8), starts * item, out)
    behind = np.arange(width) >= counts[:, None]
    np.copyto(out, value, where=behind.reshape(*behind.shape, *(1,) * (out.ndim - 2)))
    if len(near_end):
        rest = np.empty((len(near_end), *out.shape[1:]), out.dtype)
        _copy_each(data, ends, counts[near_end], rest, value)
        out[near_end] = rest


def _copy_each(data: Array, starts: Array, counts: Array, out: Array, value: Array) -> None:
    out[...] = value
    for row, start, count in zip(out, starts.tolist(), counts.tolist(), strict=True):
        row[:count] = data[start : start + count]
