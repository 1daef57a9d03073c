"""Arrays of ``.npy`` files by part: mapped when they are asked for, with few descriptors."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.columns.elements import Needs
from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.sources.files.npy import has_header, read_header
from loaderx.tree import Array

_HEAD = 1 << 16  # bytes that hold any header


class NpyArrays:
    """The arrays of one file in each part; an `ArrayOf`."""

    is_mapped = True

    def __init__(
        self,
        files: FileSet,
        numbers: Sequence[int],
        dtype: np.dtype[np.generic],
        shape: tuple[int, ...],
        rows: Sequence[int] | None,
    ) -> None:
        """``shape`` is that of a row; None for ``rows``: as many as the file has."""
        self._files, self._numbers = files, list(numbers)
        self._dtype, self._shape, self._rows = dtype, shape, rows
        self._kept: dict[int, Array] = {}  # few files: their maps stay anyway
        self._found: dict[int, tuple[int, int]] = {}  # where the rows begin, and how many there are

    def __call__(self, part: int) -> Array:
        found = self._kept.get(part)
        return self._open(part) if found is None else found

    def _open(self, part: int) -> Array:
        array = self._array(part, self._files.data(self._numbers[part]))
        if self._files.keeps_maps:
            self._kept[part] = array
        return array

    def _array(self, part: int, data: Array) -> Array:
        """The array in a file, whose header is there."""
        found = self._found.get(part)
        if found is None:
            found = self._found[part] = self._check(part, data[:_HEAD].tobytes())
        start, rows = found
        if 0 in self._shape:  # no bytes, of which no number of rows follows
            return np.empty((rows, *self._shape), self._dtype)
        return data[start:].view(self._dtype).reshape(-1, *self._shape)

    def _check(self, part: int, head: bytes) -> tuple[int, int]:
        """Where the rows begin, and how many there are, in a file that is what it should be."""
        number = self._numbers[part]
        path, size = self._files.paths[number], self._files.identities[number].size
        header = read_header(io.BytesIO(head), size, path)
        rows = header.shape[0] if self._rows is None and header.shape else None
        rows = self._rows[part] if self._rows is not None else rows
        if header.dtype != self._dtype or header.shape != (rows, *self._shape) or header.fortran:
            raise FileError(
                f"{path} has {header.dtype}{list(header.shape)}, and loaderx.json says "
                f"{self._dtype}{[rows, *self._shape]}: it was changed or is damaged."
            )
        if header.start + header.nbytes != size:
            raise FileError(f"{path} has bytes behind its array: it was changed or is damaged.")
        return header.start, header.shape[0]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}


class FetchedNpyArrays(NpyArrays):
    """Those behind URLs: rows are fetched as they are needed; a `FetchedArrays`."""

    is_mapped = False

    def check(self, part: int) -> None:
        """Checks the header of a file, if it came when the file was looked at."""
        head = self._files.known_head(self._numbers[part])
        if has_header(head):
            self._found[part] = self._check(part, head)

    def rows(self, part: int, starts: Indices, lengths: Indices | int) -> Array:
        whole = self._files.whole(self._numbers[part])
        if whole is not None:
            return self._array(part, whole)
        if part not in self._found:
            self.check(part)
        if part not in self._found and self._rows is None:  # the header says where rows begin
            self._array(part, self._files.data_with(self._ranges(part, starts[:0], 0)))
        return self._array(part, self._files.data_with(self._ranges(part, starts, lengths)))

    def needs(self, part: int, starts: Indices, lengths: Indices | int) -> Needs:
        if self._files.whole(self._numbers[part]) is not None:
            return []
        if part not in self._found:
            self.check(part)
        ranges = self._ranges(part, starts, lengths)
        return [(self._files, ranges)] if len(ranges.starts) else []

    def _ranges(self, part: int, starts: Indices, lengths: Indices | int) -> FileRanges:
        """The bytes of rows; of offsets that are damaged, what lies in the file."""
        number = self._numbers[part]
        size = self._files.identities[number].size
        width = self._dtype.itemsize * math.prod(self._shape)
        found = self._found.get(part)
        if found is not None:
            begin = found[0]
        else:  # where the rows begin follows from the size; `_array` checks it
            begin = size - self._rows[part] * width if self._rows is not None else size
        first = np.clip(starts * width + begin, 0, size)
        stops = np.clip((starts + lengths) * width + begin, first, size)
        is_some = stops > first
        first, stops = first[is_some], stops[is_some]
        if found is None:
            first = np.append(first, 0)
            stops = np.append(stops, min(size, _HEAD))
        return FileRanges(number, first, stops)
