"""Rows of whole numbers that are constant, or count up, most of the time, as a list of lines.

Segment ids and positions of packed rows are such: each would take twice the bytes of its tokens.  A
row is stored as its *lines*, three numbers each: where the line stops in the row, its first value,
and 1 if it counts up from there (0: it is constant).  The last line of a row stops where the row
does.  Any row can be written so; `with_lines` does it where that takes a fourth of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.column import Locator
from loaderx.sources.columns.data import LINE, ColumnData, ColumnType
from loaderx.sources.columns.elements import Elements, new_rows
from loaderx.sources.columns.record_columns import Encoded, branch
from loaderx.sources.columns.run_columns import Lists, RunColumn
from loaderx.sources.files.parts import Located, numbers_from
from loaderx.tree import Array, ArraySpec, DType

MOST_ENTRIES = 1 << 24  # the size of a file of lines does not say how long its rows are

_SHORTEST = 128  # entries of a row
_LEAST_SAVED = 4  # rows take so many times the bytes of lines
_FEW_ROWS = 8


class LinearColumn(RunColumn):
    """Rows of one length, made of lines when they are read."""

    def __init__(self, parts: Locator, lists: Lists, elements: Elements, spec: ArraySpec) -> None:
        super().__init__(parts, lists, elements)
        self._spec = spec

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        for runs in self.runs(at):
            counts = runs.stops - runs.starts
            lines = runs.data[numbers_from(runs.starts, counts)]
            is_all = isinstance(runs.places, slice) and out.flags.c_contiguous
            target = out if is_all else np.empty((len(counts), out.shape[1]), out.dtype)
            expand(lines, counts, target)
            if not is_all:
                out[runs.places] = target

    def values(self, at: Located) -> Sequence[object]:
        found = new_rows(self._spec, len(at))
        self.take(at, found)
        return list(found)


def are_linear(dtype: DType | None, shape: tuple[int, ...]) -> bool:
    """Whether rows of this type can be stored as lines."""
    return dtype in (np.int32, np.int64) and len(shape) == 1 and 0 < shape[0] <= MOST_ENTRIES


def expand(lines: Array, counts: Indices, out: Array) -> None:
    """Writes the rows with these lines, of which each row has ``counts``."""
    rows, length = out.shape
    if not rows:
        return
    stops, values, rises = lines.T
    begins = np.repeat(np.arange(0, rows * length, length), counts)  # of the row of each line
    ends = begins + stops
    sizes = ends.copy()
    sizes[1:] -= ends[:-1]
    is_right = counts.min() > 0 and sizes.min() > 0 and stops.max() == length
    if not is_right or stops[np.cumsum(counts) - 1].min() < length or (rises >> 1).any():
        raise BadRecordError(f"the lines of a row of {length} numbers are damaged.")
    starts = ends - sizes
    most_rise = 2 * np.count_nonzero(rises) > len(lines)
    flat, ramp = out.reshape(-1), np.arange(length, dtype=out.dtype)
    if most_rise:
        firsts = values - (starts - begins).astype(out.dtype)
        np.add(np.repeat(firsts, sizes).reshape(rows, length), ramp, out=out)
    else:
        flat[...] = np.repeat(values, sizes)
    # The others one by one, since they are few: the padding of each row, say.
    others = np.flatnonzero((rises == 0) == most_rise)
    where = (array[others].tolist() for array in (starts, ends, values))
    for begin, end, value in zip(*where, strict=True):
        flat[begin:end] = value
        if not most_rise:
            flat[begin:end] += ramp[: end - begin]


def expanded_data(kind: ColumnType, data: ColumnData) -> ColumnData:
    """The rows of a column of lines."""
    assert data.values is not None
    assert data.offsets is not None
    lines = data.values[int(data.offsets[0]) : int(data.offsets[-1])]
    rows = np.empty((data.length, *kind.shape), kind.dtype)
    expand(lines, np.diff(data.offsets), rows)
    return ColumnData(data.length, rows)


# Writing ------------------------------------------------------------------------------------------


def with_lines(found: Encoded, known: ColumnType | None) -> Encoded:
    """The same columns; those of rows are stored as lines where that saves most of the bytes.

    ``known`` is the type of the records before them, or None.  A column that was stored as rows
    stays so, and one that was stored as lines stays so until lines take more bytes than rows.
    """
    kind, data = found
    if kind.is_branch and kind.nulls is None:
        fields = {}
        for name, field in kind.fields.items():
            before = None if known is None else known.fields.get(name)
            fields[name] = with_lines(Encoded(field, data.fields[name]), before)
        return branch("struct" if kind.kind == "struct" else "tuple", fields, data.length)
    was_linear = known is not None and known.kind == "linear"
    is_plain = kind.kind == "fixed" and kind.nulls is None and are_linear(kind.dtype, kind.shape)
    if not is_plain or not data.length or not (known is None or was_linear):
        return found
    assert data.values is not None
    least, looked_at = 1, [data.values]
    if not was_linear:
        if kind.shape[0] < _SHORTEST:
            return found
        least, looked_at = _LEAST_SAVED, [data.values[:_FEW_ROWS], data.values]
    for rows in looked_at:  # of most columns, the first few rows tell enough
        lines, offsets = _lines_of(rows)
        if least * (lines.nbytes + offsets.nbytes) > rows.nbytes:
            return found
    return Encoded(kind.replace(kind="linear"), ColumnData(data.length, lines, offsets))


def as_lines(kind: ColumnType) -> ColumnType:
    """The type with lines in all columns that may have them.

    With it as ``known``, records that others precede are stored as lines if those others may be.
    """
    if kind.is_branch and kind.nulls is None:
        return kind.replace(fields={name: as_lines(one) for name, one in kind.fields.items()})
    is_plain = kind.kind == "fixed" and kind.nulls is None and are_linear(kind.dtype, kind.shape)
    return kind.replace(kind="linear") if is_plain and kind.shape[0] >= _SHORTEST else kind


def _lines_of(rows: Array) -> tuple[Array, Array]:
    """The lines of rows, and where those of each row begin."""
    rises = np.diff(rows, axis=1)
    is_up = rises == 1
    is_jump = ~is_up & (rises != 0)
    # A single step up is a jump: segment ids rise by one, and are constant before and after.
    alone = is_up.copy()
    alone[:, 1:] &= ~is_up[:, :-1]
    alone[:, :-1] &= ~is_up[:, 1:]
    is_up &= ~alone
    is_jump |= alone
    begins = np.ones(rows.shape, np.bool_)
    begins[:, 1:] = is_jump
    begins[:, 2:] |= (is_up[:, 1:] != is_up[:, :-1]) & ~is_jump[:, :-1]
    places = np.flatnonzero(begins)
    lines = np.empty((len(places), LINE), rows.dtype)
    row, start = np.divmod(places, rows.shape[1])
    stop = np.append(start[1:], 0)
    lines[:, 0] = np.where(stop == 0, rows.shape[1], stop)
    lines[:, 1] = rows.reshape(-1)[places]
    goes_on = lines[:, 0] - start > 1
    lines[:, 2] = goes_on & is_up[row, np.minimum(start, is_up.shape[1] - 1)]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=len(rows)), out=offsets[1:])
    return lines, offsets
