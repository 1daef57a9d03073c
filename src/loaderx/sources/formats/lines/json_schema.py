"""The keys of the records of JSON files and their types, found from the first records."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.categories import not_text
from loaderx.sources.columns.gaps import TEXT, add_columns, check_gaps, ways_out
from loaderx.sources.format import MissingWords, OpenOptions, check_named
from loaderx.sources.formats.lines.json_columns import (
    Codes,
    JsonColumn,
    Plain,
    Values,
    column_of,
    with_nan,
)
from loaderx.sources.formats.lines.numbers import DType, shown

Record: TypeAlias = "dict[str, object]"

_NULL = type(None)
_NO_CLASS = ("",)  # of a category whose values are all missing


class Sample(NamedTuple):
    """The first records, and values of keys whose type these do not show."""

    records: list[Record]
    more: list[Record]

    def values(self, name: str) -> list[object]:
        """The values under a key that are not null."""
        found = [one.get(name) for one in itertools.chain(self.records, self.more)]
        return [value for value in found if value is not None]


class Facts(NamedTuple):
    """What is known when all records were read through."""

    records: int
    present: Counter[str]  # the values under each key
    classes: Mapping[str, set[str]]  # the values of categories


class JsonSchema:
    """The keys to read, each with a column, and the values for records that lack one.

    A key counts if most of the first records have it: one damaged record must not decide
    for all others.
    """

    def __init__(
        self,
        sample: Sample,
        types: Mapping[str, DType],
        given: OpenOptions,
        facts: Facts,
        where: str,
    ) -> None:
        columns, fill, words = given.columns, given.fill, given.missing
        counts = Counter(name for one in sample.records for name in one)
        wanted = {*fill, *words.by_column, *facts.present}
        known = list(dict.fromkeys([*counts, *fill, *facts.present]))
        asked = {"columns": columns or (), "types": given.types, "missing": words.by_column}
        for what, names in asked.items():
            check_named(what, names, known, where, "")
        usual = [one for one in known if one in wanted or 2 * counts[one] > len(sample.records)]
        usual = usual if columns is None else list(columns)
        self.is_chosen = columns is not None
        self.fill = {name: value for name, value in fill.items() if name in usual}
        self.classes = {n: tuple(sorted(facts.classes[n])) for n in given.categories if n in usual}
        found: dict[str, JsonColumn] = {}
        for name in usual:
            values = sample.values(name)
            found[name] = column_of(name, values, types.get(name))
            if name in self.classes:
                other = next((one for one in values if not isinstance(one, str)), None)
                if other is not None:
                    raise not_text(name, shown(other))
                found[name] = Codes(name, self.classes[name] or _NO_CLASS)
        self._gaps: dict[str, object] = {}  # what stands in the place of missing values
        self._valid: list[str] = []  # the columns with a leaf that says which are there
        self.columns = self._with_gaps(found, sample, words, facts, where)
        self.names = [column.name for column in self.columns]
        self._known = set(self.names)
        self.dtypes = [np.dtype(one.spec.dtype) for one in self.columns if one.spec is not None]
        self._check_fill()

    def _with_gaps(
        self,
        found: Mapping[str, JsonColumn],
        sample: Sample,
        words: MissingWords,
        facts: Facts,
        where: str,
    ) -> list[JsonColumn]:
        """The columns, with those that missing values ask for."""
        kinds = {n: TEXT if n in self.classes else one.kept.kind for n, one in found.items()}
        plain = {name: kind for name, kind in kinds.items() if name not in self.fill}
        lacking = {name: facts.records - facts.present[name] for name in plain}
        have = [name for name, count in lacking.items() if count and facts.records]
        made = dict(found)
        for name, word in check_gaps(words, plain, have, lacking.get, where).items():
            made[name] = with_nan(found[name]) if word == "nan" else found[name]
            dtype, values = made[name].kept.kind.dtype, sample.values(name)
            if dtype is not None and dtype.kind == "M":
                self._gaps[name] = "NaT"
            elif word == "nan":
                self._gaps[name] = np.nan
            elif name in self.classes:
                (self._gaps[name], *_) = self.classes[name] or _NO_CLASS
            elif values:  # 0, False, "", [] or {}
                self._gaps[name] = type(values[0])()
            else:  # None where nothing shows the type
                self._gaps[name] = None if dtype is None else dtype.type(0).item()
            self._valid += [name] if word == "valid" else []
        columns: dict[str, JsonColumn] = {}
        for name, column in made.items():
            add_columns(columns, {name: column})
            if name in self._valid:
                add_columns(columns, {f"{name}_valid": Plain(f"{name}_valid", bool)})
        return list(columns.values())

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
        gaps: Json = [[name, repr(value)] for name, value in self._gaps.items()]
        more: list[Json] = [gaps, list(self.classes)] if gaps or self.classes else []
        return [columns, self.is_chosen, fill, *more]

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
        except KeyError:
            lacking = [one for one in self.names if any(one not in record for record in records)]
            what = f"it has no {', '.join(map(repr, lacking))}"
            raise ValueError(f"{what}. {ways_out(lacking)}") from None
        nulls = [one for one, values in zip(self.names, columns, strict=True) if None in values]
        given = {**self.fill, **self._gaps}
        nulls = [name for name in nulls if given.get(name, 0) is not None]
        if nulls:
            are = "is" if len(nulls) == 1 else "are"
            raise ValueError(f"{', '.join(map(repr, nulls))} {are} null. {ways_out(nulls)}")
        pairs = zip(self.columns, columns, strict=True)
        return [self.converted(column, values) for column, values in pairs]

    def _fill_in(self, records: list[Record]) -> None:
        for name in self._valid:
            for record in records:
                record[f"{name}_valid"] = record.get(name) is not None
        for name, value in [*self.fill.items(), *self._gaps.items()]:
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
        present = [value for value in values if value is not None]
        left = iter(column.converted(present, kinds - {_NULL}) if present else ())
        return [None if value is None else next(left) for value in values]
