"""Folders of files with columns beside them, as Hugging Face's ``imagefolder`` has them.

``metadata.jsonl``, ``metadata.csv`` or ``metadata.parquet`` has a row for each record.  Its column
``file_name`` has a path relative to it, and becomes the leaf ``image``, ``audio`` or ``array``;
``mask_file_name`` becomes ``mask``, and lists of paths (``file_names``) become lists.  All other
columns stay as they are.  Each folder of a split has such a file, or one above them has all rows.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError, warn_user
from loaderx.sources.base import Indices, Source
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.derived_columns import ColumnOver
from loaderx.sources.decoding import DECODED
from loaderx.sources.files.parts import Located
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.format_table import FILE_FORMATS
from loaderx.sources.formats.image_folder import ClassFolders
from loaderx.sources.formats.loose_files import files_in, names_below, split_folders
from loaderx.sources.formats.media import (
    ARRAYS,
    AUDIO,
    IMAGES,
    METADATA,
    FilesTable,
    has_other_data,
    holds,
    metadata_of,
    some_of,
)
from loaderx.sources.formats.splits import splits_of
from loaderx.tree import Tree

_FILE_NAME = re.compile(r"(?:(.+)_)?file_name(s?)")
_AT_ONCE = 1 << 13  # rows
_ROW = "__row__"  # the leaf of all columns of a row
_KINDS = (IMAGES, AUDIO, ARRAYS)


class _Metadata(NamedTuple):
    """The rows of a file, and the files that they name."""

    folder: Folder
    path: str
    rows: Source
    columns: list[str]
    names: dict[str, list[list[str]]]  # of each row, by column


class MetadataTable(FilesTable):
    """A record for each row, with the files that it names."""

    def __init__(self, found: _Metadata, rows: Indices, options: OpenOptions) -> None:
        have: dict[str, Column | None] = {}  # None: a column of the rows
        for name in found.columns:
            made = _columns(found, name, rows, options) if name in found.names else {name: None}
            for leaf in have.keys() & made:
                raise FileError(
                    f"{found.path} has two columns for the leaf {leaf!r}, one of them {name!r}: "
                    "rename or remove one."
                )
            have.update(made)
        # The columns that `fill` names are known: the rows were opened with it.
        self._chosen = options.chosen(list(have), found.path, fill_known=False)
        columns = {name: one for name in self._chosen if (one := have[name]) is not None}
        if len(columns) < len(self._chosen):
            columns[_ROW] = _RowColumn(found.rows, rows)
        each = next(iter(found.names.values()))
        first = [next(iter(each[row]), os.path.basename(found.path)) for row in rows.tolist()]
        classes = {name: one for name, one in found.rows.classes.items() if name in self._chosen}
        files = files_in(found.folder, first)
        super().__init__(files, columns, label="metadata", classes=classes)

    def label(self) -> str:
        return f"open(metadata: {', '.join(self._chosen)})"

    def records(self, indices: Indices) -> list[Tree]:
        return [
            {name: one[name] if name in one else one[_ROW][name] for name in self._chosen}
            for one in super().records(indices)
        ]


class _RowColumn(Column):
    """Rows of another source, as dicts."""

    def __init__(self, source: Source, rows: Indices) -> None:
        self._source, self._rows = source, rows

    @property
    def spec(self) -> None:
        return None

    def values(self, at: Located) -> Sequence[object]:
        return self._source.records(self._rows[at.rows])


class _ListColumn(ColumnOver):
    """Lists of the values of another column."""

    def __init__(self, column: Column, lengths: Sequence[int]) -> None:
        super().__init__(column)
        self.is_large = column.is_large
        self._bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def values(self, at: Located) -> Sequence[object]:
        pairs = zip(self._bounds[at.rows].tolist(), self._bounds[at.rows + 1].tolist(), strict=True)
        return [list(map(self._value, range(start, stop))) for start, stop in pairs]

    def _value(self, number: int) -> object:
        return self._column.values(Located(None, np.array([number])))[0]


def _columns(
    found: _Metadata, name: str, rows: Indices, options: OpenOptions
) -> Mapping[str, Column]:
    """The columns of the files that a column of the rows names."""
    match = _FILE_NAME.fullmatch(name)
    assert match is not None
    each = [found.names[name][row] for row in rows.tolist()]
    flat = [path for paths in each for path in paths]
    media = next((kind for kind in _KINDS if flat and kind.is_file(flat[0])), IMAGES)
    leaf = match[1] or media.leaf + match[2]
    columns = media.columns(files_in(found.folder, flat), leaf, options.decode)
    for one in columns.values():
        one.is_named = bool(match[2]) or name != next(iter(found.names))
    if not match[2]:
        return columns
    return {name: _ListColumn(one, [*map(len, each)]) for name, one in columns.items()}


# Reading the rows -------------------------------------------------------------------------------


def _metadata(folder: Folder, options: OpenOptions) -> _Metadata:
    files = metadata_of(folder)
    if len(files) != 1:
        has = " and ".join(files) or "none"
        raise FileError(f"{folder.path} must have one of {', '.join(METADATA)}, and has {has}.")
    (name,) = files
    path = folder.join(name)
    kind = next(one for one in FILE_FORMATS if name.endswith(one.suffixes))
    rows = kind.open([path], options.replace(columns=None, decode=DECODED))
    (first,) = rows.records(np.array([0])) if len(rows) else ({},)
    columns = list(first)
    names: dict[str, list[list[str]]] = {one: [] for one in columns if _is_named(one, first[one])}
    if not names:
        raise FileError(
            f"{path} has no column 'file_name', 'file_names' or such as 'mask_file_name', which "
            f"says which file a row is about; it has {columns}. For the rows alone open that file; "
            "for the files alone, write format='images' or format='audio'."
        )
    for start in range(0, len(rows), _AT_ONCE):
        for row in rows.records(np.arange(start, min(start + _AT_ONCE, len(rows)))):
            for one, found in names.items():
                told = row[one] if one.endswith("s") else [row[one]]
                if "" in told:
                    raise FileError(
                        f"{path} has a row without the name of a file in {one!r}: give it one, or "
                        "remove the row."
                    )
                found.append([_checked(folder, each) for each in told])
    _check_files(folder, path, [each for found in names.values() for one in found for each in one])
    return _Metadata(folder, path, rows, columns, names)


def _is_named(column: str, value: object) -> bool:
    """True for a column of names of files, or of lists of these."""
    match = _FILE_NAME.fullmatch(column)
    return match is not None and isinstance(value, list if match[2] else str)


def _checked(folder: Folder, name: str) -> str:
    folder.join(name)  # raises if it leads elsewhere
    return posixpath.normpath(name)


def _check_files(folder: Folder, path: str, named: list[str]) -> None:
    have = names_below(folder)
    missing = sorted(set(named) - set(have))
    if missing:
        raise FileError(
            f"{path} names {len(missing)} files that do not exist: {some_of(missing)}. Paths are "
            f"relative to {folder.path}. Correct them, or remove their rows."
        )
    left = sorted({name for kind in _KINDS for name in filter(kind.is_file, have)} - set(named))
    if left:
        warn_user(f"{path} has no row for {len(left)} files, which are left out: {some_of(left)}.")


# Recognition ------------------------------------------------------------------------------------


def is_folder(folder: Folder) -> bool:
    """True if such a file lies beside images, sound or arrays, or in the folders of splits."""
    folders = [folder, *split_folders(folder).values()]
    if has_other_data(folder, METADATA) or not any(map(metadata_of, folders)):
        return False
    return any(holds(folder, one) or any(map(one.is_file, folder.files)) for one in _KINDS)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    if metadata_of(folder) or not split_folders(folder):
        return _splits_of_rows(_metadata(folder, options), options)

    def opened(one: Folder) -> Source:
        if not metadata_of(one):  # of a test, for example
            return ClassFolders(one, options, AUDIO if holds(folder, AUDIO) else IMAGES)
        found = _metadata(one, options)
        return MetadataTable(found, np.arange(len(found.rows)), options)

    return {split: partial(opened, one) for split, one in split_folders(folder).items()}


def _splits_of_rows(found: _Metadata, options: OpenOptions) -> Splits:
    """The splits of rows whose files lie in folders for these."""
    each = next(iter(found.names.values()))
    first = [paths[0].split("/")[0] if paths else "" for paths in each]
    splits = splits_of(sorted(set(first) - {""}))
    if not splits:
        return {"": lambda: MetadataTable(found, np.arange(len(first)), options)}
    if "" in first:
        raise FileError(f"{found.path} has rows without files, whose split is not known.")

    def opened(name: str) -> Source:
        return MetadataTable(found, np.flatnonzero(np.array(first) == name), options)

    return {split: partial(opened, name) for split, name in splits.items()}
