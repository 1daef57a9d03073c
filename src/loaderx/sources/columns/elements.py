"""Elements: one buffer of a column, which has an array of them in each part of the dataset.

A column is made of such buffers: rows; offsets and what they lead into; which values are there.
Whatever the format, they are read in two ways: elements at any places (`Elements.take`), and runs
of them (`Elements.runs`), each of which is a stretch of some array.  Where elements of several
parts are asked for, they are read as if they were in one array, if that can be: parts are mapped
once more, one behind the other (`joined_parts`), or addresses lead into one stretch of memory
(Arrow).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError
from loaderx.gathering import take_rows
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.joined_parts import JoinedMaps, joined_maps
from loaderx.sources.files.arrays import PlacedArray, placed_arrays
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import ALL, Located, Parts, Places, lie_outside, numbers_from
from loaderx.tree import Array, ArraySpec

if TYPE_CHECKING:
    from loaderx.sources.files.file_set import FileRanges, FileSet

ArrayOf: TypeAlias = Callable[[int], Array]
"""The array of a part, by its number; mapped when it is asked for."""

Needs: TypeAlias = "list[tuple[FileSet, FileRanges]]"
"""Ranges of files behind URLs that must be on this machine."""

OUTSIDE = "the offsets of a column are damaged: they lie outside it."
_NONE = np.empty(0, np.int64)


def new_rows(spec: ArraySpec, count: int) -> Array:
    """An array for ``count`` values of a spec without open axes."""
    return np.empty((count, *(axis or 0 for axis in spec.shape)), spec.dtype)


class FetchedArrays(Protocol):
    """An `ArrayOf` whose rows are fetched when they are read.  Called, it fetches all of them."""

    def rows(self, part: int, starts: Indices, lengths: Indices | int) -> Array:
        """The array of a part, in which these runs of rows are present; other rows may be zeros."""
        ...

    def needs(self, part: int, starts: Indices, lengths: Indices | int) -> Needs:
        """The ranges to fetch for these rows."""
        ...


class ListedArrays:
    """Arrays by the number of their part: in memory, or few enough to be mapped at once."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = list(arrays)

    def __call__(self, number: int) -> Array:
        return self._arrays[number]


class FileBytes:
    """The bytes of each file of a set; an `ArrayOf`."""

    def __init__(self, files: FileSet) -> None:
        self._files, self.is_mapped = files, not files.is_remote

    def __call__(self, number: int) -> Array:
        return self._files.data(number)


class Runs(NamedTuple):
    """Runs of elements of one array: some of the requested values."""

    places: Places  # among all requested values
    data: Array
    starts: Indices  # where each value begins in it ...
    stops: Indices  # ... and ends

    def views(self) -> list[Array]:
        data, pairs = self.data, zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [data[start:stop] for start, stop in pairs]

    def pieces(self) -> list[memoryview]:
        """Runs of bytes."""
        view, pairs = self.data.data, zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [view[start:stop] for start, stop in pairs]

    def take_rows(self, out: Array) -> None:
        """Copies runs into their rows of ``out``; each has as many bytes as a row."""
        is_all = isinstance(self.places, slice) and out.flags.c_contiguous
        target = out if is_all else np.empty((len(self.starts), *out.shape[1:]), out.dtype)
        gather_rows(self.data.view(np.uint8), self.starts * self.data.dtype.itemsize, target)
        if not is_all:
            out[self.places] = target

    def contents(self) -> list[bytes]:
        """Runs of bytes, copied."""
        view, pairs = self.data.data, zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [view[start:stop].tobytes() for start, stop in pairs]


