"""The keys of the records of JSON files and their types, found from the first records."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.sources.cache.folder import Json
from loaderx.sources.formats.lines.json_columns import JsonColumn, Values, column_of
from loaderx.sources.formats.lines.numbers import DType, check_known

Record: TypeAlias = "dict[str, object]"

_NULL = type(None)


class JsonSchema:
    """The keys to read, each with a column, and the values for records that lack one.

    A key counts if most of the first records have it: one damaged record must not decide
    for all others.
    """

    def __init__(
        self,
        sample: Sequence[Record],
        columns: Sequence[str] | None,
        types: Mapping[str, DType],
        fill: Mapping[str, object],
        where: str,
    ) -> None:
        counts = Counter(name for one in sample for name in one)
        known = list(dict.fromkeys([*counts, *fill]))
        for what, names in (("columns", columns or ()), ("types", types)):
            check_known(what, names, known, where)
        usual = [one for one in known if one in fill or 2 * counts[one] > len(sample)]
        self.names = usual if columns is None else list(dict.fromkeys(columns))
        self.is_chosen = columns is not None
        self._known = set(self.names)
        self.fill = {name: value for name, value in fill.items() if name in self._known}
        self.columns = []
        for name in self.names:
            values = [one[name] for one in sample if one.get(name) is not None]
            self.columns.append(column_of(name, values, types.get(name)))
        self.dtypes = [np.dtype(one.spec.dtype) for one in self.columns if one.spec is not None]
        self._check_fill()

    def _check_fill(self) -> None:
        for column in self.columns:
            value = self.fill.get(column.name)
            if value is not None:
                try:
                    column.converted([value], {type(value)})
                except ValueError as error:
                    raise ArgumentError(f"`fill`: {error}.") from error

    def told(self) -> list[Json]:
        """The options that the values of a file depend on."""
        columns: list[Json] = [
            [column.name, type(column).__name__, str(column.kept.kind)] for column in self.columns
        ]
        fill: list[Json] = [[name, repr(value)] for name, value in sorted(self.fill.items())]
        return [columns, self.is_chosen, fill]

    @property
    def can_be_stacked(self) -> bool:
        """True if every column has a spec, and no value may be None."""
        return all(one.spec is not None for one in self.columns) and None not in [
            self.fill.get(name, 0) for name in self.names
        ]

    def values(self, records: list[Record]) -> list[Values]:
        """The values of records, column by column; a ValueError if one of them is wrong."""
        self._fill_in(records)
        if not self.is_chosen and set(map(len, records)) != {len(self.names)}:
            self._check_keys(records)
        try:
            columns = [list(map(itemgetter(name), records)) for name in self.names]
        except KeyError as error:
            raise ValueError(
                f"it has no {error}. Give a value for it, fill={{{error}: ...}}, or leave it out "
                "with columns="
            ) from None
        pairs = zip(self.columns, columns, strict=True)
        return [self.converted(column, values) for column, values in pairs]

    def _fill_in(self, records: list[Record]) -> None:
        for name, value in self.fill.items():
            for record in records:
                if record.get(name) is None:
                    record[name] = copy.copy(value)  # it may be a list

    def _check_keys(self, records: list[Record]) -> None:
        for record in records:
            for name in record:
                if name not in self._known:
                    raise ValueError(
                        f"it has {name!r}, which most of the first records do not have. Name the "
                        f"columns to read, columns=[...], or give a value, fill={{{name!r}: ...}}"
                    )

    def converted(self, column: JsonColumn, values: Values) -> Values:
        """The values of a column as records have them."""
        kinds = set(map(type, values))
        if _NULL not in kinds:
            return column.converted(values, kinds)
        if self.fill.get(column.name, 0) is not None:
            raise ValueError(
                f"{column.name!r} is null. Give a value for such records, "
                f"fill={{{column.name!r}: ...}}, or leave it out with columns="
            )
        present = [value for value in values if value is not None]
        left = iter(column.converted(present, kinds - {_NULL}) if present else ())
        return [None if value is None else next(left) for value in values]
