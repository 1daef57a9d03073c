"""What commands that read files share: their options, the splits, and records to look at."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, LoaderxError
from loaderx.sources import Csv
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import CacheFolder, cache_folder
from loaderx.sources.format import open_options
from loaderx.sources.open.opening import Opened, Recognised, open_path, recognise

OpenParts: TypeAlias = Callable[[Mapping[str, object]], list[Opened]]
"""Opens a split with these values in place of missing ones."""

Choose: TypeAlias = Callable[[Sequence[Opened]], list[int]]
"""The numbers of the records of a split to look at."""

CACHE_HELP = "the folder for indexes and copies, by default $LOADERX_CACHE or ~/.cache/loaderx"


def add_opening(command: argparse.ArgumentParser, path: str = "PATH") -> None:
    """Adds the path of a command, and the options of how its files are opened."""
    command.add_argument("path", metavar=path, help="a file, a folder, a URL, or a 'pattern'")
    command.add_argument("--split", help="such as train, or train[:80%%]")
    command.add_argument("--columns", type=_names, metavar="A,B", help="the columns to read")
    command.add_argument("--format", help="its name, if the files do not show it")
    command.add_argument("--delimiter", metavar="C", help="between the cells of CSV files")
    filled = command.add_argument("--fill", metavar="NAME=VALUE", action="append", default=[])
    filled.help = "the value of a column where it is missing; may be repeated"
    filled.type = _named_value
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


class Opening:
    """How a command opens files.  Of files that can be read as they are, no copy is made."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.fill: dict[str, object] = dict(options.fill)
        self.cache = CacheFolder(cache_folder(options.cache).folder, makes_copies=False)

    def dataset(self, **changed: object) -> Dataset[dict[str, object]]:
        """The records of the split that was asked for."""
        if self.options.delimiter is not None:
            return Dataset.from_source(self._csv(self.fill))
        return Dataset.open(self.options.path, **self._arguments(**changed))

    def splits(self) -> tuple[str, dict[str, OpenParts]]:
        """The format, and how each split that was asked for is opened; all by default."""
        options = self.options
        if options.delimiter is not None:
            return "csv", {"": lambda fill: [_whole(self._csv(fill))]}
        found = self._recognised(self.fill)
        if options.split is not None:
            arguments = self._arguments
            return found.format, {
                options.split: lambda fill: open_path(options.path, **arguments(fill=fill))
            }

        def opens_one(name: str) -> OpenParts:
            return lambda fill: [_whole(self._recognised(fill).splits[name]())]

        return found.format, {name: opens_one(name) for name in found.splits}

    def _arguments(self, **changed: object) -> dict[str, Any]:
        """The arguments of `Dataset.open`."""
        named = {name: getattr(self.options, name) for name in ("split", "columns", "format")}
        return {**named, "fill": self.fill, "cache": self.cache, **changed}

    def _recognised(self, fill: Mapping[str, object]) -> Recognised:
        options = open_options(self.options.columns, True, fill, self.cache)
        return recognise(self.options.path, options, self.options.format)

    def _csv(self, fill: Mapping[str, object]) -> Source:
        options = self.options
        if options.split is not None:
            raise ArgumentError("--split and --delimiter cannot be used together: give the files.")
        given = {"delimiter": options.delimiter, "fill": fill, "cache": self.cache}
        return Csv(options.path, options.columns, **given)


def _whole(source: Source) -> Opened:
    return Opened(source, 0, len(source))


def located(parts: Sequence[Opened], number: int) -> tuple[Source, int]:
    """The source of a record of a split, and its index there."""
    for source, start, stop in parts:
        if number < stop - start:
            return source, start + number
        number -= stop - start
    raise IndexError(number)


def open_call(options: argparse.Namespace, filled: Sequence[str], split: str) -> str:
    """The line of Python that opens what was shown."""
    if options.delimiter is not None:
        inner = f"{options.path!r}, delimiter={options.delimiter!r}"
        return f"Dataset.from_source(loaderx.sources.Csv({inner}))"
    values = {name: repr(value) for name, value in options.fill}
    fill = ", ".join(
        f"{name!r}: {values.get(name, '...')}" for name in {**dict.fromkeys(filled), **values}
    )
    told = {"split": split, "columns": options.columns, "format": options.format}
    inner = "".join(f", {name}={value!r}" for name, value in told.items() if value)
    return f"Dataset.open({options.path!r}{inner}{f', fill={{{fill}}}' if fill else ''})"


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

    def mark_missing(self, other: Look) -> None:
        """Removes values that are not those of a look with other values in `fill`."""
        for number, record in self.records.items():
            for path, value in record.items():
                if not _is_same(value, other.records.get(number, {}).get(path)):
                    record[path] = None


# Pairs of values, one for each kind of column.  A value that follows them is missing in the file.
_FILLS: tuple[tuple[object, object], ...] = (
    (0, 1), (False, True), ("", "-"), (b"", b"-"), ([], [0]),
)  # fmt: skip
_QUOTED = re.compile(r"'([^']+)'")
_ASKS_FOR_FILL = re.compile(r"fill=\{'([^']+)': ")


def look(opening: Opening, open_parts: OpenParts, chosen: Choose) -> Look:
    """Reads some records.  Columns with missing values are shown, though opening needs `fill`.

    Each such column gets values of one kind after the other, until one fits.  Then the records are
    read again with other values: what follows them is missing in the file.
    """
    left: dict[str, list[tuple[object, object]]] = {}  # the kinds to be tried for each column
    while True:
        pairs = {name: kinds[0] for name, kinds in left.items() if kinds}
        found: Look | LoaderxError
        try:
            one, two = ({name: pair[n] for name, pair in pairs.items()} for n in (0, 1))
            found = _read(opening, open_parts, chosen, one)
            if pairs:
                found.mark_missing(_read(opening, open_parts, chosen, two))
            texts = list(found.problems.values())
        except (FileError, ArgumentError) as error:
            found, texts = error, [str(error)]
        asked = dict.fromkeys(name for text in texts for name in _to_fill(text, pairs))
        name = next((name for name in asked if left.get(name, _FILLS)), None)
        if name is None:
            break
        left[name] = left[name][1:] if name in left else list(_FILLS)
    if isinstance(found, LoaderxError):
        raise found
    return found._replace(filled=list(pairs))


def _to_fill(text: str, pairs: Container[str]) -> list[str]:
    """The columns that a message asks to fill, or to fill with another value."""
    if "`fill`" in text:
        return [name for name in _QUOTED.findall(text) if name in pairs]
    return _ASKS_FOR_FILL.findall(text)


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
            made.records[number] = dict(_leaves(record))
    return made


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values of a record, and those of dicts in it by their paths; lists stay whole."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else str(name))


def _is_same(one: object, two: object) -> bool:
    def text(value: object) -> str:
        return repr(value.tolist() if isinstance(value, np.ndarray) else value)

    return text(one) == text(two)