class Elements:
    """Elements of one dtype and shape; each part has its own number of them."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of an element."""
        raise NotImplementedError

    def take(self, at: Located, out: Array) -> None:
        """Writes these elements into the rows of ``out``."""
        raise NotImplementedError

    def pairs(self, at: Located) -> tuple[Indices, Indices]:
        """These elements, which are offsets, and those behind them."""
        raise NotImplementedError

    def runs(self, at: Located, stops: Indices) -> Iterator[Runs]:
        """The elements from these on, up to ``stops``.  By default they are copied."""
        lengths = stops - at.rows
        ends = np.cumsum(lengths)
        data = new_rows(self.spec, int(ends[-1]) if len(ends) else 0)
        self.take(items_at(at, lengths), data)
        yield Runs(ALL, data, ends - lengths, ends)

    def part(self, number: int, start: int, stop: int) -> Array | None:
        """Consecutive elements of a part, as they are stored; None if they are not."""
        return None

    def whole(self, at: Located) -> Array | None:
        """All elements of the part that has these elements; None if that is not one array."""
        return None

    def count(self, part: int) -> int:
        """The number of elements in a part."""
        raise NotImplementedError

    def spans(self, at: Located, stops: Indices) -> Iterator[Span]:
        """The bytes that are read for runs."""
        return iter(())

    def needs(self, at: Located, stops: Indices) -> Needs:
        """The ranges to fetch for runs."""
        return []

    @property
    def is_fetched(self) -> bool:
        """True if elements are fetched as they are read."""
        return False


def items_at(at: Located, lengths: Indices) -> Located:
    """All items of lists, one list after the other; ``at`` has the first item of each."""
    parts = None if at.parts is None else np.repeat(at.parts, lengths)
    return Located(parts, numbers_from(at.rows, lengths))


