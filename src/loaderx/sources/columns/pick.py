"""Rows of a column in other places: of several pieces together, or with blanks in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType
from loaderx.sources.files.parts import numbers_from
from loaderx.tree import Array


class Piece(NamedTuple):
    """Rows of some data, and their places in the result."""

    data: ColumnData
    rows: Indices
    places: Indices


def gathered(kind: ColumnType, pieces: Sequence[Piece], count: int) -> ColumnData:
    """``count`` rows of this type, each from one of the pieces; all are copies."""
    valid = None
    if kind.nulls is not None:
        valid = np.empty(count, np.bool_)
        for data, rows, places in pieces:
            assert data.valid is not None
            valid[places] = data.valid[rows]
    if kind.is_branch:
        fields = {
            name: gathered(field, [_of_field(piece, name) for piece in pieces], count)
            for name, field in kind.fields.items()
        }
        return ColumnData(count, fields=fields, valid=valid)
    if kind.kind == "fixed":
        out = np.empty((count, *kind.shape), kind.dtype)
        for data, rows, places in pieces:
            assert data.values is not None
            out[places] = data.values[rows]
        return ColumnData(count, out, valid=valid)
    return _gathered_runs(kind, pieces, count)._replace(valid=valid)


def _of_field(piece: Piece, name: str) -> Piece:
    return piece._replace(data=piece.data.fields[name])


def _gathered_runs(kind: ColumnType, pieces: Sequence[Piece], count: int) -> ColumnData:
    offsets = np.zeros(count + 1, np.int64)
    for data, rows, places in pieces:
        assert data.offsets is not None
        offsets[places + 1] = data.offsets[rows + 1] - data.offsets[rows]
    np.cumsum(offsets, out=offsets)
    total = int(offsets[-1])
    if kind.kind == "list":
        items = [_items(piece, offsets) for piece in pieces]
        return ColumnData(count, None, offsets, {ITEMS: gathered(kind.fields[ITEMS], items, total)})
    out = np.empty((total, *kind.stored_shape), kind.dtype or np.uint8)
    for data, rows, places in pieces:
        assert data.values is not None
        assert data.offsets is not None
        starts, stops = data.offsets[rows].tolist(), data.offsets[rows + 1].tolist()
        # Slice by slice: an index for each element would be larger than the elements.
        for start, stop, target in zip(starts, stops, offsets[places].tolist(), strict=True):
            out[target : target + stop - start] = data.values[start:stop]
    return ColumnData(count, out, offsets)


def _items(piece: Piece, offsets: Array) -> Piece:
    """The items of the lists of a piece."""
    data, rows, places = piece
    assert data.offsets is not None
    starts = data.offsets[rows]
    lengths = data.offsets[rows + 1] - starts
    return Piece(
        data.fields[ITEMS], numbers_from(starts, lengths), numbers_from(offsets[places], lengths)
    )


def spread(kind: ColumnType, data: ColumnData, valid: Array) -> ColumnData:
    """The values in the places that are valid, and blanks in the others."""
    count = len(valid)
    values, offsets, known, fields = data.values, data.offsets, data.valid, data.fields
    if offsets is not None:
        lengths = np.zeros(count + 1, np.int64)
        lengths[1:][valid] = np.diff(offsets)
        lengths[0] = offsets[0]
        offsets = np.cumsum(lengths)
    elif values is not None:
        values = np.zeros((count, *values.shape[1:]), values.dtype)
        values[valid] = data.values
    if known is not None:
        known = np.ones(count, np.bool_)
        known[valid] = data.valid
    if kind.is_branch:
        fields = {
            name: spread(field, data.fields[name], valid) for name, field in kind.fields.items()
        }
    return ColumnData(count, values, offsets, fields, known)
