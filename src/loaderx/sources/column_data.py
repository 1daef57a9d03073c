"""What a column of a file holds: its type, and its data as plain arrays.

Arrow data, Parquet and the native layout come down to the same few arrays: rows of one shape
(fixed), or elements one after the other with the offsets at which each record begins (ragged, text,
bytes, image, list).  `build_column` makes a `Column` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.base import Indices
from loaderx.sources.columns import (
    ArrayOf,
    BytesColumn,
    Column,
    DecodedColumn,
    FixedColumn,
    ListColumn,
    Needs,
    TextColumn,
    needs_of,
    rows_of,
    together,
)
from loaderx.sources.file_source import BadRecordError
from loaderx.sources.images import Pixels, decode_image
from loaderx.sources.parts import Parts
from loaderx.sources.table import ColumnTree, records_of
from loaderx.tree import Array, ArraySpec, Structure, flatten

Kind: TypeAlias = Literal["fixed", "ragged", "text", "bytes", "image", "list", "struct", "tuple"]

ITEMS = "items"
"""The name of the one field that a list has."""


class ColumnType(Frozen):
    """The type of a column.

    ``fixed`` has a dtype and a shape, ``ragged`` the dtype and shape of one element of its arrays.
    ``image`` is the bytes of an image file.  ``list`` is a list of anything else, which is its
    field ``items``; ``struct`` has fields by name, ``tuple`` has them by number (``"0"``, ...).
    ``nulls`` is how many records have no value, where that is kept beside the values
    (`ColumnData.valid`); None where all have one.
    """

    kind: Kind
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()
    fields: Mapping[str, ColumnType] = {}
    nulls: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.kind, self.dtype, self.shape))

    def _key(self) -> tuple[object, ...]:
        return self.kind, self.dtype, self.shape, dict(self.fields), self.nulls

    @property
    def is_branch(self) -> bool:
        """Is it nothing but its fields?"""
        return self.kind in ("struct", "tuple")

    def __str__(self) -> str:
        if self.is_branch:
            inner = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
            return f"{self.kind}({inner})"
        if self.kind == "list":
            return f"list of {self.fields[ITEMS]}"
        if self.dtype is None:
            return self.kind
        spec = f"{self.dtype}{list(self.shape) if self.shape else ''}"
        return spec if self.kind == "fixed" else f"lists of {spec}"


class ColumnData(NamedTuple):
    """The arrays of some records of a column.

    ``values`` are the rows (fixed), the elements (ragged) or the bytes (text, bytes, image);
    ``offsets`` say where each record begins in them, and where the last one ends.  They need not
    begin at 0.  ``valid`` is False where there is no value.
    """

    length: int
    values: Array | None = None
    offsets: Array | None = None
    fields: Mapping[str, ColumnData] = {}
    valid: Array | None = None

    @property
    def nbytes(self) -> int:
        own = sum(one.nbytes for one in (self.values, self.offsets) if one is not None)
        return own + sum(field.nbytes for field in self.fields.values())


def joined(kind: ColumnType, pieces: Sequence[ColumnData]) -> ColumnData:
    """The data of pieces that follow each other."""
    if len(pieces) == 1:
        return pieces[0]
    fields = {
        name: joined(field, [piece.fields[name] for piece in pieces])
        for name, field in kind.fields.items()
    }
    length = sum(piece.length for piece in pieces)
    values: list[Array] = []
    offsets: list[Array] = [np.zeros(1, np.int64)]
    end = 0
    for piece in pieces:
        if piece.offsets is None:
            if piece.values is not None:
                values.append(piece.values)
            continue
        start, stop = int(piece.offsets[0]), int(piece.offsets[-1])
        offsets.append(piece.offsets[1:].astype(np.int64) + (end - start))
        end += stop - start
        if piece.values is not None:
            values.append(piece.values[start:stop])
    return ColumnData(
        length,
        np.concatenate(values) if values else None,
        np.concatenate(offsets) if len(offsets) > 1 else None,
        fields,
    )


def collect(
    kind: ColumnType, find: Callable[[tuple[str, ...], Which], Array], path: tuple[str, ...] = ()
) -> ColumnData:
    """Data of this type without nulls, whose arrays are found one by one.

    They are asked for in a fixed order: values, offsets, then those of the fields.
    """
    values = None if kind.kind == "list" or kind.is_branch else find(path, "values")
    offsets = None if kind.kind == "fixed" or kind.is_branch else find(path, "offsets")
    fields = {name: collect(field, find, (*path, name)) for name, field in kind.fields.items()}
    if offsets is not None:
        length = len(offsets) - 1
    else:
        length = len(values) if values is not None else next(iter(fields.values())).length
    return ColumnData(length, values, offsets, fields)


Which: TypeAlias = Literal["values", "offsets", "valid"]

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
) -> Column | ColumnTree:
    """The column of this type; a dict of columns for a struct, a tuple of them for a tuple.

    ``decode`` makes pixels of images, which are their bytes otherwise.
    """
    if kind.is_branch:
        fields = {
            name: build_column(field, parts, arrays, (*path, name), decode=decode)
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
            items = self._read(part, _each_of(starts, lengths))
            each = range(len(indices)) if isinstance(places, slice) else places.tolist()
            for place, end, length in zip(each, ends.tolist(), lengths.tolist(), strict=True):
                found[place] = items[end - length : end]
        return found

    def _lists(self, part: int, local: Indices) -> tuple[Indices, Indices]:
        """The first item of each list, and how many it has."""
        offsets = rows_of(self._offsets_of, part, local, 2)
        starts = offsets[local].astype(np.int64)
        lengths = offsets[local + 1] - starts
        if (starts < 0).any() or (lengths < 0).any():
            raise BadRecordError("the offsets of a column are damaged: they do not ascend.")
        return starts, lengths

    def needs(self, indices: Indices) -> Iterator[Needs]:
        split = list(self._parts.split(indices))
        yield [
            one for part, _, local in split for one in needs_of(self._offsets_of, part, local, 2)
        ]
        rounds = []
        for part, _, local in split:
            numbers = _each_of(*self._lists(part, local))
            rounds += [column.needs(numbers) for column in self._columns(part)[0]]
        yield from together(rounds)

    @property
    def is_fetched(self) -> bool:
        return hasattr(self._offsets_of, "needs")

    def _columns(self, part: int) -> tuple[list[Column], Structure]:
        """The columns of the items of a part."""
        # As one part of any length: items are numbered from the part's first one.
        arrays = _OfPart(self._arrays, part)
        made = build_column(self._items, Parts([0]), arrays, self._path, decode=self._decode)
        return flatten(made)

    def _read(self, part: int, numbers: Indices) -> list[object]:
        """Items by their number within a part."""
        columns, structure = self._columns(part)
        if len(numbers):
            _check_within(self._items, self._arrays, part, self._path, int(numbers.max()))
        return records_of(structure, [column.values(numbers) for column in columns])


def _each_of(starts: Indices, lengths: Indices) -> Indices:
    """The numbers of all items of lists, one list after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Indices = np.repeat(starts - ends + lengths, lengths) + np.arange(total)
    return numbers


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


def nulls_found(at: str, name: str, count: int, example: str = "...") -> FileError:
    """The error for a column with nulls."""
    told = f"{count} null{'s' if count != 1 else ''}"
    return FileError(
        f"{at} has {told}, and a record has a value in every leaf. Fill them, "
        f"fill={{{name!r}: {example}}}, or leave the column out with columns=[...]."
    )
