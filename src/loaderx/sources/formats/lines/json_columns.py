"""The values under one key of JSON records: all must have the type of the first ones.

JSON has no dtypes.  Numbers are Python numbers, which loaderx stacks as JAX would (int32, float32),
and lists of numbers are arrays of these dtypes; ``types`` chooses others.  Where the first records
have integers and floats under a key, all are floats.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from loaderx.sources.columns.column import OBJECT
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.gaps import nan_dtype
from loaderx.sources.formats.lines.copies import TEXT, Kept, kept_lists, kept_numbers
from loaderx.sources.formats.lines.json_parsing import parse_kept
from loaderx.sources.formats.lines.numbers import DType, array_of, shown
from loaderx.tree import Array, ArraySpec

Values: TypeAlias = "Sequence[object] | Array"
Kinds: TypeAlias = "set[type]"

_INT, _FLOAT, _BOOL = (np.dtype(kind) for kind in (np.int32, np.float32, np.bool_))
_LISTED: list[tuple[Kinds, DType]] = [({int}, _INT), ({int, float}, _FLOAT), ({bool}, _BOOL)]
_NAMES: dict[type, str] = {str: "text", int: "an integer", bool: "true or false"}
_PLAIN_SPECS = {
    str: OBJECT,
    int: ArraySpec((), _INT),
    bool: ArraySpec((), _BOOL),
}
_KEPT = {
    str: TEXT,
    int: kept_numbers(np.dtype(np.int64), is_python=True),
    bool: kept_numbers(_BOOL, is_python=True),
}


def _written(value: object) -> bytes:
    return json.dumps(value).encode()


class JsonColumn:
    """Values that are left as they are; the base of columns that convert them."""

    spec: ArraySpec | None = None
    """Shape and dtype of the values in a batch; None if they differ, or are unknown."""

    kept: Kept = Kept(ColumnType("bytes"), encode=_written, decode=parse_kept)
    """How a copy keeps the values."""

    def __init__(self, name: str) -> None:
        self.name = name

    def converted(self, values: Values, kinds: Kinds) -> Values:
        """The values as records have them; a ValueError if one value is wrong."""
        return values

    def write(self, values: Values, out: Array) -> None:
        """Writes converted values into an array; only where there is a spec."""
        is_text = out.dtype.kind == "O"
        out[:] = values if is_text else array_of(values, out.dtype)  # type: ignore[arg-type]

    def wrong(self, value: object, expected: str) -> ValueError:
        return ValueError(
            f"{self.name!r} is {shown(value)}, and {expected} in the first records. {self.advice}"
        )

    @property
    def advice(self) -> str:
        return f"Choose its dtype, types={{{self.name!r}: ...}}, or object for values as they are"


class Plain(JsonColumn):
    """Values of one type: text, integers, bools."""

    def __init__(self, name: str, kind: type) -> None:
        super().__init__(name)
        self._kind, self.spec, self.kept = kind, _PLAIN_SPECS[kind], _KEPT[kind]

    def converted(self, values: Values, kinds: Kinds) -> Values:
        if kinds != {self._kind}:
            wrong = next(one for one in values if type(one) is not self._kind)
            raise self.wrong(wrong, _NAMES[self._kind])
        return values


class Floats(JsonColumn):
    """Floats, some of which may be written as integers."""

    spec = ArraySpec((), _FLOAT)
    kept = kept_numbers(np.dtype(np.float64), is_python=True)

    def converted(self, values: Values, kinds: Kinds) -> Values:
        if kinds == {float}:
            return values
        if not kinds <= {int, float}:
            wrong = next(one for one in values if type(one) not in (int, float))
            raise self.wrong(wrong, "a number")
        try:
            return [float(value) for value in values]  # type: ignore[arg-type]
        except OverflowError as error:
            raise ValueError(f"{self.name!r} has a number that no float can hold") from error


class Typed(JsonColumn):
    """Lists of numbers of one dtype, however deep: an array for each."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self._dtype, self.kept = dtype, kept_lists(dtype)  # deeper ones are odd

    def converted(self, values: Values, kinds: Kinds) -> Values:
        return [self._one(value) for value in values]

    def _one(self, value: object) -> object:
        try:
            if not isinstance(value, list):
                raise ValueError(f"{shown(value)} is not a list")
            numbers, shape = leaves_of(value)
            return array_of(numbers, self._dtype).reshape(shape)
        except ValueError as error:
            raise ValueError(f"{self.name!r}: {error}. {self.advice}") from error


