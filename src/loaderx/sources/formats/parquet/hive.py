"""Columns in the names of folders, as Hive and Spark do it: ``year=2024/lang=en/x.parquet``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import numpy as np

from loaderx.errors import ArgumentTypeError
from loaderx.sources.columns.data import ColumnData, ColumnType

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")


class HiveColumn:
    """A value for each file: integers if all of them are, else text."""

    def __init__(self, name: str, values: Sequence[str]) -> None:
        self._name, self._values = name, list(values)
        known = [value for value in values if value != _NULL]
        self._is_integer = bool(known) and all(map(_INTEGER.fullmatch, known))

    @property
    def has_nulls(self) -> bool:
        return _NULL in self._values

    @property
    def kind(self) -> ColumnType:
        return ColumnType("fixed", np.dtype(np.int64)) if self._is_integer else ColumnType("text")

    def data(self, file: int, rows: int, fill: Mapping[str, object]) -> ColumnData:
        value: object = self._values[file]
        is_there = np.full(rows, value != _NULL or self._name in fill)
        if value == _NULL:
            value = fill.get(self._name, 0 if self._is_integer else "")
            if not isinstance(value, int if self._is_integer else str):
                raise ArgumentTypeError(f"`fill` has {value!r} for the column {self._name!r}.")
        if self._is_integer:
            return ColumnData(rows, np.full(rows, int(str(value)), np.int64), valid=is_there)
        text = np.frombuffer(str(value).encode(), np.uint8)
        return ColumnData(rows, np.tile(text, rows), np.arange(rows + 1) * len(text), {}, is_there)


def hive_columns(paths: Sequence[str]) -> dict[str, HiveColumn]:
    """The columns in the names of the folders right above the files; all have the same ones.

    >>> list(hive_columns(["/data/year=2023/a.parquet", "/data/year=2024/b.parquet"]))
    ['year']
    """
    found = [_pairs(path) for path in paths]
    names = list(found[0])
    if any(list(one) != names for one in found):
        return {}
    return {name: HiveColumn(name, [one[name] for one in found]) for name in names}


def _pairs(path: str) -> dict[str, str]:
    pairs: list[tuple[str, str]] = []
    for folder in reversed(os.path.dirname(path).split(os.sep)):
        name, equals, value = folder.partition("=")
        if not equals or not name:
            break
        pairs.append((unquote(name), unquote(value)))
    return dict(reversed(pairs))
