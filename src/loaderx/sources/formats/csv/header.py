"""The first rows of CSV files: the names of their columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.format import first_twice
from loaderx.sources.formats.csv.columns import not_decoded
from loaderx.sources.formats.csv.rows import Dialect, first_row
from loaderx.sources.formats.lines.numbers import shown
from loaderx.tree import Array

Header: TypeAlias = "bool | Sequence[str]"
"""The argument ``header`` of `Csv`."""

_OTHER_DELIMITERS = {";": '";"', "\t": r'"\t"', "|": '"|"'}


class Layout(NamedTuple):
    """The number of cells in the rows of a file, and the places of the columns that are read."""

    width: int
    places: tuple[int, ...]


def cells_of_first_row(data: Array, path: str, dialect: Dialect) -> list[str] | None:
    """The cells of the first row of a file; None if it is empty."""
    try:
        return first_row(data, dialect)
    except UnicodeDecodeError as error:
        told = not_decoded(error, dialect.encoding)
        raise FileError(f"{path}, first row: {told}.") from error
    except csv.Error as error:
        raise FileError(f"{path}, first row: {error}.") from error


def names_of_files(
    rows: Sequence[list[str] | None], paths: Sequence[str], header: Header
) -> list[list[str]]:
    """The names of the columns in each file, from their first rows."""
    first = next((one for one in rows if one is not None), None)
    if header is True:
        if first is None:
            raise FileError(f"{paths[0]} is empty: it has no row with the names of the columns.")
        for names, path in zip(rows, paths, strict=True):
            if names is not None and names is not first and names != first:
                _check_names(names, path)
        _check_names(first, paths[0])
        return [one or first for one in rows]
    if first is None:
        raise FileError(f"{paths[0]} is empty.")
    width = len(first)
    given = [f"column_{i}" for i in range(width)] if header is False else list(map(str, header))
    if len(given) != width:
        raise ArgumentError(f"`header` has {len(given)} names, and {paths[0]} has {width} columns.")
    _check_names(given, "`header`")
    return [given for _ in rows]


def _check_names(names: list[str], path: str) -> None:
    advice = "If it has no row with names, open it with loaderx.sources.Csv(path, header=False)."
    twice = first_twice(names)
    if twice is not None:
        raise FileError(f"{path}: two columns have the name {twice!r}. {advice}")
    if all(_is_number(name) for name in names):
        listed = ", ".join(names[:3])
        raise FileError(f"{path}: the names of the columns would be numbers ({listed}). {advice}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_delimiter(names: list[str], path: str, delimiter: str) -> None:
    """Refuses a single column whose name looks like several: the delimiter may be another one."""
    if len(names) == 1:
        for other, written in _OTHER_DELIMITERS.items():
            if other in names[0]:
                raise FileError(
                    f"{path} has one column, {shown(names[0])}. If its delimiter is {written}, "
                    f"open it with loaderx.sources.Csv(path, delimiter={written}); if it is one "
                    f"column, say delimiter={delimiter!r}."
                )


def layout(names: list[str], chosen: Sequence[str], path: str, first: str) -> Layout:
    """Where the chosen columns lie in a file."""
    places = {name: place for place, name in enumerate(names)}
    for name in chosen:
        if name not in places:
            raise FileError(
                f"{path} has no column {name!r}, which {first} has. Choose columns that all files "
                "have with columns=."
            )
    return Layout(len(names), tuple(places[name] for name in chosen))
