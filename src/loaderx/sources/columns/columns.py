"""Columns: one leaf of all records, each kind with its own way to be read in bulk.

A column with a `spec` can be gathered: `take` fills an array, with no Python per number.  The
others (lists and images of various sizes) are read as a list of `values`.  Columns run through the
parts of a dataset (`Parts`), which are its files or the pieces of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.gathering import take_rows
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.joined_parts import JoinedRows, JoinedRuns
from loaderx.sources.columns.text import (
    FEW,
    bulk_values,
    can_be_taken,
    can_be_viewed,
    follow,
    is_imported,
    texts_in_order,
    texts_one_by_one,
    touch,
    viewed_texts,
)
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Parts, Places, lie_outside
from loaderx.tree import Array, ArraySpec

if TYPE_CHECKING:
    from loaderx.sources.files.file_set import FileRanges, FileSet

OBJECT = ArraySpec((), np.dtype(object))
"""Text and bytes: Python objects, never cut to a length."""

ArrayOf: TypeAlias = Callable[[int], Array]
"""The array of a part, by its number; mapped when it is asked for."""

Needs: TypeAlias = "list[tuple[FileSet, FileRanges]]"
"""What must be on this machine: ranges of files behind URLs."""


class FetchedArrays(Protocol):
    """An `ArrayOf` whose rows are fetched when they are read.  Called, it fetches all of them."""

    def rows(self, part: int, starts: Indices, lengths: Indices | int) -> Array:
        """The array of a part, in which runs of rows are here; others may be zeros."""
        ...

    def needs(self, part: int, starts: Indices, lengths: Indices | int) -> Needs:
        """What must be here for these rows."""
        ...


def rows_of(array_of: ArrayOf, part: int, starts: Indices, lengths: Indices | int) -> Array:
    """The array of a part, of which these runs of rows are read, and no others."""
    rows: Callable[..., Array] | None = getattr(array_of, "rows", None)
    return array_of(part) if rows is None else rows(part, starts, lengths)


def needs_of(array_of: ArrayOf, part: int, starts: Indices, lengths: Indices | int) -> Needs:
    """What must be fetched for these runs of rows."""
    needs: Callable[..., Needs] | None = getattr(array_of, "needs", None)
    return [] if needs is None else needs(part, starts, lengths)


class Column:
    """One leaf of all records."""

    is_large = False  # are values made of much less, as pixels are of files?

    @property
    def spec(self) -> ArraySpec | None:
        """Shape and dtype of a value; None if they differ between records."""
        raise NotImplementedError

    def take(self, indices: Indices, out: Array) -> None:
        """Writes the values at ``indices`` into the rows of ``out``; only where there is a spec."""
        values = self.values(indices)
        for number, value in enumerate(values):
            out[number] = value

    def values(self, indices: Indices) -> Sequence[object]:
        """The values at ``indices``: arrays (new, or read-only views), numbers, text or bytes."""
        raise NotImplementedError

    def spans(self, indices: Indices) -> Iterator[Span]:
        """What is read for these values, in the order in which it is read."""
        return iter(())

    def needs(self, indices: Indices) -> Iterator[Needs]:
        """What must be fetched for these values, in rounds: one must be here before the next."""
        return iter(())

    @property
    def is_fetched(self) -> bool:
        """Are values fetched as they are read?"""
        return False


def together(rounds: Sequence[Iterator[Needs]]) -> Iterator[Needs]:
    """The rounds of several: the first ones of all, then the second ones, and so on."""
    for each in zip_longest(*rounds, fillvalue=()):
        yield [need for needs in each for need in needs]


class ColumnSpans:
    """What is read for records of several columns; a `FindSpans`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def __call__(self, indices: Indices) -> Iterator[Span]:
        for column in self._columns:
            yield from column.spans(indices)


