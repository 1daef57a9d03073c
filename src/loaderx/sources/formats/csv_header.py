"""The first rows of CSV files: the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.format import first_twice
from loaderx.sources.formats.csv_cells import Dialect, cells_of_row
from loaderx.sources.formats.lines.numbers import shown
from loaderx.sources.formats.lines.text import not_utf8

Header: TypeAlias = "bool | Sequence[str]"
"""The argument ``header`` of `Csv`."""

_OTHER_DELIMITERS = {";": '";"', "\t": r'"\t"', "|": '"|"'}


class Layout(NamedTuple):
    """How many cells the rows of a file have, and where the columns that are read lie in them."""

    width: int
    places: tuple[int, ...]


def names_of_files(
    rows: Sequence[bytes | None], paths: Sequence[str], header: Header, dialect: Dialect
) -> list[list[str]]:
    """The names of the columns in each file; the first row is None where a file is empty."""
    if header is True:
        found = [
            None if row is None else _cells(row, paths[i], dialect) for i, row in enumerate(rows)
        ]
        first = next((one for one in found if one is not None), None)
        if first is None:
            raise FileError(f"{paths[0]} is empty: it has no row with the names of the columns.")
        for names, path in zip(found, paths, strict=True):
            if names is not None and names is not first and names != first:
                _check_names(names, path)
        _check_names(first, paths[0])
        return [one or first for one in found]
    row = next((row for row in rows if row is not None), None)
    if row is None:
        raise FileError(f"{paths[0]} is empty.")
    width = len(_cells(row, paths[0], dialect))
    given = [f"column_{i}" for i in range(width)] if header is False else list(map(str, header))
    if len(given) != width:
        raise ArgumentError(f"`header` has {len(given)} names, and {paths[0]} has {width} columns.")
    _check_names(given, "`header`")
    return [given for _ in rows]


def _cells(row: bytes, path: str, dialect: Dialect) -> list[str]:
    try:
        return cells_of_row(row, dialect)
    except ValueError as error:
        raise FileError(f"{path}, first row: {reason(error, dialect.encoding)}.") from error


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


def reason(error: ValueError, encoding: str) -> str:
    """What is wrong with a row."""
    if isinstance(error, UnicodeDecodeError):
        if encoding != "utf-8":
            return f"it is not {encoding} ({error.reason})"
        return (
            f"{not_utf8(error)}. If the file has another encoding, open it with "
            'loaderx.sources.Csv(path, encoding="latin-1"), say'
        )
    return str(error)
