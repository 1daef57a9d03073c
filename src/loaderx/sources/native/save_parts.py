"""Writes columns to the parts of a folder, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from loaderx.errors import ArgumentError, StackError
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.linear import with_lines
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.widening import MisfitError, merged, settled, widened
from loaderx.sources.files.arrays import open_npy
from loaderx.sources.native.layout import VALID, VALUE, Description, file_name
from loaderx.sources.native.save_folder import SaveFolder, columns_of
from loaderx.sources.native.writer import PartWriter
from loaderx.sources.progress import Progress


def leaf_at(kind: ColumnType, path: str) -> ColumnType | None:
    """The type of the leaf with this path, such as ``box.x``; None if there is none."""
    if not path:
        return None if kind.fields else kind
    for name, field in kind.fields.items() if kind.is_branch else ():
        if path == name:
            return field
        if path.startswith(f"{name}."):  # names may contain dots
            found = leaf_at(field, path[len(name) + 1 :])
            if found is not None:
                return found
    return None


def check_images(kind: ColumnType, images: Sequence[str]) -> None:
    """Refuses names of missing leaves, and of leaves that are not bytes."""
    for path in images:
        leaf = leaf_at(kind, path)
        if leaf is None:
            raise ArgumentError(f"`images` names {path!r}, and records have {kind}.")
        if leaf.kind != "bytes":
            raise ArgumentError(
                f"`images` names {path!r}, which is {leaf}: the bytes of image files are expected. "
                "Open files with decode=False to get them."
            )


def with_images(kind: ColumnType, images: Sequence[str], path: str = "") -> ColumnType:
    """The type with these leaves as images."""
    if kind.is_branch:
        inside = f"{path}." if path else ""
        fields = {
            name: with_images(field, images, f"{inside}{name}")
            for name, field in kind.fields.items()
        }
        return kind.replace(fields=fields)
    return kind.replace(kind="image") if path in images and kind.kind == "bytes" else kind


class PartsWriter:
    """Appends columns to the current part, and knows the type of all records so far.

    ``uses_lines``: rows that are constant or count up most of the time are stored as lines.  As a
    context manager it removes a part that is not complete.
    """

    def __init__(self, folder: SaveFolder, shown: Progress, *, uses_lines: bool = False) -> None:
        self.folder, self._shown, self._uses_lines = folder, shown, uses_lines
        self.kind: ColumnType | None = None
        for number in sorted(folder.parts):
            found = folder.parts[number]
            self.kind = found.kind if self.kind is None else merged(self.kind, found.kind)
            shown.add(found.part.records)
        self._writer: PartWriter | None = None

    def append(self, part: int, found: Encoded, first: int) -> None:
        """Adds records to a part; ``first`` is the number of the first, for messages."""
        if self._uses_lines:
            found = with_lines(found, self.kind)
        kind = self._merged(found, first)
        if self._writer is None:
            self._writer = self.folder.writer(part, kind)
        elif kind != self.kind:
            self._writer = self._writer.widened(columns_of(kind)[1])
        self.kind = kind
        data = widened(found.data, found.kind, kind)
        self._writer.append(dict(data.fields) if kind.is_branch else {VALUE: data})
        self._shown.add(data.length)

    def complete(self, part: int, state: Json) -> None:
        """Ends a part."""
        assert self._writer is not None
        assert self.kind is not None
        self.folder.add(part, self._writer, self.kind, state)
        self._writer = None

    def _merged(self, found: Encoded, first: int) -> ColumnType:
        told = f"records {first} to {first + found.data.length - 1}"
        return merged_types(self.kind, found.kind, told)

    def __enter__(self) -> PartsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.remove()


def merged_types(known: ColumnType | None, found: ColumnType, records: str) -> ColumnType:
    """The common type of all records so far and some more; ``records`` names them in errors."""
    if known is None:
        return found
    try:
        return merged(known, found)
    except MisfitError as error:
        where = f'leaf "{".".join(error.path)}" of ' if error.path else ""
        raise StackError(
            f"cannot save: {where}{records} has the type {_told(error.two)}, and before them it "
            f"was {_told(error.one)}. Make them alike in a .map() before saving."
        ) from None


def finish(
    folder: SaveFolder,
    kind: ColumnType,
    made_by: Json,
    images: Sequence[str],
    classes: Mapping[str, Sequence[str]],
) -> None:
    """Completes the folder: all parts get the common type, then the description is written."""
    final = settled(kind)
    for number in sorted(folder.parts):
        if folder.parts[number].kind != final:
            folder.widen(number, final)
    done = [folder.parts[number].part for number in sorted(folder.parts)]
    names = {}
    for path, told in classes.items():
        leaf = leaf_at(final, path)
        if leaf is not None and leaf.dtype is not None and leaf.dtype.kind in "iu":
            names[path] = tuple(told)  # other stages may have changed the leaf
    record, columns = columns_of(with_images(final, images))
    places = [os.path.join(folder.folder, part.name) for part in done]
    counted = {name: _counted(one, (name,), places) for name, one in columns.items()}
    folder.finish(Description(counted, done, names, (), record, made_by))


def _counted(kind: ColumnType, path: tuple[str, ...], places: Sequence[str]) -> ColumnType:
    """The type with the number of its nulls."""
    nulls = kind.nulls
    if nulls is not None:
        files = [os.path.join(place, file_name(path, VALID)) for place in places]
        nulls = sum(int((~open_npy(file)).sum()) for file in files)
    fields = {name: _counted(one, (*path, name), places) for name, one in kind.fields.items()}
    return kind.replace(nulls=nulls, fields=fields)


def _told(kind: ColumnType) -> str:
    text = str(kind)
    return text if len(text) <= 200 else f"{text[:200]} ..."
