"""What commands that read files share: their options, the splits, and records to look at."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, LoaderxError
from loaderx.frozen import Frozen
from loaderx.sources import Csv
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import CacheFolder, cache_folder
from loaderx.sources.format import OpenOptions
from loaderx.sources.open.opening import Opened, open_path, recognise
from loaderx.tree import flatten

OpenParts: TypeAlias = Callable[[Mapping[str, object]], list[Opened]]
"""Opens a split with these values in place of missing ones."""

CACHE_HELP = "the folder for indexes and copies, by default $LOADERX_CACHE or ~/.cache/loaderx"


def add_opening(command: argparse.ArgumentParser, path: str = "PATH") -> None:
    """Adds the path of a command, and the options of how its files are opened."""
    command.add_argument(
        "path", metavar=path, help="a file, a folder, a pattern in quotes, or a URL"
    )
    command.add_argument("--split", help="such as train, or train[:80%%]")
    command.add_argument("--columns", type=_names, metavar="A,B", help="the columns to read")
    command.add_argument("--format", help="its name, if the files do not show it")
    command.add_argument("--delimiter", metavar="C", help="between the cells of CSV files")
    command.add_argument(
        "--fill",
        action="append",
        type=_named_value,
        default=[],
        metavar="NAME=VALUE",
        help="the value of a column where it is missing; may be repeated",
    )
    command.add_argument("--cache", metavar="DIR", help=CACHE_HELP)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _named_value(text: str) -> tuple[str, object]:
    name, is_given, value = text.partition("=")
    if not (name and is_given):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, such as age=0, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class Opening(Frozen):
    """How files are opened.  Of files that can be read as they are, no copy is made."""

    path: str
    split: str | None
    columns: list[str] | None
    format: str | None
    delimiter: str | None
    fill: Mapping[str, object]
    cache: CacheFolder

    @classmethod
    def of(cls, options: argparse.Namespace) -> Opening:
        """The opening that a command line asks for."""
        folder = cache_folder(options.cache).folder
        return cls(
            options.path,
            options.split,
            options.columns,
            options.format,
            options.delimiter,
            dict(options.fill),
            CacheFolder(folder, makes_copies=False),
        )

    def parts(
        self, *, decode: bool = True, fill: Mapping[str, object] | None = None
    ) -> list[Opened]:
        """The records of the split that was asked for."""
        fill = self.fill if fill is None else fill
        if self.delimiter is not None:
            return [_whole(self._csv(fill))]
        return open_path(
            self.path,
            split=self.split,
            columns=self.columns,
            format=self.format,
            decode=decode,
            fill=fill,
            cache=self.cache,
        )

    def dataset(
        self, *, decode: bool = True, columns: list[str] | None = None
    ) -> Dataset[dict[str, object]]:
        """The same records as a dataset."""
        if self.delimiter is not None:
            return Dataset.from_source(self._csv(self.fill))
        return Dataset.open(
            self.path,
            split=self.split,
            columns=columns or self.columns,
            format=self.format,
            decode=decode,
            fill=self.fill,
            cache=self.cache,  # type: ignore[arg-type]
        )

    def _csv(self, fill: Mapping[str, object]) -> Source:
        if self.split is not None:
            raise ArgumentError("--split and --delimiter cannot be used together: give the files.")
        return Csv(self.path, self.columns, delimiter=self.delimiter, fill=fill, cache=self.cache)

    def splits(self) -> tuple[str, dict[str, OpenParts]]:
        """The format, and how each split that was asked for is opened; all by default."""

        def opened(fill: Mapping[str, object]) -> list[Opened]:
            return self.parts(fill=fill)

        def opens(name: str) -> OpenParts:
            return lambda fill: [_whole(self._recognised(fill)[1][name]())]

        if self.delimiter is not None:
            return "csv", {"": opened}
        format, names = self._recognised(self.fill)
        if self.split is not None:
            return format, {self.split: opened}
        return format, {name: opens(name) for name in names}

    def _recognised(
        self, fill: Mapping[str, object]
    ) -> tuple[str, Mapping[str, Callable[[], Source]]]:
        columns = None if self.columns is None else tuple(self.columns)
        options = OpenOptions(columns=columns, decode=True, fill=fill, cache=self.cache)
        return recognise(self.path, options, self.format)


def _whole(source: Source) -> Opened:
    return Opened(source, 0, len(source))


def located(parts: Sequence[Opened], number: int) -> tuple[Source, int]:
    """The source of a record of a split, and its index there."""
    for source, start, stop in parts:
        if number < stop - start:
            return source, start + number
        number -= stop - start
    raise IndexError(number)


def open_call(options: argparse.Namespace, filled: Sequence[str], splits: Sequence[str]) -> str:
    """The line of Python that opens what was shown."""
    if options.delimiter is not None:
        path, delimiter = json.dumps(options.path), json.dumps(options.delimiter)
        return f"Dataset.from_source(loaderx.sources.Csv({path}, delimiter={delimiter}))"
    told = [json.dumps(options.path)]
    split = options.split or next(filter(None, splits), None)
    told += [f"split={json.dumps(split)}"] if split else []
    told += [f"columns={json.dumps(options.columns)}"] if options.columns else []
    told += [f"format={json.dumps(options.format)}"] if options.format else []
    fill = {**dict.fromkeys(filled, ...), **dict(options.fill)}
    values = ", ".join(
        f'"{name}": {"..." if one is ... else repr(one)}' for name, one in fill.items()
    )
    told += [f"fill={{{values}}}"] if fill else []
    return f"Dataset.open({', '.join(told)})"


# Looking at records ----------------------------------------------------------------------------


class Look(NamedTuple):
    """Some records of a split, by number."""

    parts: list[Opened]
    records: dict[int, dict[str, object]]  # the leaves of each by path; None where one is missing
    problems: dict[int, str]  # why others cannot be read
    filled: list[str]  # columns that need `fill`

    @property
    def total(self) -> int:
        """The records of the split."""
        return sum(stop - start for _, start, stop in self.parts)


# Pairs of values, one for each kind of column.  A value that follows them is missing in the file.
_FILLS: tuple[tuple[object, object], ...] = ((0, 1), ("", "-"), (b"", b"-"), ([], [0]))
_ASKS_FOR_FILL = re.compile(r"fill=\{'([^']+)': ")


def look(opening: Opening, open_parts: OpenParts, chosen: Choose) -> Look:
    """Reads some records.  Columns with missing values are shown, though opening needs `fill`."""
    return _look(opening, open_parts, chosen, {})


Choose: TypeAlias = Callable[[Sequence[Opened]], list[int]]
"""The numbers of the records of a split to look at."""


def _look(
    opening: Opening,
    open_parts: OpenParts,
    chosen: Choose,
    fills: Mapping[str, tuple[object, object]],
) -> Look:
    found: Look | FileError
    try:
        found = _read(opening, open_parts, chosen, {name: pair[0] for name, pair in fills.items()})
        name = next(filter(None, map(_missing, found.problems.values())), None)
    except FileError as error:
        name = _missing(str(error))
        if name is None or name in fills:
            raise
        found = error
    if name is not None and name not in fills:
        for pair in _FILLS:
            try:
                return _look(opening, open_parts, chosen, {**fills, name: pair})
            except LoaderxError:  # the column is of another kind
                continue
    if isinstance(found, FileError):
        raise found
    if fills:
        other = {name: pair[1] for name, pair in fills.items()}
        _mark_missing(found, _read(opening, open_parts, chosen, other))
    return found._replace(filled=list(fills))


def _missing(text: str) -> str | None:
    """The column that a message says to fill."""
    found = _ASKS_FOR_FILL.search(text)
    return None if found is None else found[1]


def _read(
    opening: Opening, open_parts: OpenParts, chosen: Choose, fill: Mapping[str, object]
) -> Look:
    parts = open_parts({**opening.fill, **fill})
    made = Look(parts, {}, {}, [])
    for number in chosen(parts):
        source, index = located(parts, number)
        try:
            (record,) = source.records(np.array([index]))
        except ArgumentError:  # a value of `fill` that does not fit its column
            raise
        except Exception as error:
            made.problems[number] = str(error) or type(error).__name__
        else:
            leaves, structure = flatten(record)
            made.records[number] = dict(zip(structure.paths(), leaves, strict=True))
    return made


def _mark_missing(found: Look, other: Look) -> None:
    for number, record in found.records.items():
        for path, value in record.items():
            if not _is_same(value, other.records.get(number, {}).get(path)):
                record[path] = None


def _is_same(one: object, two: object) -> bool:
    return repr(np.asarray(one).tolist()) == repr(np.asarray(two).tolist())
