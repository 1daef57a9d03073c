"""What commands that read files share: their options, and the splits."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from loaderx import Dataset
from loaderx.errors import ArgumentError
from loaderx.sources import Csv
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import CacheFolder, cache_folder
from loaderx.sources.files.paths import plain_name
from loaderx.sources.format import open_options
from loaderx.sources.formats.format_table import FILE_FORMATS
from loaderx.sources.open.opening import Opened, Recognised, open_path, recognise
from loaderx.survey.look import OpenParts

CACHE_HELP = "the folder for indexes and copies, by default $LOADERX_CACHE or ~/.cache/loaderx"


def add_opening(
    command: argparse.ArgumentParser,
    path: str = "PATH",
    what: str = "a file, a folder, a URL, or a 'pattern'",
) -> None:
    """Adds the path of a command, and the options of how its files are opened."""
    command.add_argument("path", metavar=path, help=what)
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
        name = plain_name(options.path).lower().removesuffix(".txt")  # CSV files may end with that
        by_name = (one.name for one in FILE_FORMATS if name.endswith(one.suffixes))
        format = options.format or next(by_name, "csv")
        if options.delimiter is not None and format != "csv":
            raise ArgumentError(f"--delimiter is for CSV files, and the format is {format}.")
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
