"""Arrays of ``.npy`` files by part: mapped when they are asked for, with few descriptors."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.npy import read_header
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.tree import Array

_HEAD = 1 << 16  # bytes that hold any header


class NpyArrays:
    """The arrays of one file in each part; an `ArrayOf`."""

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
        number = self._numbers[part]
        data = self._files.data(number)
        found = self._found.get(part)
        if found is None:
            found = self._found[part] = self._check(part, data, self._files.paths[number])
        start, rows = found
        if 0 in self._shape:  # no bytes, of which no number of rows follows
            return np.empty((rows, *self._shape), self._dtype)
        array = data[start:].view(self._dtype).reshape(-1, *self._shape)
        if self._files.keeps_maps:
            self._kept[part] = array
        return array

    def _check(self, part: int, data: Array, path: str) -> tuple[int, int]:
        """Where the rows begin, and how many there are, in a file that is what it should be."""
        header = read_header(io.BytesIO(data[:_HEAD].tobytes()), len(data), path)
        rows = header.shape[0] if self._rows is None and header.shape else None
        rows = self._rows[part] if self._rows is not None else rows
        if header.dtype != self._dtype or header.shape != (rows, *self._shape) or header.fortran:
            raise FileError(
                f"{path} has {header.dtype}{list(header.shape)}, and loaderx.json says "
                f"{self._dtype}{[rows, *self._shape]}: it was changed or is damaged."
            )
        if header.start + header.nbytes != len(data):
            raise FileError(f"{path} has bytes behind its array: it was changed or is damaged.")
        return header.start, header.shape[0]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}
