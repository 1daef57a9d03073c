"""`LineFiles`: the records of files in which each is a line, or a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile, Json
from loaderx.sources.columns.elements import PartElements, file_bytes
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts, Places
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.formats.lines.index import Offsets, line_number
from loaderx.tree import Array

FindLines = Callable[[Array, str], tuple[Offsets, Json]]
"""The offsets of a file, from its bytes and its path, and a note to keep with them."""

_OFFSETS = "offsets"
_NEWLINE, _RETURN = 10, 13


class LinesOfFile(NamedTuple):
    """Some records that lie in one file, or in several that are joined."""

    file: int  # any of them, if they are joined: all are alike
    places: Places  # among the requested records
    data: Array  # the bytes of the file, or of all
    starts: Indices
    stops: Indices

    @property
    def is_run(self) -> bool:
        """True if each of them follows the one before it."""
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
        self._bytes = file_bytes(files, self._damaged)
        self._apart = PartElements(self._stored, files.data, None, self._damaged)
        self.are_alike = True
        """True if lines of several files can be parsed together."""
        self._cold = ColdReads(find=self._spans)

    def split(self, indices: Indices) -> Iterator[LinesOfFile]:
        """The records, file by file."""
        if self._cold.is_needed:
            self._cold.before(indices)
        at, stops = self._find(self.parts.at(indices))
        source = self._bytes if self.are_alike else self._apart
        for runs in source.runs(at, stops):
            file = 0 if at.parts is None else int(at.parts[runs.places][0])
            if (runs.starts == runs.stops).any():
                raise self._damaged(file)
            yield LinesOfFile(file, *runs)

    def _find(self, at: Located) -> tuple[Located, Indices]:
        """Where records begin and end in their files."""
        numbers = at.rows + at.each(self._stored.starts)
        return at.moved(self._offsets[numbers]), self._offsets[numbers + 1]

    def _damaged(self, file: int) -> FileError:
        return FileError(
            f"{self.files.paths[file]}: its index is damaged. Remove the cache folder, so that it "
            "is made again."
        )

    def _spans(self, indices: Indices) -> Iterator[Span]:
        return self._bytes.spans(*self._find(self.parts.at(indices)))

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
