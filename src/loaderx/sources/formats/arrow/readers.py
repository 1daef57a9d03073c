"""Columns of Arrow record batches, read by address: what `addresses` found, without pyarrow.

A record batch is a part of the dataset.  The slots of a column say where its buffers lie in each
of them, so shuffled records from hundreds of batches are one gather from the bytes of their file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.build import as_column, pixels_column
from loaderx.sources.columns.columns import (
    BytesColumn,
    Column,
    ColumnOver,
    FixedColumn,
    FixedRunColumn,
    ListColumn,
    Lists,
    Locator,
    NestedColumn,
    Offsets,
    TextColumn,
)
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.elements import Elements, Needs, Runs, new_rows
from loaderx.sources.columns.table import ColumnTree
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import (
    Located,
    Places,
    Run,
    grouped,
    in_places,
    lie_outside,
)
from loaderx.sources.formats.arrow.addresses import Node
from loaderx.sources.mapping import open_regular
from loaderx.tree import Array, ArraySpec

Slots: TypeAlias = npt.NDArray[np.int64]
"""The slots of a column, one row each; a column for each record batch."""

Slot: TypeAlias = npt.NDArray[np.int64]

DAMAGED = "the offsets of an Arrow column are damaged: they lie outside its data."
_SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3}
_INT32, _BYTE = np.dtype(np.int32), np.dtype(np.uint8)


class Batches(Locator, Protocol):
    """Record batches: where records lie in them, and the bytes of their files."""

    def memory(self, at: Located) -> Iterator[tuple[Places, Array]]:
        """The bytes of each file that has some of these records."""
        ...

    def bytes_of(self, batch: int) -> Array:
        """The bytes of the file of a batch."""
        ...


class Addressed(Elements):
    """Elements that lie one after the other in each batch, from an address on."""

    def __init__(
        self, batches: Batches, addresses: Slot, spec: ArraySpec, counts: Slot | None = None
    ) -> None:
        """``counts``: how many there are in each batch, of bytes."""
        self._batches, self._addresses, self._spec, self._counts = batches, addresses, spec, counts
        self._width = spec.dtype.itemsize * math.prod(axis or 0 for axis in spec.shape)

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def _at(self, at: Located, rows: Indices) -> Indices:
        found: Indices = at.each(self._addresses) + rows * self._width
        return found

    def take(self, at: Located, out: Array) -> None:
        if at.runs is not None and out.flags.c_contiguous and self._take_runs(at.runs, out):
            return
        addresses = self._at(at, at.rows)
        try:
            for places, data in self._batches.memory(at):
                if isinstance(places, slice) and out.flags.c_contiguous:
                    _take(data, addresses, out)
                    return
                some = addresses[places]
                found = np.empty((len(some), *out.shape[1:]), out.dtype)
                _take(data, some, found)
                out[places] = found
        except (IndexError, ValueError) as error:  # an index that is damaged
            raise BadRecordError(DAMAGED) from error

    def _take_runs(self, runs: Sequence[Run], out: Array) -> bool:
        """Copies elements that follow each other; False if they do not lie in their file."""
        for run in runs:
            found = self._bytes(run.part, run.start, run.stop)
            if found is None or not found.nbytes:
                return False
            out[run.places].reshape(-1).view(np.uint8)[:] = found
        return True

    def _bytes(self, batch: int, start: int, stop: int) -> Array | None:
        data, address = self._batches.bytes_of(batch), int(self._addresses[batch])
        first, last = address + start * self._width, address + stop * self._width
        return data[first:last] if 0 <= first <= last <= len(data) else None

    def part(self, number: int, start: int, stop: int) -> Array | None:
        found = self._bytes(number, start, stop)
        if found is None or found.__array_interface__["data"][0] % self._spec.dtype.itemsize:
            return None
        return found.view(self._spec.dtype).reshape(stop - start, *self._spec.shape)

    def count(self, part: int) -> int:
        assert self._counts is not None
        return int(self._counts[part])

    def pairs(self, at: Located) -> tuple[Indices, Indices]:
        addresses = self._at(at, at.rows)
        found = np.empty((2, len(at)), self._spec.dtype)
        try:
            for places, data in self._batches.memory(at):
                some, width = addresses[places], self._width
                if (some & (width - 1)).any():
                    for row, shift in zip(found, (0, width), strict=True):
                        numbers = np.empty(len(some), self._spec.dtype)
                        _take(data, some + shift, numbers)
                        row[places] = numbers
                    continue
                typed, numbers = _typed(data, self._spec.dtype), some >> _SHIFTS[width]
                found[0, places], found[1, places] = typed[numbers], typed[numbers + 1]
        except (IndexError, ValueError) as error:
            raise BadRecordError(DAMAGED) from error
        starts, stops = found.astype(np.int64, copy=False)
        return starts, stops

    def runs(self, at: Located, stops: Indices) -> Iterator[Runs]:
        begins, ends = self._at(at, at.rows), self._at(at, stops)
        width, dtype = self._width, self._spec.dtype
        for places, data in self._batches.memory(at):
            starts, behind = begins[places], ends[places]
            if width == 1:
                yield Runs(places, data.view(dtype), starts, behind)
                continue
            beside = starts % width
            if not beside.any():
                yield Runs(places, _typed(data, dtype), starts // width, behind // width)
                continue
            for shift, some in grouped(beside):  # batches that begin at odd addresses
                where = some if isinstance(places, slice) else places[some]
                typed = _typed(data[shift:], dtype)
                yield Runs(where, typed, starts[some] // width, behind[some] // width)

    def spans(self, at: Located, stops: Indices) -> Iterator[Span]:
        begins, ends = self._at(at, at.rows), self._at(at, stops)
        for places, data in self._batches.memory(at):
            yield Span(data, begins[places], ends[places])


def _take(data: Array, addresses: Indices, out: Array) -> None:
    """Elements at any addresses; numbers mostly are aligned."""
    width = out.dtype.itemsize
    if out.ndim > 1 or width not in _SHIFTS or (addresses & (width - 1)).any():
        gather_rows(data, addresses, out)
    else:
        out[:] = _typed(data, out.dtype)[addresses >> _SHIFTS[width]]


def _typed(data: Array, dtype: np.dtype[np.generic]) -> Array:
    found: Array = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
    return found


class Widened(Elements):
    """Days and seconds, which are int32 in Arrow, and int64 in NumPy."""

    def __init__(self, narrow: Addressed, dtype: np.dtype[np.generic]) -> None:
        self._narrow, self._spec = narrow, ArraySpec(narrow.spec.shape, dtype)

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        found = np.empty(out.shape, np.int32)
        self._narrow.take(at, found)
        out[...] = found.astype(np.int64).view(self._spec.dtype)

    def spans(self, at: Located, stops: Indices) -> Iterator[Span]:
        return self._narrow.spans(at, stops)


class Bits(Elements):
    """Bools, each a bit; addresses are counted in bits."""

    def __init__(self, batches: Batches, addresses: Slot, shape: tuple[int, ...] = ()) -> None:
        self._batches, self._addresses = batches, addresses
        self._spec, self._count = ArraySpec(shape, np.dtype(np.bool_)), math.prod(shape)

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        first = at.each(self._addresses) + at.rows * self._count
        for places, data in self._batches.memory(at):
            numbers = first[places][:, None] + np.arange(self._count)
            out[places] = bits(data, numbers).reshape(len(numbers), *self._spec.shape)

    def spans(self, at: Located, stops: Indices) -> Iterator[Span]:
        first, count = at.each(self._addresses), self._count
        begins, ends = first + at.rows * count >> 3, (first + stops * count >> 3) + 1
        for places, data in self._batches.memory(at):
            yield Span(data, begins[places], ends[places])


def bits(data: Array, numbers: Indices) -> npt.NDArray[np.bool_]:
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= len(data) * 8):
        raise BadRecordError(DAMAGED)
    found: npt.NDArray[np.uint8] = data[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
    return found.view(np.bool_)


class NullBits:
    """Which values are null; a `Missing`."""

    def __init__(self, batches: Batches, valid: Sequence[Slot]) -> None:
        """``valid``: the slots of the column itself, and of structs around it."""
        self._batches, self._valid = batches, valid

    def missing(self, at: Located) -> npt.NDArray[np.bool_] | None:
        found: npt.NDArray[np.bool_] | None = None
        for slot in self._valid:
            base = np.broadcast_to(at.each(slot), at.rows.shape)
            there = np.flatnonzero(base >= 0)  # batches that have nulls
            if len(there):
                is_valid = np.ones(len(at), np.bool_)
                some = np.empty(len(there), np.bool_)
                Bits(self._batches, slot).take(at.pick(there), some)
                is_valid[there] = some
                found = ~is_valid if found is None else found | ~is_valid
        return found

    def needs(self, at: Located) -> Needs:
        return []


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
    """Lists in lists: where the items of a record lie in the innermost."""

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


def _offsets(batches: Batches, node: Node, slots: Slots) -> CheckedOffsets:
    """Of bytes, or of lists."""
    dtype = np.dtype(np.int32 if node.width == 4 else np.int64)
    counts = slots[3 if node.kind == "bytes" else 2]
    return CheckedOffsets(Addressed(batches, slots[1], ArraySpec((), dtype)), counts)


class _Items:
    """What is in the innermost of lists in lists, and the way to it."""

    def __init__(self, batches: Batches, kind: ColumnType, node: Node, slots: Slots) -> None:
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
        """Numbers from an address on (of bits, in bits)."""
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
    """Files that Hugging Face has in a struct: their bytes, or else their path, which is read."""

    def __init__(
        self,
        contents: Column,
        missing: NullBits,
        paths: tuple[Column, NullBits] | None,
        *,
        names_files: bool,
    ) -> None:
        """Without ``names_files`` paths are refused: the data came from elsewhere."""
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


Style: TypeAlias = Literal["decoded", "encoded", "plain"]
"""Arrays with images as pixels or as bytes, or Python's numbers and lists."""


class ColumnBuilder:
    """Makes columns of record batches."""

    def __init__(self, batches: Batches, style: Style, *, names_files: bool = True) -> None:
        """With ``names_files``, files that are told by their path are read."""
        self._batches, self._style, self._names_files = batches, style, names_files

    def column(self, kind: ColumnType, node: Node, slots: Slots) -> Column | ColumnTree:
        """The column of this type; a dict of columns for a struct."""
        if kind.kind in ("fixed", "ragged"):
            made = self.numbers(kind, node, slots)
            return PlainColumn(made) if self._style == "plain" else made
        if kind.kind == "list":
            return self._nested(kind.fields[ITEMS], node, slots)
        if kind.kind == "struct":
            fields = fields_of(node, slots)
            return {name: self.column(one, *fields[name]) for name, one in kind.fields.items()}
        if node.kind == "struct":
            found: Column = self._embedded(fields_of(node, slots))
        else:
            found = self._bytes(node, slots, is_text=kind.kind == "text")
        return pixels_column(found) if kind.kind == "image" and self._style == "decoded" else found

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

    def _nested(self, items: ColumnType, node: Node, slots: Slots) -> Column:
        inner = as_column(self.column(items, node.children[0], slots[node.own_slots :]))
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
