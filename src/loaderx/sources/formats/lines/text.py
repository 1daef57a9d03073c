"""Text files: each line is a record, ``{"text": line}``; blank lines are records, too."""

from __future__ import annotations

from collections.abc import Sequence

from loaderx.errors import ArgumentError
from loaderx.memory import Lend
from loaderx.sources.base import BadRecordError, Indices, Source
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.column import OBJECT
from loaderx.sources.files.parts import in_places
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.lines.files import LineFiles, LinesOfFile, LineSource
from loaderx.sources.formats.lines.index import Offsets, line_offsets
from loaderx.tree import Array, Tree

_COLUMN = "text"


class TextLines(LineSource):
    """The lines of text files in UTF-8, without the ends of the lines."""

    def __init__(self, lines: LineFiles) -> None:
        lines.check_any()
        self._lines = self._reader = lines

    @property
    def spec(self) -> Tree:
        return {_COLUMN: OBJECT}

    def label(self) -> str:
        return f"open(text: {len(self)} lines)"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        column = self.buffers(len(indices), lend)
        column[_COLUMN][:] = self._texts(indices)
        return column

    def records(self, indices: Indices) -> list[Tree]:
        return [{_COLUMN: text} for text in self._texts(indices)]

    def _texts(self, indices: Indices) -> Sequence[object]:
        try:
            with self._lines.together(indices):
                parts = self._lines.split(indices)
                return in_places(len(indices), ((part.places, _decoded(part)) for part in parts))
        except UnicodeDecodeError:
            self._explain(indices)
            raise

    def _explain(self, indices: Indices) -> None:
        """Raises an error that names the line that is not UTF-8."""
        for number, index in enumerate(indices.tolist()):
            (part,) = self._lines.split(indices[number : number + 1])
            try:
                _decoded(part)
            except UnicodeDecodeError as error:
                raise BadRecordError(f"{self.where(index)}: {not_utf8(error)}") from error


def not_utf8(error: UnicodeDecodeError) -> str:
    """The message for a line that cannot be decoded."""
    byte = error.object[error.start]
    return f"it is not UTF-8 (byte {byte:#04x} at {error.start}: {error.reason})"


def _decoded(part: LinesOfFile) -> list[str]:
    if part.is_run:
        # One conversion for all lines.  Never `splitlines`: it splits at a dozen other characters.
        text = str(part.data.data[part.starts[0] : part.stops[-1]], "utf-8")
        texts = text.removesuffix("\n").split("\n")
        return [text.removesuffix("\r") for text in texts] if "\r" in text else texts
    return [str(piece, "utf-8") for piece in part.without_ends().pieces()]


def _find(data: Array, path: str) -> tuple[Offsets, Json]:
    return line_offsets(data, path), None


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    options.chosen([_COLUMN], files[0])
    if options.fill:
        raise ArgumentError(f"lines of text have no missing values to fill, got {options.fill!r}.")
    return TextLines(LineFiles(files, "text", 1, _find, options.cache))
