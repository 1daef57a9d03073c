"""`LineFiles`: the records of files in which each is a line, or a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile, Json
from loaderx.sources.columns.joined_parts import JoinedBytes
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts, Places, lie_outside
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.formats.lines.index import Offsets, line_number
from loaderx.tree import Array

FindLines = Callable[[Array, str], tuple[Offsets, Json]]
"""The offsets of a file, from its bytes and its path, and what else is to be kept of it."""

_OFFSETS = "offsets"
_NEWLINE, _RETURN = 10, 13


class LinesOfFile(NamedTuple):
    """Some records that lie in one file, or in several that are joined."""

    file: int  # one of them, if they are joined: all are alike
    places: Places  # among the records that were asked for
    data: Array  # the bytes of the file, or of all
    starts: Indices
    stops: Indices

    @property
    def is_run(self) -> bool:
        """Does each of them follow the one before it?"""
        return bool((self.starts[1:] == self.stops[:-1]).all())

    def without_ends(self) -> LinesOfFile:
        """The same, without the newlines and carriage returns that end them."""
        data, starts, stops = self.data, self.starts, self.stops
        stops = stops - (data[stops - 1] == _NEWLINE)
        stops -= (stops > starts) & (data[stops - 1] == _RETURN)
        return self._replace(stops=stops)

    def pieces(self) -> list[memoryview]:
        """The bytes of each record, with the end of its line."""
        view = self.data.data
        pairs = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [view[start:stop] for start, stop in pairs]


class LineFiles(RecordFiles):
    """Records by number, as bytes."""

    def __init__(
        self, paths: list[str], kind: str, version: int, find: FindLines, cache: CacheFolder
    ) -> None:
        files = FileSet(paths, files=cache.files)

        def indexer(number: int) -> IndexedFile:
            offsets, note = find(files.data(number), files.paths[number])
            return IndexedFile({_OFFSETS: offsets}, note)

        found: FileIndex = cache.index(kind, version, files, indexer)
        self._offsets, self._stored = found.arrays[_OFFSETS], found.parts[_OFFSETS]
        super().__init__(files, Parts(np.maximum(self._stored.counts - 1, 0)))
        self.notes = found.notes
        self._sizes = np.array(self.files.sizes)
        self.are_alike = True
        """Can lines of several files be parsed together?"""
        self._cold = ColdReads(find=self._spans)
        self._shifts = self._stored.starts - self.parts.starts  # from records to offsets
        self._joined = JoinedBytes(self.parts, self.files)

    def split(self, indices: Indices) -> Iterator[LinesOfFile]:
        """The records, file by file."""
        if self._cold.is_needed:
            self._cold.before(indices)
        joined = self._in_joined(indices) if self.are_alike else None
        if joined is not None:
            yield joined
            return
        for file, places, local in self.parts.split(indices):
            at = local + self._stored.starts[file]
            starts, stops = self._offsets[at], self._offsets[at + 1]
            data = self.files.data(file)
            if _are_damaged(starts, stops, len(data)):
                raise FileError(
                    f"{self.files.paths[file]}: its index is damaged. Remove the cache folder, so "
                    "that it is made again."
                )
            yield LinesOfFile(file, places, data, starts, stops)

    def _in_joined(self, indices: Indices) -> LinesOfFile | None:
        """All of the records; None if they must be read file by file."""
        found = self._joined.find(indices)
        if found is None:
            return None
        data, numbers, begins = found
        at = indices + self._shifts[numbers]
        starts, stops = self._offsets[at], self._offsets[at + 1]
        if _are_damaged(starts, stops, self._sizes[numbers]):  # that of one file: which?
            return None
        return LinesOfFile(int(numbers[0]), slice(None), data, starts + begins, stops + begins)

    def _spans(self, indices: Indices) -> Iterator[Span]:
        for file, _, local in self.parts.split(indices):
            at = local + self._stored.starts[file]
            yield Span(self.files.data(file), self._offsets[at], self._offsets[at + 1])

    def where(self, index: int) -> str:
        """The file and the line of a record, for messages."""
        file, local = self.parts.locate(index)
        at = local + int(self._stored.starts[file])
        number = line_number(self.files.data(file), int(self._offsets[at]))
        return f"{self.files.paths[file]}, line {number}"

    def check_any(self) -> None:
        """Refuses files that have no record among them."""
        if not len(self):
            more = "" if len(self.files) == 1 else f" and {len(self.files) - 1} more files"
            raise FileError(f"{self.files.paths[0]}{more}: there are no records in it.")


def _are_damaged(starts: Indices, stops: Indices, sizes: Indices | int) -> bool:
    """An index that is damaged must not make up records."""
    return lie_outside(starts, stops, sizes) or bool((starts == stops).any())