class FixedColumn(Column):
    """Values of one shape and dtype: rows of an array in each part."""

    def __init__(self, parts: Parts, array_of: ArrayOf, spec: ArraySpec) -> None:
        self.parts, self.part, self._spec = parts, array_of, spec
        self._shape = tuple(axis for axis in spec.shape if axis is not None)  # no axis is open
        self.joined = JoinedRows(parts, array_of)

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, indices: Indices, out: Array) -> None:
        if self.joined.take(indices, out):
            return
        for part, places, local in self.parts.split(indices):
            array = rows_of(self.part, part, local, 1)
            if isinstance(places, slice) and array.dtype == out.dtype:
                take_rows(array, local, out)
            else:
                out[places] = array[local]

    def values(self, indices: Indices) -> Sequence[object]:
        found = np.empty((len(indices), *self._shape), self._spec.dtype)
        self.take(indices, found)
        return list(found)

    def spans(self, indices: Indices) -> Iterator[Span]:
        for part, _, local in self.parts.split(indices):
            yield Span(rows_of(self.part, part, local, 1), local, local + 1)

    def needs(self, indices: Indices) -> Iterator[Needs]:
        split = self.parts.split(indices)
        yield [one for part, _, local in split for one in needs_of(self.part, part, local, 1)]

    @property
    def is_fetched(self) -> bool:
        return hasattr(self.part, "needs")


class Runs(NamedTuple):
    """The values in one part that were asked for, or in all parts that are joined."""

    places: Places  # among all that were asked for
    data: Array  # elements
    starts: Indices  # where each value begins in them ...
    stops: Indices  # ... and ends
    offsets: Array | None  # of all values in the part
    rows: Indices  # the numbers of the values in the part


class RunColumn(Column):
    """The base of columns whose values are runs of elements of one array, from offset to offset."""

    def __init__(self, parts: Parts, data_of: ArrayOf, offsets_of: ArrayOf) -> None:
        self.parts, self._data_of, self._offsets_of = parts, data_of, offsets_of
        self.joined = JoinedRuns(parts, data_of, offsets_of)

    def _values(self, runs: Runs) -> list[object]:
        raise NotImplementedError

    def runs(self, indices: Indices) -> Iterator[Runs]:
        """Part by part: the values at ``indices``."""
        joined = self.joined.find(indices)
        if joined is not None:
            yield Runs(slice(None), *joined, None, indices)
            return
        for part, places, local in self.parts.split(indices):
            offsets = rows_of(self._offsets_of, part, local, 2)
            starts, stops = offsets[local], offsets[local + 1]
            data = rows_of(self._data_of, part, starts, stops - starts)
            if lie_outside(starts, stops, len(data)):
                raise BadRecordError("the offsets of a column are damaged: they lie outside it.")
            yield Runs(places, data, starts, stops, offsets, local)

    def values(self, indices: Indices) -> Sequence[object]:
        found: list[object] = [None] * len(indices)
        for runs in self.runs(indices):
            values = self._values(runs)
            if isinstance(runs.places, slice):
                return values
            for place, value in zip(runs.places.tolist(), values, strict=True):
                found[place] = value
        return found

    def spans(self, indices: Indices) -> Iterator[Span]:
        for part, _, local in self.parts.split(indices):
            offsets = rows_of(self._offsets_of, part, local, 2)
            yield Span(offsets, local, local + 2)
            starts, stops = offsets[local], offsets[local + 1]
            data = rows_of(self._data_of, part, starts, stops - starts)
            stops = np.minimum(stops, len(data))
            yield Span(data, np.clip(starts, 0, stops), stops)

    def needs(self, indices: Indices) -> Iterator[Needs]:
        split = list(self.parts.split(indices))
        yield [
            one
            for part, _, local in split
            for one in (
                *needs_of(self._offsets_of, part, local, 2),
                *needs_of(self._data_of, part, local[:0], 0),  # its header
            )
        ]
        found: Needs = []
        for part, _, local in split:
            offsets = rows_of(self._offsets_of, part, local, 2)
            starts = offsets[local]
            found += needs_of(self._data_of, part, starts, offsets[local + 1] - starts)
        yield found

    @property
    def is_fetched(self) -> bool:
        return hasattr(self._data_of, "needs")


class ListColumn(RunColumn):
    """Lists of numbers: arrays of one axis, of various lengths; read-only views."""

    @property
    def spec(self) -> None:
        return None

    @property
    def items(self) -> ArraySpec:
        """Shape and dtype of an element."""
        data = rows_of(self._data_of, 0, np.empty(0, np.int64), 0)
        return ArraySpec(data.shape[1:], data.dtype)

    def _values(self, runs: Runs) -> list[object]:
        pairs = zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)
        return [runs.data[start:stop] for start, stop in pairs]


