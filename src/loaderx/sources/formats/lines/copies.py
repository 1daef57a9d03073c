"""Lines parsed once: a copy of their columns in the native layout, in the cache folder.

Parsing a line costs several times what reading its values costs, at every read.  So files of lines
whose columns are text, numbers and lists of numbers are parsed once, and then gathered like any
other columns; a format may keep other values as bytes.  A record that the columns cannot hold as it
is (an integer beyond 64 bits, half of a surrogate pair, None), or that is wrong, is *odd*: its
number is kept, and its line is parsed at every read, as all lines are where there is no copy.  So
records, and errors, are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.memory import Layout, Lend
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import CacheFolder, CopyOf, Json
from loaderx.sources.columns.column import Column, ColumnSpans
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.derived_columns import ColumnOver, DecodedColumn
from loaderx.sources.columns.padded import PaddedColumns, padded_columns
from loaderx.sources.decoding import ENCODED
from loaderx.sources.files.arrays import open_npy
from loaderx.sources.files.cold import ColdReads
from loaderx.sources.files.npy import NpyWriter
from loaderx.sources.files.parts import Located, in_places
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.lines.files import LineFiles
from loaderx.sources.formats.lines.numbers import DType, Number, array_of, fitted
from loaderx.sources.native.copies import is_worth_a_copy, opened_copy, write_copy
from loaderx.sources.native.layout import MARK, read_description
from loaderx.sources.native.reader import native_columns
from loaderx.tree import Array, ArraySpec, flatten

_VERSION = 1
_ODD = "odd.npy"
_STEP_BYTES, _STEP_RECORDS = 1 << 20, 1024
_ODD_SHARE = 8  # if more than one record in this number is odd, a copy is not worth its space

Values: TypeAlias = "Sequence[object] | Array"
Parse: TypeAlias = Callable[[Indices], Sequence[Values]]
"""The values of records column by column, parsed; a ValueError if one of the records is wrong."""


class Kept(Frozen):
    """How a column is kept in a copy, and how its values become those of records."""

    kind: ColumnType
    is_python: bool = False  # numbers of Python, rather than of NumPy
    encode: Callable[[object], bytes] | None = None  # of values that are kept as bytes ...
    decode: Callable[[object], object] | None = None  # ... and back


TEXT = Kept(ColumnType("text"))


def kept_numbers(dtype: DType, *, is_python: bool = False) -> Kept:
    """A number for each record."""
    return Kept(ColumnType("fixed", dtype), is_python)


def kept_lists(dtype: DType) -> Kept:
    """A list of numbers for each record."""
    return Kept(ColumnType("ragged", dtype))


class LineCopy:
    """The columns of a copy, and the records that are not in it."""

    def __init__(self, columns: Sequence[Column], odd: Array) -> None:
        self._columns, self._odd = columns, odd
        self._cold = ColdReads(find=ColumnSpans(columns))

    def gather(self, indices: Indices, dtypes: Sequence[DType], lend: Lend) -> list[Array] | None:
        """The columns of records as arrays of these dtypes; None if one of them is odd."""
        at = self._find(indices)
        if at is None:
            return None
        found = lend(Layout.of(*[((len(indices),), dtype) for dtype in dtypes]))
        for column, target in zip(self._columns, found, strict=True):
            column.take(at, target)
        return found

    def _find(self, indices: Indices) -> Located | None:
        """Where records lie; None if one of them is odd."""
        if self.has_odd(indices):
            return None
        if self._cold.is_needed:
            self._cold.before(indices)
        return self._columns[0].parts.at(indices)

    def padded(
        self,
        names: Sequence[str],
        specs: Sequence[ArraySpec | None],
        lengths: Mapping[str, int],
    ) -> PaddedColumns | None:
        """The columns with lists padded; ``specs`` are those of the others in a batch."""
        _, structure = flatten(dict.fromkeys(names, 0))
        return padded_columns(self._columns, structure, specs, lengths, self._find)

    def has_odd(self, indices: Indices) -> bool:
        return self._odd_places(indices) is not None

    def read(self, indices: Indices, parse: Parse) -> Sequence[Values]:
        """The values of records column by column; ``parse`` reads the odd ones."""
        if self._cold.is_needed:
            self._cold.before(indices)
        odd = self._odd_places(indices)
        if odd is None:
            return self._values(indices)
        if len(odd) == len(indices):
            return parse(indices)
        rest = np.delete(np.arange(len(indices)), odd)
        kept = self._values(indices[rest])
        return [
            in_places(len(indices), [(rest, list(one)), (odd, list(other))])
            for one, other in zip(kept, parse(indices[odd]), strict=True)
        ]

    def _values(self, indices: Indices) -> list[Values]:
        at = self._columns[0].parts.at(indices)
        return [column.values(at) for column in self._columns]

    def _odd_places(self, indices: Indices) -> Indices | None:
        """Which of these records are odd; None if none is."""
        if not len(self._odd):
            return None
        nearest = np.minimum(np.searchsorted(self._odd, indices), len(self._odd) - 1)
        found = np.flatnonzero(self._odd[nearest] == indices)
        return found if len(found) else None


class PythonNumbers(ColumnOver):
    """Numbers that are Python numbers in records, and of a narrow dtype in batches."""

    def __init__(self, column: Column, dtype: DType) -> None:
        super().__init__(column)
        self._dtype = dtype

    @property
    def spec(self) -> ArraySpec | None:
        return self._column.spec

    def take(self, at: Located, out: Array) -> None:
        out[:] = fitted(self._wide(at), out.dtype)

    def values(self, at: Located) -> list[object]:
        found: list[object] = self._wide(at).tolist()
        return found

    def _wide(self, at: Located) -> Array:
        found = np.empty(len(at), self._dtype)
        self._column.take(at, found)
        return found


# Making a copy ----------------------------------------------------------------------------------


class TooOddError(Exception):
    """Raised if too many records are odd for a copy to be of use."""


class _Lines:
    """The columns of all lines, and the odd records among them."""

    def __init__(self, lines: LineFiles, kept: Mapping[str, Kept], parse: Parse) -> None:
        self._kept, self._parse = kept, parse
        self.kinds = {name: one.kind for name, one in kept.items()}
        self.classes: dict[str, tuple[str, ...]] = {}
        self.counts: list[int] = lines.parts.counts.tolist()
        self.nbytes = sum(lines.files.sizes)
        self.odd: list[int] = []

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        total = sum(self.counts)
        step = max(1, min(_STEP_RECORDS, _STEP_BYTES * total // max(1, self.nbytes)))
        for start in range(0, total, step):
            yield from self._step(start, min(start + step, total))
            if len(self.odd) * _ODD_SHARE > start + step:
                raise TooOddError

    def _step(self, start: int, stop: int) -> Iterator[Mapping[str, ColumnData]]:
        try:
            columns = self._parse(np.arange(start, stop))
            yield {
                name: column_data(one, values)
                for (name, one), values in zip(self._kept.items(), columns, strict=True)
            }
            return
        except FileError:  # of the whole file
            raise
        except ValueError:
            pass  # one of them is odd: it is found by bisection
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from self._step(start, middle)
            yield from self._step(middle, stop)
            return
        self.odd.append(start)
        yield {name: _nothing(kind) for name, kind in self.kinds.items()}


def column_data(kept: Kept, values: Values) -> ColumnData:
    """Values as they are kept; a ValueError if one of them cannot be kept."""
    kind = kept.kind
    try:
        if kind.kind in ("text", "bytes"):
            encoded = list(map(kept.encode or str.encode, values))
            data: Array = np.frombuffer(b"".join(encoded), np.uint8)
            return ColumnData(len(values), data, _offsets(encoded))
        assert kind.dtype is not None
        if kind.kind == "fixed":
            if isinstance(values, np.ndarray):
                return ColumnData(len(values), values)
            numbers: Sequence[Number] = values  # type: ignore[assignment]
            return ColumnData(len(values), array_of(numbers, kind.dtype))
        arrays: Sequence[Array] = values  # type: ignore[assignment]
        if any(array.ndim != 1 for array in arrays):
            raise ValueError("a list in a list cannot be kept")
        offsets = _offsets(arrays)
        return ColumnData(len(values), np.concatenate(arrays, dtype=kind.dtype), offsets)
    except (
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:  # None among them, or nested too deeply
        raise ValueError("a value cannot be kept") from error


def _offsets(values: Sequence[bytes] | Sequence[Array]) -> Array:
    found = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=found[1:])
    return found


def _nothing(kind: ColumnType) -> ColumnData:
    """The blank in place of an odd record."""
    if kind.kind == "fixed":
        return ColumnData(1, np.zeros(1, kind.dtype))
    return ColumnData(1, np.empty(0, kind.dtype or np.uint8), np.zeros(2, np.int64))


# Opening one ------------------------------------------------------------------------------------


def open_copy(
    kept: Mapping[str, Kept],
    lines: LineFiles,
    parse: Parse,
    cache: CacheFolder,
    label: str,
    options: Json,
) -> LineCopy | None:
    """The copy of files, which is made if it does not exist; None where there is none.

    Args:
        kept: how each column is kept.
        lines: the files.
        parse: gives the values of records.
        cache: where copies are; without a folder there are none.
        label: the name of the format.
        options: all that the values depend on, beside the files.
    """
    if not kept or not is_worth_a_copy(lines.files):
        return None

    def make(folder: str) -> None:
        found = _Lines(lines, kept, parse)
        try:
            write_copy(found, lines.files.paths, folder, label=label, cache=cache.folder)
        except TooOddError:  # a folder without a description: it is not tried again
            return
        with NpyWriter(os.path.join(folder, _ODD), np.dtype(np.int64)) as writer:
            writer.append(np.array(found.odd, np.int64))

    def find() -> str | None:
        told: Json = [label, options]
        return cache.copy_if_possible(CopyOf("copied", _VERSION, lines.files.paths, make, told))

    return opened_copy(find, lambda folder: _read(folder, kept, cache))


def _read(folder: str, kept: Mapping[str, Kept], cache: CacheFolder) -> LineCopy | None:
    if not os.path.isfile(os.path.join(folder, MARK)):
        return None
    found = read_description(folder)
    kinds = {name: one.kind for name, one in kept.items()}
    if found.columns != kinds:
        raise FileError(f"{folder} is damaged: it has other columns.")
    options = OpenOptions(columns=None, decode=ENCODED, fill={}, cache=cache)
    columns, _ = native_columns(folder, found, kinds, options)
    odd = open_npy(os.path.join(folder, _ODD))
    return LineCopy([_column(columns[name], one) for name, one in kept.items()], odd)


def _column(column: object, kept: Kept) -> Column:
    assert isinstance(column, Column)
    if kept.decode is not None:
        return DecodedColumn(column, kept.decode)
    if not kept.is_python:
        return column
    assert kept.kind.dtype is not None
    return PythonNumbers(column, kept.kind.dtype)
