"""Record batches as a table: which batch a record lies in, and columns that read it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.columns import OBJECT, Column
from loaderx.sources.columns.data import ITEMS, ColumnType
from loaderx.sources.columns.table import NamedColumns
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Parts, Places, is_run
from loaderx.sources.formats.arrow.addresses import DAMAGED, Node, Place, PlaceRun, nulls
from loaderx.sources.formats.arrow.readers import (
    ArrayReader,
    BytesReader,
    Reader,
    Slots,
    Style,
    build_reader,
    fields_of,
)
from loaderx.tree import Array, ArraySpec

_INDEX = ColumnType("fixed", np.dtype(np.uint64))


class Memory(Protocol):
    """Where batches lie: the bytes of a file, by its number."""

    def data(self, number: int, /) -> Array: ...


Located = list[tuple[Places, Place]]
"""The records that were asked for, file by file: which of them, and where they lie."""


LocatedRuns = list[tuple[slice, PlaceRun]]
"""The same of records that follow each other, batch by batch."""


class RecordBatches:
    """Finds the batch and the row of each record."""

    def __init__(
        self,
        memory: Memory,
        batches: Sequence[int] | npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        chosen: ArrowColumn | None = None,
    ) -> None:
        """
        Args:
            memory: the files.
            batches: how many of the batches each file has.
            rows: how many records each batch has.
            chosen: the row of each record, where records are a choice of rows in another order.
        """
        self._memory, self._files = memory, Parts(batches)
        self._rows, self._chosen = Parts(rows), chosen
        # Each column of a batch asks for the same records: they are located once.
        self._last: tuple[bytes, Located] | None = None
        self._last_runs: tuple[tuple[int, int], LocatedRuns] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def places(self, indices: Indices) -> Located:
        last, asked = self._last, indices.tobytes()
        if last is not None and last[0] == asked:
            return last[1]
        found = list(self._locate(indices))
        self._last = asked, found
        return found

    def runs(self, indices: Indices) -> LocatedRuns | None:
        """Records that follow each other, batch by batch; None for others."""
        if self._chosen is not None or not is_run(indices):
            return None
        asked = int(indices[0]), len(indices)
        last = self._last_runs
        if last is not None and last[0] == asked:
            return last[1]
        found = [
            (run.places, PlaceRun(self._data_of(run.part), run.part, run.start, run.stop))
            for run in self._rows.runs(*asked)
        ]
        self._last_runs = asked, found
        return found

    def _data_of(self, batch: int) -> Array:
        return self._memory.data(self._files.locate(batch)[0])

    def _locate(self, indices: Indices) -> Iterator[tuple[Places, Place]]:
        rows = indices if self._chosen is None else self._chosen_rows(self._chosen, indices)
        batches = np.searchsorted(self._rows.ends, rows, side="right")
        within = rows - self._rows.starts[batches]
        for file, places, _ in self._files.split(batches):
            yield places, Place(self._memory.data(file), batches[places], within[places])

    def _chosen_rows(self, chosen: ArrowColumn, indices: Indices) -> Indices:
        found = np.empty(len(indices), np.uint64)
        chosen.take(indices, found)
        if len(found) and int(found.max()) >= len(self._rows):
            raise FileError(
                f"the indices are damaged: row {int(found.max())} of {len(self._rows)} is asked "
                "for."
            )
        return found.astype(np.int64)

    def count_nulls(self, leaf: Leaf) -> int:
        """How many records have a null in this leaf."""
        return sum(
            int(is_null.sum())
            for batch, count in enumerate(self._rows.counts.tolist())
            if (is_null := any_null(self._whole(batch, count), leaf.valid)) is not None
        )

    def _whole(self, batch: int, count: int) -> Place:
        file, _ = self._files.locate(batch)
        return Place(self._memory.data(file), np.full(count, batch), np.arange(count))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": None, "_last_runs": None}


def any_null(place: Place, valid: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.bool_] | None:
    """Which records are null by one of these slots; None if there are no nulls near them."""
    found: npt.NDArray[np.bool_] | None = None
    for slot in valid:
        these = nulls(place, slot)
        if these is not None:
            found = these if found is None else found | these
    return found


class Nulls(NamedTuple):
    """Which records of a column are null, and what stands in their place."""

    valid: list[npt.NDArray[np.int64]]  # slots: of the column itself, and of structs around it
    value: object


class ArrowColumn(Column):
    """A column of record batches."""

    def __init__(
        self, batches: RecordBatches, reader: Reader, missing: Nulls | None = None
    ) -> None:
        self._batches, self._reader, self._missing = batches, reader, missing
        self._spec: ArraySpec | None = None
        if isinstance(reader, ArrayReader):
            self._spec = ArraySpec(reader.shape, reader.dtype)
        elif isinstance(reader, BytesReader):
            self._spec = OBJECT

    @property
    def spec(self) -> ArraySpec | None:
        return self._spec

    def take(self, indices: Indices, out: Array) -> None:
        if self._take_runs(indices, out):
            return
        if not isinstance(self._reader, ArrayReader):
            out[:] = self.values(indices)
            return
        try:
            self._take(self._reader, indices, out)
        except (IndexError, ValueError) as error:  # an index that is damaged
            raise BadRecordError(DAMAGED) from error

    def _take_runs(self, indices: Indices, out: Array) -> bool:
        """Takes records that follow each other, without looking at each; False for others."""
        reader = self._reader
        if self._missing is not None or not isinstance(reader, (ArrayReader, BytesReader)):
            return False
        runs = self._batches.runs(indices)
        return runs is not None and all(reader.take_run(run, out[at]) for at, run in runs)

    def _take(self, reader: ArrayReader, indices: Indices, out: Array) -> None:
        for places, place in self._batches.places(indices):
            if isinstance(places, slice) and self._missing is None:
                reader.take(place, out)
                continue
            found = np.empty((len(place.rows), *out.shape[1:]), out.dtype)
            self._take_filled(reader, place, found)
            out[places] = found

    def _take_filled(self, reader: ArrayReader, place: Place, out: Array) -> None:
        missing = self._missing_in(place)
        if missing is None or not missing.any():
            reader.take(place, out)
            return
        assert self._missing is not None
        there = np.flatnonzero(~missing)  # a null list has no items to take
        found = np.empty((len(there), *out.shape[1:]), out.dtype)
        reader.take(place.items(place.batches[there], place.rows[there]), found)
        out[there] = found
        out[missing] = self._missing.value

    def _missing_in(self, place: Place) -> npt.NDArray[np.bool_] | None:
        return None if self._missing is None else any_null(place, self._missing.valid)

    def values(self, indices: Indices) -> Sequence[object]:
        if isinstance(self._reader, ArrayReader):
            rows = np.empty((len(indices), *self._reader.shape), self._reader.dtype)
            self.take(indices, rows)
            return list(rows)
        if isinstance(self._reader, BytesReader) and len(indices) > 1:
            texts = np.empty(len(indices), object)
            if self._take_runs(indices, texts):
                return list(texts)
        found: list[object] = [None] * len(indices)
        for places, place in self._batches.places(indices):
            values = self._values_filled(place)
            if isinstance(places, slice):
                return values
            for number, value in zip(places.tolist(), values, strict=True):
                found[number] = value
        return found

    def spans(self, indices: Indices) -> Iterator[Span]:
        for _, place in self._batches.places(indices):
            yield from self._reader.touched(place)

    def _values_filled(self, place: Place) -> Sequence[object]:
        missing = self._missing_in(place)
        if missing is None or not missing.any():
            return self._reader.values(place)
        assert self._missing is not None
        found: list[object] = [self._missing.value] * len(place.rows)
        there = np.flatnonzero(~missing)
        values = self._reader.values(place.items(place.batches[there], place.rows[there]))
        for number, value in zip(there.tolist(), values, strict=True):
            found[number] = value
        return found


def index_column(batches: RecordBatches, node: Node, slots: Slots) -> ArrowColumn:
    """The column of row numbers by which Hugging Face keeps a choice of rows."""
    return ArrowColumn(batches, ArrayReader(_INDEX, node, slots))


# Leaves -----------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A leaf of the records: a column, or a field of a struct."""

    path: tuple[str, ...]
    kind: ColumnType
    node: Node
    slots: Slots
    valid: list[npt.NDArray[np.int64]]  # the slots that say which records are null
    inner: list[npt.NDArray[np.int64]]  # the same of items of lists

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_nulls(self) -> bool:
        return any((slot >= 0).any() for slot in self.valid)

    @property
    def has_nulls_above(self) -> bool:
        """Are structs around it null?"""
        return any((slot >= 0).any() for slot in self.valid[:-1])

    @property
    def has_inner_nulls(self) -> bool:
        return any((slot >= 0).any() for slot in self.inner)


