"""The types of the columns of a dataset, from the Arrow schemas of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.columns.data import ColumnType
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
        """Checks another shard against the first; True if all types of columns are identical."""
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
                    f"{path} has a column {name!r}, which {self._path} does not have: the "
                    "shards of a dataset have the same columns. Choose some with columns=[...]."
                )
        for name, kind in self._types(schema, path).items():
            merged = _common_type(self.kinds[name], kind)
            if merged is None:
                raise FileError(
                    f"column {name!r} is {self.kinds[name]} in {self._path}, and {kind} in {path}: "
                    "shards have one type. Write them again, or leave the column out with "
                    "columns=[...]."
                )
            self.kinds[name] = merged
        return all(schema.field(n).type.equals(self.first.field(n).type) for n in self.names)


def _common_type(one: ColumnType, other: ColumnType) -> ColumnType | None:
    """The type that holds the values of both without loss; None if there is none.

    Integers and floats may differ in width; all else must be the same.
    """
    if one == other:
        return one
    if one.kind != other.kind or one.shape != other.shape or set(one.fields) != set(other.fields):
        return None
    fields = {}
    for name, field in one.fields.items():
        merged = _common_type(field, other.fields[name])
        if merged is None:
            return None
        fields[name] = merged
    dtype = _wider(one.dtype, other.dtype)
    if dtype is None and one.dtype is not None:
        return None
    return one.replace(dtype=dtype, fields=fields)


def _wider(
    one: np.dtype[np.generic] | None, other: np.dtype[np.generic] | None
) -> np.dtype[np.generic] | None:
    if one is None or other is None or one == other:
        return one
    if one.kind != other.kind or one.kind not in "iuf":
        return None
    return max(one, other, key=lambda dtype: dtype.itemsize)