class BytesColumn(RunColumn):
    """Runs of bytes."""

    @property
    def spec(self) -> ArraySpec | None:
        return OBJECT

    def take(self, indices: Indices, out: Array) -> None:
        out[:] = self.values(indices)

    def _values(self, runs: Runs) -> list[object]:
        touch(runs.data, runs.starts, runs.stops - runs.starts)
        view, pairs = runs.data.data, zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)
        return [view[start:stop].tobytes() for start, stop in pairs]


class TextColumn(BytesColumn):
    """Text in UTF-8."""

    def _values(self, runs: Runs) -> list[object]:
        _, data, starts, stops, offsets, rows = runs
        if len(rows) >= FEW and is_imported():
            if follow(starts, stops):
                return texts_in_order(data, starts, stops)
            if offsets is not None and can_be_taken(data, offsets, len(rows)):
                return bulk_values(data, offsets, is_text=True, rows=rows)
            if can_be_viewed(data, stops - starts):
                return viewed_texts(data, starts, stops - starts)
        return texts_one_by_one(data, starts, stops)


class DecodedColumn(Column):
    """Values of another column, each put through a function: images, say."""

    def __init__(self, column: Column, decode: Callable[[object], object]) -> None:
        self._column, self._decode = column, decode

    @property
    def spec(self) -> None:
        return None

    def values(self, indices: Indices) -> Sequence[object]:
        return list(map(self._decode, self._column.values(indices)))

    def spans(self, indices: Indices) -> Iterator[Span]:
        return self._column.spans(indices)

    def needs(self, indices: Indices) -> Iterator[Needs]:
        return self._column.needs(indices)

    @property
    def is_fetched(self) -> bool:
        return self._column.is_fetched


class NullableColumn(Column):
    """The base of columns over another one, some of whose values are not there."""

    def __init__(self, column: Column, parts: Parts, valid_of: ArrayOf) -> None:
        self._column = column
        self._valid = FixedColumn(parts, valid_of, ArraySpec((), np.dtype(np.bool_)))

    def _missing(self, indices: Indices) -> Indices:
        """The places of values that are not there."""
        is_there = np.empty(len(indices), np.bool_)
        self._valid.take(indices, is_there)
        return np.flatnonzero(~is_there)

    def spans(self, indices: Indices) -> Iterator[Span]:
        return self._column.spans(indices)

    def needs(self, indices: Indices) -> Iterator[Needs]:
        return together([self._column.needs(indices), self._valid.needs(indices)])

    @property
    def is_fetched(self) -> bool:
        return self._column.is_fetched


class FilledColumn(NullableColumn):
    """Another column, with a value in place of those that are not there."""

    def __init__(
        self, column: Column, parts: Parts, valid_of: ArrayOf, value: object, name: str
    ) -> None:
        super().__init__(column, parts, valid_of)
        self._value = value
        spec = column.spec
        if spec is not None and spec.dtype != object:
            try:
                cast = np.asarray(value).astype(spec.dtype)
                is_same = bool((cast == value).all()) or spec.dtype.kind in "fcmM"
                np.broadcast_to(cast, [axis or 0 for axis in spec.shape])
            except (TypeError, ValueError, OverflowError):
                is_same = False
            if not is_same:
                raise ArgumentError(f"`fill` has {value!r} for the column {name!r} of {spec!r}.")

    @property
    def spec(self) -> ArraySpec | None:
        return self._column.spec

    def take(self, indices: Indices, out: Array) -> None:
        self._column.take(indices, out)
        out[self._missing(indices)] = self._value

    def values(self, indices: Indices) -> Sequence[object]:
        if self._column.spec is not None and self._column.spec.dtype != object:
            return list(self._taken(indices))
        values = list(self._column.values(indices))
        for place in self._missing(indices).tolist():
            values[place] = self._value
        return values

    def _taken(self, indices: Indices) -> Array:
        assert self.spec is not None
        found = np.empty((len(indices), *(axis or 0 for axis in self.spec.shape)), self.spec.dtype)
        self.take(indices, found)
        return found


class OptionalColumn(NullableColumn):
    """Another column, with None in place of values that are not there."""

    @property
    def spec(self) -> None:
        return None

    def values(self, indices: Indices) -> Sequence[object]:
        values = list(self._column.values(indices))
        for place in self._missing(indices).tolist():
            values[place] = None
        return values


class ListedArrays:
    """Arrays by the number of their part: in memory, or few enough to be mapped at once."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = list(arrays)

    def __call__(self, number: int) -> Array:
        return self._arrays[number]
