"""Columns of the arrays of `column_data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.columns import (
    ArrayOf,
    BytesColumn,
    Column,
    DecodedColumn,
    FixedColumn,
    ListColumn,
    Needs,
    OptionalColumn,
    TextColumn,
    needs_of,
    rows_of,
    together,
)
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType, Which
from loaderx.sources.columns.table import ColumnTree, records_of
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Parts, lie_outside, numbers_from
from loaderx.sources.images import Pixels, check_decoder, decode_image
from loaderx.tree import Array, ArraySpec, Structure, flatten

FindArrays: TypeAlias = Callable[[tuple[str, ...], Which], ArrayOf]
"""Where the arrays of a column, or of a field in it, are found by part."""


class DataArrays:
    """`FindArrays` for those who have the `ColumnData` of each part."""

    def __init__(self, data_of: Callable[[int], ColumnData]) -> None:
        self._data_of = data_of

    def __call__(self, path: tuple[str, ...], which: Which) -> ArrayOf:
        return _ArrayInData(self._data_of, path, which)


class _ArrayInData:
    def __init__(
        self, data_of: Callable[[int], ColumnData], path: tuple[str, ...], which: Which
    ) -> None:
        self._data_of, self._path, self._which = data_of, path, which

    def __call__(self, part: int) -> Array:
        data = self._data_of(part)
        for name in self._path:
            data = data.fields[name]
        array = {"values": data.values, "offsets": data.offsets, "valid": data.valid}[self._which]
        assert array is not None, (self._path, self._which)
        return array


def build_column(
    kind: ColumnType,
    parts: Parts,
    arrays: FindArrays,
    path: tuple[str, ...] = (),
    *,
    decode: bool = False,
    optional: bool = False,
) -> Column | ColumnTree:
    """The column of this type; a dict of columns for a struct, a tuple of them for a tuple.

    ``decode`` makes pixels of images, which are their bytes otherwise.  With ``optional``, values
    that are not there are None.  Structs that are not there always are, which makes a column of a
    struct.
    """
    is_optional = kind.nulls is not None if optional else bool(kind.nulls) and kind.is_branch
    made = _build(kind, parts, arrays, path, decode=decode, optional=optional or is_optional)
    if not is_optional:
        return made
    column = made if isinstance(made, Column) else BranchColumn(made)
    return OptionalColumn(column, parts, arrays(path, "valid"))


def _build(
    kind: ColumnType,
    parts: Parts,
    arrays: FindArrays,
    path: tuple[str, ...],
    *,
    decode: bool,
    optional: bool,
) -> Column | ColumnTree:
    if kind.is_branch:
        fields = {
            name: build_column(
                field, parts, arrays, (*path, name), decode=decode, optional=optional
            )
            for name, field in kind.fields.items()
        }
        return fields if kind.kind == "struct" else tuple(fields.values())
    if kind.kind == "list":
        return NestedColumn(parts, arrays, path, kind.fields[ITEMS], decode=decode)
    values = arrays(path, "values")
    if kind.kind == "fixed":
        assert kind.dtype is not None
        return FixedColumn(parts, values, ArraySpec(kind.shape, kind.dtype))
    offsets = arrays(path, "offsets")
    if kind.kind == "ragged":
        return ListColumn(parts, values, offsets)
    if kind.kind == "image" and decode:
        check_decoder()
        made = DecodedColumn(BytesColumn(parts, values, offsets), pixels_of)
        made.is_large = True
        return made
    return (TextColumn if kind.kind == "text" else BytesColumn)(parts, values, offsets)


def pixels_of(data: object) -> Pixels:
    """The pixels of an image; one that is damaged is a bad record."""
    assert isinstance(data, bytes)
    try:
        return decode_image(data)
    except FileError as error:
        raise BadRecordError(str(error)) from error


class BranchColumn(Column):
    """Dicts or tuples: the values of several columns together."""

    def __init__(self, columns: ColumnTree) -> None:
        leaves, self._structure = flatten(columns)
        self._columns: list[Column] = leaves

    @property
    def spec(self) -> None:
        return None

    def values(self, indices: Indices) -> Sequence[object]:
        return records_of(self._structure, [column.values(indices) for column in self._columns])

    def spans(self, indices: Indices) -> Iterator[Span]:
        for column in self._columns:
            yield from column.spans(indices)

    def needs(self, indices: Indices) -> Iterator[Needs]:
        return together([column.needs(indices) for column in self._columns])

    @property
    def is_fetched(self) -> bool:
        return any(column.is_fetched for column in self._columns)


class NestedColumn(Column):
    """Lists of text, of dicts, of lists: a Python list for each record."""

    def __init__(
        self,
        parts: Parts,
        arrays: FindArrays,
        path: tuple[str, ...],
        items: ColumnType,
        *,
        decode: bool,
    ) -> None:
        self._parts, self._offsets_of = parts, arrays(path, "offsets")
        self._arrays, self._path = arrays, (*path, ITEMS)
        self._items, self._decode = items, decode

    @property
    def spec(self) -> None:
        return None

    def values(self, indices: Indices) -> Sequence[object]:
        found: list[object] = [None] * len(indices)
        for part, places, local in self._parts.split(indices):
            starts, lengths = self._lists(part, local)
            ends = np.cumsum(lengths)
            items = self._read(part, numbers_from(starts, lengths))
            each = range(len(indices)) if isinstance(places, slice) else places.tolist()
            for place, end, length in zip(each, ends.tolist(), lengths.tolist(), strict=True):
                found[place] = items[end - length : end]
        return found

    def _lists(self, part: int, local: Indices) -> tuple[Indices, Indices]:
        """The first item of each list, and how many it has."""
        offsets = rows_of(self._offsets_of, part, local, 2)
        starts, stops = offsets[local].astype(np.int64), offsets[local + 1].astype(np.int64)
        if lie_outside(starts, stops, np.iinfo(np.int64).max):
            raise BadRecordError("the offsets of a column are damaged: they do not ascend.")
        if (stops > starts).any():  # before as many items are asked for
            last = int(stops[stops > starts].max()) - 1
            _check_within(self._items, self._arrays, part, self._path, last)
        return starts, stops - starts

    def needs(self, indices: Indices) -> Iterator[Needs]:
        split = list(self._parts.split(indices))
        yield [
            one for part, _, local in split for one in needs_of(self._offsets_of, part, local, 2)
        ]
        rounds = []
        for part, _, local in split:
            numbers = numbers_from(*self._lists(part, local))
            rounds += [column.needs(numbers) for column in self._columns(part)[0]]
        yield from together(rounds)

    @property
    def is_fetched(self) -> bool:
        return hasattr(self._offsets_of, "needs")

    def _columns(self, part: int) -> tuple[list[Column], Structure]:
        """The columns of the items of a part."""
        # As one part of any length: items are numbered from the part's first one.
        arrays = _OfPart(self._arrays, part)
        made = build_column(
            self._items, Parts([0]), arrays, self._path, decode=self._decode, optional=True
        )
        return flatten(made)

    def _read(self, part: int, numbers: Indices) -> list[object]:
        """Items by their number within a part."""
        columns, structure = self._columns(part)
        return records_of(structure, [column.values(numbers) for column in columns])


class _OfPart:
    """The arrays of one part, whatever part is asked for."""

    def __init__(self, arrays: FindArrays, part: int) -> None:
        self._arrays, self._part = arrays, part

    def __call__(self, path: tuple[str, ...], which: Which) -> ArrayOf:
        array_of = self._arrays(path, which)
        if hasattr(array_of, "needs"):
            return _FetchedOfPart(array_of, self._part)
        return lambda _: array_of(self._part)


class _FetchedOfPart:
    """The array of one part, whatever part is asked for; a `FetchedArrays`."""

    def __init__(self, array_of: ArrayOf, part: int) -> None:
        self._array_of, self._part = array_of, part

    def __call__(self, _: int) -> Array:
        return self._array_of(self._part)

    def rows(self, _: int, starts: Indices, lengths: Indices | int) -> Array:
        return rows_of(self._array_of, self._part, starts, lengths)

    def needs(self, _: int, starts: Indices, lengths: Indices | int) -> Needs:
        return needs_of(self._array_of, self._part, starts, lengths)


def _check_within(
    kind: ColumnType, arrays: FindArrays, part: int, path: tuple[str, ...], last: int
) -> None:
    """Refuses offsets that lead behind the items."""
    if kind.is_branch:
        for name, field in kind.fields.items():
            _check_within(field, arrays, part, (*path, name), last)
        return
    is_fixed = kind.kind == "fixed"
    array_of = arrays(path, "values" if is_fixed else "offsets")
    have = len(rows_of(array_of, part, np.empty(0, np.int64), 0)) - (not is_fixed)
    if last >= have:
        raise BadRecordError(f"the offsets of a column are damaged: item {last} of {have}.")
