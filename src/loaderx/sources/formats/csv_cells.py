"""The cells of rows: what lies between delimiters that are not within quotes.

A quoted cell begins and ends with a quote; two quotes in it stand for one.  Where a newline or a
delimiter has an odd number of quotes before it in the file, it belongs to a cell: that is what the
index of lines is made by, too.  A quote in the middle of a cell that does not begin with one is a
plain character, as long as the cell is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loaderx.sources.formats.lines.numbers import shown


class Dialect(NamedTuple):
    """How a file is written."""

    delimiter: str
    quote: str | None
    encoding: str

    def has_quotes(self, text: bytes) -> bool:
        return self.quote is not None and self.quote.encode() in text


def cells_of_row(row: bytes, dialect: Dialect) -> list[str]:
    """The cells of one row, however many there are."""
    pieces = str(row, dialect.encoding).split(dialect.delimiter)
    quote = dialect.quote
    if quote is None or not dialect.has_quotes(row):
        return pieces
    cells, cell, is_open = [], "", False
    for piece in pieces:
        cell = f"{cell}{dialect.delimiter}{piece}" if is_open else piece
        is_open = bool(cell.count(quote) & 1)
        if not is_open:
            cells.append(unquoted(cell, quote, dialect.delimiter))
    if is_open:  # the index lets no such row through, but it may be damaged
        raise ValueError(f"the quote in {shown(cell)} is not closed")
    return cells


def cells_of_rows(
    rows: Sequence[bytes], width: int, chosen: Sequence[int], dialect: Dialect
) -> list[list[str]]:
    """The cells of rows, column by column; a ValueError if a row has not ``width`` cells."""
    delimiter = dialect.delimiter.encode()
    joined = delimiter.join(rows)
    if dialect.has_quotes(joined):
        return _quoted_columns(rows, joined, width, chosen, dialect)
    if {row.count(delimiter) for row in rows} != {width - 1}:
        number = next(row.count(delimiter) + 1 for row in rows if row.count(delimiter) != width - 1)
        raise ValueError(f"it has {number} cells, and the header has {width}")
    cells = str(joined, dialect.encoding).split(dialect.delimiter)
    return [cells[place::width] for place in chosen]


def _quoted_columns(
    rows: Sequence[bytes], joined: bytes, width: int, chosen: Sequence[int], dialect: Dialect
) -> list[list[str]]:
    """The same by NumPy: delimiters count where the number of quotes before them is even."""
    data = np.frombuffer(joined, np.uint8)
    quote = dialect.quote or ""
    quotes = np.flatnonzero(data == ord(quote))
    delimiters = np.flatnonzero(data == ord(dialect.delimiter))
    borders = delimiters[np.searchsorted(quotes, delimiters) & 1 == 0]
    ends = np.cumsum([len(row) + 1 for row in rows]) - 1
    if len(borders) != len(rows) * width - 1 or (borders[width - 1 :: width] != ends[:-1]).any():
        number = len(cells_of_row(rows[0], dialect)) if len(rows) == 1 else "other"
        raise ValueError(f"it has {number} cells, and the header has {width}")
    starts = np.concatenate(([0], borders + 1)).reshape(-1, width)
    stops = np.append(borders, len(data)).reshape(-1, width)
    columns = []
    for place in chosen:
        begin, end = starts[:, place], stops[:, place]
        pairs = zip(begin.tolist(), end.tolist(), strict=True)
        cells = [str(joined[start:stop], dialect.encoding) for start, stop in pairs]
        has_quotes = np.searchsorted(quotes, begin) != np.searchsorted(quotes, end)
        for number in np.flatnonzero(has_quotes).tolist():
            cells[number] = unquoted(cells[number], quote, dialect.delimiter)
        columns.append(cells)
    return columns


def unquoted(cell: str, quote: str, delimiter: str) -> str:
    """A cell without the quotes around it."""
    if quote not in cell:
        return cell
    if not cell.startswith(quote):
        if delimiter in cell or "\n" in cell:
            raise ValueError(f"there is a quote within the cell {shown(cell)}")
        return cell
    inner = cell[1:-1]
    double = quote + quote
    if len(cell) < 2 or not cell.endswith(quote) or quote in inner.replace(double, ""):
        raise ValueError(f"something follows the quotes of the cell {shown(cell)}")
    return inner.replace(double, quote)
