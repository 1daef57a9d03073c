"""Columns of Arrow record batches, by their Arrow types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.build import as_column, pixels_column
from loaderx.sources.columns.column import Column, FixedColumn
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.derived_columns import ColumnOver, NestedColumn
from loaderx.sources.columns.elements import Elements, new_rows
from loaderx.sources.columns.run_columns import (
    BytesColumn,
    FixedRunColumn,
    ListColumn,
    Lists,
    Offsets,
    TextColumn,
)
from loaderx.sources.columns.table import ColumnTree
from loaderx.sources.decoding import Decoding
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Located, in_places, lie_outside
from loaderx.sources.formats.arrow.addresses import Node
from loaderx.sources.formats.arrow.elements import (
    DAMAGED,
    Addressed,
    Bits,
    NullBits,
    RecordBatches,
    Slot,
    Slots,
    Widened,
)
from loaderx.sources.mapping import open_regular
from loaderx.tree import ArraySpec

_INT32, _BYTE = np.dtype(np.int32), np.dtype(np.uint8)


# Lists ------------------------------------------------------------------------------------------


class CheckedOffsets(Offsets):
    """Offsets that must lead to one of ``counts`` elements in a batch."""

    def __init__(self, elements: Addressed, counts: Slot) -> None:
        super().__init__(elements)
        self._counts = counts

    def find(self, at: Located) -> tuple[Indices, Indices]:
        starts, stops = super().find(at)
        return self.checked(at, starts, stops)

    def between(self, at: Located, first: Indices, last: Indices) -> tuple[Indices, Indices]:
        """The items of runs of lists."""
        starts = self._elements.pairs(at.moved(first))[0]
        stops = self._elements.pairs(at.moved(last - 1))[1]
        empty = first == last
        return self.checked(at, starts, np.where(empty, starts, stops))

    def checked(self, at: Located, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
        if lie_outside(starts, stops, at.each(self._counts)):
            raise BadRecordError(DAMAGED)
        return starts, stops


class FixedLevel(NamedTuple):
    """Lists of one length."""

    first: Slot  # item in each batch
    size: int


class Levels(Lists):
    """Lists in lists: the places of a record's items among those of the innermost lists."""

    def __init__(self, levels: Sequence[CheckedOffsets | FixedLevel]) -> None:
        self._levels = levels

    def find(self, at: Located) -> tuple[Indices, Indices]:
        starts, stops = at.rows, at.rows + 1
        for level in self._levels:
            if isinstance(level, FixedLevel):
                first = at.each(level.first)
                starts, stops = first + starts * level.size, first + stops * level.size
            else:
                starts, stops = level.between(at, starts, stops)
        return starts, stops

    def spans(self, at: Located) -> Iterator[Span]:
        """The offsets of the outermost lists."""
        level = self._levels[0]
        return iter(()) if isinstance(level, FixedLevel) else level.spans(at)


def _offsets(batches: RecordBatches, node: Node, slots: Slots) -> CheckedOffsets:
    """Of bytes, or of lists."""
    dtype = np.dtype(np.int32 if node.width == 4 else np.int64)
    counts = slots[3 if node.kind == "bytes" else 2]
    return CheckedOffsets(Addressed(batches, slots[1], ArraySpec((), dtype)), counts)


class _Items:
    """The items of the innermost of lists in lists, and the way to them."""

    def __init__(self, batches: RecordBatches, kind: ColumnType, node: Node, slots: Slots) -> None:
        assert kind.dtype is not None
        self.levels: list[CheckedOffsets | FixedLevel] = []
        while node.kind in ("list", "fixed_list"):
            self.levels.append(
                _offsets(batches, node, slots)
                if node.kind == "list"
                else FixedLevel(slots[1], node.size)
            )
            slots = slots[node.own_slots :]
            node = node.children[0]
        self._batches, self._address, self._dtype = batches, slots[1], kind.dtype
        self._is_bits = node.kind == "bits"
        self._is_widened = not self._is_bits and kind.dtype.kind in "mM" and node.width == 4
        if kind.dtype == np.uint8 and not self._is_bits and node.width != 1:  # runs of bytes
            self.levels.append(FixedLevel(np.zeros_like(slots[1]), node.width))

    def elements(self, address: Slot, shape: tuple[int, ...]) -> Elements:
        """Numbers from an address on (for bits, an address in bits)."""
        if self._is_bits:
            return Bits(self._batches, address, shape)
        if self._is_widened:
            return Widened(Addressed(self._batches, address, ArraySpec(shape, _INT32)), self._dtype)
        return Addressed(self._batches, address, ArraySpec(shape, self._dtype))

    @property
    def numbers(self) -> Elements:
        return self.elements(self._address, ())

    def rows(self, shape: tuple[int, ...]) -> Elements | None:
        """Rows of numbers, if all lists have one length, so that rows follow each other."""
        first, size = np.zeros_like(self._address), 1
        for level in self.levels:
            if not isinstance(level, FixedLevel):
                return None
            first, size = level.first + first * level.size, size * level.size
        if size != math.prod(shape):
            return None
        width = 1 if self._is_bits else 4 if self._is_widened else self._dtype.itemsize
        return self.elements(self._address + first * width, shape)


# Columns ----------------------------------------------------------------------------------------


