"""CSV and TSV: rows of cells, with the names of the columns in the first row.

pyarrow reads them (`rows`), once: large files into a copy in the native layout in the cache
folder, others into memory.  The types of columns are found from the first 1,000 rows: int64,
float64, bool or text.  A later cell that does not fit, or a row with another number of cells, is an
error of its record, which names file, line and column; what is wrong is kept beside the columns.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import ArgumentError, FileError
from loaderx.memory import Lend
from loaderx.sources.base import BadRecordError, Gather, Indices, Source
from loaderx.sources.cache.folder import CacheArgument, CacheFolder, CopyOf, Json, cache_folder
from loaderx.sources.cache.unpack import unpack_all
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.paths import PathLike, find, unpacked_name
from loaderx.sources.format import MissingArgument, OpenOptions, open_options
from loaderx.sources.formats.csv.files import BadRow, CsvFiles, CsvOptions
from loaderx.sources.formats.csv.header import Header
from loaderx.sources.formats.csv.rows import Dialect
from loaderx.sources.formats.lines.numbers import Types, checked_types
from loaderx.sources.native.copies import in_memory, is_worth_a_copy, opened_copy, write_copy
from loaderx.sources.native.layout import Shard, read_description
from loaderx.sources.native.reader import Columns, native_columns
from loaderx.tree import Tree

_TABS = (".tsv", ".tab")
_VERSION = 2
_BAD = "bad.json"


class Csv(TableSource):
    """Records of CSV files: a dict with a value for each column.

    `Dataset.open` makes it; use it yourself for what `open` has no argument for.

    Args:
        path: a file, a pattern such as ``data/*.csv``, or a list of files, which have the same
            columns.
        columns: the columns to read; all by default.
        delimiter: one character; by default a tab for ``.tsv`` and ``.tab``, else a comma.
        types: dtypes by column, of numbers, bools or times, str, or ``"category"``; found from the
            first 1,000 rows where they are not given.
        header: True: the first row of each file has the names. A list: the names, where the files
            have none. False: neither, and columns are ``column_0`` and so on.
        quote: the character around cells that have delimiters or newlines in them; None if quotes
            are plain characters.
        fill: values for missing cells (empty, ``NA``, ``null``), by column.
        missing: what becomes of the others, as in `Dataset.open`.
        encoding: of the text.
        cache: the folder for indexes and copies, as in `Dataset.open`.

    >>> import os
    >>> with open("cities.csv", "w") as file:
    ...     _ = file.write("city;inhabitants\\nUlm;126000\\n")
    >>> Csv("cities.csv", delimiter=";", types={"inhabitants": "float32"}, cache=False)[0]
    {'city': 'Ulm', 'inhabitants': np.float32(126000.0)}
    >>> os.remove("cities.csv")
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        *,
        delimiter: str | None = None,
        types: Types | None = None,
        header: Header = True,
        quote: str | None = '"',
        fill: Mapping[str, object] | None = None,
        missing: MissingArgument = "error",
        encoding: str = "utf-8",
        cache: CacheArgument = None,
    ) -> None:
        folder = cache_folder(cache)
        files = find(path, folder.files)
        if files.folder is not None:
            raise FileError(f"{files.folder} is a folder: give its files, such as folder/*.csv.")
        self._options = CsvOptions(
            _checked_dialect(delimiter, quote, encoding, files.files[0]),
            delimiter is not None,
            checked_types(types, others="str"),
            header if isinstance(header, bool) else list(header),
            open_options(columns, False, fill, folder, missing, types),
        )
        unpack_all(files.files, folder)
        found = _open(FileSet(files.files, files=folder.files), self._options, folder)
        self.is_mapped = found.is_mapped
        self._bad, self._bad_records = found.bad, np.array(sorted(found.bad), np.int64)
        counts = [shard.records for shard in found.shards]
        super().__init__(
            found.columns,
            sum(counts),
            label=self._options.given.label("csv"),
            classes=found.classes,
            shard_counts=counts,
            shard_names=[shard.name for shard in found.shards],
        )

    def where(self, index: int) -> str:
        return self._bad[index].where if index in self._bad else super().where(index)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        self._check(indices)
        return super().gather(indices, lend)

    def gatherer(self, rows: int) -> Gather:
        return self.gather if self._bad else super().gatherer(rows)

    def records(self, indices: Indices) -> list[Tree]:
        self._check(indices)
        return super().records(indices)

    def _check(self, indices: Indices) -> None:
        """Raises if one of these records is wrong."""
        if not self._bad:
            return
        for index in indices[np.isin(indices, self._bad_records)].tolist():
            raise BadRecordError(": ".join(self._bad[index]))


class _Opened(NamedTuple):
    columns: Columns
    classes: Mapping[str, tuple[str, ...]]
    shards: Sequence[Shard]
    bad: dict[int, BadRow]
    is_mapped: bool


def _open(files: FileSet, options: CsvOptions, cache: CacheFolder) -> _Opened:
    """The copy of files, which is made if it does not exist; or else the values in memory."""

    def make(folder: str) -> None:
        found = CsvFiles(files, options)
        write_copy(found, files.paths, folder, label="CSV", cache=cache.folder, coder=found.coder)
        with open(os.path.join(folder, _BAD), "w", encoding="utf-8") as file:
            json.dump([[number, *bad] for number, bad in found.bad.items()], file)

    def find_copy() -> str | None:
        if not is_worth_a_copy(files):
            return None
        told: Json = [options.given.label("CSV"), *_told(options)]
        return cache.copy_if_possible(CopyOf("copied", _VERSION, files.paths, make, told))

    def read(folder: str) -> _Opened:
        found = read_description(folder)
        columns, _ = native_columns(folder, found, dict(found.columns), options.given)
        try:
            with open(os.path.join(folder, _BAD), encoding="utf-8") as file:
                bad = {number: BadRow(where, why) for number, where, why in json.load(file)}
        except (OSError, ValueError, TypeError) as error:
            raise FileError(f"{folder} is damaged: {error}.") from error
        return _Opened(columns, found.classes, found.shards, bad, is_mapped=True)

    copied = opened_copy(find_copy, read)
    if copied is not None:
        return copied
    found = CsvFiles(files, options)
    columns, classes = in_memory(found, found.coder, options.given, files.paths[0])
    shards = [Shard(path, count) for path, count in zip(files.paths, found.counts, strict=True)]
    return _Opened(columns, classes, shards, found.bad, is_mapped=False)


def _told(options: CsvOptions) -> list[Json]:
    """The options that the values of files depend on."""
    return [
        None if options.given.columns is None else list(options.given.columns),
        [*options.dialect, options.is_delimiter_given],
        [[name, str(dtype)] for name, dtype in sorted(options.types.items())],
        options.header if isinstance(options.header, bool) else list(options.header),
        [[name, repr(value)] for name, value in sorted(options.given.fill.items())],
    ]


def _checked_dialect(delimiter: str | None, quote: str | None, encoding: str, path: str) -> Dialect:
    if delimiter is None:
        delimiter = "\t" if unpacked_name(path).lower().endswith(_TABS) else ","
    _check_character("delimiter", delimiter)
    if quote is not None:
        _check_character("quote", quote)
    if delimiter == quote:
        raise ArgumentError(f"`delimiter` and `quote` are both {quote!r}.")
    try:
        known = codecs.lookup(encoding).name
        is_wide = "a,\n".encode(known) != b"a,\n"
    except (LookupError, TypeError) as error:
        raise ArgumentError(f"`encoding` is {encoding!r}, which Python does not know.") from error
    if is_wide:
        raise ArgumentError(f"`encoding` must contain ASCII, and {encoding} does not.")
    return Dialect(delimiter, quote, known)


def _check_character(name: str, value: str) -> None:
    is_one = isinstance(value, str) and len(value) == 1 and value.isascii()
    if not is_one or value in "\r\n":
        raise ArgumentError(f"`{name}` must be one ASCII character, got {value!r}.")


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return Csv(
        files,
        options.columns,
        types=options.types,
        fill=options.fill,
        missing=options.missing,
        cache=options.cache,
    )
