"""The files of a CSV dataset: the types of their columns, and their rows as columns of values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.columns.categories import Categories
from loaderx.sources.columns.data import ColumnData
from loaderx.sources.columns.gaps import refuse_gaps
from loaderx.sources.columns.pick import spread
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.format import OpenOptions, check_named
from loaderx.sources.formats.arrow.types import import_pyarrow
from loaderx.sources.formats.csv.columns import (
    CsvColumn,
    Wrong,
    decoded,
    dtype_of,
    missing_cell,
    parsed_columns,
)
from loaderx.sources.formats.csv.header import (
    Header,
    cells_of_first_row,
    check_delimiter,
    layout,
    names_of_files,
)
from loaderx.sources.formats.csv.rows import Dialect, RowReader, Rows, row_lines
from loaderx.sources.formats.lines.index import text_start
from loaderx.sources.formats.lines.numbers import DType
from loaderx.sources.mapping import reading
from loaderx.tree import Array

SAMPLE = 1000
"""Rows at the beginning from which the types of columns are found."""

_BAD_SHARE, _FEW_BAD = (
    8,
    1000,
)  # bad rows beyond this number, and beyond one in eight, are refused


class CsvOptions(Frozen):
    """The arguments of `Csv`, checked as far as they can be without the files."""

    dialect: Dialect
    is_delimiter_given: bool
    types: Mapping[str, DType]
    header: Header
    given: OpenOptions


class BadRow(NamedTuple):
    """A record that cannot be read."""

    where: str
    reason: str


class _Sample(NamedTuple):
    """The first records that can be decoded."""

    records: list[tuple[int, int]]  # the file of each one, and its number there
    columns: list[list[str]]


class _Reading(NamedTuple):
    """A file that is read, from its first record on."""

    reader: RowReader
    rows: Iterator[Rows]


class CsvFiles:
    """Files with the same columns.  Wrong rows are in `bad`, and are blanks among the others."""

    def __init__(self, files: FileSet, options: CsvOptions) -> None:
        import_pyarrow("a CSV file")
        self._files, self._dialect = files, options.dialect
        self._has_header = options.header is True
        names = self._names_of_files(options)
        chosen = list(options.given.columns or names[0])
        self._layouts = [
            layout(one, chosen, path, files.paths[0])
            for one, path in zip(names, files.paths, strict=True)
        ]
        self._begun: dict[int, _Reading] = {}  # files of which the first rows were read
        self._columns = self._found_columns(chosen, options)
        self.kinds = {one.name: one.kind for one in self._columns}
        self.coder = Categories(options.given.categories, self.kinds)
        self.classes: dict[str, tuple[str, ...]] = {}
        self.nbytes = sum(files.sizes)
        self.counts: list[int] = []  # records of each file, and the bad ones among all: both are
        self.bad: dict[int, BadRow] = {}  # known once all rows were read

    def _names_of_files(self, options: CsvOptions) -> list[list[str]]:
        paths, dialect = self._files.paths, options.dialect
        rows = [
            cells_of_first_row(self._data(number), paths[number], dialect)
            for number in self._files.fetched()
        ]
        found = names_of_files(rows, paths, options.header)
        if not options.is_delimiter_given:
            check_delimiter(found[0], paths[0], dialect.delimiter)
        check_named("columns", options.given.columns or (), found[0], paths[0], "")
        options.given.check_names(found[0], paths[0])
        return found

    def _data(self, file: int) -> Array:
        data = self._files.data(file)
        return data[text_start(data, self._files.paths[file]) :]

    def _where(self, file: int, records: Collection[int]) -> Iterator[str]:
        """The file and the line of records, which are in ascending order."""
        path, skipped = self._files.paths[file], int(self._has_header)
        lines = row_lines(self._data(file), self._dialect, {one + skipped for one in records})
        for record, line in itertools.zip_longest(records, lines):
            yield f"{path}, record {record}" if line is None else f"{path}, line {line}"

    # The types --------------------------------------------------------------------------------

    def _found_columns(self, chosen: list[str], options: CsvOptions) -> list[CsvColumn]:
        sample = self._sample(len(chosen))
        columns, gaps = [], dict[str, list[int]]()  # cells that are missing, by column
        given = options.given
        for name, cells in zip(chosen, sample.columns, strict=True):
            dtype = options.types.get(name) or dtype_of(cells)
            # Text is there in any case, unless it is asked whether it is.
            keeps = given.keeps(name) and (dtype.kind != "O" or given.missing.word(name) == "valid")
            column = CsvColumn(name, dtype, given.fill.get(name), keeps_gaps=keeps)
            if missing := column.refused(cells):
                gaps[name] = missing
            columns.append(column)
        if gaps:  # an error now, rather than at the first batch
            name = min(gaps, key=lambda name: gaps[name][0])
            place = gaps[name][0]
            file, record = sample.records[place]
            where = next(self._where(file, [record]))
            if len(gaps) > 1:
                refuse_gaps(f"{where} and others", {name: len(one) for name, one in gaps.items()})
            cell = sample.columns[chosen.index(name)][place]
            raise FileError(f"{where}: {missing_cell(name, cell)}.")
        return columns

    def _sample(self, width: int) -> _Sample:
        """The first `SAMPLE` records; the rows that are read for it are read once."""
        sample = _Sample([], [[] for _ in range(width)])
        for file in range(len(self._files)):
            reader, rows = self._opened(file)
            first, held = 0, []
            for some in rows:
                held.append(some)
                self._add_to(sample, file, first, some)
                first += len(some.came)
                if len(sample.records) >= SAMPLE:
                    break
            self._begun[file] = _Reading(reader, itertools.chain(held, rows))
            if len(sample.records) >= SAMPLE:
                break
        return sample

    def _add_to(self, sample: _Sample, file: int, first: int, rows: Rows) -> None:
        columns: list[list[str]] = []
        undecoded: set[int] = set()
        for column in rows.cells.slice(0, SAMPLE).columns:
            texts, errors = decoded(column, self._dialect.encoding)
            columns.append(texts)
            undecoded.update(errors)
        numbers = first + np.flatnonzero(rows.came)[:SAMPLE]
        is_kept = np.ones(len(numbers), np.bool_)
        is_kept[list(undecoded)] = False
        is_kept &= np.cumsum(is_kept) <= SAMPLE - len(sample.records)
        sample.records.extend((file, number) for number in numbers[is_kept].tolist())
        for cells, texts in zip(sample.columns, columns, strict=True):
            cells.extend(itertools.compress(texts, is_kept))

    # The rows ---------------------------------------------------------------------------------

    def _opened(self, file: int) -> _Reading:
        if file in self._begun:
            return self._begun.pop(file)
        path, data = self._files.paths[file], self._data(file)
        reader = RowReader(data, path, self._dialect, *self._layouts[file])
        return _Reading(reader, self._rows(reader))

    def _rows(self, reader: RowReader) -> Iterator[Rows]:
        """The rows of records."""
        is_header = self._has_header
        with reading(reader.path):
            for rows in reader.rows():
                if is_header and len(rows.came):
                    rows, is_header = rows.without_first(), False
                yield rows

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        """All records in order, some at a time."""
        self.counts, self.bad = [], {}
        for file in range(len(self._files)):
            yield from self._steps_of(file)
        if not sum(self.counts):
            more = "" if len(self.counts) == 1 else f" and {len(self.counts) - 1} more files"
            raise FileError(f"{self._files.paths[0]}{more}: there are no records in it.")
        if len(self.bad) == sum(self.counts):
            first = next(iter(self.bad.values()))
            raise FileError(f"{first.where}: {first.reason}.")

    def _steps_of(self, file: int) -> Iterator[Mapping[str, ColumnData]]:
        reader, read = self._opened(file)
        count = 0
        wrong: Wrong = {}
        for rows in read:
            places = count + np.flatnonzero(rows.came)
            columns = {}
            parsed = parsed_columns(self._columns, rows.cells, self._dialect.encoding)
            for column, (data, reasons) in zip(self._columns, parsed, strict=True):
                for number, reason in reasons.items():
                    wrong.setdefault(int(places[number]), reason)
                columns[column.name] = data
            columns = self.coder.coded(columns)  # before blanks are between them
            if not rows.came.all():
                kinds = self.coder.kinds
                columns = {
                    name: spread(kinds[name], one, rows.came) for name, one in columns.items()
                }
            count += len(rows.came)
            if len(wrong) + len(reader.misfits) > max(_FEW_BAD, count // _BAD_SHARE):
                break
            yield columns
        width, skipped = self._layouts[file].width, int(self._has_header)
        for row, have in reader.misfits.items():
            wrong[row - skipped] = f"it has {have} cells, and the header has {width}"
        self._add(file, count, dict(sorted(wrong.items())))

    def _add(self, file: int, count: int, wrong: Wrong) -> None:
        if len(wrong) > max(_FEW_BAD, count // _BAD_SHARE):
            first, *_ = self._bad_rows(file, dict(itertools.islice(wrong.items(), 1)))
            raise FileError(
                f"{first.where}: {first.reason}. So are {len(wrong) - 1} others of the first "
                f"{count} records, which is too many to leave out."
            )
        before = sum(self.counts)
        places = [before + number for number in wrong]
        self.bad.update(zip(places, self._bad_rows(file, wrong), strict=True))
        self.counts.append(count)

    def _bad_rows(self, file: int, wrong: Wrong) -> list[BadRow]:
        return list(map(BadRow, self._where(file, wrong), wrong.values()))
