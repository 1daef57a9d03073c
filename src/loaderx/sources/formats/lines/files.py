"""`LineFiles`: the records of files in which each is a line, or a few.

Compressed files without a copy (``cache=False``) are unpacked into memory, each as a whole.  All of
them are once when they are opened, to find the lines; then a file is unpacked when a record of it
is read, and kept as long as the others leave room for it, as `KeptChunks` does it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.adapt.chunked import chunk_counts
from loaderx.sources.adapt.kept_chunks import CHUNK_BYTES, KeptChunks, chunk_budget
from loaderx.sources.base import FileSource, Indices
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile, Json
from loaderx.sources.columns.elements import PartElements, file_bytes
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.compressed import in_threads, unpacked
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts, Places
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.formats.lines.index import Offsets, line_number
from loaderx.sources.mapping import changed
from loaderx.tree import Array

FindLines = Callable[[Array, str], tuple[Offsets, Json]]
"""The offsets of a file, from its bytes and its path, and a note to keep with them."""

_OFFSETS = "offsets"
_RATIO = 8  # of unpacked to packed bytes, as text has it
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
        packed, files = cache.files.packed, FileSet(paths, files=cache.files)
        magics = {path: packed[path] for path in paths if path in packed}
        unpack = _Unpack(files, magics)

        def index(number: int) -> IndexedFile:
            offsets, note = find(unpack(number), files.paths[number])
            return IndexedFile({_OFFSETS: offsets}, note)

        made = in_threads(lambda number, _: index(number), len(files), unpack.at_once())
        found: FileIndex = cache.index(
            kind, version, files, (lambda _: next(made)) if magics else index
        )
        self._offsets, self._stored = found.arrays[_OFFSETS], found.parts[_OFFSETS]
        super().__init__(files, Parts(np.maximum(self._stored.counts - 1, 0)))
        self.notes = found.notes
        self.kept = KeptChunks(unpack, self.parts.counts) if magics else None
        """The files that are unpacked; None if none of them is compressed."""
        self._data: Callable[[int], Array] = files.data if self.kept is None else self.kept.get
        self._apart = PartElements(self._stored, self._data, None, self._damaged)
        self._bytes = self._apart if magics else file_bytes(files, self._damaged)
        self.are_alike = True
        """True if lines of several files can be parsed together."""
        self._cold = ColdReads(find=None if magics else self._spans)

    @property
    def nbytes(self) -> int:
        """The bytes of all files, unpacked."""
        return int(self._offsets[self._stored.ends - 1].sum())

    def together(self, indices: Indices) -> AbstractContextManager[object]:
        """Holds the files of these records while they are read."""
        if self.kept is None:
            return contextlib.nullcontext()
        return self.kept.together(chunk_counts(self.parts, indices))

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
        if self.kept is not None:  # the index is in memory, and so is right
            return changed(self.files.paths[file], "has been written to")
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
        number = line_number(self._data(file), int(self._offsets[at]))
        return f"{self.files.paths[file]}, line {number}"

    def check_any(self) -> None:
        """Refuses files that have no record among them."""
        if not len(self):
            more = "" if len(self.files) == 1 else f" and {len(self.files) - 1} more files"
            raise FileError(f"{self.files.paths[0]}{more}: there are no records in it.")


class _Unpack:
    """The bytes of a file by its number, unpacked."""

    def __init__(self, files: FileSet, magics: dict[str, bytes]) -> None:
        self._files, self._magics = files, magics

    def __call__(self, number: int) -> Array:
        path, data = self._files.paths[number], self._files.data(number)
        if path not in self._magics:
            return data
        most = chunk_budget()

        def check(nbytes: int) -> None:
            if nbytes > most:
                raise FileError(
                    f"{path} unpacks to more than the {most / 1e6:,.0f} MB that may be kept in "
                    f"memory. Set {CHUNK_BYTES} to more bytes, or leave cache=False out: a copy is "
                    "made once, in the cache folder."
                )

        return unpacked(path, data, self._magics[path], check)

    def at_once(self) -> int:
        """How many files to unpack at a time, so that `chunk_budget` has room for all of them."""
        sizes = zip(self._files.paths, self._files.sizes, strict=True)
        largest = max((size for path, size in sizes if path in self._magics), default=1)
        return max(1, chunk_budget() // (_RATIO * max(1, largest)))


class LineSource(FileSource):
    """The base of sources of lines."""

    _lines: LineFiles

    @property
    def random_access(self) -> bool:
        return self._lines.kept is None

    def chunks(self) -> Indices | None:
        if self._lines.kept is None:
            return super().chunks()
        return np.append(self._lines.parts.starts, len(self))

    @property
    def kept_chunks(self) -> KeptChunks[Array] | None:
        return self._lines.kept

    @property
    def record_nbytes(self) -> int:
        return self._lines.nbytes // max(1, len(self))
