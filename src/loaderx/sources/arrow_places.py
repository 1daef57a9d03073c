"""Where records of Arrow batches lie, and the numbers there: offsets, bits, nulls."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices
from loaderx.sources.file_source import BadRecordError
from loaderx.sources.ondisk.byte_ranges import gather_rows
from loaderx.tree import Array

_SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3}
DAMAGED = "the offsets of an Arrow column are damaged: they lie outside its data."


class Place(NamedTuple):
    """Records in one stretch of memory, by batch and row."""

    data: Array  # uint8
    batches: Indices
    rows: Indices

    def items(self, batches: Indices, rows: Indices) -> Place:
        return Place(self.data, batches, rows)


class PlaceRun(NamedTuple):
    """Records that follow each other in one batch."""

    data: Array  # uint8
    batch: int
    start: int  # rows
    stop: int


def nulls(place: Place, valid: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Which records are null; None if no batch of them has nulls.  ``valid``: the slot."""
    base = valid[place.batches]
    if (base < 0).all():
        return None
    has_nulls = base >= 0
    found = np.zeros(len(base), np.bool_)
    found[has_nulls] = ~bits(place.data, base[has_nulls] + place.rows[has_nulls])
    return found


def bits(data: Array, numbers: Indices) -> npt.NDArray[np.bool_]:
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= len(data) * 8):
        raise BadRecordError(DAMAGED)
    found: npt.NDArray[np.uint8] = data[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
    return found.view(np.bool_)


def offsets_at(data: Array, addresses: Indices, width: int) -> Indices:
    found = np.empty(len(addresses), np.int32 if width == 4 else np.int64)
    take_numbers(data, addresses, found)
    return found.astype(np.int64)


def take_numbers(data: Array, addresses: Indices, out: Array) -> None:
    """Numbers at any addresses; mostly they are aligned."""
    width = out.dtype.itemsize
    if width not in _SHIFTS or (addresses & (width - 1)).any():
        gather_rows(data, addresses, out)
        return
    typed = data[: len(data) & -width].view(out.dtype)
    out[:] = typed[addresses >> _SHIFTS[width]]


def check_spans(starts: Indices, stops: Indices, most: Indices) -> None:
    if ((starts < 0) | (stops < starts) | (stops > most)).any():
        raise BadRecordError(DAMAGED)
