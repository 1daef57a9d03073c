"""Writes columns to the parts of a folder, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loaderx.errors import ArgumentError, StackError
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.linear import with_lines
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.widening import MisfitError, merged, settled, widened
from loaderx.sources.native.layout import VALID, VALUE, Description, file_name
from loaderx.sources.native.save_folder import SavedPart, SaveFolder, columns_of
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

    ``kind`` is the type to begin with: that of other records, if some are known.  ``uses_lines``:
    rows that are constant or count up most of the time are stored as lines.  As a context manager
    it removes a part that is not finished.
    """

    def __init__(
        self,
        folder: str,
        kind: ColumnType | None,
        shown: Progress | None = None,
        *,
        uses_lines: bool = False,
    ) -> None:
        self._folder, self._kind, self._shown = folder, kind, shown
        self._uses_lines = uses_lines
        self._writer: PartWriter | None = None

    def append(self, part: int, found: Encoded, first: int) -> None:
        """Adds records to a part; ``first`` is the number of the first, for messages."""
        if self._uses_lines:
            # The first records of all decide whether lines are worth it, whoever writes them.
            is_first = part == 0 and self._writer is None
            found = with_lines(found, None if is_first else self._kind)
        last = first + found.data.length - 1
        kind = merged_types(self._kind, found.kind, f"records {first} to {last}")
        if self._writer is None:
            self._writer = PartWriter(self._folder, part, columns_of(kind)[1])
        elif kind != self._kind:
            self._writer = self._writer.widened(columns_of(kind)[1])
        self._kind = kind
        data = widened(found.data, found.kind, kind)
        self._writer.append(dict(data.fields) if kind.is_branch else {VALUE: data})
        if self._shown is not None:
            self._shown.add(data.length)

    def finish(self, state: Json = None) -> SavedPart:
        """Ends a part: its files are on disk, under another name."""
        assert self._writer is not None
        assert self._kind is not None
        done = SavedPart(self._writer.finish(), self._kind, state, self._writer.temporary)
        self._writer = None
        return done

    def __enter__(self) -> PartsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.remove()


def known_type(folder: SaveFolder, kind: ColumnType | None = None) -> ColumnType | None:
    """The common type of the parts that are there, and of ``kind``."""
    for number in sorted(folder.parts):
        first = number * folder.part_records
        last = first + folder.parts[number].part.records - 1
        kind = merged_types(kind, folder.parts[number].kind, f"records {first} to {last}")
    return kind


def merged_types(known: ColumnType | None, found: ColumnType, records: str) -> ColumnType:
    """The common type of some records and others; ``records`` names the latter in errors."""
    if known is None:
        return found
    try:
        return merged(known, found)
    except MisfitError as error:
        where = f'leaf "{".".join(error.path)}" of ' if error.path else ""
        raise StackError(
            f"cannot save: {where}{records} has the type {_told(error.two)}, and in others it "
            f"is {_told(error.one)}. Make them alike in a .map() before saving."
        ) from None


def finish(
    folder: SaveFolder,
    made_by: Json,
    images: Sequence[str],
    classes: Mapping[str, Sequence[str]],
) -> None:
    """Completes the folder: all parts get the common type, then the description is written."""
    kind = known_type(folder)
    assert kind is not None
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
    counted = {name: _counted(one, (name,), folder) for name, one in columns.items()}
    folder.finish(Description(counted, done, names, (), record, made_by))


def _counted(kind: ColumnType, path: tuple[str, ...], folder: SaveFolder) -> ColumnType:
    """The type with the number of its nulls."""
    nulls = None if kind.nulls is None else folder.nulls(file_name(path, VALID))
    fields = {name: _counted(one, (*path, name), folder) for name, one in kind.fields.items()}
    return kind.replace(nulls=nulls, fields=fields)


def _told(kind: ColumnType) -> str:
    text = str(kind)
    return text if len(text) <= 200 else f"{text[:200]} ..."
