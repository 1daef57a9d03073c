"""Readers of Arrow columns by address: what `arrow_addresses` found, without pyarrow.

A reader has the slots of its column for all record batches.  It is asked for *places*: records of
one file, each as the number of its batch and of its row there.  So shuffled records from hundreds
of batches are one gather, and a list of lists is the same question again, for items.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.build import pixels_of
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.text import (
    FEW,
    bulk_values,
    can_be_viewed,
    texts_in_order,
    texts_one_by_one,
    viewed_texts,
)
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import numbers_from
from loaderx.sources.formats.arrow.addresses import (
    Node,
    Place,
    PlaceRun,
    bits,
    check_spans,
    nulls,
    offsets_at,
    take_numbers,
)
from loaderx.sources.images import check_decoder
from loaderx.sources.mapping import open_regular
from loaderx.tree import Array, Structure, flatten

Slots: TypeAlias = npt.NDArray[np.int64]
"""The slots of a column, one row each; a column for each record batch."""


class Reader(Protocol):
    """Reads the values of a column, or of items and fields within one."""

    def values(self, place: Place) -> Sequence[object]:
        """One for each record: arrays (read-only views or new ones), numbers, text, bytes."""
        ...

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values, in the order in which it is read, as far as that is told."""
        ...


class ArrayReader:
    """Values of one dtype and shape: numbers, or lists of one length."""

    def __init__(self, kind: ColumnType, node: Node, slots: Slots) -> None:
        assert kind.dtype is not None
        self.shape, self.dtype = kind.shape, kind.dtype
        self._lists = _Lists(node, slots)
        self._items = _Items(self._lists.items, self._lists.item_slots, kind.dtype)
        self._count = _item_count(kind, self._lists.items)

    def take(self, place: Place, out: Array) -> None:
        """Writes the values into the rows of ``out``."""
        starts, stops = self._lists.spans(place, place.rows, place.rows + 1)
        if (stops - starts != self._count).any():
            wrong = int((stops - starts)[np.flatnonzero(stops - starts != self._count)[0]])
            raise BadRecordError(
                f"a list has {wrong} numbers, where the shape {list(self.shape)} is expected."
            )
        self._items.take(place.items(place.batches, starts), self._count, out)

    def values(self, place: Place) -> Sequence[object]:
        found = np.empty((len(place.rows), *self.shape), self.dtype)
        self.take(place, found)
        return list(found)

    def take_run(self, run: PlaceRun, out: Array) -> bool:
        """Copies values that follow each other; False, and nothing, if they do not lie so."""
        first = self._lists.fixed_item(run.batch, run.start)
        last = self._lists.fixed_item(run.batch, run.stop)
        if first is None or last is None or last - first != len(out) * self._count:
            return False
        return self._items.take_run(run, first, last, out)

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        starts, stops = self._lists.spans(place, place.rows, place.rows + 1)
        yield self._items.touched(place, starts, stops)


def _item_count(kind: ColumnType, items: Node) -> int:
    """How many items make up the shape; one may be a run of bytes, which are its last axis."""
    is_binary = items.kind == "numbers" and kind.dtype == np.uint8 and items.width != 1
    return math.prod(kind.shape[:-1] if is_binary else kind.shape)


class RaggedReader:
    """Lists of numbers, of various lengths."""

    def __init__(self, kind: ColumnType, node: Node, slots: Slots) -> None:
        assert kind.dtype is not None
        self._shape = kind.shape
        self._lists = _Lists(node, slots)
        self._items = _Items(self._lists.items, self._lists.item_slots, kind.dtype)
        self._count = _item_count(kind, self._lists.items)  # in an element of a list

    def values(self, place: Place) -> Sequence[Array]:
        starts, stops = self._lists.spans(place, place.rows, place.rows + 1)
        found = self._items.runs(place, starts, stops)
        if not self._shape:
            return found
        if not self._count:
            raise FileError(f"lists of the shape {list(self._shape)} cannot be told apart.")
        if ((stops - starts) % self._count).any():
            raise BadRecordError(f"a list does not have the shape {list(self._shape)} throughout.")
        return [array.reshape(-1, *self._shape) for array in found]  # no axis has length 0

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        yield from self._lists.touched(place)
        starts, stops = self._lists.spans(place, place.rows, place.rows + 1)
        yield self._items.touched(place, starts, stops)


