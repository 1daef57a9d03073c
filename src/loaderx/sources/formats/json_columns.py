"""The keys of JSON records as columns: what the first records have, all others must have.

JSON has no dtypes.  Numbers are Python's, which loaderx stacks as JAX would (int32, float32), and
lists of numbers are arrays of these dtypes; ``types`` chooses others.  Where the first records have
integers and floats under a key, all are floats.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.sources.formats.json_parsing import JsonValue
from loaderx.sources.formats.numbers import DType, array_of, shown

Record: TypeAlias = "dict[str, object]"
Kinds: TypeAlias = "set[type]"

_NOTHING = type(None)
_DTYPES: list[tuple[Kinds, DType]] = [  # of lists
    ({int}, np.dtype(np.int32)),
    ({int, float}, np.dtype(np.float32)),
    ({bool}, np.dtype(np.bool_)),
]
_NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
_NAMES |= {list: "a list", dict: "an object", _NOTHING: "null"}


class JsonColumn:
    """The values under one key, left as they are; the base of columns that convert them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def converted(self, values: Sequence[object], kinds: Kinds) -> Sequence[object] | None:
        """The values as records have them; None: as they are.  A ValueError if one is wrong."""
        return None


class Plain(JsonColumn):
    """Values of one type: text, integers, bools."""

    def __init__(self, name: str, kind: type) -> None:
        super().__init__(name)
        self._kind = kind

    def converted(self, values: Sequence[object], kinds: Kinds) -> None:
        if kinds != {self._kind}:
            wrong = next(one for one in values if type(one) is not self._kind)
            raise ValueError(
                f"{self.name!r} is {shown(wrong)}, and {_NAMES[self._kind]} in the first records. "
                f"Open it with loaderx.sources.Jsonl(path, types={{{self.name!r}: ...}}): a dtype, "
                "or object for values as they are"
            )


class Floats(JsonColumn):
    """Numbers, of which some may be written as integers."""

    def converted(self, values: Sequence[object], kinds: Kinds) -> Sequence[object] | None:
        if kinds == {float}:
            return None
        wrong = next((one for one in values if type(one) not in (int, float)), None)
        if wrong is not None:
            raise ValueError(f"{self.name!r} is {shown(wrong)}, and a number in the first records")
        try:
            return [float(value) for value in values]  # type: ignore[arg-type]
        except OverflowError as error:
            raise ValueError(f"{self.name!r} has a number beyond all floats") from error


class Typed(JsonColumn):
    """Numbers of a dtype that the user has chosen, or lists of them, however deep."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self._dtype = dtype

    def converted(self, values: Sequence[object], kinds: Kinds) -> Sequence[object]:
        return [self._one(value) for value in values]

    def _one(self, value: object) -> object:
        try:
            return _nested(value, self._dtype) if isinstance(value, list) else self._scalar(value)
        except ValueError as error:
            raise ValueError(f"{self.name!r}: {error}") from error

    def _scalar(self, value: object) -> object:
        return array_of([value], self._dtype)[0]  # type: ignore[list-item]


class Tensors(Typed):
    """Lists of lists of numbers, each of equal lengths: arrays of several axes."""

    def _scalar(self, value: object) -> object:
        raise ValueError(f"{shown(value)} is not a list")


class Lists(JsonColumn):
    """Lists of numbers: arrays of one axis."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self._dtype = dtype

    def converted(self, values: Sequence[object], kinds: Kinds) -> Sequence[object]:
        if kinds != {list}:
            wrong = next(one for one in values if type(one) is not list)
            raise ValueError(
                f"{self.name!r} is {shown(wrong)}, and a list of numbers in the first records"
            )
        lists: Sequence[list[float]] = values  # type: ignore[assignment]
        try:
            # One conversion for all records: ten times as fast as one for each.
            numbers = array_of(list(itertools.chain.from_iterable(lists)), self._dtype)
        except ValueError as error:
            raise ValueError(
                f"{self.name!r}: {error}. Open it with loaderx.sources.Jsonl(path, types="
                f"{{{self.name!r}: ...}}): another dtype, or object for values as they are"
            ) from error
        ends = list(itertools.accumulate(map(len, lists)))
        pairs = zip([0, *ends], ends, strict=False)
        # Copies: a record that is kept must not keep the numbers of all others.
        return [numbers[start:end].copy() for start, end in pairs]


def _nested(value: JsonValue | object, dtype: DType) -> object:
    """Lists of lists as an array; their lengths must agree."""
    numbers, shape = _leaves(value)
    return array_of(numbers, dtype).reshape(shape)


def _leaves(value: object) -> tuple[list[float], tuple[int, ...]]:
    """The numbers in lists of lists, and the shape of these."""
    level: list[object] = [value]
    shape: list[int] = []
    while level and all(type(one) is list for one in level):
        lengths = {len(one) for one in level}  # type: ignore[arg-type]
        if len(lengths) > 1:
            raise ValueError(f"its lists have the lengths {sorted(lengths)}")
        shape += lengths
        level = [inner for one in level for inner in one]  # type: ignore[attr-defined]
    return level, tuple(shape)  # type: ignore[return-value]


# From the first records -------------------------------------------------------------------------


def columns_of(
    sample: Sequence[Record], names: Sequence[str], types: Mapping[str, DType]
) -> list[JsonColumn]:
    """A column for each name, by the values in some records."""
    found = []
    for name in names:
        if name in types:
            dtype = types[name]
            found.append(JsonColumn(name) if dtype.kind == "O" else Typed(name, dtype))
        else:
            values = [one[name] for one in sample if one.get(name) is not None]
            found.append(_column(name, values))
    return found


def _column(name: str, values: list[object]) -> JsonColumn:
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {str, int, bool}:
        return Plain(name, kinds.pop())
    if kinds and kinds <= {int, float}:
        return Floats(name)
    if kinds == {list}:
        return _column_of_lists(name, values)
    return JsonColumn(name)


def _column_of_lists(name: str, values: list[object]) -> JsonColumn:
    depths, kinds = set(), set()
    for value in values:
        try:
            numbers, shape = _leaves(value)
        except ValueError:  # lists of various lengths: no arrays can be made of them
            return JsonColumn(name)
        kinds |= set(map(type, numbers))
        if numbers:
            depths.add(len(shape))
    dtype = next((one for types, one in _DTYPES if kinds <= types), None)
    if dtype is None:
        return JsonColumn(name)
    if depths <= {1}:
        return Lists(name, dtype)
    return Tensors(name, dtype) if len(depths) == 1 else JsonColumn(name)
