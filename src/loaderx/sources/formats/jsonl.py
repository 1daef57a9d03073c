"""JSON: objects one a line (``.jsonl``, ``.ndjson``), or a file that is one array of objects.

A record is the object of a line, as a dict.  Lines without a visible character are left out.  The
keys are those that most of the first 100 records have; a record that lacks one, or has another, is
an error that names its file and line; ``columns`` and ``fill`` say what to do about such records.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources.base import Indices, Source
from loaderx.sources.file_source import FileSource
from loaderx.sources.format import FileFormat, OpenOptions
from loaderx.sources.formats.json_columns import JsonColumn, Record, columns_of
from loaderx.sources.formats.json_parsing import (
    JsonValue,
    element_offsets,
    is_array,
    parse_elements,
    parse_lines,
)
from loaderx.sources.formats.numbers import DType, Types, check_known, checked_types, shown
from loaderx.sources.formats.text import not_utf8
from loaderx.sources.line_files import LineFiles, LinesOfFile
from loaderx.sources.ondisk.cache import CacheArgument, Json, cache_folder
from loaderx.sources.ondisk.line_index import WHITESPACE, Offsets, line_offsets
from loaderx.sources.ondisk.paths import PathLike, find
from loaderx.tree import Array, Tree

SAMPLE = 100
"""Records at the beginning that say which keys there are, and of which types."""

_ARRAY = "array"  # the note of a file that is one array


class Jsonl(FileSource):
    """Records of JSON files, objects one a line, or one array of objects.

    `Dataset.open` makes it; use it yourself for ``types``.

    Args:
        path: a file, a pattern such as ``data/*.jsonl``, or a list of files.
        columns: the keys to keep; all by default.
        types: dtypes of numbers and of lists of them, by key; ``object`` leaves values as JSON has
            them. By default numbers are Python's, and lists of numbers int32 or float32.
        fill: values by key, for records that lack it or have null.
        cache: the folder for indexes, as in `Dataset.open`.

    >>> import os
    >>> with open("ids.jsonl", "w") as file:
    ...     _ = file.write('{"id": 5000000000, "x": [1, 2]}')
    >>> Jsonl("ids.jsonl", types={"id": "int64"}, cache=False)[0]
    {'id': np.int64(5000000000), 'x': array([1, 2], dtype=int32)}
    >>> os.remove("ids.jsonl")
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        types: Types | None = None,
        fill: Mapping[str, object] | None = None,
        cache: CacheArgument = None,
    ) -> None:
        files = find(path)
        if files.folder is not None:
            raise FileError(f"{files.folder} is a folder: give its files, such as folder/*.jsonl.")
        if isinstance(columns, str):
            raise ArgumentTypeError(f"`columns` must be a list of names, got the text {columns!r}.")
        dtypes = checked_types(types, others="object, for values as they are")
        self._lines = LineFiles(files.files, "json", 1, _find, cache_folder(cache))
        self._begin(columns, dtypes, fill or {})

    def _begin(
        self,
        columns: Sequence[str] | None,
        types: Mapping[str, DType],
        fill: Mapping[str, object],
    ) -> None:
        where = self._lines.files.paths[0]
        self._lines.check_any()
        self._fill = dict(fill)
        sample = self._sample()
        counts = Counter(name for one in sample for name in one)
        known = list(dict.fromkeys([*counts, *self._fill]))
        for what, names in (("columns", columns or ()), ("types", types)):
            check_known(what, names, known, where)
        # One damaged record must not be the measure of all others.
        most = [one for one in known if one in self._fill or 2 * counts[one] > len(sample)]
        self._names = most if columns is None else list(dict.fromkeys(columns))
        self._is_chosen = columns is not None
        self._fill = {name: value for name, value in self._fill.items() if name in self._names}
        self._may_be_null = {name for name, value in self._fill.items() if value is None}
        self._columns = columns_of(sample, self._names, types)
        self._check_fill()

    def _check_fill(self) -> None:
        for column in self._columns:
            value = self._fill.get(column.name)
            if value is not None:
                try:
                    column.converted([value], {type(value)})
                except ValueError as error:
                    raise ArgumentError(f"`fill` does not suit the column: {error}.") from error

    def _sample(self) -> list[Record]:
        """The first records, without those that cannot be read; an error if none can."""
        found, first = [], None
        for index in range(min(SAMPLE, len(self))):
            try:
                found += self._parsed(np.array([index]))
            except ValueError as error:
                first = first or f"{self.where(index)}: {_reason(error)}"
        if not found:
            raise FileError(f"{first}. Are there JSON objects in it, one a line?")
        return found

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def shard_counts(self) -> list[int]:
        counts: list[int] = self._lines.parts.counts.tolist()
        return counts

    def label(self) -> str:
        return f"open(json: {', '.join(self._names)})"

    def where(self, index: int) -> str:
        file, number = self._lines.parts.locate(index)
        if self._lines.notes[file] == _ARRAY:
            return f"{self._lines.files.paths[file]}, element {number}"
        return self._lines.where(index)

    def records(self, indices: Indices) -> list[Tree]:
        try:
            return self._finished(self._parsed(indices))
        except ValueError:
            pass  # one of them is wrong: which?
        found: list[Tree] = []
        for number, index in enumerate(indices.tolist()):
            try:
                found += self._finished(self._parsed(indices[number : number + 1]))
            except ValueError as error:
                raise ValueError(f"{self.where(index)}: {_reason(error)}") from error
        return found

    def _parsed(self, indices: Indices) -> list[Record]:
        found: list[JsonValue] = [None] * len(indices)
        for part in self._lines.split(indices):
            values = self._parse(part)
            if isinstance(part.places, slice):
                found = list(values)
                break
            for place, value in zip(part.places.tolist(), values, strict=True):
                found[place] = value
        if set(map(type, found)) != {dict}:
            wrong = next(one for one in found if type(one) is not dict)
            raise ValueError(f"it is {shown(wrong)}, and records are objects")
        return found  # type: ignore[return-value]

    def _parse(self, part: LinesOfFile) -> Sequence[JsonValue]:
        is_element = self._lines.notes[part.file] == _ARRAY
        return parse_elements(part) if is_element else parse_lines(part)

    def _finished(self, records: list[Record]) -> list[Tree]:
        """The records with the keys and the types that all of them have."""
        self._fill_in(records)
        names = self._names
        if not self._is_chosen and set(map(len, records)) != {len(names)}:
            self._check_keys(records)
        try:
            columns = [list(map(itemgetter(name), records)) for name in names]
        except KeyError as error:
            raise ValueError(
                f"it has no {error}. Give a value for it, fill={{{error}: ...}}, or leave it out "
                "with columns="
            ) from None
        made: list[Record] = [{} for _ in records] if self._is_chosen else records
        for column, values in zip(self._columns, columns, strict=True):
            converted = self._converted(column, values)
            if converted is None:
                if not self._is_chosen:
                    continue
                converted = values
            for record, value in zip(made, converted, strict=True):
                record[column.name] = value
        return made

    def _fill_in(self, records: list[Record]) -> None:
        for name, value in self._fill.items():
            for record in records:
                if record.get(name) is None:
                    record[name] = copy.copy(value)  # it may be a list

    def _check_keys(self, records: list[Record]) -> None:
        for record in records:
            for name in record:
                if name not in self._names:
                    raise ValueError(
                        f"it has {name!r}, which most of the first records do not have. Name the "
                        f"columns to read, columns=[...], or give a value, fill={{{name!r}: ...}}"
                    )

    def _converted(self, column: JsonColumn, values: list[object]) -> Sequence[object] | None:
        kinds = set(map(type, values))
        if type(None) not in kinds:
            return column.converted(values, kinds)
        if column.name not in self._may_be_null:
            raise ValueError(
                f"{column.name!r} is null. Give a value for such records, "
                f"fill={{{column.name!r}: ...}}, or leave it out with columns="
            )
        present = [value for value in values if value is not None]
        converted = column.converted(present, kinds - {type(None)}) if present else None
        if converted is None:
            return None
        left = iter(converted)
        return [None if value is None else next(left) for value in values]


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return not_utf8(error)
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error.msg} at character {error.pos}"
    return str(error)


def _find(data: Array, path: str) -> tuple[Offsets, Json]:
    if is_array(data, path):
        return element_offsets(data, path), _ARRAY
    return line_offsets(data, path, WHITESPACE), None


def _open(files: list[str], options: OpenOptions) -> Source:
    return Jsonl(files, options.columns, fill=options.fill, cache=options.cache)


JSONL = FileFormat(name="json", suffixes=(".jsonl", ".ndjson", ".json"), open=_open)
