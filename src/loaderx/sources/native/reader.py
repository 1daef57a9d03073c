"""Reads the native layout: folders with a ``loaderx.json``, as `layout` describes them."""

from __future__ import annotations

import os
from functools import partial
from typing import TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.base import Source
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.data import ColumnType, Which
from loaderx.sources.columns.elements import ArrayOf
from loaderx.sources.columns.gaps import table_columns
from loaderx.sources.columns.table import ColumnTree, TableSource
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import FileSystems
from loaderx.sources.files.parts import Parts
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.native.layout import (
    MARK,
    VALUE,
    Description,
    RecordKind,
    file_name,
    read_description,
)
from loaderx.sources.native.npy_arrays import FetchedNpyArrays, NpyArrays

Columns: TypeAlias = "dict[str, Column | ColumnTree]"

_OFFSETS, _VALID = np.dtype(np.int64), np.dtype(np.bool_)


def open_native(folder: str, options: OpenOptions, label: str = "loaderx") -> TableSource:
    """The records of a folder in the native layout."""
    found = read_description(folder, options.cache.files)
    if options.types and not found.made_from:
        raise ArgumentError(
            f"{folder} was saved with its types, so that `types` has no meaning: say it where the "
            "table is opened, before it is saved."
        )
    # A copy has only the requested columns, and `fill` may name others of the files.
    where = found.shards[0].name if found.made_from and found.shards else folder
    names = options.chosen(list(found.columns), where, fill_known=not found.made_from)
    kinds = {name: found.columns[name] for name in names}
    columns, parts = native_columns(folder, found, kinds, options)
    classes = {path: one for path, one in found.classes.items() if path.split(".")[0] in kinds}
    return TableSource(
        _record(columns, found.record),
        len(parts),
        label=options.label(label),
        classes=classes,
        shard_counts=[shard.records for shard in found.shards],
        shard_names=[shard.name for shard in found.shards],
    )


def _record(columns: Columns, record: RecordKind) -> Column | ColumnTree:
    if record == "dict":
        return columns
    return tuple(columns.values()) if record == "tuple" else columns[VALUE]


def native_columns(
    folder: str, found: Description, kinds: dict[str, ColumnType], options: OpenOptions
) -> tuple[Columns, Parts]:
    """These columns of a folder, and the number of records of each part."""
    layout = _Files(folder, found, kinds, options.cache.files)
    parts = Parts([part.records for part in found.parts])
    where, keeps_none = found.made_from[0].name if found.made_from else folder, bool(found.made_by)
    arrays_of = partial(_ColumnFiles, layout)
    columns = table_columns(kinds, parts, arrays_of, options, where, keeps_none=keeps_none)
    return columns, parts


class _Files:
    """The files of the columns that are read, checked against the sizes in the description."""

    def __init__(
        self, folder: str, found: Description, kinds: dict[str, ColumnType], systems: FileSystems
    ) -> None:
        self.folder, self.found, self.kinds = folder, found, kinds
        wanted = [file for name, kind in kinds.items() for file in files_of((name,), kind)]
        self._numbers = {file: number for number, file in enumerate(wanted)}
        self._stride = len(wanted)
        sizes, paths = [], []
        for part in found.parts:
            for file in wanted:
                if file not in part.files:
                    raise FileError(f"{folder}: {MARK} has no {file} in {part.name}.")
                paths.append(os.path.join(folder, part.name, file))
                sizes.append(part.files[file])
        self.files = FileSet(paths, files=systems)
        for path, size, have in zip(paths, sizes, self.files.sizes, strict=True):
            if size != have:
                raise FileError(
                    f"{path} has {have} bytes, and {MARK} says {size}: it was changed, cut off or "
                    "not copied whole."
                )

    def numbers(self, file: str) -> range:
        """The numbers of a file in all parts."""
        return range(self._numbers[file], len(self.files), self._stride)


class _ColumnFiles:
    """The arrays of a column and of its fields."""

    def __init__(self, layout: _Files, name: str) -> None:
        self._layout, self._name = layout, name

    def __call__(self, path: tuple[str, ...], which: Which) -> ArrayOf:
        layout = self._layout
        kind, is_item = layout.kinds[self._name], False
        for name in path:
            is_item = is_item or kind.kind == "list"
            kind = kind.fields[name]
        records = [part.records for part in layout.found.parts]
        dtype, shape = kind.dtype or np.dtype(np.uint8), kind.stored_shape
        rows: list[int] | None = records if kind.kind == "fixed" else None
        if which != "values":
            dtype, shape = (_OFFSETS if which == "offsets" else _VALID), ()
            rows = [one + (which == "offsets") for one in records]
        numbers = layout.numbers(file_name((self._name, *path), which))
        kept = None if is_item else rows
        # The header of the first part is checked now, those of others when they are read.
        if layout.files.is_remote:
            fetched = FetchedNpyArrays(layout.files, numbers, dtype, shape, kept)
            fetched.check(0)
            return fetched
        found = NpyArrays(layout.files, numbers, dtype, shape, kept)
        found(0)
        return found


def files_of(path: tuple[str, ...], kind: ColumnType) -> list[str]:
    """The names of the files of a column."""
    found = []
    if kind.kind != "list" and not kind.is_branch:
        found.append(file_name(path, "values"))
    if kind.kind != "fixed" and not kind.is_branch:
        found.append(file_name(path, "offsets"))
    if kind.nulls is not None:
        found.append(file_name(path, "valid"))
    for name, field in kind.fields.items():
        found += files_of((*path, name), field)
    return found


def is_folder(folder: Folder) -> bool:
    return folder.has(MARK)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    def opener() -> Source:
        return open_native(folder.path, options)

    return {"": opener}
