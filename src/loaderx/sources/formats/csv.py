"""CSV and TSV: rows of cells, with the names of the columns in the first row.

The types of columns are found from the first 1,000 rows: int64, float64, bool or text.  A later
cell that does not fit is an error of its record, which names file, line and column.  Lines without
a character are left out.  Lines are parsed once, into a copy of their columns in the cache folder
(`line_copies`).
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.memory import Lend, Pool
from loaderx.sources.adapt.arrays import describe_spec
from loaderx.sources.base import Indices, Source
from loaderx.sources.cache.folder import CacheArgument, CacheFolder, Json, cache_folder
from loaderx.sources.files.paths import PathLike, find, unpacked_name
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.csv_cells import Dialect, cells_of_rows
from loaderx.sources.formats.csv_columns import CsvColumn, dtype_of
from loaderx.sources.formats.csv_header import (
    Header,
    check_delimiter,
    layout,
    names_of_files,
    reason,
)
from loaderx.sources.formats.lines.copies import LineCopy, is_worth_a_copy, kept_as, open_copy
from loaderx.sources.formats.lines.files import FindLines, LineFiles, LinesOfFile
from loaderx.sources.formats.lines.index import EMPTY, Offsets, line_offsets
from loaderx.sources.formats.lines.numbers import DType, Types, check_known, checked_types
from loaderx.sources.formats.lines.parsed import ParsedLines
from loaderx.tree import Array, Tree

SAMPLE = 1000
"""Rows at the beginning from which the types of columns are found."""

_TABS = (".tsv", ".tab")
_TYPES = "types.json"


class Csv(ParsedLines[Array]):
    """Records of CSV files: a dict with a value for each column.

    `Dataset.open` makes it; use it yourself for what `open` has no argument for.

    Args:
        path: a file, a pattern such as ``data/*.csv``, or a list of files, which have the same
            columns.
        columns: the columns to read; all by default.
        delimiter: one character; by default a tab for ``.tsv`` and ``.tab``, else a comma.
        types: dtypes by column, of numbers or bools, or str; found from the first 1,000 rows
            where they are not given.
        header: True: the first row of each file has the names. A list: the names, where the files
            have none. False: neither, and columns are ``column_0`` and so on.
        quote: the character around cells that have delimiters or newlines in them; None if quotes
            are plain characters.
        fill: values for missing cells (empty, ``NA``, ``null``), by column.
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
        encoding: str = "utf-8",
        cache: CacheArgument = None,
    ) -> None:
        folder = cache_folder(cache)
        files = find(path, folder.files)
        if files.folder is not None:
            raise FileError(f"{files.folder} is a folder: give its files, such as folder/*.csv.")
        if isinstance(columns, str):
            raise ArgumentTypeError(f"`columns` must be a list of names: write [{columns!r}].")
        dialect = _checked_dialect(delimiter, quote, encoding, files.files[0])
        self._lines = LineFiles(files.files, f"csv {quote}", 1, _finder(quote), folder)
        self._begin(dialect, header, delimiter is not None)
        self._told: Json = [*dialect, header is True]  # what cells depend on, beside the files
        self._choose(columns, checked_types(types, others="str"), fill or {}, folder)
        kept = {column.name: kept_as(column.dtype) for column in self._columns}
        told: Json = [
            [[column.name, column.dtype.str, repr(column.fill)] for column in self._columns],
            [[layout.width, *layout.places] for layout in self._layouts],
            self._told,
        ]
        self._copy: LineCopy | None = open_copy(
            kept, self._lines, self._parsed, folder, "CSV", told
        )

    def _begin(self, dialect: Dialect, header: Header, is_delimiter_given: bool) -> None:
        paths = self._lines.files.paths
        rows = [None if note is None else str(note).encode("latin-1") for note in self._lines.notes]
        self._dialect = dialect
        self._names_of_files = names_of_files(rows, paths, header, dialect)
        if not is_delimiter_given:
            check_delimiter(self._names_of_files[0], paths[0], dialect.delimiter)
        if header is True:
            self._lines.skip_first()
        self._lines.check_any()

    def _choose(
        self,
        columns: Sequence[str] | None,
        types: Mapping[str, DType],
        fill: Mapping[str, object],
        cache: CacheFolder,
    ) -> None:
        paths, every = self._lines.files.paths, self._names_of_files[0]
        for what, names in (("columns", columns or ()), ("types", types), ("fill", fill)):
            check_known(what, names, every, paths[0])
        chosen = every if columns is None else list(dict.fromkeys(columns))
        self._layouts = [
            layout(names, chosen, path, paths[0])
            for names, path in zip(self._names_of_files, paths, strict=True)
        ]
        self._lines.are_alike = len(set(self._layouts)) == 1

        def make(folder: str) -> None:
            self._columns = self._found_columns(chosen, types, fill)
            with open(os.path.join(folder, _TYPES), "w", encoding="utf-8") as file:
                json.dump([column.dtype.str for column in self._columns], file)

        # A wide table takes seconds to find its types: they are kept, as its copy is.
        self._columns = []
        told: Json = [
            [[name, str(types.get(name)), repr(fill.get(name))] for name in chosen],
            [[layout.width, *layout.places] for layout in self._layouts],
            self._told,
        ]
        place = None
        if is_worth_a_copy(self._lines):
            place = cache.copy_if_possible("types", 1, paths, make, told)
        if self._columns:
            return
        if place is None:
            self._columns = self._found_columns(chosen, types, fill)
            return
        with open(os.path.join(place, _TYPES), encoding="utf-8") as file:
            found = map(np.dtype, json.load(file))
        self._columns = [
            CsvColumn(name, dtype, fill.get(name))
            for name, dtype in zip(chosen, found, strict=True)
        ]

    def _found_columns(
        self, chosen: Sequence[str], types: Mapping[str, DType], fill: Mapping[str, object]
    ) -> list[CsvColumn]:
        numbers, sample = self._sample()
        columns = []
        for name, cells in zip(chosen, sample, strict=True):
            column = CsvColumn(name, types.get(name) or dtype_of(cells), fill.get(name))
            missing = column.first_missing(cells)
            if missing is not None:  # said now, rather than at the first batch
                where = self.where(numbers[missing])
                raise FileError(f"{where}: {column.missing(cells[missing])}.")
            columns.append(column)
        return columns

    def _sample(self) -> tuple[list[int], list[list[str]]]:
        """The first rows that can be read: their numbers, and their cells by column."""
        numbers, rows, first = [], [], None
        for index in range(min(SAMPLE, len(self))):
            (part,) = self._lines.split(np.array([index]))
            try:
                rows.append([cells[0] for cells in self._cells(part)])
                numbers.append(index)
            except ValueError as error:
                first = first or f"{self.where(index)}: {self._reason(error)}"
        if not rows:
            raise FileError(f"{first}.")
        return numbers, [list(cells) for cells in zip(*rows, strict=True)]

    @property
    def spec(self) -> Tree:
        return {column.name: column.spec for column in self._columns}

    def label(self) -> str:
        return f"open(csv: {describe_spec(self.spec)})"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        if self._copy is not None:
            found = self._copy.gather(indices, [one.dtype for one in self._columns], lend)
            if found is not None:
                return {one.name: array for one, array in zip(self._columns, found, strict=True)}
        batch = self.buffers(len(indices), lend)
        for column, array in zip(self._columns, self._columns_of(indices), strict=True):
            batch[column.name][:] = array
        return batch

    def records(self, indices: Indices) -> list[Tree]:
        # Leaf by leaf: five times as fast as a dict(zip(...)) for each record.
        records: list[dict[str, object]] = [{} for _ in range(len(indices))]
        for column, array in zip(self._columns, self._columns_of(indices), strict=True):
            for record, value in zip(records, array, strict=True):
                record[column.name] = value
        return records

    def _join(self, columns: Sequence[Array]) -> Array:
        return np.concatenate(columns)

    def _read(self, indices: Indices) -> list[Array]:
        if self._copy is None:
            return self._parsed(indices)
        dtypes = [one.dtype for one in self._columns]
        found = self._copy.gather(indices, dtypes, Pool().lend)
        if found is None:
            found = [np.empty(len(indices), dtype) for dtype in dtypes]
            for target, values in zip(found, self._copy.read(indices, self._parsed), strict=True):
                target[:] = values
        return found

    def _parsed(self, indices: Indices) -> list[Array]:
        found: list[Array] = []
        for part in self._lines.split(indices):
            pairs = zip(self._columns, self._cells(part), strict=True)
            arrays = [column.array(cells) for column, cells in pairs]
            if isinstance(part.places, slice):
                return arrays
            found = found or [np.empty(len(indices), array.dtype) for array in arrays]
            for target, array in zip(found, arrays, strict=True):
                target[part.places] = array
        return found

    def _cells(self, part: LinesOfFile) -> list[list[str]]:
        """The cells of rows, column by column."""
        width, places = self._layouts[part.file]
        return cells_of_rows(part.rows(), width, places, self._dialect)

    def _reason(self, error: ValueError) -> str:
        return reason(error, self._dialect.encoding)


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
        raise ArgumentError(f"`encoding` must have ASCII in it, and {encoding} has not.")
    return Dialect(delimiter, quote, known)


def _check_character(name: str, value: str) -> None:
    is_one = isinstance(value, str) and len(value) == 1 and value.isascii()
    if not is_one or value in "\r\n":
        raise ArgumentError(f"`{name}` must be one ASCII character, got {value!r}.")


def _finder(quote: str | None) -> FindLines:
    def find_rows(data: Array, path: str) -> tuple[Offsets, Json]:
        offsets = line_offsets(data, path, EMPTY, quote)
        if len(offsets) == 1:
            return offsets, None
        first = data[offsets[0] : offsets[1]].tobytes().rstrip(b"\r\n")
        return offsets, first.decode("latin-1")  # whatever its bytes are, they can be kept so

    return find_rows


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return Csv(files, options.columns, fill=options.fill, cache=options.cache)
