"""Writes the native layout (see `layout`), part by part."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from loaderx.sources.cache.owners import is_dead, own_mark
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType, Which, collect
from loaderx.sources.columns.widening import widened
from loaderx.sources.files.arrays import open_npy
from loaderx.sources.files.npy import NpyWriter
from loaderx.sources.native.layout import (
    OFFSETS,
    VALID,
    VALUES,
    Part,
    file_name,
    part_name,
    sync_folder,
)
from loaderx.sources.remote.bucket import Bucket
from loaderx.sources.remote.store import at_once
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array

_MOST_OPEN = 100  # columns whose files stay open; descriptors are limited
_WORKING = "loaderx-saving-"
_BYTES = np.dtype(np.uint8)
_OFFSETS = np.dtype(np.int64)


class PartWriter:
    """Appends records to the columns of one part.

    It is written under another name and renamed by `close`: a part with its final name is complete.
    As a context manager it removes the part if an error occurs before that.

    If the folder is a URL, the part is written on this machine, and `finish` uploads it.  A digest
    of its content becomes part of its name, so that no two writers ever write different files under
    one name: nothing can be renamed there, and there are no locks.
    """

    def __init__(self, folder: str, number: int, columns: Mapping[str, ColumnType]) -> None:
        self.name, self.records, self.columns = part_name(number), 0, columns
        self._folder, self._number = folder, number
        self.temporary = f"{self.name}.{secrets.token_hex(4)}.tmp"
        if is_url(folder):
            self._temporary = workspace()
        else:
            self._temporary = os.path.join(folder, self.temporary)
            os.makedirs(self._temporary)
        self._is_wide = len(columns) > _MOST_OPEN
        self._columns: dict[str, _ColumnWriter] = {}
        for name, kind in columns.items():
            self._columns[name] = _ColumnWriter(self._temporary, (name,), kind)
            if self._is_wide:
                self._columns[name].pause()

    def append(self, records: Mapping[str, ColumnData]) -> None:
        """Adds the same number of records to every column."""
        lengths = {data.length for data in records.values()}
        assert len(lengths) == 1, lengths
        assert set(records) == set(self._columns), (list(records), list(self._columns))
        for name, column in self._columns.items():
            column.append(records[name])
            if self._is_wide:
                column.pause()
        self.records += lengths.pop()

    def close(self) -> Part:
        """Waits until all of it is on disk, and renames it."""
        part = self.finish()
        publish(self._folder, self.temporary, self.name)
        return part

    def finish(self) -> Part:
        """Waits until all of it is on disk, or uploaded."""
        self._close_files()
        sync_folder(self._temporary)
        names = sorted(os.listdir(self._temporary))
        sizes = {name: os.path.getsize(os.path.join(self._temporary, name)) for name in names}
        if is_url(self._folder):
            self._upload(names)
        return Part(self.name, self.records, sizes)

    def _upload(self, names: Sequence[str]) -> None:
        """Uploads the files, under the name that the part has there."""
        digest = hashlib.sha256()
        for name in names:
            with open(os.path.join(self._temporary, name), "rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
        self.name = self.temporary = f"{self.name}-{digest.hexdigest()[:16]}"
        bucket, here = Bucket(self._folder), Path(self._temporary)
        at_once(lambda name: bucket.put(f"{self.name}/{name}", here / name), names)
        self.remove()

    def widened(self, columns: Mapping[str, ColumnType]) -> PartWriter:
        """A writer of the same part with wider types and all records of this one."""
        self._close_files()
        made = PartWriter(self._folder, self._number, columns)
        if self.records:
            made.append_files(self._temporary, self.columns)
        self.remove()
        return made

    def append_files(self, place: str, columns: Mapping[str, ColumnType]) -> None:
        """Adds the records of another part, whose types may be narrower."""

        found = _read_columns(place, columns)
        self.append(
            {name: widened(found[name], kind, self.columns[name]) for name, kind in columns.items()}
        )

    def _close_files(self) -> None:
        for column in self._columns.values():
            column.close()

    def remove(self) -> None:
        """Leaves nothing behind."""
        for column in self._columns.values():
            column.abandon()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.remove()


def remove_left() -> None:
    """Removes the workspaces of processes that have died."""
    for one in os.scandir(tempfile.gettempdir()):
        if one.name.startswith(_WORKING) and is_dead(one.name.split("-", 2)[2].rpartition("-")[0]):
            shutil.rmtree(one.path, ignore_errors=True)


def workspace() -> str:
    """A new folder of this process, on this machine."""
    remove_left()
    return tempfile.mkdtemp(prefix=f"{_WORKING}{own_mark()}-")


def publish(folder: str, temporary: str, name: str) -> None:
    """Gives a finished part its name, replacing an existing one."""
    if temporary == name:  # a part behind a URL, where nothing is renamed
        return
    place = os.path.join(folder, name)
    if os.path.lexists(place):
        shutil.rmtree(place)
    os.rename(os.path.join(folder, temporary), place)
    sync_folder(folder)


def has_columns(place: str, columns: Mapping[str, ColumnType], records: int) -> bool:
    """True if the files of a part have columns of these types, with ``records`` records."""
    found = _read_columns(place, columns)
    return all(
        data.length == records and _fits(data, columns[name]) for name, data in found.items()
    )


def _fits(data: ColumnData, kind: ColumnType) -> bool:
    if kind.dtype is not None:
        assert data.values is not None
        if (data.values.dtype, data.values.shape[1:]) != (kind.dtype, kind.stored_shape):
            return False
    return all(_fits(data.fields[name], field) for name, field in kind.fields.items())


def _read_columns(place: str, columns: Mapping[str, ColumnType]) -> dict[str, ColumnData]:
    """The columns of a part, mapped from its files."""

    def find(path: tuple[str, ...], which: Which) -> Array:
        return open_npy(os.path.join(place, file_name(path, which)))

    return {name: collect(kind, find, (name,)) for name, kind in columns.items()}


class _ColumnWriter:
    """The files of a column, and those of its fields."""

    def __init__(self, folder: str, path: tuple[str, ...], kind: ColumnType) -> None:
        self._files: dict[str, NpyWriter] = {}
        self._fields = {
            name: _ColumnWriter(folder, (*path, name), field) for name, field in kind.fields.items()
        }
        self._end = 0  # elements written so far

        def create(which: str, dtype: np.dtype[np.generic], shape: tuple[int, ...] = ()) -> None:
            name = os.path.join(folder, file_name(path, which))
            self._files[which] = NpyWriter(name, dtype, shape)

        if kind.kind != "list" and not kind.is_branch:
            create(VALUES, kind.dtype or _BYTES, kind.stored_shape)
        if kind.kind != "fixed" and not kind.is_branch:
            create(OFFSETS, _OFFSETS)
            self._files[OFFSETS].append(np.zeros(1, np.int64))
        if kind.nulls is not None:
            create(VALID, np.dtype(np.bool_))

    def append(self, data: ColumnData) -> None:
        if VALID in self._files:
            assert data.valid is not None
            self._files[VALID].append(data.valid)
        for name, field in self._fields.items():
            if name != ITEMS or data.offsets is None:
                field.append(data.fields[name])
        if data.offsets is None:
            if data.values is not None:
                self._files[VALUES].append(data.values)
            return
        start, stop = int(data.offsets[0]), int(data.offsets[-1])
        self._files[OFFSETS].append(data.offsets[1:].astype(np.int64) + (self._end - start))
        self._end += stop - start
        if data.values is not None:
            self._files[VALUES].append(data.values[start:stop])
        else:
            # All items are written: their numbers begin with the first list.
            items = data.fields[ITEMS]
            assert (start, stop) == (0, items.length), (start, stop, items.length)
            self._fields[ITEMS].append(items)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for field in self._fields.values():
            field.close()

    def pause(self) -> None:
        for file in self._files.values():
            file.pause()
        for field in self._fields.values():
            field.pause()

    def abandon(self) -> None:
        for file in self._files.values():
            file.abandon()
        for field in self._fields.values():
            field.abandon()
