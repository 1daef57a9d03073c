"""`ParsedLines`: the base of sources whose records are lines that must be parsed."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, FileSource, Indices, Problem
from loaderx.sources.formats.lines.copies import LineCopy
from loaderx.sources.formats.lines.files import LineFiles

Values = TypeVar("Values")
"""The values of one column: an array, or a list."""


class ParsedLines(FileSource, Generic[Values]):
    """Records are read column by column: from a copy if there is one, or parsed."""

    _lines: LineFiles
    _copy: LineCopy | None

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def shard_counts(self) -> list[int]:
        counts: list[int] = self._lines.parts.counts.tolist()
        return counts

    def where(self, index: int) -> str:
        return self._lines.where(index)

    def problems(self) -> Iterator[Problem | None]:
        plain = copy.copy(self)  # the files are to be checked, and not the copy
        plain._copy = None
        yield from super(ParsedLines, plain).problems()

    def _columns_of(self, indices: Indices) -> Sequence[Values]:
        """The values of records, column by column."""
        try:
            return self._read(indices)
        except FileError:  # of the whole file
            raise
        except ValueError:
            pass  # one of them is wrong: which?
        found = []
        for number, index in enumerate(indices.tolist()):
            try:
                found.append(self._read(indices[number : number + 1]))
            except ValueError as error:
                raise BadRecordError(f"{self.where(index)}: {self._reason(error)}") from error
        return [self._join(column) for column in zip(*found, strict=True)]

    @abstractmethod
    def _read(self, indices: Indices) -> Sequence[Values]:
        """All at once; a ValueError if one of them is wrong."""

    @abstractmethod
    def _reason(self, error: ValueError) -> str:
        """What is wrong with a record."""

    @abstractmethod
    def _join(self, columns: Sequence[Values]) -> Values:
        """One column, of those of single records."""
