"""Padded batches of lists: rows filled up to one length, straight from the columns.

A short row is copied with what lies behind its list, and then filled from the list's end on: two
copies for all rows, and no Python for each.  Long rows are copied one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loaderx.memory import Layout, Lend
from loaderx.sources.base import Indices, PaddedBatch
from loaderx.sources.columns.columns import Column, ListColumn
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.parts import Located
from loaderx.tree import Array, ArraySpec, DType, Structure

_SHORT = 2048  # bytes of a row, up to which it is copied with what lies behind it


class PaddedColumns:
    """Columns of which the lists are padded."""

    def __init__(
        self,
        columns: Sequence[Column],
        structure: Structure,
        specs: Sequence[ArraySpec],
        is_odd: Callable[[Indices], bool] | None = None,
        reads_behind: bool = True,
    ) -> None:
        """
        Args:
            columns: the leaves of records.
            structure: of a record.
            specs: shape and dtype of each leaf in a row of a batch.
            is_odd: are there records that are not in the columns?
            reads_behind: can what lies behind a list be read, up to the end of its array?
        """
        self._columns, self._structure, self._specs = columns, structure, specs
        self._is_odd, self._reads_behind = is_odd, reads_behind

    def dtypes(self) -> dict[str, DType]:
        """Of the leaves, by their paths."""
        pairs = zip(self._structure.paths(), self._specs, strict=True)
        return {path: np.dtype(spec.dtype) for path, spec in pairs}

    def gather(
        self, indices: Indices, values: Mapping[str, Array], lend: Lend
    ) -> PaddedBatch | None:
        """The records at ``indices``, with ``values`` behind lists; None if that cannot be."""
        if self._is_odd is not None and self._is_odd(indices):
            return None
        rows, lengths = len(indices), {}
        shapes = [((rows, *_axes(one)), np.dtype(one.dtype)) for one in self._specs]
        leaves = lend(Layout.of(*shapes))
        paths, at = self._structure.paths(), self._columns[0].parts.at(indices)
        for path, column, leaf in zip(paths, self._columns, leaves, strict=True):
            if not isinstance(column, ListColumn):
                column.take(at, leaf)
                continue
            is_short = self._reads_behind and leaf[:1].nbytes <= _SHORT
            found = _take_padded(column, at, leaf, values[path], is_short)
            if found is None:
                return None
            lengths[path] = found
        return PaddedBatch(self._structure.build(leaves), lengths)


def padded_columns(
    columns: Sequence[Column],
    structure: Structure,
    specs: Sequence[ArraySpec | None],
    lengths: Mapping[str, int],
    is_odd: Callable[[Indices], bool] | None = None,
    reads_behind: bool = True,
) -> PaddedColumns | None:
    """Columns with these lists padded; None if there are others that cannot be stacked."""
    found: list[ArraySpec] = []
    for path, column, spec in zip(structure.paths(), columns, specs, strict=True):
        if isinstance(column, ListColumn) and path in lengths:
            found.append(ArraySpec((lengths[path], *column.items.shape), column.items.dtype))
        elif spec is not None and path not in lengths:
            found.append(spec)
    if len(found) < len(columns) or not set(lengths) <= set(structure.paths()):
        return None
    return PaddedColumns(columns, structure, found, is_odd, reads_behind)


def _axes(spec: ArraySpec) -> tuple[int, ...]:
    return tuple(axis for axis in spec.shape if axis is not None)


# Rows -------------------------------------------------------------------------------------------


def _take_padded(
    column: ListColumn, at: Located, out: Array, value: Array, is_short: bool
) -> Array | None:
    """Writes lists into rows, and gives their lengths; None if one is longer than a row."""
    lengths, each = np.empty(len(at), np.int32), 1
    if column.has_flat_data:  # several numbers for each element of a list
        each, out = math.prod(out.shape[2:]), out.reshape(len(out), -1)
    for places, data, starts, stops in column.runs(at):
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
    near_end = np.flatnonzero(starts + width > len(data))  # there is too little behind them
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
