"""Files whose records are numbered through all of them."""

from __future__ import annotations

from loaderx.errors import FileError
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts


class RecordFiles:
    """The base of readers of such files."""

    def __init__(self, files: FileSet, parts: Parts, word: str = "record") -> None:
        """``parts`` are the records of each file; messages call a record ``word``."""
        self.files, self.parts, self._word = files, parts, word

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def counts(self) -> list[int]:
        """How many records each file has."""
        found: list[int] = self.parts.counts.tolist()
        return found

    def file_of(self, index: int) -> tuple[str, int]:
        """The file of a record, and its number in it."""
        part, number = self.parts.locate(index)
        return self.files.paths[part], number

    def where(self, index: int) -> str:
        """The file of a record and its place in it, for messages."""
        path, number = self.file_of(index)
        return f"{path}, {self._word} {number}"

    def check(self, index: int) -> str | None:
        """What the checksum of a record says of its bytes; None: nothing is wrong, or known."""
        return None

    def outside(self, part: int) -> FileError:
        """The error for an index that is damaged: it must not make up records."""
        return FileError(
            f"{self.files.paths[part]}: the index has records outside the file. Remove the cache "
            "folder, so that it is made again."
        )
