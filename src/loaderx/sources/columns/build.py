"""Builds columns from the arrays of each part (`columns.data`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError
from loaderx.sources.columns.column import Column, FixedColumn
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType, Which
from loaderx.sources.columns.derived_columns import (
    BranchColumn,
    DecodedColumn,
    NestedColumn,
    OptionalColumn,
    Valid,
)
from loaderx.sources.columns.elements import ArrayOf, PartElements
from loaderx.sources.columns.linear import LinearColumn
from loaderx.sources.columns.run_columns import (
    BytesColumn,
    ItemOffsets,
    ListColumn,
    Offsets,
    RunColumn,
    TextColumn,
)
from loaderx.sources.columns.table import ColumnTree
from loaderx.sources.decoding import ENCODED, Decoding, image_decoder
from loaderx.sources.files.parts import Parts
from loaderx.tree import LEAF, Array, ArraySpec, flatten

FindArrays: TypeAlias = Callable[[tuple[str, ...], Which], ArrayOf]
"""Finds the arrays of a column, or of a field in it, by part."""

_Runs = TypeVar("_Runs", bound=RunColumn)


class DataArrays:
    """A `FindArrays` over the `ColumnData` of each part."""

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


def fixed_column(parts: Parts, array_of: ArrayOf, spec: ArraySpec) -> FixedColumn:
    """Rows of the array of each part."""
    return FixedColumn(parts, PartElements(parts, array_of, parts.counts), spec)


def run_column(
    kind: type[_Runs], parts: Parts, data_of: ArrayOf, offsets_of: ArrayOf, *, is_item: bool = False
) -> _Runs:
    """Runs of the array of each part, from offset to offset; one for each record, or each item."""
    counts = None if is_item else parts.counts + 1
    offsets = PartElements(parts, offsets_of, counts)
    return kind(parts, Offsets(offsets), PartElements(parts, data_of))


def valid_of(
    parts: Parts, arrays: FindArrays, path: tuple[str, ...], *, is_item: bool = False
) -> Valid:
    """Says which values of a column are present."""
    counts = None if is_item else parts.counts
    return Valid(PartElements(parts, arrays(path, "valid"), counts))


def build_column(
    kind: ColumnType,
    parts: Parts,
    arrays: FindArrays,
    path: tuple[str, ...] = (),
    *,
    decode: Decoding = ENCODED,
    optional: bool = False,
    is_item: bool = False,
) -> Column | ColumnTree:
    """The column of this type; a dict of columns for a struct, a tuple of them for a tuple.

    ``decode`` says how images are decoded; by default their values are the bytes of the file.
    With ``optional``, missing values are None.  Missing structs are None in any case, so a struct
    that may be missing is one column.  With ``is_item``, the values are items of lists.
    """
    is_optional = kind.nulls is not None if optional else bool(kind.nulls) and kind.is_branch
    made = _build(
        kind, parts, arrays, path, decode=decode, optional=optional or is_optional, is_item=is_item
    )
    if not is_optional:
        return made
    return OptionalColumn(as_column(made), valid_of(parts, arrays, path, is_item=is_item))


def _build(
    kind: ColumnType,
    parts: Parts,
    arrays: FindArrays,
    path: tuple[str, ...],
    *,
    decode: Decoding,
    optional: bool,
    is_item: bool,
) -> Column | ColumnTree:
    if kind.is_branch:
        fields = {
            name: build_column(
                field,
                parts,
                arrays,
                (*path, name),
                decode=decode.below(name),
                optional=optional,
                is_item=is_item,
            )
            for name, field in kind.fields.items()
        }
        return fields if kind.kind == "struct" else tuple(fields.values())
    if kind.kind == "list":
        made = build_column(
            kind.fields[ITEMS], parts, arrays, (*path, ITEMS),
            decode=decode, optional=True, is_item=True,
        )  # fmt: skip
        items = as_column(made)
        counts = None if is_item else parts.counts + 1
        offsets = PartElements(parts, arrays(path, "offsets"), counts)
        return NestedColumn(parts, ItemOffsets(offsets, items), items)
    values = arrays(path, "values")
    if kind.kind == "fixed":
        assert kind.dtype is not None
        counts = None if is_item else parts.counts
        return FixedColumn(
            parts, PartElements(parts, values, counts), ArraySpec(kind.shape, kind.dtype)
        )
    offsets_of = arrays(path, "offsets")
    if kind.kind == "linear":
        assert kind.dtype is not None
        lists = Offsets(PartElements(parts, offsets_of, None if is_item else parts.counts + 1))
        spec = ArraySpec(kind.shape, kind.dtype)
        return LinearColumn(parts, lists, PartElements(parts, values), spec)
    if kind.kind == "ragged":
        return run_column(ListColumn, parts, values, offsets_of, is_item=is_item)
    of_text = TextColumn if kind.kind == "text" else BytesColumn
    column = run_column(of_text, parts, values, offsets_of, is_item=is_item)
    return pixels_column(column, decode.way) if kind.kind == "image" and decode.way else column


def as_column(made: Column | ColumnTree) -> Column:
    """The column, or one whose values are the dicts or tuples of a tree of columns."""
    columns, structure = flatten(made)
    return columns[0] if structure is LEAF else BranchColumn(columns, structure)


def pixels_column(column: Column, way: bool | str) -> Column:
    """A column of pixels over a column of image files."""
    made = DecodedColumn(column, partial(_pixels_of, image_decoder(way)))
    made.is_large = True
    return made


def _pixels_of(decode: Callable[[bytes], Array], data: object) -> Array:
    """The pixels of an image; a damaged image is a bad record."""
    assert isinstance(data, bytes)
    try:
        return decode(data)
    except FileError as error:
        raise BadRecordError(str(error)) from error
