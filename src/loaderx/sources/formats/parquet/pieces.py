"""Parquet files behind URLs, of which only the footers and the chunks that are read are fetched.

A file is mapped while most of it is missing (`FileSet.data_with`), and pyarrow reads the bytes that
were fetched for it: those of the footer, then those of the columns of a row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow.parquet as pq

END_BYTES = 1 << 16  # bytes of a file that are fetched first: most footers are shorter
_FILES_AT_ONCE = 64
_TAIL = 8  # bytes: the length of the footer, and a mark
_PADDING = 100  # bytes that readers take after a chunk, for the sake of an old writer


def footers_here(files: FileSet) -> Iterator[int]:
    """The numbers of all files, each once its footer is fetched: many are fetched at once."""
    for first in range(0, len(files), _FILES_AT_ONCE):
        numbers = range(first, min(first + _FILES_AT_ONCE, len(files)))
        filled = [number for number in numbers if files.sizes[number]]
        files.fetch_ranges([_end(files, number, END_BYTES) for number in filled])
        lengths = {number: _footer_bytes(files, number) for number in filled}
        longer = {number: length for number, length in lengths.items() if length > END_BYTES}
        files.fetch_ranges([_end(files, number, length) for number, length in longer.items()])
        yield from numbers


def data_with_footer(files: FileSet, number: int) -> Array:
    """The bytes of a file whose footer is fetched."""
    if not files.sizes[number]:
        return np.empty(0, np.uint8)
    return files.data_with(_end(files, number, _footer_bytes(files, number)))


def _footer_bytes(files: FileSet, number: int) -> int:
    """The length of a footer, with what follows it; for a damaged file, at most the whole file."""
    data = files.data_with(_end(files, number, END_BYTES))
    return _TAIL + int.from_bytes(data[-_TAIL:].tobytes()[:4], "little")


def _end(files: FileSet, number: int, nbytes: int) -> FileRanges:
    size = files.sizes[number]
    return FileRanges(number, np.array([max(0, size - nbytes)]), np.array([size]))


def chunk_ranges(
    files: FileSet, number: int, footer: pq.FileMetaData, groups: Sequence[int], places: list[int]
) -> FileRanges:
    """Where some columns of row groups lie; the footer has been checked."""
    size, starts, stops = files.sizes[number], [], []
    for at in groups:
        group = footer.row_group(at)
        for place in places:
            chunk = group.column(place)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            stop = min(size, start + chunk.total_compressed_size + _PADDING)
            if 0 <= start < stop:
                starts.append(start)
                stops.append(stop)
    return FileRanges(number, np.array(starts, np.int64), np.array(stops, np.int64))


class ReachedError(Exception):
    """Raised when a reader reads bytes of columns: so it found no error in the footer."""


class NothingToRead:
    """A file for pyarrow of which only the size is known."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, nbytes: int = -1) -> bytes:
        raise ReachedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """There is nothing to close."""
