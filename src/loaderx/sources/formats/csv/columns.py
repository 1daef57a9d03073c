"""Columns of CSV files: their types, found from the first rows, and cells as arrays.

Numbers are parsed by pyarrow.  Where it refuses one, the cells are parsed one by one, with the same
results, which also finds the cells that are wrong.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.gaps import ways_out
from loaderx.sources.formats.arrow.columns import arrow_data
from loaderx.sources.formats.lines.numbers import (
    TIME,
    WORDS,
    DType,
    Number,
    array_of,
    fitted,
    shown,
)
from loaderx.sources.formats.lines.text import not_utf8
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow as pa

Cells: TypeAlias = Sequence[str]
Wrong: TypeAlias = "dict[int, str]"
"""Errors of cells, by the number of the cell."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.IGNORECASE
)
_WORDS_OF_BOOLS = ("true", "false")
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_NULLS_OF_FLOATS = frozenset(("", "NA", "N/A", "n/a", "null", "NULL", "None"))
_NULLS = _NULLS_OF_FLOATS | {"NaN", "nan"}
_FOR_ARROW_ALONE = np.frombuffer(b"xX(", np.uint8)  # 0x10 and nan(1)
FEW = 16  # cells that are parsed as fast one by one
_FEW_ROWS = 4096  # of columns that are parsed together
_TEXT = np.dtype(object)