class PartElements(Elements):
    """Elements that are an array in each part."""

    def __init__(
        self,
        parts: Parts,
        array_of: ArrayOf,
        counts: npt.NDArray[np.int64] | None = None,
        damaged: Callable[[int], LoaderxError] | None = None,
    ) -> None:
        """
        Args:
            parts: of the dataset.
            array_of: the array of a part.
            counts: the elements of each part, which has at least as many as records; None where
                offsets lead into them, and are checked not to lead out of them.
            damaged: the error for offsets that lead out of a part.
        """
        self._parts, self.array_of, self._counts, self._damaged = parts, array_of, counts, damaged
        self._begin()

    def _begin(self) -> None:
        is_mapped = getattr(self.array_of, "is_mapped", False)
        self._may_join = is_mapped and len(self._parts.counts) > 1
        self._joined: tuple[JoinedMaps, npt.NDArray[np.int64]] | None = None  # with their lengths

    def __getstate__(self) -> tuple[object, ...]:
        return self._parts, self.array_of, self._counts, self._damaged

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self._parts, self.array_of, self._counts, self._damaged = state  # type: ignore[assignment]
        self._begin()

    @property
    def spec(self) -> ArraySpec:
        array = self.rows(0, _NONE, 0)
        return ArraySpec(array.shape[1:], array.dtype)

    @property
    def is_joined(self) -> bool:
        return self._joined is not None

    @property
    def is_fetched(self) -> bool:
        return hasattr(self.array_of, "needs")

    def rows(self, part: int, starts: Indices, lengths: Indices | int) -> Array:
        """The array of a part, of which these runs of rows are read, and no others."""
        rows: Callable[..., Array] | None = getattr(self.array_of, "rows", None)
        return self.array_of(part) if rows is None else rows(part, starts, lengths)

    def part(self, number: int, start: int, stop: int) -> Array | None:
        return self.rows(number, np.array([start]), stop - start)[start:stop]

    def whole(self, at: Located) -> Array | None:
        if self._joined is not None or self.is_fetched:
            return None
        groups = at.groups()
        return self.array_of(groups[0][0]) if len(groups) == 1 else None

    def count(self, part: int) -> int:
        return len(self.rows(part, _NONE, 0))

    def _across(self, at: Located) -> tuple[JoinedMaps, npt.NDArray[np.int64]] | None:
        """All parts as one, and their lengths, once several are read out of order.

        In the order of the files, a batch lies in one part, or two; then nothing is joined.
        """
        if at.parts is not None and self._may_join and (at.parts[1:] < at.parts[:-1]).any():
            self._joined, self._may_join = self._join(), False
        return self._joined

    def _join(self) -> tuple[JoinedMaps, npt.NDArray[np.int64]] | None:
        try:
            each = range(len(self._parts.counts))
            counts = self._counts
            if counts is None:
                counts = np.array([len(self.array_of(part)) for part in each])
            joined = joined_maps(self.array_of, counts)
        except LoaderxError:  # the error is raised when that part is read
            return None
        return None if joined is None else (joined, counts)

    def take(self, at: Located, out: Array) -> None:
        if at.parts is None:
            self._take_part(0, at.rows, out)
            return
        joined = self._across(at)
        if joined is not None and self._take_joined(joined, at, out):
            return
        for part, places in at.groups():
            if isinstance(places, slice):
                self._take_part(part, at.rows, out)
                return
            out[places] = self._checked(part, at.rows[places], 1)[at.rows[places]]

    def _take_part(self, part: int, rows: Indices, out: Array) -> None:
        array = self._checked(part, rows, 1)
        if array.dtype == out.dtype:
            take_rows(array, rows, out)
        else:  # JAX takes numbers in the byte order of the machine
            out[...] = array[rows]

    def _take_joined(
        self, joined: tuple[JoinedMaps, npt.NDArray[np.int64]], at: Located, out: Array
    ) -> bool:
        (array, starts), counts = joined
        if array.dtype != out.dtype or (
            self._counts is None and (at.rows >= at.each(counts)).any()
        ):
            return False
        take_rows(array, at.rows + starts[at.parts], out)
        return True

    def _checked(self, part: int, rows: Indices, lengths: int) -> Array:
        """The array of a part, with these rows present."""
        array = self.rows(part, rows, lengths)
        if self._counts is None and len(rows) and int(rows.max()) + lengths > len(array):
            last, have = int(rows.max()), len(array) - lengths + 1
            raise BadRecordError(f"the offsets of a column are damaged: item {last} of {have}.")
        return array

    def pairs(self, at: Located) -> tuple[Indices, Indices]:
        if at.parts is None:
            return _pairs(self._checked(0, at.rows, 2), at.rows)
        joined = self._across(at)
        if joined is not None:
            (array, starts), counts = joined
            if self._counts is not None or (at.rows + 1 < at.each(counts)).all():
                return _pairs(array, at.rows + starts[at.parts])
        starts, stops = np.empty((2, len(at)), np.int64)
        for part, places in at.groups():
            rows = at.rows[places]
            starts[places], stops[places] = _pairs(self._checked(part, rows, 2), rows)
        return starts, stops

    def runs(self, at: Located, stops: Indices) -> Iterator[Runs]:
        joined = None if at.parts is None else self._across(at)
        if joined is not None and not lie_outside(at.rows, stops, at.each(joined[1])):
            begins = joined[0].starts[at.parts]
            yield Runs(ALL, joined[0].rows, at.rows + begins, stops + begins)
            return
        for part, places in at.groups():
            starts, ends = at.rows[places], stops[places]
            data = self.rows(part, starts, ends - starts)
            if lie_outside(starts, ends, len(data)):
                raise BadRecordError(OUTSIDE) if self._damaged is None else self._damaged(part)
            yield Runs(places, data, starts, ends)

    def spans(self, at: Located, stops: Indices) -> Iterator[Span]:
        for part, places in at.groups():
            starts, ends = at.rows[places], stops[places]
            data = self.rows(part, starts, ends - starts)
            ends = np.minimum(ends, len(data))
            yield Span(data, np.clip(starts, 0, ends), ends)

    def needs(self, at: Located, stops: Indices) -> Needs:
        found: Callable[..., Needs] | None = getattr(self.array_of, "needs", None)
        if found is None:
            return []
        return [
            one
            for part, places in at.groups()
            for one in found(part, at.rows[places], stops[places] - at.rows[places])
        ]


def fetched_bytes(files: FileSet) -> PartElements:
    """The bytes of files, each of which is a part; behind URLs they are fetched in pieces."""
    arrays = [
        PlacedArray(files, number, 0, np.dtype(np.uint8), (size,), in_pieces=True)
        for number, size in enumerate(files.sizes)
    ]
    return PartElements(Parts(files.sizes), placed_arrays(arrays))


def file_bytes(
    files: FileSet, damaged: Callable[[int], LoaderxError] | None = None
) -> PartElements:
    """The bytes of files, each of which is a part; ``damaged`` is as in `PartElements`."""
    return PartElements(Parts(files.sizes), FileBytes(files), None, damaged)


def _pairs(offsets: Array, rows: Indices) -> tuple[Indices, Indices]:
    starts: Indices = offsets[rows].astype(np.int64, copy=False)
    stops: Indices = offsets[rows + 1].astype(np.int64, copy=False)
    return starts, stops
