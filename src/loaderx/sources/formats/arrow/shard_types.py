"""The types of the columns of a dataset, from the Arrow schemas of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderx.errors import FileError
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.merged_types import merged_types
from loaderx.sources.format import check_columns, first_twice
from loaderx.sources.formats.arrow.types import Features, column_types

if TYPE_CHECKING:
    import pyarrow as pa


class ShardTypes:
    """The columns of the first shard; others may have another order, and narrower numbers."""

    def __init__(
        self,
        schema: pa.Schema,
        path: str,
        columns: Sequence[str] | None,
        features: Features | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        """``features`` are used where the schema has none; columns ``beside`` are not in files."""
        self.first, self._path = schema, path
        own = Features.of(schema.metadata)
        self.features = own if own.by_name or features is None else features
        have = [*schema.names, *beside]
        twice = first_twice(have)
        if twice is not None:
            raise FileError(f"{path} has two columns of the name {twice!r}.")
        chosen = have if columns is None else check_columns(columns, have, path)
        self._is_strict = columns is None
        in_files = set(schema.names)
        self.names = [name for name in chosen if name in in_files]
        self.kinds: dict[str, ColumnType] = self._types(schema, path)
        self.classes = {
            path: one
            for path, one in self.features.classes().items()
            if path.split(".")[0] in self.kinds
        }

    def _types(self, schema: pa.Schema, path: str) -> dict[str, ColumnType]:
        try:
            return column_types(schema, self.features, self.names)
        except FileError as error:
            raise FileError(f"{path}: {error}") from error

    def add(self, schema: pa.Schema, path: str) -> bool:
        """Minds the schema of another shard; are its columns of the very same types?"""
        if schema.equals(self.first):
            return True
        have, wanted = schema.names, set(self.names)
        known = set(have)
        for name in self.names:
            if name not in known:
                raise FileError(
                    f"{path} has no column {name!r}, which {self._path} has: the shards of a "
                    "dataset have the same columns. Choose some with columns=[...]."
                )
        for name in have if self._is_strict else ():
            if name not in wanted:
                raise FileError(
                    f"{path} has a column {name!r}, which {self._path} has not: the shards of a "
                    "dataset have the same columns. Choose some with columns=[...]."
                )
        for name, kind in self._types(schema, path).items():
            merged = merged_types(self.kinds[name], kind)
            if merged is None:
                raise FileError(
                    f"column {name!r} is {self.kinds[name]} in {self._path}, and {kind} in {path}: "
                    "shards have one type. Write them again, or leave the column out with "
                    "columns=[...]."
                )
            self.kinds[name] = merged
        return all(schema.field(n).type.equals(self.first.field(n).type) for n in self.names)