class CsvColumn:
    """One column: cells become an array of its dtype."""

    def __init__(
        self, name: str, dtype: DType, fill: object = None, *, keeps_gaps: bool = False
    ) -> None:
        """With ``keeps_gaps``, cells without a value are kept as such."""
        self.name, self.dtype, self.fill = name, dtype, fill
        self.keeps_gaps = keeps_gaps
        self.kind = _column_type(dtype).replace(nulls=0 if keeps_gaps else None)
        self._plain = "" if dtype == _TEXT else "1970-01-01" if dtype.kind == "M" else "0"
        if fill is None:
            return
        if dtype == _TEXT and not isinstance(fill, str):
            raise ArgumentError(f"`fill` must be text for the column {name!r}, got {fill!r}.")
        try:
            self._plain = str(fill) if dtype == _TEXT else _filler(fill, dtype)
        except ValueError as error:
            raise ArgumentError(f"`fill` for the column {name!r}: {error}.") from error

    def data(self, cells: pa.BinaryArray, encoding: str) -> tuple[ColumnData, Wrong]:
        """The values of cells, and the errors of wrong cells, whose values are arbitrary."""
        texts, wrong = self._decoded(cells, encoding)
        texts, valid = self._present(texts)
        if self.dtype == _TEXT:
            data = arrow_data(texts, ColumnType("text"), self.name, {})
            return data._replace(valid=valid), wrong
        values = self._parsed(texts)
        if values is None:
            values, others = self.parsed_one_by_one(texts.to_pylist())
            wrong = others | wrong
        return ColumnData(len(values), values, valid=valid), wrong

    def _present(self, texts: pa.StringArray) -> tuple[pa.StringArray, Array | None]:
        """Cells with a plain value for missing ones, and which are there, if that is kept."""
        if self.fill is None and not self.keeps_gaps:
            return texts, None
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.dtype == _TEXT:
            is_null = pc.equal(texts, "")
        else:
            nulls = pa.array(sorted(self._nulls))
            is_null = pc.is_in(pc.utf8_trim_whitespace(texts), value_set=nulls)
        valid = ~np.array(is_null) if self.keeps_gaps else None
        return pc.if_else(is_null, self._plain, texts), valid

    def parsed_together(
        self, columns: Sequence[pa.BinaryArray], encoding: str
    ) -> list[ColumnData] | None:
        """The numbers of columns of this type; None if pyarrow cannot parse one of them."""
        import pyarrow as pa

        texts, wrong = self._decoded(pa.concat_arrays(columns), encoding)
        texts, valid = self._present(texts)
        values = None if wrong else self._parsed(texts)
        if values is None:
            return None
        shape = (len(columns), -1)
        there = [None] * len(columns) if valid is None else valid.reshape(shape)
        pairs = zip(values.reshape(shape), there, strict=True)
        return [ColumnData(len(rows), rows, valid=one) for rows, one in pairs]

    def _decoded(self, cells: pa.BinaryArray, encoding: str) -> tuple[pa.StringArray, Wrong]:
        import pyarrow as pa

        if encoding == "utf-8":
            try:
                return cells.cast(pa.string()), {}
            except pa.ArrowInvalid:
                pass  # one of them is not UTF-8
        texts, errors = decoded(cells, encoding)
        wrong = {
            number: f"column {self.name!r}: {not_decoded(error, encoding)}"
            for number, error in errors.items()
        }
        return pa.array(texts, pa.string()), wrong

    def _parsed(self, texts: pa.StringArray) -> Array | None:
        """All at once; None if one of them is not a number for pyarrow, or for pyarrow alone."""
        if len(texts) < FEW:
            return None
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self.dtype.kind
        raw = arrow_data(texts, ColumnType("text"), self.name, {}).values
        assert raw is not None
        if np.isin(raw, _FOR_ARROW_ALONE).any():
            return None
        texts = pc.utf8_trim_whitespace(texts)
        wide = self.dtype if kind == "M" else np.dtype({"b": "?"}.get(kind, f"{kind}8"))
        try:
            numbers = texts.cast(pa.from_numpy_dtype(wide))
            values = arrow_data(numbers, ColumnType("fixed", wide), self.name, {}).values
            assert values is not None
            return fitted(values, self.dtype)
        except ValueError:  # pyarrow's errors are, too
            return None

    def parsed_one_by_one(self, cells: Cells) -> tuple[Array, Wrong]:
        """The numbers of cells, and the errors of wrong cells, which become 0."""
        try:
            return array_of(list(map(self._value, cells)), self.dtype), {}
        except ValueError:
            pass  # cell by cell below, to find those that are wrong
        values = np.zeros(len(cells), self.dtype)
        wrong: Wrong = {}
        for number, cell in enumerate(cells):
            try:
                values[number : number + 1] = self._fitting(self._value(cell))
            except ValueError as error:
                wrong[number] = str(error)
        return values, wrong

    def _fitting(self, value: Number | str) -> Array:
        try:
            return array_of([value], self.dtype)
        except ValueError as error:
            raise ValueError(f"column {self.name!r}: {error}. {self._advice()}") from error

    def refused(self, cells: Cells) -> list[int]:
        """Which of these cells are missing, if that is an error."""
        nulls = self._nulls
        if self.dtype == _TEXT or self.fill is not None or self.keeps_gaps:
            return []
        if nulls.isdisjoint(map(str.strip, cells)):
            return []
        return [number for number, cell in enumerate(cells) if cell.strip() in nulls]

    @property
    def _nulls(self) -> frozenset[str]:
        return _NULLS_OF_FLOATS if self.dtype.kind == "f" else _NULLS

    def _value(self, cell: str) -> Number | str:
        text, kind = cell.strip(), self.dtype.kind
        if self.fill is not None and text in self._nulls:
            text = self._plain
        if kind == "f" and _FLOAT.fullmatch(text):
            return float(text)
        if kind in "iu" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "b" and text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        if kind == "M" and TIME.fullmatch(text):
            return text
        if text not in _NULLS:
            raise ValueError(
                f"column {self.name!r}: {shown(cell)} is not {WORDS[kind]}. {self._advice()}"
            )
        raise ValueError(missing_cell(self.name, cell))

    def _advice(self) -> str:
        return f"Say what the column is with types={{{self.name!r}: ...}}: a dtype, or str"


def missing_cell(name: str, cell: str) -> str:
    """The message for a cell without a value."""
    what = "an empty cell" if not cell.strip() else shown(cell)
    return f"column {name!r}: {what} is a missing value. {ways_out([name])}"


