"""`ByteRanges`: each record is a run of bytes in one of several files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.tree import Array

_PIECE_BYTES = 1 << 16
_LARGE_ROWS = 8192  # bytes from which on copying row by row is as fast as one indexed copy


class ByteRanges:
    """Where each record begins and ends; ``starts`` and ``stops`` run through all files."""

    def __init__(
        self,
        files: FileSet,
        counts: Sequence[int] | npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
    ) -> None:
        self.files, self.parts = files, Parts(counts)
        self.starts, self.stops = starts, stops
        self._sizes = np.array(files.sizes)
        self._cold = ColdReads(find=self._spans)

    def __len__(self) -> int:
        return len(self.parts)

    def read(self, indices: Indices) -> list[bytes]:
        """The bytes of these records."""
        if self._cold.is_needed:
            self._cold.before(indices)
        numbers = np.searchsorted(self.parts.ends, indices, side="right")
        starts, stops = self._checked(indices, numbers)
        each = numbers.tolist()
        maps = {number: self.files.data(number).data for number in set(each)}
        return [
            bytes(maps[number][start:stop])
            for number, start, stop in zip(each, starts, stops, strict=True)
        ]

    def _spans(self, indices: Indices) -> Iterator[Span]:
        for part, places, _ in self.parts.split(indices):
            where = indices[places]
            yield Span(self.files.data(part), self.starts[where], self.stops[where])

    def _checked(self, where: Indices, numbers: Indices) -> tuple[list[int], list[int]]:
        """Where records lie in their files; an index that is damaged must not make up others."""
        starts, stops, sizes = self.starts[where], self.stops[where], self._sizes[numbers]
        is_wrong = (starts < 0) | (stops < starts) | (stops > sizes)
        if is_wrong.any():
            first = int(np.flatnonzero(is_wrong)[0])
            raise FileError(
                f"{self.files.paths[numbers[first]]}: the index has record {where[first]} outside "
                "the file. Remove the cache folder, so that it is made again."
            )
        return starts.tolist(), stops.tolist()

    def name(self, index: int) -> str:
        """Where a record lies, for messages: file and number in it."""
        part, number = self.parts.locate(index)
        return f"{self.files.paths[part]}, record {number}"


def gather_rows(data: Array, addresses: npt.NDArray[np.int64], out: Array) -> None:
    """Copies runs of bytes at any addresses of ``data`` into the rows of ``out``.

    The caller has checked that all of them lie within ``data``.  One indexed copy of a view whose
    items overlap is as fast as `take` on a matrix; `take` itself would copy the whole view first.
    """
    count = len(out)
    if not count or not out[0].nbytes:
        return
    width = out[0].nbytes
    flat = out.reshape(count, -1).view(np.uint8)
    if width >= _LARGE_ROWS:
        for row, address in zip(flat, addresses.tolist(), strict=True):
            row[:] = data[address : address + width]
        return
    kind = np.dtype((np.void, width))
    every = np.ndarray((len(data) - width + 1,), kind, data, 0, (1,))
    rows, step = flat.view(kind)[:, 0], max(1, _PIECE_BYTES // width)
    for start in range(0, count, step):  # the copy between is small: it stays in the CPU's cache
        rows[start : start + step] = every[addresses[start : start + step]]