def leaves_of(
    kind: ColumnType,
    node: Node,
    slots: Slots,
    path: tuple[str, ...],
    above: Sequence[npt.NDArray[np.int64]] = (),
) -> Iterator[Leaf]:
    """The leaves of a column."""
    if kind.kind != "struct":
        inner = list(_inner_nulls(kind, node, slots))
        yield Leaf(path, kind, node, slots, [*above, slots[0]], inner)
        return
    fields = fields_of(node, slots)
    for name, field in kind.fields.items():
        yield from leaves_of(field, *fields[name], (*path, name), [*above, slots[0]])


def _inner_nulls(
    kind: ColumnType, node: Node, slots: Slots, *, is_item: bool = False
) -> Iterator[npt.NDArray[np.int64]]:
    """The slots that say which items of lists are null, and which fields of these."""
    if is_item:
        yield slots[0]
    if node.kind in ("list", "fixed_list"):
        items = kind.fields[ITEMS] if kind.kind == "list" else kind
        yield from _inner_nulls(items, node.children[0], slots[node.own_slots :], is_item=True)
    elif kind.kind == "struct":
        fields = fields_of(node, slots)
        for name, field in kind.fields.items():
            yield from _inner_nulls(field, *fields[name], is_item=True)


def build_columns(
    batches: RecordBatches,
    leaves: Sequence[Leaf],
    fillers: Mapping[str, object],
    style: Style,
    *,
    names_files: bool = True,
) -> NamedColumns:
    """Columns by name; ``fillers`` are the values in place of nulls."""
    tree: dict[str, object] = {}
    for leaf in leaves:
        reader = build_reader(leaf.kind, leaf.node, leaf.slots, style, names_files=names_files)
        assert not isinstance(reader, Mapping)
        missing = Nulls(leaf.valid, fillers[leaf.name]) if leaf.name in fillers else None
        inside = tree
        for name in leaf.path[:-1]:
            inside = inside.setdefault(name, {})  # type: ignore[assignment]
        inside[leaf.path[-1]] = ArrowColumn(batches, reader, missing)
    return tree  # type: ignore[return-value]
