"""Columns into the parts of a folder, one after the other."""

from __future__ import annotations

from loaderx.errors import StackError
from loaderx.sources.column_data import ColumnType
from loaderx.sources.column_widening import MisfitError, merged, widened
from loaderx.sources.ondisk.cache import Json
from loaderx.sources.ondisk.native_layout import VALUE
from loaderx.sources.ondisk.native_writer import PartWriter
from loaderx.sources.ondisk.progress import Progress
from loaderx.sources.ondisk.save_folder import SaveFolder, columns_of
from loaderx.sources.record_columns import Encoded


class PartsWriter:
    """Appends columns to the current part, and knows the type of all records so far.

    As a context manager it removes a part that is not complete.
    """

    def __init__(self, folder: SaveFolder, shown: Progress) -> None:
        self.folder, self._shown = folder, shown
        self.kind: ColumnType | None = None
        for number in sorted(folder.parts):
            found = folder.parts[number]
            self.kind = found.kind if self.kind is None else merged(self.kind, found.kind)
            shown.add(found.part.records)
        self._writer: PartWriter | None = None

    def append(self, part: int, found: Encoded, first: int) -> None:
        """Adds records to a part; ``first`` is the number of the first, for messages."""
        kind = self._merged(found, first)
        if self._writer is None:
            self._writer = self.folder.writer(part, kind)
        elif kind != self.kind:
            self._writer = self._writer.widened(columns_of(kind)[1])
        self.kind = kind
        data = widened(found.data, found.kind, kind)
        self._writer.append(dict(data.fields) if kind.is_branch else {VALUE: data})
        self._shown.add(data.length)

    def complete(self, part: int, state: Json) -> None:
        """Ends a part."""
        assert self._writer is not None
        assert self.kind is not None
        self.folder.add(part, self._writer, self.kind, state)
        self._writer = None

    def _merged(self, found: Encoded, first: int) -> ColumnType:
        if self.kind is None:
            return found.kind
        try:
            return merged(self.kind, found.kind)
        except MisfitError as error:
            where = f'leaf "{".".join(error.path)}" of ' if error.path else ""
            raise StackError(
                f"cannot save: {where}records {first} to {first + found.data.length - 1} has the "
                f"type {_told(error.two)}, and before them it was {_told(error.one)}. Make them "
                "alike in a .map() before saving."
            ) from None

    def __enter__(self) -> PartsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.remove()


def _told(kind: ColumnType) -> str:
    text = str(kind)
    return text if len(text) <= 200 else f"{text[:200]} ..."