class _Lists:
    """Lists in lists down to what is in the innermost: where the items of a record lie there."""

    def __init__(self, node: Node, slots: Slots) -> None:
        self._levels: list[tuple[Node, Slots]] = []
        while node.kind in ("list", "fixed_list"):
            self._levels.append((node, slots[1 : node.own_slots]))
            slots = slots[node.own_slots :]
            node = node.children[0]
        self.items, self.item_slots = node, slots

    def spans(self, place: Place, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
        """The first item of each record, and the one behind its last."""
        for node, slots in self._levels:
            if node.kind == "fixed_list":
                first = slots[0][place.batches]
                starts, stops = first + starts * node.size, first + stops * node.size
                continue
            base, most = slots[0][place.batches], slots[1][place.batches]
            starts = offsets_at(place.data, base + starts * node.width, node.width)
            stops = offsets_at(place.data, base + stops * node.width, node.width)
            check_spans(starts, stops, most)
        return starts, stops

    def fixed_item(self, batch: int, row: int) -> int | None:
        """The first item of a record, where all lists have one length; else None."""
        for node, slots in self._levels:
            if node.kind != "fixed_list":
                return None
            row = int(slots[0][batch]) + row * node.size
        return row

    def touched(self, place: Place) -> Iterator[Span]:
        """The offsets of the outermost lists."""
        node, slots = self._levels[0]
        if node.kind == "list":
            at = slots[0][place.batches] + place.rows * node.width
            yield Span(place.data, at, at + 2 * node.width)


class _Items:
    """Numbers that lie one after the other in each batch."""

    def __init__(self, node: Node, slots: Slots, dtype: np.dtype[np.generic]) -> None:
        self._addresses, self._dtype = slots[1], dtype
        self._is_bits = node.kind == "bits"
        self.width = 1 if self._is_bits else node.width
        # Days and seconds are int32 in Arrow, and int64 in NumPy.
        self._is_widened = not self._is_bits and dtype.kind in "mM" and node.width == 4

    def take(self, place: Place, count: int, out: Array) -> None:
        """``count`` items for each record, from its row on."""
        base = self._addresses[place.batches]
        if self._is_bits:
            rows = base + place.rows
            numbers = rows[:, None] + np.arange(count) if count != 1 else rows[:, None]
            out.reshape(len(rows), count)[:] = bits(place.data, numbers)
            return
        addresses = base + place.rows * self.width
        if self._is_widened:
            narrow = np.empty(out.shape, np.int32)
            gather_rows(place.data, addresses, narrow)
            out[:] = narrow.astype(np.int64).view(self._dtype)
        elif out.ndim == 1:
            take_numbers(place.data, addresses, out)
        else:
            gather_rows(place.data, addresses, out)

    def take_run(self, run: PlaceRun, first: int, last: int, out: Array) -> bool:
        """Copies items that follow each other, if they are kept as they are read."""
        at, nbytes = int(self._addresses[run.batch]), (last - first) * self.width
        found = run.data[at + first * self.width :][:nbytes]
        if (
            self._is_bits
            or self._is_widened
            or not nbytes
            or len(found) != nbytes
            or out.nbytes != nbytes
        ):
            return False
        out.reshape(-1).view(np.uint8)[:] = found
        return True

    def runs(self, place: Place, starts: Indices, stops: Indices) -> list[Array]:
        """The items of each record: a read-only view where their dtype is that of the file."""
        base = self._addresses[place.batches]
        if self._is_bits:
            pairs = zip((base + starts).tolist(), (base + stops).tolist(), strict=True)
            return [bits(place.data, np.arange(start, stop)) for start, stop in pairs]
        dtype = np.dtype(np.int32) if self._is_widened else self._dtype
        begins, ends = base + starts * self.width, base + stops * self.width
        found = _views(place.data, begins, ends, dtype)
        if self._is_widened:
            return [array.astype(np.int64).view(self._dtype) for array in found]
        return found

    def touched(self, place: Place, starts: Indices, stops: Indices) -> Span:
        """The bytes of these items."""
        base = self._addresses[place.batches]
        if self._is_bits:
            return Span(place.data, (base + starts) >> 3, ((base + stops) >> 3) + 1)
        return Span(place.data, base + starts * self.width, base + stops * self.width)


def _views(data: Array, begins: Indices, ends: Indices, dtype: np.dtype[np.generic]) -> list[Array]:
    width = dtype.itemsize
    if width == 1 or not ((begins | ends) % width).any():
        typed = data[: len(data) // width * width].view(dtype)
        pairs = zip((begins // width).tolist(), (ends // width).tolist(), strict=True)
        return [typed[start:stop] for start, stop in pairs]
    pairs = zip(begins.tolist(), ends.tolist(), strict=True)
    return [data[start:stop].view(dtype) for start, stop in pairs]


class BytesReader:
    """Bytes, or text in UTF-8."""

    def __init__(self, node: Node, slots: Slots, *, is_text: bool) -> None:
        self._width, self._is_text = node.width, is_text
        self._offsets, self._data, self._sizes = slots[1:4]

    def spans(self, place: Place) -> tuple[Indices, Indices]:
        """Where each begins and ends."""
        at = self._offsets[place.batches] + place.rows * self._width
        starts = offsets_at(place.data, at, self._width)
        stops = offsets_at(place.data, at + self._width, self._width)
        check_spans(starts, stops, self._sizes[place.batches])
        base = self._data[place.batches]
        starts, stops = starts + base, stops + base
        return starts, stops

    def take_run(self, run: PlaceRun, out: Array) -> bool:
        """Writes values that follow each other; pyarrow takes half the time of one `str` for each.

        False, and nothing, where that cannot be, or where something is damaged.
        """
        count, width = run.stop - run.start, self._width
        at, base = int(self._offsets[run.batch]) + run.start * width, int(self._data[run.batch])
        if count < FEW or at % width:
            return False
        dtype = np.dtype(np.int32 if width == 4 else np.int64)
        offsets: Array = run.data[at : at + (count + 1) * width].view(dtype)
        data = run.data[base : base + int(self._sizes[run.batch])]
        if len(offsets) <= count or offsets[0] < 0 or int(offsets[-1]) > len(data):
            return False
        if (offsets[1:] < offsets[:-1]).any():
            return False
        out[:] = bulk_values(data, offsets, is_text=self._is_text)
        return True

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        at = self._offsets[place.batches] + place.rows * self._width
        yield Span(place.data, at, at + 2 * self._width)
        yield Span(place.data, *self.spans(place))

    def values(self, place: Place) -> Sequence[object]:
        starts, stops = self.spans(place)
        if self._is_text:
            return _texts(place.data, starts, stops)
        view = place.data.data
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        return [bytes(view[start:stop]) for start, stop in pairs]


def _texts(data: Array, starts: Indices, stops: Indices) -> Sequence[object]:
    if len(starts) < FEW:
        return texts_one_by_one(data, starts, stops)
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    if len(breaks) * FEW > len(starts):
        if can_be_viewed(data, stops - starts):
            return viewed_texts(data, starts, stops - starts)
        return texts_one_by_one(data, starts, stops)
    found: list[object] = []
    for first, last in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
        found += texts_in_order(data, starts[first:last], stops[first:last])
    return found


class EmbeddedReader:
    """Files that Hugging Face has in a struct: their bytes, or else their path, which is read."""

    def __init__(self, fields: Mapping[str, tuple[Node, Slots]], *, names_files: bool) -> None:
        """Without ``names_files`` paths are refused: the data came from elsewhere."""
        self._names_files = names_files
        node, slots = fields["bytes"]
        self._bytes, self._valid = BytesReader(node, slots, is_text=False), slots[0]
        self._paths: BytesReader | None = None
        self._path_valid = self._valid
        if "path" in fields:
            node, slots = fields["path"]
            self._paths, self._path_valid = BytesReader(node, slots, is_text=True), slots[0]

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        return self._bytes.touched(place)

    def values(self, place: Place) -> Sequence[object]:
        missing = nulls(place, self._valid)
        if missing is None or not missing.any():
            return self._bytes.values(place)
        found: list[object] = [None] * len(place.rows)
        at = np.flatnonzero(~missing)
        have = self._bytes.values(place.items(place.batches[at], place.rows[at]))
        for number, value in zip(at.tolist(), have, strict=True):
            found[number] = value
        for number in np.flatnonzero(missing).tolist():
            one = slice(number, number + 1)
            found[number] = self._from_path(place.items(place.batches[one], place.rows[one]))
        return found

    def _from_path(self, place: Place) -> bytes:
        no_path = nulls(place, self._path_valid)
        if self._paths is None or (no_path is not None and no_path.any()):
            raise BadRecordError("there are neither the bytes of a file nor its path.")
        (path,) = self._paths.values(place)
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


class PlainReader:
    """Numbers and arrays of them as Python numbers and lists."""

    def __init__(self, arrays: ArrayReader | RaggedReader) -> None:
        self._arrays = arrays

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        return self._arrays.touched(place)

    def values(self, place: Place) -> Sequence[object]:
        if isinstance(self._arrays, RaggedReader):
            return [array.tolist() for array in self._arrays.values(place)]
        found = np.empty((len(place.rows), *self._arrays.shape), self._arrays.dtype)
        self._arrays.take(place, found)
        values: list[object] = found.tolist()
        return values


class PixelsReader:
    """Images, decoded."""

    def __init__(self, encoded: Reader) -> None:
        check_decoder()
        self._encoded = encoded

    def touched(self, place: Place) -> Iterator[Span]:
        """What is read for the values."""
        return self._encoded.touched(place)

    def values(self, place: Place) -> Sequence[object]:
        return list(map(pixels_of, self._encoded.values(place)))


class ListReader:
    """Lists of text, of dicts, of lists: a Python list for each record."""

    def __init__(
        self, node: Node, slots: Slots, items: ColumnType, style: Style, *, names_files: bool
    ) -> None:
        self._lists = _OneList(node, slots)
        inner = slots[node.own_slots :]
        readers = build_reader(items, node.children[0], inner, style, names_files=names_files)
        self._items, self._structure = flatten(readers)

    def touched(self, place: Place) -> Iterator[Span]:
        """The offsets of the lists; what lies in them is not told."""
        return self._lists.touched(place)

    def values(self, place: Place) -> Sequence[object]:
        starts, stops = self._lists.spans(place, place.rows, place.rows + 1)
        lengths = stops - starts
        ends = np.cumsum(lengths)
        within = place.items(np.repeat(place.batches, lengths), numbers_from(starts, lengths))
        items = _records(self._structure, [reader.values(within) for reader in self._items])
        pairs = zip(ends.tolist(), lengths.tolist(), strict=True)
        return [items[end - length : end] for end, length in pairs]


class _OneList(_Lists):
    """The outermost lists only."""

    def __init__(self, node: Node, slots: Slots) -> None:
        self._levels = [(node, slots[1 : node.own_slots])]


def _records(structure: Structure, columns: list[Sequence[object]]) -> list[object]:
    if len(columns) == 1 and not structure.children:
        return list(columns[0])
    return [structure.build(row) for row in zip(*columns, strict=True)]


ReaderTree: TypeAlias = "Reader | Mapping[str, ReaderTree]"
"""A reader, or one for each field of a struct."""


Style: TypeAlias = Literal["decoded", "encoded", "plain"]
"""Arrays with images as pixels or as bytes, or Python's numbers and lists."""


def build_reader(
    kind: ColumnType, node: Node, slots: Slots, style: Style, *, names_files: bool
) -> ReaderTree:
    """The reader of a column of this type; a dict of readers for a struct.

    With ``names_files``, files that are told by their path are read.
    """
    if kind.kind in ("fixed", "ragged"):
        arrays = (ArrayReader if kind.kind == "fixed" else RaggedReader)(kind, node, slots)
        return PlainReader(arrays) if style == "plain" else arrays
    if kind.kind == "list":
        return ListReader(node, slots, kind.fields[ITEMS], style, names_files=names_files)
    if kind.kind == "struct":
        fields = fields_of(node, slots)
        return {
            name: build_reader(field, *fields[name], style, names_files=names_files)
            for name, field in kind.fields.items()
        }
    found: Reader
    if node.kind == "struct":
        found = EmbeddedReader(fields_of(node, slots), names_files=names_files)
    else:
        found = BytesReader(node, slots, is_text=kind.kind == "text")
    return PixelsReader(found) if kind.kind == "image" and style == "decoded" else found


def fields_of(node: Node, slots: Slots) -> dict[str, tuple[Node, Slots]]:
    """The fields of a struct, with their slots."""
    found, at = {}, node.own_slots
    for name, child in zip(node.names, node.children, strict=True):
        found[name] = child, slots[at : at + child.slots]
        at += child.slots
    return found
