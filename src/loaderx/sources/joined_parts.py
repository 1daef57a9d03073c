"""Values in several files, read as if they were in one (`joined_maps`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError
from loaderx.gathering import take_rows
from loaderx.sources.base import Indices
from loaderx.sources.joined_maps import ArrayOf, JoinedMaps, joined_maps
from loaderx.sources.parts import Parts, lie_outside
from loaderx.tree import Array

if TYPE_CHECKING:
    from loaderx.sources.ondisk.file_set import FileSet

_Counts = npt.NDArray[np.int64]


class JoinedParts:
    """The base: arrays of parts are joined when values of several are first read out of order.

    In the order of the files, a batch lies in one part, or two; then nothing is joined.
    """

    def __init__(self, parts: Parts, *arrays: ArrayOf) -> None:
        """Of the last array, the rows of a part are as its values: their numbers lead to them."""
        self._parts, self._arrays = parts, arrays
        self._begin()

    def _begin(self) -> None:
        is_mapped = all(getattr(one, "is_mapped", False) for one in self._arrays)
        self._is_open = is_mapped and len(self._parts.counts) > 1  # may they yet be joined?
        self._joined: list[JoinedMaps] | None = None
        self._shifts = self._parts.starts  # from the numbers of values to those of rows, by part

    @property
    def is_joined(self) -> bool:
        return self._joined is not None

    def _counts(self) -> list[_Counts]:
        """The rows of the parts of each array."""
        raise NotImplementedError

    def _numbers(self, indices: Indices) -> Indices | None:
        """The part of each value; None if they are not joined."""
        if not self._is_open and self._joined is None:
            return None
        numbers = self._parts.ends.searchsorted(indices, "right")
        if self._joined is None and (numbers[1:] < numbers[:-1]).any():
            joined = self._join()
            if joined is not None:
                self._shifts = joined[-1].starts - self._parts.starts
                self._joined = joined
            self._is_open = False
        return None if self._joined is None else numbers

    def _join(self) -> list[JoinedMaps] | None:
        found: list[JoinedMaps] = []
        try:
            for array_of, counts in zip(self._arrays, self._counts(), strict=True):
                joined = joined_maps(array_of, counts)
                if joined is None:
                    return None
                found.append(joined)
        except LoaderxError:  # it is said when that part is read
            return None
        return found

    def __getstate__(self) -> dict[str, object]:
        return {"_parts": self._parts, "_arrays": self._arrays}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


class JoinedRows(JoinedParts):
    """Values that are rows."""

    def __init__(self, parts: Parts, array_of: ArrayOf) -> None:
        super().__init__(parts, array_of)

    def _counts(self) -> list[_Counts]:
        return [self._parts.counts]

    def take(self, indices: Indices, out: Array) -> bool:
        """Writes the values at ``indices`` into the rows of ``out``, if they are joined."""
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return False
        rows = self._joined[0].rows
        if rows.dtype != out.dtype:  # JAX takes numbers in the byte order of the machine
            return False
        take_rows(rows, indices + self._shifts[numbers], out)
        return True


class FileBytes:
    """The bytes of each file of a set; an `ArrayOf`."""

    def __init__(self, files: FileSet) -> None:
        self.files, self.is_mapped = files, not files.is_remote

    def __call__(self, number: int) -> Array:
        return self.files.data(number)


class JoinedBytes(JoinedParts):
    """Values that are runs of bytes of files; whoever reads them knows where they lie in theirs."""

    def __init__(self, parts: Parts, files: FileSet) -> None:
        """Each part is a file of the set, with the same number."""
        self._files = files
        super().__init__(parts, FileBytes(files))

    def _counts(self) -> list[_Counts]:
        return [np.array(self._files.sizes)]

    def find(self, indices: Indices) -> tuple[Array, Indices, Indices] | None:
        """All bytes; of each value, the number of its file, and where that begins in them.

        None if they are not joined.
        """
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return None
        data, begins = self._joined[0]
        return data, numbers, begins[numbers]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_files": self._files}


class JoinedRuns(JoinedParts):
    """Values that are runs of elements, from offset to offset."""

    def __init__(self, parts: Parts, data_of: ArrayOf, offsets_of: ArrayOf) -> None:
        super().__init__(parts, data_of, offsets_of)

    def _begin(self) -> None:
        super()._begin()
        self._lengths = np.zeros(0, np.int64)  # the elements of each part

    def _counts(self) -> list[_Counts]:
        counts = self._parts.counts
        self._lengths = np.array([len(self._arrays[0](part)) for part in range(len(counts))])
        return [self._lengths, counts + 1]

    def find(self, indices: Indices) -> tuple[Array, Indices, Indices] | None:
        """The elements, and where the values at ``indices`` begin and end in them.

        None if they are not joined, or their offsets are damaged.
        """
        numbers = self._numbers(indices)
        if numbers is None or self._joined is None:
            return None
        (data, begins), (offsets, _) = self._joined
        rows = indices + self._shifts[numbers]
        first, last = offsets[rows], offsets[rows + 1]
        if lie_outside(first, last, self._lengths[numbers]):
            return None
        begin = begins[numbers]
        return data, first + begin, last + begin
