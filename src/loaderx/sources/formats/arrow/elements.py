"""Elements of Arrow record batches, read by the addresses that `addresses` found, without pyarrow.

A record batch is a part of the dataset.  The slots of a column say where its buffers lie in each
of them, so shuffled records from hundreds of batches are one gather from the bytes of their file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.elements import Elements, Needs, Runs
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import ALL, Located, Parts, Places, Run, grouped
from loaderx.tree import Array, ArraySpec

Slots: TypeAlias = npt.NDArray[np.int64]
"""The slots of a column, one row each; a column for each record batch."""

Slot: TypeAlias = npt.NDArray[np.int64]

DAMAGED = "the offsets of an Arrow column are damaged: they lie outside its data."
_SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3}


class Memory(Protocol):
    """The bytes in which batches lie, by the number of the file."""

    def data(self, number: int, /) -> Array: ...


class RecordBatches:
    """Record batches: where records lie in them, and the bytes of their files; a `Locator`."""

    def __init__(
        self,
        memory: Memory,
        batches: Sequence[int] | npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        chosen: Column | None = None,
    ) -> None:
        """
        Args:
            memory: the files.
            batches: the number of batches in each file.
            rows: the number of records in each batch.
            chosen: the row of each record, where records are a choice of rows in another order.
        """
        self._memory, self._rows, self._chosen = memory, Parts(rows), chosen
        self._file_of = np.repeat(np.arange(len(batches)), batches)
        self._is_one = len(batches) == 1

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, indices: Indices) -> Located:
        if self._chosen is None:
            return self._rows.at(indices)
        found = np.empty(len(indices), np.uint64)
        self._chosen.take(self._chosen.parts.at(indices), found)
        if len(found) and int(found.max()) >= len(self._rows):
            raise FileError(
                f"the indices are damaged: row {int(found.max())} of {len(self._rows)} is asked "
                "for."
            )
        return self._rows.at(found.astype(np.int64))

    def memory(self, at: Located) -> Iterator[tuple[Places, Array]]:
        """The bytes of each file that has some of these records."""
        if self._is_one:
            yield ALL, self._memory.data(0)
            return
        for file, places in at.groups(self._file_of):
            yield places, self._memory.data(file)

    def bytes_of(self, batch: int) -> Array:
        """The bytes of the file of a batch."""
        return self._memory.data(int(self._file_of[batch]))

    def count_nulls(self, valid: Sequence[Slot]) -> int:
        """The number of records that are null by one of these slots."""
        nulls = NullBits(self, valid)
        found = 0
        for batch, count in enumerate(self._rows.counts.tolist()):
            is_null = nulls.missing(Located(np.full(count, batch), np.arange(count)))
            found += 0 if is_null is None else int(is_null.sum())
        return found


class Addressed(Elements):
    """Elements that lie one after the other in each batch, from an address on."""

    def __init__(
        self, batches: RecordBatches, addresses: Slot, spec: ArraySpec, counts: Slot | None = None
    ) -> None:
        """``counts``: the number of them in each batch, for bytes."""
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
        except (IndexError, ValueError) as error:  # a damaged index
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
    """Elements at any addresses; most numbers are aligned."""
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

    def __init__(
        self, batches: RecordBatches, addresses: Slot, shape: tuple[int, ...] = ()
    ) -> None:
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

    def __init__(self, batches: RecordBatches, valid: Sequence[Slot]) -> None:
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
