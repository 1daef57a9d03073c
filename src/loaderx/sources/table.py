"""`TableSource`: records that are rows of named columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from loaderx.errors import one_line
from loaderx.memory import Lend
from loaderx.sources.base import Indices
from loaderx.sources.columnar import ColumnarSource
from loaderx.sources.columns import Column
from loaderx.sources.file_source import BadRecordError
from loaderx.sources.parts import Parts
from loaderx.tree import Structure, Tree, flatten

ColumnTree: TypeAlias = "Mapping[str, Column | ColumnTree]"
"""Columns by name; columns of structs are dicts of columns."""


class TableSource(ColumnarSource):
    """Rows of columns: a record is a dict in the names of the file."""

    def __init__(
        self,
        columns: ColumnTree,
        length: int,
        *,
        label: str,
        classes: Mapping[str, tuple[str, ...]] | None = None,
        shard_counts: Sequence[int] | None = None,
        shard_names: Sequence[str] | None = None,
    ) -> None:
        leaves, structure = flatten(columns)
        super().__init__(leaves, structure, label, classes)
        self._columns: list[Column] = leaves
        self._length, self._shard_counts = length, shard_counts
        self._shard_names = shard_names

    def __len__(self) -> int:
        return self._length

    @property
    def shard_counts(self) -> Sequence[int] | None:
        return self._shard_counts

    def where(self, index: int) -> str:
        if self._shard_names is None or self._shard_counts is None:
            return super().where(index)
        shard, number = Parts(self._shard_counts).locate(index)
        return f"{self._shard_names[shard]}, record {number}"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        out = self._lent(len(indices), lend)
        for column, target in zip(self._columns, out, strict=True):
            column.take(indices, target)
        return self._structure.build(out)

    def records(self, indices: Indices) -> list[Tree]:
        try:
            columns = [column.values(indices) for column in self._columns]
        except (BadRecordError, UnicodeDecodeError) as error:
            if len(indices) == 1:  # many are read again one by one
                where = self.where(int(indices[0]))
                raise BadRecordError(f"{where}: {_told(error)}") from error
            raise
        return records_of(self._structure, columns)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, BadRecordError) else one_line(error)


def records_of(structure: Structure, columns: Sequence[Sequence[object]]) -> list[Tree]:
    """The records whose leaves are the values of these columns."""
    if structure.is_flat_dict:
        # Leaf by leaf: five times as fast as a dict(zip(...)) for each record.
        first, *others = structure.keys
        records: list[Tree] = [{first: value} for value in columns[0]]
        for key, column in zip(others, columns[1:], strict=True):
            for record, value in zip(records, column, strict=True):
                record[key] = value
        return records
    return [structure.build(row) for row in zip(*columns, strict=True)]
