"""Python objects of texts and bytes: many in one call of pyarrow, where that is imported."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from functools import cache

import numpy as np

from loaderx.sources.base import Indices
from loaderx.tree import Array

FEW = 16
"""Fewer texts than this are made as fast one by one."""

BUFFER = 1 << 30
"""Bytes from one buffer of Arrow's to the next: places in it have 31 bits."""

_SCATTERED = 96  # texts in any order, from which on a call of pyarrow is faster
_SHORT = 1 << 9  # bytes of a text, up to which one more copy of it costs less than a view of it
_INLINE = 12  # bytes of a text that Arrow has in the view itself
_MOST_BUFFERS = 16

_WORTH = 1 << 18  # texts: to make so many one by one takes longer than to import pyarrow
_MANY = 64  # runs: for fewer, touching them costs more than it saves
_LINE = 64  # bytes that the CPU fetches at once
_MOST_LINES = 16
_NEAR = 1 << 14  # bytes: what follows so closely is fetched by the CPU itself
_IN_CACHE = 1 << 22  # bytes that are in the cache of the CPU anyway


class ImportLater:
    """Imports pyarrow (0.05 to 0.2 s, 30 MB) once many texts were made without it."""

    def __init__(self, worth: int = _WORTH) -> None:
        self._left = worth

    def count(self, texts: int) -> None:
        """Counts texts that pyarrow could have made."""
        if self._left <= 0:
            return
        self._left -= texts
        if self._left <= 0:
            with contextlib.suppress(Exception):  # not installed, or broken: go on without it
                importlib.import_module("pyarrow")


import_later = ImportLater()


def is_imported() -> bool:
    """True if pyarrow is imported."""
    return "pyarrow" in sys.modules


def bulk_values(
    data: Array, offsets: Array, *, is_text: bool, rows: Indices | None = None
) -> list[object]:
    """The values from offset to offset, which lie within ``data``, in half the time of one by one.

    With ``rows``, only these values; the offsets of others need not be right.
    """
    import pyarrow as pa

    is_wide = offsets.dtype.itemsize == 8
    if is_text:
        kind = pa.large_string() if is_wide else pa.string()
    else:
        kind = pa.large_binary() if is_wide else pa.binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    found: list[object] = (values if rows is None else values.take(pa.array(rows))).to_pylist()
    return found


def breaks_in(starts: Indices, stops: Indices) -> list[int] | None:
    """The runs that do not begin where the one before ends; None if they are too many."""
    if len(starts) < 3 or not (starts[1] == stops[0] or starts[2] == stops[1]):
        return None
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    return None if len(breaks) * FEW > len(starts) else breaks.tolist()


def texts_in_order(data: Array, starts: Indices, stops: Indices, breaks: list[int]) -> list[object]:
    """Texts that follow each other but for a few breaks: one call of pyarrow for each stretch."""
    found: list[object] = []
    for begin, end in itertools.pairwise([0, *breaks, len(starts)]):
        first, last = int(starts[begin]), int(stops[end - 1])
        offsets = np.empty(end - begin + 1, np.int64)
        offsets[0], offsets[1:] = 0, stops[begin:end] - first
        found += bulk_values(data[first:last], offsets, is_text=True)
    return found


def can_be_taken(data: Array, offsets: Array, count: int) -> bool:
    """True if texts are so short that pyarrow should copy ``count`` of them, then make `str`."""
    if count < _SCATTERED or offsets.dtype != np.int64:
        return False
    first, last = int(offsets[0]), int(offsets[-1])  # pyarrow reckons with their mean length
    return 0 <= first <= last <= len(data) and last - first < _SHORT * (len(offsets) - 1)


def can_be_viewed(data: Array, lengths: Indices) -> bool:
    """True if pyarrow can make `str` of texts of these lengths in place."""
    if len(lengths) < _SCATTERED or len(data) > _MOST_BUFFERS * BUFFER or not _has_views():
        return False
    return _SHORT * len(lengths) <= int(lengths.sum()) <= BUFFER and int(lengths.min()) > _INLINE


def viewed_texts(data: Array, starts: Indices, lengths: Indices) -> list[object]:
    """Texts in any order, in one call of pyarrow, which reads them in place.

    A view of Arrow's has four numbers of 32 bits: the length, the first bytes of the text (unused
    here), the number of a buffer, and the place in it.
    """
    import pyarrow as pa

    touch(data, starts, lengths)
    views = np.empty((len(starts), 2), np.int64)
    views[:, 0], views[:, 1] = lengths, (starts % BUFFER << 32) + starts // BUFFER
    # Buffers overlap, so that each text lies in one of them.
    buffers = [data[start : start + 2 * BUFFER - 1] for start in range(0, len(data), BUFFER)]
    parts = [None, *map(pa.py_buffer, (views, *buffers))]
    found: list[object] = pa.Array.from_buffers(pa.string_view(), len(views), parts).to_pylist()
    return found


@cache
def _has_views() -> bool:
    """True if this pyarrow makes texts of views: from version 18 on, and not on big-endian CPUs."""
    sample = np.full(13, ord("a"), np.uint8)
    try:
        return viewed_texts(sample, np.zeros(1, np.int64), np.full(1, 13)) == ["a" * 13]
    except (AttributeError, ValueError):
        return False


def texts_one_by_one(data: Array, starts: Indices, stops: Indices) -> list[object]:
    """Texts in any order, without pyarrow."""
    if len(starts) >= _SCATTERED:
        import_later.count(len(starts))
    if len(starts) >= _MANY:
        touch(data, starts, stops - starts)
    view, begins, ends = data.data, starts.tolist(), stops.tolist()
    pairs = zip(begins, ends, strict=True)
    if sum(ends) - sum(begins) < _SHORT * len(begins):
        return [view[start:stop].tobytes().decode() for start, stop in pairs]
    return [str(view[start:stop], "utf-8") for start, stop in pairs]


def touch(data: Array, starts: Indices, lengths: Indices) -> None:
    """Brings the first bytes of many runs into the cache of the CPU at once.

    Else it would wait for each of them in turn: this saves a sixth of the time of shuffled text.
    """
    if len(starts) < _MANY or len(data) <= _IN_CACHE or 0 <= starts[1] - starts[0] < _NEAR:
        return
    mean = int(lengths.sum()) // len(starts)
    lines = np.arange(0, min(mean // _LINE + 1, _MOST_LINES) * _LINE, _LINE)
    # Run by run, line by line: the CPU then begins to fetch what follows by itself.
    places = starts[:, None] + lines
    if _is_foreign(data):
        places = np.minimum(places, np.maximum(starts + lengths - 1, starts)[:, None])[lengths > 0]
    data.take(places, mode="clip")


def _is_foreign(data: Array) -> bool:
    """True for Arrow's memory, in which the bytes behind a run may not be readable."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    return type(base).__module__.startswith("pyarrow")