class EmbeddedColumn(ColumnOver):
    """Files that Hugging Face keeps in a struct: their bytes, or the path of a file to read."""

    def __init__(
        self,
        contents: Column,
        missing: NullBits,
        paths: tuple[Column, NullBits] | None,
        *,
        names_files: bool,
    ) -> None:
        """Without ``names_files``, paths are refused: the data is from another machine."""
        super().__init__(contents)
        self._missing, self._paths, self._names_files = missing, paths, names_files

    def values(self, at: Located) -> Sequence[object]:
        missing = self._missing.missing(at)
        if missing is None or not missing.any():
            return self._column.values(at)
        there, lost = np.flatnonzero(~missing), np.flatnonzero(missing)
        from_paths = [self._from_path(at.pick(lost[n : n + 1])) for n in range(len(lost))]
        found = [(there, self._column.values(at.pick(there))), (lost, from_paths)]
        return in_places(len(at), found)

    def _from_path(self, at: Located) -> bytes:
        no_path = None if self._paths is None else self._paths[1].missing(at)
        if self._paths is None or (no_path is not None and no_path.any()):
            raise BadRecordError("there are neither the bytes of a file nor its path.")
        (path,) = self._paths[0].values(at)
        if not self._names_files:
            raise BadRecordError(
                f"its bytes are in another file, {path!r:.100}, and data behind a URL must not "
                "name files of this machine. Have the bytes written into it (embed_table_storage "
                "of datasets), or download it and open the copy."
            )
        try:
            with open_regular(str(path)) as file:
                return file.read()
        except (FileError, OSError) as error:
            raise BadRecordError(f"its bytes are in another file, and {error}") from error


class PlainColumn(ColumnOver):
    """Numbers and arrays of them as Python numbers and lists."""

    def values(self, at: Located) -> Sequence[object]:
        spec = self._column.spec
        if spec is None:
            return [array.tolist() for array in self._column.values(at)]  # type: ignore[attr-defined]
        found = new_rows(spec, len(at))
        self._column.take(at, found)
        values: list[object] = found.tolist()
        return values


class ColumnBuilder:
    """Makes columns of record batches."""

    def __init__(
        self,
        batches: RecordBatches,
        *,
        is_plain: bool = False,
        names_files: bool = True,
    ) -> None:
        """
        Args:
            batches: the records.
            is_plain: True gives Python numbers and lists instead of arrays.
            names_files: True reads files that are given by their path.
        """
        self._batches, self._is_plain, self._names_files = batches, is_plain, names_files

    def column(
        self, kind: ColumnType, node: Node, slots: Slots, decode: Decoding
    ) -> Column | ColumnTree:
        """The column of this type; a dict of columns for a struct."""
        if kind.kind in ("fixed", "ragged"):
            made = self.numbers(kind, node, slots)
            return PlainColumn(made) if self._is_plain else made
        if kind.kind == "list":
            return self._nested(kind.fields[ITEMS], node, slots, decode)
        if kind.kind == "struct":
            fields = fields_of(node, slots)
            return {
                name: self.column(one, *fields[name], decode.below(name))
                for name, one in kind.fields.items()
            }
        if node.kind == "struct":
            found: Column = self._embedded(fields_of(node, slots))
        else:
            found = self._bytes(node, slots, is_text=kind.kind == "text")
        return pixels_column(found, decode.way) if kind.kind == "image" and decode.way else found

    def numbers(self, kind: ColumnType, node: Node, slots: Slots) -> Column:
        """Numbers, or lists of them."""
        assert kind.dtype is not None
        items = _Items(self._batches, kind, node, slots)
        if kind.kind == "ragged":
            if 0 in kind.shape:
                raise FileError(f"lists of the shape {list(kind.shape)} cannot be told apart.")
            first, *others = items.levels
            is_one = isinstance(first, CheckedOffsets) and not others
            lists: Lists = first if is_one else Levels(items.levels)  # type: ignore[assignment]
            return ListColumn(self._batches, lists, items.numbers, kind.shape)
        spec, rows = ArraySpec(kind.shape, kind.dtype), items.rows(kind.shape)
        if rows is not None:
            return FixedColumn(self._batches, rows, spec)
        return FixedRunColumn(self._batches, Levels(items.levels), items.numbers, spec)

    def _bytes(self, node: Node, slots: Slots, *, is_text: bool) -> Column:
        data = Addressed(self._batches, slots[2], ArraySpec((), _BYTE), slots[3])
        kind = TextColumn if is_text else BytesColumn
        return kind(self._batches, _offsets(self._batches, node, slots), data)

    def _nested(self, items: ColumnType, node: Node, slots: Slots, decode: Decoding) -> Column:
        inner = as_column(self.column(items, node.children[0], slots[node.own_slots :], decode))
        lists: Lists
        if node.kind == "list":
            lists = _offsets(self._batches, node, slots)
        else:
            lists = Levels([FixedLevel(slots[1], node.size)])
        return NestedColumn(self._batches, lists, inner)

    def _embedded(self, fields: Mapping[str, tuple[Node, Slots]]) -> Column:
        node, slots = fields["bytes"]
        contents = self._bytes(node, slots, is_text=False)
        paths = None
        if "path" in fields:
            path, at = fields["path"]
            paths = self._bytes(path, at, is_text=True), NullBits(self._batches, [at[0]])
        missing = NullBits(self._batches, [slots[0]])
        return EmbeddedColumn(contents, missing, paths, names_files=self._names_files)


def fields_of(node: Node, slots: Slots) -> dict[str, tuple[Node, Slots]]:
    """The fields of a struct, with their slots."""
    found, at = {}, node.own_slots
    for name, child in zip(node.names, node.children, strict=True):
        found[name] = child, slots[at : at + child.slots]
        at += child.slots
    return found
