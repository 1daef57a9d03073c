"""The rows of CSV files: pyarrow reads their cells, Python's `csv` the first row and line numbers.

pyarrow reads some megabytes of rows at a time and gives the cells of each column as bytes.  A row
with another number of cells than the first one is left out, and its number is kept; rows are
numbered from 0, without empty lines.  A quote that is never closed would
make one cell of the rest of the file: so a row of our own follows the last one, and must come back.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.formats.arrow.columns import arrow_data
from loaderx.tree import Array

if TYPE_CHECKING:
    from _csv import Reader

    import pyarrow as pa
    import pyarrow.csv as pa_csv
    from _typeshed import WriteableBuffer

_MARK = b"loaderx: the last row"
BLOCK = 1 << 25
"""Bytes that are read at once; no row may have more."""


class Dialect(NamedTuple):
    """How a file is written."""

    delimiter: str
    quote: str | None
    encoding: str


class Rows(NamedTuple):
    """Some rows of a file."""

    cells: pa.RecordBatch  # as bytes, of the rows that have as many as the first one
    came: Array  # which of the rows these are

    def without_first(self) -> Rows:
        return Rows(self.cells.slice(int(self.came[0])), self.came[1:])


class _Bytes(io.RawIOBase):
    """Pieces of bytes, one after the other."""

    def __init__(self, *pieces: Array | bytes) -> None:
        self._pieces = [memoryview(piece) for piece in pieces if len(piece)]  # type: ignore[arg-type]
        self.is_ascii = True
        """True if all bytes that were read so far are ASCII."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._pieces:
            return 0
        out, piece = memoryview(buffer), self._pieces[0]
        count = min(len(out), len(piece))
        out[:count] = piece[:count]
        self.is_ascii = self.is_ascii and not (np.frombuffer(piece[:count], np.uint8) > 127).any()
        self._pieces[:1] = [piece[count:]] if count < len(piece) else []
        return count


class RowReader:
    """The rows of a file, of which some columns are read."""

    def __init__(
        self, data: Array, path: str, dialect: Dialect, width: int, places: Sequence[int]
    ) -> None:
        """``data`` begins behind the byte order mark; ``places`` are the numbers of columns."""
        self._data, self.path, self._dialect = data, path, dialect
        self._width, self._names = width, [str(place) for place in places]
        self.misfits: dict[int, int] = {}
        """Rows with another number of cells, and that number."""

    def rows(self) -> Iterator[Rows]:
        """All rows, some at a time."""
        first, held = 0, None
        for batch in self._marked():
            if held is not None:
                yield held
            came = self._came(first, len(batch))
            held = Rows(batch, came)
            first += len(came)
        if held is None or not self._is_mark(held.cells):
            raise self._not_closed()
        yield Rows(held.cells.slice(0, len(held.cells) - 1), held.came[:-1])

    def _is_mark(self, cells: pa.RecordBatch) -> bool:
        """True if the last row is the one behind the rows of the file.

        Behind a quote that is not closed, all to the end of the file is one cell, in another row.
        """
        edges = (0, len(self._names) - 1)
        return all(cells.column(place)[-1].as_py() == _MARK for place in edges)

    def _came(self, first: int, count: int) -> Array:
        """A bool for each row from this one on: True for ``count`` rows, False for misfits."""
        misfits = np.array(sorted(one - first for one in self.misfits if one >= first), np.int64)
        before = misfits - np.arange(len(misfits))  # rows that came before each of them
        misfits = misfits[: np.searchsorted(before, count - 1, "right")] if count else misfits[:0]
        came = np.ones(count + len(misfits), np.bool_)
        came[misfits] = False
        return came

    def _marked(self) -> Iterator[pa.RecordBatch]:
        """The rows that came, and the one behind them."""
        import pyarrow as pa

        end = b"\n" + self._dialect.delimiter.encode().join([_MARK] * self._width) + b"\n"
        data = _Bytes(self._data, end)
        try:
            for batch in self._open(data):
                yield batch if data.is_ascii else _restored(batch)
        except pa.ArrowInvalid as error:
            if "straddling" in str(error):  # a row is larger than what is read at once
                raise self._not_closed() from error
            raise

    def _open(self, data: _Bytes) -> pa_csv.CSVStreamingReader:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        quote = self._dialect.quote
        names = [str(place) for place in range(self._width)]
        # pyarrow makes text of rows that do not fit, which may not be UTF-8; all bytes are Latin-1.
        # Without threads: a process that ends while Arrow's threads are at work may be aborted.
        return pa_csv.open_csv(
            io.BufferedReader(data),
            pa_csv.ReadOptions(
                use_threads=False, block_size=BLOCK, column_names=names, encoding="latin-1"
            ),
            pa_csv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char=quote or False,
                newlines_in_values=quote is not None,
                invalid_row_handler=self._keep_misfit,
            ),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.binary()),
                include_columns=self._names,
            ),
        )

    def _keep_misfit(self, row: pa_csv.InvalidRow) -> str:
        self.misfits[row.number - 1] = row.actual_columns
        return "skip"

    def _not_closed(self) -> FileError:
        lines = list(row_lines(self._data, self._dialect))
        return FileError(
            f"{self.path}, line {lines[-1]}: a quote ({self._dialect.quote}) is not closed, "
            f"or the row has more than {BLOCK >> 20} MB. If quotes are plain characters, open the "
            "file with loaderx.sources.Csv(path, quote=None)."
        )


def _restored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The bytes that cells had before they were taken for Latin-1 and made UTF-8."""
    import pyarrow as pa

    columns = [_restored_column(column) for column in batch.columns]
    return pa.record_batch(columns, batch.schema.names)


def _restored_column(cells: pa.BinaryArray) -> pa.BinaryArray:
    import pyarrow as pa

    _, values, offsets, _, _ = arrow_data(cells, ColumnType("bytes"), "", {})
    assert values is not None
    assert offsets is not None
    if (values < 128).all():
        return cells
    before = np.zeros(len(values) + 1, np.int32)  # characters before each byte
    np.cumsum(values & 0xC0 != 0x80, out=before[1:])
    buffers = [before[offsets], str(values.data, "utf-8").encode("latin-1")]
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [None, *(pa.py_buffer(one) for one in buffers)]
    )


def first_row(data: Array, dialect: Dialect) -> list[str] | None:
    """The cells of the first row; None if there is none."""
    for row in _python_rows(data, dialect):
        if row:
            return [cell.encode("latin-1").decode(dialect.encoding) for cell in row]
    return None


def row_lines(
    data: Array, dialect: Dialect, wanted: Collection[int] | None = None
) -> Iterator[int]:
    """The lines, from 1, on which these rows begin, or all rows; in ascending order."""
    rows, number, before = _python_rows(data, dialect), 0, 0
    last = None if wanted is None else max(wanted, default=-1)
    try:
        while last is None or number <= last:
            row = next(rows)
            if row:
                if wanted is None or number in wanted:
                    yield before + 1
                number += 1
            before = rows.line_num
    except StopIteration:
        pass
    except csv.Error:  # a cell is too long for Python's limit: this row is the last that is known
        yield before + 1


def _python_rows(data: Array, dialect: Dialect) -> Reader:
    # In Latin-1, all bytes are characters.
    text = io.TextIOWrapper(io.BufferedReader(_Bytes(data)), "latin-1", newline="")
    delimiter, quote = dialect.delimiter, dialect.quote
    if quote is None:
        return csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(text, delimiter=delimiter, quotechar=quote)