@functools.cache
def _column_type(dtype: DType) -> ColumnType:
    return ColumnType("text") if dtype == _TEXT else ColumnType("fixed", dtype)


def parsed_columns(
    columns: Sequence[CsvColumn], cells: pa.RecordBatch, encoding: str
) -> Iterator[tuple[ColumnData, Wrong]]:
    """`CsvColumn.data` of each column.

    Columns of numbers of the same type are parsed together where they are short: a call of pyarrow
    takes as long as a hundred numbers.
    """
    arrays = cells.columns
    found: dict[int, ColumnData] = {}
    if len(cells) <= _FEW_ROWS:
        for same in _alike(columns):
            parsed = columns[same[0]].parsed_together([arrays[place] for place in same], encoding)
            if parsed is not None:
                found.update(zip(same, parsed, strict=True))
    for place, column in enumerate(columns):
        yield (found[place], {}) if place in found else column.data(arrays[place], encoding)


def _alike(columns: Sequence[CsvColumn]) -> Iterable[list[int]]:
    """The places of columns of numbers with the same type and the same value for missing cells."""
    places: dict[tuple[DType, str, bool], list[int]] = {}
    for place, column in enumerate(columns):
        if column.dtype != _TEXT:
            alike = column.dtype, repr(column.fill), column.keeps_gaps
            places.setdefault(alike, []).append(place)
    return places.values()


def _filler(fill: object, dtype: DType) -> str:
    """A value for missing cells, as it would be written in a cell."""
    if dtype.kind == "M":
        return str(array_of([str(fill).replace("T", " ")], dtype)[0])
    value = fill.item() if isinstance(fill, np.generic) else fill
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"{shown(fill)} is not {WORDS[dtype.kind]}")
    return str(array_of([value], dtype).tolist()[0])


def decoded(
    cells: pa.BinaryArray, encoding: str
) -> tuple[list[str], dict[int, UnicodeDecodeError]]:
    """Cells as text, and the errors of those that cannot be decoded, which become empty."""
    found = cells.to_pylist()
    try:
        return [cell.decode(encoding) for cell in found], {}
    except UnicodeDecodeError:
        pass  # cell by cell below, to find those that are wrong
    texts, errors = [""] * len(found), {}
    for number, cell in enumerate(found):
        try:
            texts[number] = cell.decode(encoding)
        except UnicodeDecodeError as error:
            errors[number] = error
    return texts, errors


def not_decoded(error: UnicodeDecodeError, encoding: str) -> str:
    """The message for text of another encoding."""
    if encoding != "utf-8":
        return f"it is not {encoding} ({error.reason})"
    return (
        f"{not_utf8(error)}. If the file has another encoding, open it with "
        'loaderx.sources.Csv(path, encoding="latin-1"), say'
    )


# From the first rows ----------------------------------------------------------------------------


_FEW_DIGITS, _MOST_DIGITS = 18, 1000  # that always fit into 64 bits; that Python parses


def dtype_of(cells: Cells) -> DType:
    """The type of a column that has these cells: int64, float64, bool or text."""
    present = [text for text in map(str.strip, cells) if text not in _NULLS_OF_FLOATS]
    if not present:
        return _TEXT
    if all(map(_INTEGER.fullmatch, present)):
        # Beyond 64 bits they are not for calculation, and a float would lose digits.
        # Python refuses to parse thousands of digits.
        longest = max(map(len, present))
        is_narrow = longest <= _FEW_DIGITS or (
            longest <= _MOST_DIGITS and all(-(2**63) <= int(text) < 2**63 for text in present)
        )
        return np.dtype(np.int64) if is_narrow else _TEXT
    if all(map(_FLOAT.fullmatch, present)):
        return np.dtype(np.float64)
    if all(text.lower() in _WORDS_OF_BOOLS for text in present):
        return np.dtype(np.bool_)
    return _TEXT
