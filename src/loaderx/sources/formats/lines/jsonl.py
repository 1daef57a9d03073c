"""JSON: objects one a line (``.jsonl``, ``.ndjson``), or a file that is one array of objects.

A record is the object of a line, as a dict.  Lines without a visible character are left out.  The
keys are those that most of the first 100 records have; a record that lacks one, or has another, is
an error that names its file and line; ``columns`` and ``fill`` choose how such records are read.

Lines are parsed once, into a copy of their columns in the cache folder (`lines.copies`).
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loaderx.errors import FileError
from loaderx.memory import Lend
from loaderx.sources.base import BadRecordError, Indices, PadsLists, Problem, Source
from loaderx.sources.cache.folder import (
    CacheArgument,
    CacheFolder,
    IndexedFile,
    Json,
    cache_folder,
)
from loaderx.sources.cache.unpack import unpack_all
from loaderx.sources.columns.padded import PaddedColumns
from loaderx.sources.files.paths import PathLike, find
from loaderx.sources.format import MissingArgument, OpenOptions, open_options
from loaderx.sources.formats.lines.copies import LineCopy, open_copy
from loaderx.sources.formats.lines.files import LineFiles, LinesOfFile, LineSource
from loaderx.sources.formats.lines.index import Offsets, line_offsets
from loaderx.sources.formats.lines.json_columns import Values
from loaderx.sources.formats.lines.json_parsing import (
    element_offsets,
    is_array,
    parse_elements,
    parse_lines,
)
from loaderx.sources.formats.lines.json_schema import Facts, JsonSchema, Record, Sample
from loaderx.sources.formats.lines.numbers import Types, checked_types, shown
from loaderx.sources.formats.lines.text import not_utf8
from loaderx.tree import Array, Tree

SAMPLE = 100
"""Records at the beginning from which the keys and their types are found."""

_MOST = 100 * SAMPLE
"""Records in which the type of a key is looked for that had null or empty lists before."""

_ARRAY = "array"  # the note of a file that is one array


class Jsonl(PadsLists, LineSource):
    """Records of JSON files, objects one a line, or one array of objects.

    `Dataset.open` makes it.

    Args:
        path: a file, a pattern such as ``data/*.jsonl``, or a list of files.
        columns: the keys to keep; all by default.
        types: dtypes of numbers, of lists of them and of times, by key; ``"category"`` makes codes
            of text; ``object`` leaves values as JSON has them. By default numbers are Python's,
            and lists of numbers int32 or float32.
        fill: values by key, for records that lack it or have null.
        cache: the folder for indexes and copies, as in `Dataset.open`.
        missing: what becomes of the others, as in `Dataset.open`.

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
        *,
        missing: MissingArgument = "error",
    ) -> None:
        folder = cache_folder(cache)
        files = find(path, folder.files)
        if files.folder is not None:
            raise FileError(f"{files.folder} is a folder: give its files, such as folder/*.jsonl.")
        dtypes = checked_types(types, others="object, for values as they are")
        self._lines = self._reader = LineFiles(
            unpack_all(files.files, folder, in_memory=True), "json", 1, _find, folder
        )
        self._lines.check_any()
        self._lines.are_alike = len(set(map(str, self._lines.notes))) == 1
        where = self._lines.files.paths[0]
        self._given = open_options(columns, False, fill, folder, missing, types)
        facts = self._facts(folder)
        self._schema = JsonSchema(self._sample(), dtypes, self._given, facts, where)
        kept = {column.name: column.kept for column in self._schema.columns}
        self._copy: LineCopy | None = open_copy(
            kept, self._lines, self._parsed, folder, "JSON", self._schema.told()
        )

    def _sample(self) -> Sample:
        """The first records, without those that cannot be read; an error if none can."""
        errors: list[str] = []
        sample = Sample(list(self._readable(0, SAMPLE, errors)), [])
        if not sample.records:
            raise FileError(f"{errors[0]}. JSON objects are expected, one a line.")
        names = {name for one in sample.records for name in one}
        for start in range(SAMPLE, min(_MOST, len(self)), SAMPLE):
            names = {name for name in names if not any(map(_tells, sample.values(name)))}
            if not names:
                break
            for record in self._readable(start, start + SAMPLE, errors):
                sample.more.append({name: record.get(name) for name in names})
        return sample

    def _readable(self, start: int, stop: int, errors: list[str]) -> Iterator[Record]:
        """The objects of lines, without those that cannot be read, whose errors are added."""
        indices = np.arange(start, min(stop, len(self)))
        try:
            if start:  # the first batch that is read decides whether the kernel gets hints
                parts = self._lines.split(indices)
                yield from [one for part in parts for one in self._objects(part)]
                return
        except ValueError:
            pass  # one by one below
        for index in indices:
            try:
                (part,) = self._lines.split(np.array([index]))
                yield from self._objects(part)
            except ValueError as error:
                errors.append(f"{self.where(int(index))}: {self._reason(error)}")

    def _facts(self, cache: CacheFolder) -> Facts:
        """What only reading all records tells; it is found once, like an index."""
        names, fill = self._given.categories, self._given.fill
        facts = Facts(0, Counter(), {name: set() for name in names})
        if not self._given.needs_all:
            return facts
        ends = np.cumsum(self._lines.parts.counts).tolist()

        def look(number: int) -> IndexedFile:
            records, present = 0, Counter[str]()
            values: dict[str, set[object]] = {name: set() for name in names}
            for start in range(ends[number - 1] if number else 0, ends[number], SAMPLE):
                for record in self._readable(start, min(start + SAMPLE, ends[number]), []):
                    records += 1
                    present.update(name for name, one in record.items() if one is not None)
                    for name, known in values.items():
                        known.update([one] if isinstance(one := record.get(name), str) else [])
            found: Json = {name: list(map(str, known)) for name, known in values.items()}
            return IndexedFile({}, [records, dict(present), found])

        notes: list[Any] = cache.index(f"json {names}", 1, self._lines.files, look).notes
        for records, present, values in notes:
            if self._given.missing.every != "error":
                facts = facts._replace(records=facts.records + records)
                facts.present.update(present)
            for name, known in facts.classes.items():
                known.update(values[name], [str(fill[name])] if name in fill else [])
        return facts

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        return self._schema.classes

    @property
    def spec(self) -> Tree | None:
        if not self.gathers:
            return None
        return {column.name: column.spec for column in self._schema.columns}

    @property
    def gathers(self) -> bool:
        return self._schema.can_be_stacked

    def label(self) -> str:
        return f"open({self._given.label('jsonl')}: {', '.join(self._schema.names)})"

    def where(self, index: int) -> str:
        file, number = self._lines.parts.locate(index)
        if self._lines.notes[file] == _ARRAY:
            return f"{self._lines.files.paths[file]}, element {number}"
        return self._lines.where(index)

    def problems(self, first: int = 0, stop: int | None = None) -> Iterator[Problem | None]:
        plain = copy.copy(self)  # the check is of the files, not of the copy
        plain._copy = None
        yield from super(Jsonl, plain).problems(first, stop)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        schema = self._schema
        if self._copy is not None:
            found = self._copy.gather(indices, schema.dtypes, lend)
            if found is not None:
                return dict(zip(schema.names, found, strict=True))
        batch = self.buffers(len(indices), lend)
        for column, values in zip(schema.columns, self._columns_of(indices), strict=True):
            column.write(values, batch[column.name])
        return batch

    def padded(self, lengths: Mapping[str, int]) -> PaddedColumns | None:
        if self._copy is None:
            return None
        specs = [column.spec for column in self._schema.columns]
        return self._copy.padded(self._schema.names, specs, lengths)

    def records(self, indices: Indices) -> list[Tree]:
        records: list[Record] = [{} for _ in range(len(indices))]
        for name, values in zip(self._schema.names, self._columns_of(indices), strict=True):
            for record, value in zip(records, values, strict=True):
                record[name] = value
        return records

    def _columns_of(self, indices: Indices) -> Sequence[Values]:
        """The values of records, column by column."""
        with self._lines.together(indices):
            return self._found(indices)

    def _found(self, indices: Indices) -> Sequence[Values]:
        try:
            return self._read(indices)
        except FileError:  # of the whole file
            raise
        except ValueError:
            pass  # one by one below, to find the one that is wrong
        found = []
        for number, index in enumerate(indices.tolist()):
            try:
                found.append(self._read(indices[number : number + 1]))
            except ValueError as error:
                raise BadRecordError(f"{self.where(index)}: {self._reason(error)}") from error
        return [[values[0] for values in column] for column in zip(*found, strict=True)]

    def _read(self, indices: Indices) -> Sequence[Values]:
        """All at once; a ValueError if one of them is wrong."""
        if self._copy is not None:
            return self._copy.read(indices, self._parsed)
        return self._parsed(indices)

    def _parsed(self, indices: Indices) -> Sequence[Values]:
        found: list[list[object]] = [[None] * len(indices) for _ in self._schema.names]
        for part in self._lines.split(indices):
            columns = self._schema.values(self._objects(part))
            if isinstance(part.places, slice):
                return columns
            places = part.places.tolist()
            for target, values in zip(found, columns, strict=True):
                for place, value in zip(places, values, strict=True):
                    target[place] = value
        return list(found)

    def _reason(self, error: ValueError) -> str:
        if isinstance(error, UnicodeDecodeError):
            return not_utf8(error)
        if isinstance(error, json.JSONDecodeError):
            return f"it is not JSON: {error.msg} at character {error.pos}"
        return str(error)

    def _objects(self, part: LinesOfFile) -> list[Record]:
        is_element = self._lines.notes[part.file] == _ARRAY
        found = parse_elements(part) if is_element else parse_lines(part)
        if set(map(type, found)) != {dict}:
            wrong = next(one for one in found if type(one) is not dict)
            raise ValueError(f"it is {shown(wrong)}, and records are objects")
        return list(found)  # type: ignore[arg-type]


def _tells(value: object) -> bool:
    """True for values that show the type of their key."""
    return value is not None and value != []


def _find(data: Array, path: str) -> tuple[Offsets, Json]:
    if is_array(data, path):
        return element_offsets(data, path), _ARRAY
    return line_offsets(data, path, with_blank=False), None


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return Jsonl(
        files,
        options.columns,
        types=options.types,
        fill=options.fill,
        missing=options.missing,
        cache=options.cache,
    )
