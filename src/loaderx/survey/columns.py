"""The facts of columns, from a sample of records: types, missing values, ranges, classes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loaderx.display.values import plain_text, value_text
from loaderx.errors import LoaderxError
from loaderx.sources.open.opening import Opened
from loaderx.survey.look import Look
from loaderx.tree import Array, as_array

_LEAST_SAMPLE, _SAMPLE_BYTES = 16, 1 << 26
_RUNS = 64  # of consecutive records that a sample consists of
_CHUNKS = 8  # that are decoded for it, where records are stored in chunks
_MOST_CLASSES = 8  # in a line


def spread(parts: Sequence[Opened], most: int) -> list[int]:
    """Numbers of records for a sample, in runs that are spread over all of them."""
    source, first, stop = parts[0]
    count = sum(one.stop - one.start for one in parts)
    begin = range(min(_LEAST_SAMPLE, count, most))
    with contextlib.suppress(Exception):  # a record that cannot be read is found again
        records = source.records(np.arange(first, min(first + len(begin), stop)))
        row = sum(map(_nbytes, records)) // len(records) or 1
        most = max(len(begin), min(most, _SAMPLE_BYTES // row))
    if most >= count or not most:
        return list(range(min(most, count)))
    runs = _RUNS if source.chunks() is None else _CHUNKS
    length = -(-most // runs)
    starts = np.linspace(0, count - length, -(-most // length)).astype(np.int64)
    return sorted({int(start) + place for start in starts for place in range(length)})[:most]


def _nbytes(record: object) -> int:
    values = record.values() if isinstance(record, Mapping) else [record]
    return sum(
        len(one) if isinstance(one, (str, bytes)) else np.asarray(one).nbytes for one in values
    )


class Column:
    """The values of a column in a sample.

    Attributes:
        name: its path in a record.
        missing: the records that do not have it.
        lengths: of texts and bytes, and of arrays if their shapes differ.
        numbers: the finite numbers of each value that has some.
        not_finite: how many others there are.
        counts: how often each class was seen; None if the numbers do not stand for classes.
    """

    def __init__(
        self, name: str, given: Sequence[object], records: int, classes: Sequence[str] = ()
    ) -> None:
        values = [one for one in given if one is not None]
        self.name, self.missing = name, records - len(values)
        self._arrays = arrays = [_array(one) for one in values]
        self.lengths = [len(one) for one in values if isinstance(one, (str, bytes))]
        if len({one.shape for one in arrays}) > 1:
            self.lengths += [len(one) for one in arrays if one.ndim]
        numbers = [one for one in arrays if one.dtype.kind in "biuf"]
        self.numbers = [one[np.isfinite(one)] for one in numbers]
        self.not_finite = sum(one.size for one in numbers) - sum(one.size for one in self.numbers)
        self.counts: dict[str, int] | None = None
        if classes:
            seen = Counter(value_text(one, classes) for one in values)
            self.counts = {one: seen[plain_text(one)] for one in classes}

    def facts(self) -> dict[str, Any]:
        """What `loaderx info --json` has of it."""
        told: dict[str, Any] = {"name": self.name, "type": _type(self._arrays)}
        told["missing"] = self.missing
        if self.lengths:
            told["length"] = [min(self.lengths), max(self.lengths)]
        if self.not_finite:
            told["not_finite"] = self.not_finite
        ends = [(one.min(), one.max()) for one in self.numbers if one.size]
        if ends:
            least, most = zip(*ends, strict=True)
            told["range"] = [min(least).item(), max(most).item()]
        if self.counts is not None:
            told["classes"] = self.counts
        return told


def columns_of(found: Look) -> list[Column]:
    """The columns of some records."""
    values: dict[str, list[object]] = {}
    for record in found.records.values():
        for path, value in record.items():
            values.setdefault(path, []).append(value)
    classes = found.parts[0].source.classes
    count = len(found.records)
    return [Column(path, some, count, classes.get(path, ())) for path, some in values.items()]


def values_text(column: Mapping[str, Any]) -> str:
    """The range, the lengths and the classes of a column in one line, by its facts."""
    told = []
    if "classes" in column:
        names = list(column["classes"].items())
        shown = ", ".join(f"{plain_text(name)} {seen}" for name, seen in names[:_MOST_CLASSES])
        more = ", ..." if len(names) > _MOST_CLASSES else ""
        told.append(f"{len(names)} class{'es' if len(names) != 1 else ''}: {shown}{more}")
    elif "range" in column:
        least, most = column["range"]
        told.append(
            value_text(least) if least == most else " to ".join(map(_number, (least, most)))
        )
    if "not_finite" in column:
        told.append(f"{column['not_finite']:,} not finite")
    if "length" in column:
        told.append(f"length {' to '.join(f'{one:,}' for one in dict.fromkeys(column['length']))}")
    return ", ".join(told)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else value_text(value)


def _array(value: object) -> Array:
    try:
        return as_array(value)
    except (LoaderxError, ValueError):  # a number of many digits, lists of several lengths
        if isinstance(value, list):  # of arrays, perhaps, whose shapes begin alike
            return np.fromiter(value, np.dtype(object))
        return np.array(value, object)


def _type(arrays: Sequence[Array]) -> str:
    """The type in users' words; axes that differ between records are "?"."""
    empty = [one.shape for one in arrays if not one.size]
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for array in arrays:
        if array.size or len(empty) == len(arrays):  # an empty list has no dtype of its own
            shapes.setdefault(_dtype(array), []).append(array.shape)
    told = [f"{name}{_axes([*some, *empty])}" for name, some in shapes.items()]
    return " or ".join(told) or "null"


def _dtype(array: Array) -> str:
    if array.dtype.kind != "O":
        return str(array.dtype)
    return " and ".join(sorted({type(item).__name__ for item in array.flat}))


def _axes(shapes: Sequence[tuple[int, ...]]) -> str:
    if len({len(shape) for shape in shapes}) > 1:
        return "[...]"
    sizes = [{*axis} for axis in zip(*shapes, strict=True)]
    inner = ",".join(str(size.pop()) if len(size) == 1 else "?" for size in sizes)
    return f"[{inner}]" if inner else ""
