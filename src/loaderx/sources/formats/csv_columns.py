"""Columns of CSV files: their types, found from the first rows, and cells as arrays.

Numbers are parsed many at once, by msgspec where it is installed: the cells of a column, joined by
commas, are an array of JSON.  What it refuses is parsed cell by cell, with the same results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.sources.formats.lines.numbers import DType, Number, array_of, shown
from loaderx.tree import Array, ArraySpec

Cells: TypeAlias = Sequence[str]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.IGNORECASE
)
_BOOLS = {"true": True, "false": False}
_NULLS = frozenset(("", "NA", "N/A", "n/a", "null", "NULL", "None", "NaN", "nan"))
_WORDS = {"i": "an integer", "u": "an integer", "f": "a number", "b": "true or false"}
_TEXT = np.dtype(object)


class CsvColumn:
    """One column: cells become an array of its dtype."""

    def __init__(self, name: str, dtype: DType, fill: object = None) -> None:
        self.name, self.dtype, self.fill = name, dtype, fill
        self._filled: Number = 0
        if fill is None:
            return
        if dtype == _TEXT:
            if not isinstance(fill, str):
                raise ArgumentError(f"`fill` must be text for the column {name!r}, got {fill!r}.")
            return
        try:
            self._filled = array_of([_number(fill, dtype)], dtype).tolist()[0]
        except ValueError as error:
            raise ArgumentError(f"`fill` for the column {name!r}: {error}.") from error

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec((), self.dtype)

    def array(self, cells: Cells) -> Array:
        """The cells as an array, or a ValueError that names the column and shows a cell."""
        if self.dtype == _TEXT:
            return self._texts(cells)
        fast = fast_numbers(self.dtype.kind)
        if fast is not None:
            found = fast(cells)
            if found is not None:
                try:
                    return array_of(found, self.dtype)
                except ValueError:
                    pass  # cell by cell, to tell which one
        values = [self._value(cell) for cell in cells]
        try:
            return array_of(values, self.dtype)
        except ValueError as error:
            raise ValueError(f"column {self.name!r}: {error}. {self._advice()}") from error

    def first_missing(self, cells: Cells) -> int | None:
        """The first of these cells that has no value, where none is given for such cells."""
        if self.dtype == _TEXT or self.fill is not None:
            return None
        is_float = self.dtype.kind == "f"
        for number, cell in enumerate(cells):
            text = cell.strip()
            if text in _NULLS and not (is_float and text.lower() == "nan"):
                return number
        return None

    def missing(self, cell: str) -> str:
        """What to say about a cell without a value."""
        what = "an empty cell" if not cell.strip() else shown(cell)
        return (
            f"column {self.name!r}: {what} is a missing value. Give one to put in its place, "
            f"fill={{{self.name!r}: ...}}"
        )

    def _texts(self, cells: Cells) -> Array:
        found = np.empty(len(cells), object)
        found[:] = cells if self.fill is None else [cell or self.fill for cell in cells]
        return found

    def _value(self, cell: str) -> Number:
        text, kind = cell.strip(), self.dtype.kind
        if kind == "f" and _FLOAT.fullmatch(text):
            return float(text)
        if kind in "iu" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "b" and text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        if kind == "b" and text in ("0", "1"):
            return text == "1"
        if text not in _NULLS:
            raise ValueError(
                f"column {self.name!r}: {shown(cell)} is not {_WORDS[kind]}. {self._advice()}"
            )
        if self.fill is None:
            raise ValueError(self.missing(cell))
        return self._filled

    def _advice(self) -> str:
        return f"Say what it is with loaderx.sources.Csv(path, types={{{self.name!r}: ...}})"


def _number(fill: object, dtype: DType) -> Number:
    value = fill.item() if isinstance(fill, np.generic) else fill
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"{shown(fill)} is not {_WORDS[dtype.kind]}")
    return value


@functools.cache
def fast_numbers(kind: str) -> Callable[[Cells], list[Number] | None] | None:
    """Parses the cells of a column; the result is None if one of them is no number of JSON."""
    try:
        import msgspec
    except ImportError:
        return None
    if kind == "b":
        return None
    made = msgspec.json.Decoder(list[float]) if kind == "f" else msgspec.json.Decoder(list[int])
    decode = cast("Callable[[str], list[Number]]", made.decode)

    def parse(cells: Cells) -> list[Number] | None:
        text = f"[{','.join(cells)}]"
        if kind == "f" and ("-0," in text or "-0]" in text or "-0 " in text):
            return None  # an integer for msgspec, which loses its sign
        try:
            found = decode(text)
        except (ValueError, RecursionError):
            return None
        return found if len(found) == len(cells) else None  # a cell of "1,2"

    return parse


# From the first rows ----------------------------------------------------------------------------


_MOST_DIGITS = 1000


def dtype_of(cells: Cells) -> DType:
    """The type of a column that has these cells: int64, float64, bool or text."""
    present = [
        text for cell in cells if (text := cell.strip()) not in _NULLS or text.lower() == "nan"
    ]
    if not present:
        return _TEXT
    if all(map(_INTEGER.fullmatch, present)):
        # Beyond 64 bits they are no numbers to calculate with, and a float would lose digits.
        # Python refuses to parse thousands of digits, whatever they are.
        is_narrow = all(
            len(text) <= _MOST_DIGITS and -(2**63) <= int(text) < 2**63 for text in present
        )
        return np.dtype(np.int64) if is_narrow else _TEXT
    if all(map(_FLOAT.fullmatch, present)):
        return np.dtype(np.float64)
    if all(text.lower() in _BOOLS for text in present):
        return np.dtype(np.bool_)
    return _TEXT
