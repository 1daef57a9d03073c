"""`TableSource`: records that are rows of named columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, LoaderxError, one_line
from loaderx.memory import Layout, Lend
from loaderx.sources.adapt.arrays import describe_spec, gatherer_of
from loaderx.sources.base import BadRecordError, FileSource, Gather, Indices, PadsLists
from loaderx.sources.columns.column import Column, ColumnSpans, FixedColumn, records_of, together
from loaderx.sources.columns.elements import Needs, PartElements
from loaderx.sources.columns.padded import PaddedColumns, padded_columns
from loaderx.sources.files.cold import ColdReads
from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.sources.files.parts import Located, Parts
from loaderx.tree import Array, ArraySpec, Structure, Tree, flatten


class HasSpec(Protocol):
    """A reader of one leaf of all records: a column, or a decoder."""

    @property
    def spec(self) -> ArraySpec | None: ...


class ColumnarSource(FileSource):
    """The base of tables and Examples: spec, label and classes follow from the leaves."""

    def __init__(
        self,
        leaves: Sequence[HasSpec],
        structure: Structure,
        label: str,
        classes: Mapping[str, tuple[str, ...]] | None,
    ) -> None:
        if not leaves:
            raise ArgumentError("there are no columns to read.")
        self._structure, self._label, self._classes = structure, label, dict(classes or {})
        specs = [leaf.spec for leaf in leaves]
        self._gathers = all(spec is not None for spec in specs)
        self._specs = [spec for spec in specs if spec is not None] if self._gathers else []

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        return self._classes

    @property
    def spec(self) -> Tree | None:
        return self._structure.build(self._specs) if self._gathers else None

    @property
    def gathers(self) -> bool:
        return self._gathers

    def label(self) -> str:
        if self._gathers:
            return f"open({self._label}: {describe_spec(self.spec)})"
        return f"open({self._label}: {', '.join(self._structure.paths())})"

    def _lent(self, count: int, lend: Lend) -> Sequence[Array]:
        """An array for each leaf of ``count`` records."""
        return lend(self._layout(count))

    def _layout(self, count: int) -> Layout:
        shapes = [((count, *spec.shape), np.dtype(spec.dtype)) for spec in self._specs]
        return Layout.of(*shapes)


NamedColumns: TypeAlias = "Mapping[str, Column | ColumnTree]"
ColumnTree: TypeAlias = "NamedColumns | tuple[Column | ColumnTree, ...]"
"""Columns by name; columns of structs are dicts of columns, those of tuples are tuples."""


class TableSource(PadsLists, ColumnarSource):
    """Rows of columns: a record is a dict with the names of the file."""

    is_mapped = True  # True if columns may be mapped files, for which the kernel takes hints

    reads_behind = True  # True if the bytes behind a value are readable, to the end of its array

    def __init__(
        self,
        columns: Column | ColumnTree,
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
        self._locate = self._columns[0].parts.at
        self._length, self._shard_counts = length, shard_counts
        self._shard_names = shard_names
        spans = ColumnSpans(self._columns) if self.is_mapped else None
        self._cold = ColdReads(find=spans)
        self._is_fetched = any(column.is_fetched for column in leaves)
        self._sets: dict[int, FileSet] = {}  # the sets from which something was fetched
        self._has_all = False  # True if there is nothing left to fetch

    def __len__(self) -> int:
        return self._length

    @property
    def large_records(self) -> bool:
        return any(column.is_large for column in self._columns)

    @property
    def shard_counts(self) -> Sequence[int] | None:
        return self._shard_counts

    @property
    def columns(self) -> tuple[list[Column], Structure]:
        """The columns, and the structure of a record that has a value of each."""
        return self._columns, self._structure

    def leaf(self, path: str) -> TableSource | None:
        named = dict(zip(self._structure.paths(), self._columns, strict=True))
        if path not in named:
            return None
        return TableSource({path: named[path]}, self._length, label=self._label)

    def file_of(self, index: int) -> tuple[str, int] | None:
        if self._shard_names is None or self._shard_counts is None:
            return super().file_of(index)
        shard, number = Parts(self._shard_counts).locate(index)
        return self._shard_names[shard], number

    def where(self, index: int) -> str:
        found = None if self._shard_names is None else self.file_of(index)
        return super().where(index) if found is None else f"{found[0]}, record {found[1]}"

    @property
    def fetches(self) -> bool:
        return self._is_fetched

    def fetch(self, indices: Indices) -> int:
        if self._has_all:
            return 0
        found = 0
        at = self._locate(indices)
        for needs in together([column.needs(at) for column in self._columns]):
            for files, ranges in joined_needs(needs):
                found += files.fetch_ranges(ranges)
                self._sets[id(files)] = files
        self._has_all = bool(self._sets) and all(one.is_whole for one in self._sets.values())
        return found

    def _find(self, indices: Indices) -> Located:
        """Where records lie, after what they need was fetched, and hints were given."""
        if self._is_fetched:
            self.fetch(indices)  # all columns at once
        if self._cold.is_needed:
            self._cold.before(indices)
        return self._locate(indices)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        out, at = self._lent(len(indices), lend), self._find(indices)
        for column, target in zip(self._columns, out, strict=True):
            column.take(at, target)
        return self._structure.build(out)

    def gatherer(self, rows: int) -> Gather:
        if not self._structure.is_flat_dict or not self.is_mapped or self._is_fetched:
            return self.gather
        arrays = self._arrays()
        if arrays is None:
            gather = self._columns_gatherer(rows)
        else:
            gather = gatherer_of(self._structure.keys, arrays, rows)
        cold = self._cold
        if not cold.is_needed:
            return gather

        def gather_mapped(indices: Indices, lend: Lend) -> Tree:
            cold.before(indices)
            return gather(indices, lend)

        return gather_mapped

    def _columns_gatherer(self, rows: int) -> Gather:
        names, layout = self._structure.keys, self._layout(rows)
        takes, locate = [column.take for column in self._columns], self._locate

        def gather(indices: Indices, lend: Lend) -> Tree:
            out, at = lend(layout), locate(indices)
            for take, target in zip(takes, out):  # noqa: B905 (a hot loop)
                take(at, target)
            return dict(zip(names, out))  # noqa: B905 (a hot loop)

        return gather

    def _arrays(self) -> list[Array] | None:
        """The columns, if each is one array that stays mapped."""
        found = []
        for column in self._columns if self.is_mapped and not self._is_fetched else ():
            if type(column) is not FixedColumn or not isinstance(column.elements, PartElements):
                return None
            array_of, parts = column.elements.array_of, column.parts
            if not isinstance(parts, Parts) or len(parts.counts) != 1:
                return None
            with contextlib.suppress(LoaderxError, OSError):  # the error is raised where it is read
                array = array_of(0)
                if array is array_of(0) and array.dtype == column.spec.dtype:
                    found.append(array)
        return found if len(found) == len(self._columns) else None

    def padded(self, lengths: Mapping[str, int]) -> PaddedColumns | None:
        specs = [column.spec for column in self._columns]
        return padded_columns(
            self._columns, self._structure, specs, lengths, self._find, self.reads_behind
        )

    def records(self, indices: Indices) -> list[Tree]:
        try:
            at = self._find(indices)
            columns = [column.values(at) for column in self._columns]
        except (BadRecordError, UnicodeDecodeError) as error:
            if len(indices) == 1:  # many are read again one by one
                where = self.where(int(indices[0]))
                raise BadRecordError(f"{where}: {_told(error)}") from error
            raise
        return records_of(self._structure, columns)


def joined_needs(needs: Needs) -> Iterator[tuple[FileSet, list[FileRanges]]]:
    """The ranges to fetch from each set of files; several columns may need the same set."""
    found: dict[int, tuple[FileSet, dict[int, list[FileRanges]]]] = {}
    for files, one in needs:
        _, of_files = found.setdefault(id(files), (files, {}))
        of_files.setdefault(one.number, []).append(one)
    for files, of_files in found.values():
        yield files, [_joined(number, each) for number, each in of_files.items()]


def _joined(number: int, each: Sequence[FileRanges]) -> FileRanges:
    starts, stops = [one.starts for one in each], [one.stops for one in each]
    return FileRanges(number, np.concatenate(starts), np.concatenate(stops))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, BadRecordError) else one_line(error)