class TypedNumbers(JsonColumn):
    """Numbers of a dtype that the user has chosen."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self.spec, self.kept = ArraySpec((), dtype), kept_numbers(dtype)
        self._dtype = dtype

    def converted(self, values: Values, kinds: Kinds) -> Values:
        try:
            return array_of(values, self._dtype)  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{self.name!r}: {error}. {self.advice}") from error

    def write(self, values: Values, out: Array) -> None:
        out[:] = values


class Lists(JsonColumn):
    """Lists of numbers: arrays of one axis.  All are converted at once, and then cut apart."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self._dtype, self.kept = dtype, kept_lists(dtype)

    def converted(self, values: Values, kinds: Kinds) -> Values:
        if kinds != {list}:
            raise self.wrong(next(one for one in values if type(one) is not list), "a list")
        lists: Sequence[list[float]] = values  # type: ignore[assignment]
        try:
            numbers = array_of(list(itertools.chain.from_iterable(lists)), self._dtype)
        except ValueError as error:
            raise ValueError(f"{self.name!r}: {error}. {self.advice}") from error
        ends = list(itertools.accumulate(map(len, lists)))
        # Copies: a record must not keep the numbers of all others in memory.
        return [numbers[start:end].copy() for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class Codes(JsonColumn):
    """Text as codes: the numbers of these values."""

    spec = ArraySpec((), _INT)
    kept = kept_numbers(_INT)

    def __init__(self, name: str, values: Sequence[str]) -> None:
        super().__init__(name)
        self._codes = {value: code for code, value in enumerate(values)}

    def converted(self, values: Values, kinds: Kinds) -> Values:
        if kinds != {str}:
            raise self.wrong(next(one for one in values if type(one) is not str), "text")
        return np.array([self._codes[str(value)] for value in values], _INT)


def leaves_of(value: object) -> tuple[list[float], tuple[int, ...]]:
    """The numbers in lists of lists, and the shape of these; a ValueError if lengths differ."""
    level: list[object] = [value]
    shape: list[int] = []
    while level and all(type(one) is list for one in level):
        lengths = {len(one) for one in level}  # type: ignore[arg-type]
        if len(lengths) > 1:
            raise ValueError(f"its lists have the lengths {sorted(lengths)}")
        shape += lengths
        level = [inner for one in level for inner in one]  # type: ignore[attr-defined]
    return level, tuple(shape)  # type: ignore[return-value]


def with_nan(column: JsonColumn) -> JsonColumn:
    """A column of numbers or times that may have NaN or NaT."""
    wide = nan_dtype(column.kept.kind)
    assert wide is not None
    return Floats(column.name) if column.kept.is_python else TypedNumbers(column.name, wide)


def column_of(name: str, values: list[object], dtype: DType | None) -> JsonColumn:
    """The column for values such as these, which are not null; the dtype is the user's."""
    kinds = set(map(type, values))
    if dtype is not None:
        if dtype.kind == "O":
            return JsonColumn(name)
        return Typed(name, dtype) if list in kinds else TypedNumbers(name, dtype)
    if len(kinds) == 1 and kinds <= {str, int, bool}:
        return Plain(name, kinds.pop())
    if kinds and kinds <= {int, float}:
        return Floats(name)
    return _column_of_lists(name, values) if kinds == {list} else JsonColumn(name)


def _column_of_lists(name: str, values: list[object]) -> JsonColumn:
    depths: set[int] = set()
    kinds: Kinds = set()
    for value in values:
        try:
            numbers, shape = leaves_of(value)
        except ValueError:  # lists of various lengths cannot become arrays
            return JsonColumn(name)
        kinds |= set(map(type, numbers))
        depths |= {len(shape)} if numbers else set()
    dtype = next((one for types, one in _LISTED if kinds <= types), None)
    if dtype is None or len(depths) > 1:
        return JsonColumn(name)
    return Lists(name, dtype) if depths <= {1} else Typed(name, dtype)
