"""Recognises what a path leads to, and opens it.

A folder is recognised by its marks (files that only one format has), a file by its first bytes, or
by its suffix if these are not enough.  A folder without marks is opened by the files in it, if they
are all of one format; splits are then recognised by their names.  If several formats match, an
error lists them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.adapt.objects import adapt
from loaderx.sources.base import FileSource, Source
from loaderx.sources.cache.folder import CacheArgument
from loaderx.sources.cache.unpack import unpack, unpack_all
from loaderx.sources.decoding import DecodeArgument
from loaderx.sources.files.compressed import HEAD_BYTES
from loaderx.sources.files.paths import PathLike, find, listed_folders, plain_name, unpacked_name
from loaderx.sources.format import (
    FileFormat,
    Folder,
    MissingArgument,
    OpenOptions,
    OpenSplit,
    Splits,
    open_options,
)
from loaderx.sources.formats.format_table import FILE_FORMATS, FOLDER_FORMATS, register_installed
from loaderx.sources.formats.splits import (
    SplitSize,
    canonical_split,
    names_in,
    resolve_split,
    split_files,
)
from loaderx.sources.native.save_folder import check_complete
from loaderx.sources.open.readme import readme_splits
from loaderx.sources.remote.options import StorageOptions
from loaderx.sources.remote.urls import is_url


class Opened(NamedTuple):
    """A source, and the range of its records that was requested."""

    source: Source
    start: int
    stop: int


class Recognised(NamedTuple):
    """The format of a path, and how each split is opened."""

    format: str
    splits: Splits


def open_path(
    path: PathLike | Sequence[PathLike],
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    format: str | None = None,
    decode: DecodeArgument = True,
    fill: Mapping[str, object] | None = None,
    missing: MissingArgument = "error",
    types: Mapping[str, object] | None = None,
    cache: CacheArgument = None,
    storage_options: Mapping[str, object] | None = None,
    version: int | str | None = None,
) -> list[Opened]:
    """The sources of a path, one after the other."""
    options = open_options(columns, decode, fill, cache, missing, types, version)
    if storage_options is not None:
        paths = path if isinstance(path, (list, tuple)) else [path]
        if not any(is_url(str(one)) for one in paths):
            raise ArgumentError(
                f"`storage_options` are for URLs, and {path} is none. A file system that you bring "
                "is configured when you make it."
            )
        options.cache.files.options = StorageOptions(storage_options)
    folders = listed_folders(path, options.cache.files)
    if len(folders) > 1 and split is not None and "[" in split:
        raise ArgumentError(
            f"split={split!r} would cut each of the {len(folders)} folders. Open them whole, and "
            "write .split(0.8, 0.2), or a slice of the dataset."
        )
    opened: list[Opened] = []
    classes: dict[str, tuple[object, tuple[str, ...]]] = {}
    for folder in folders if len(folders) > 1 else [path]:
        found = _select(recognise(folder, options, format), split, folder)
        for leaf, names in ((leaf, one) for it in found for leaf, one in it.source.classes.items()):
            first, known = classes.setdefault(leaf, (folder, names))
            if names != known:
                other = first if first is not folder else "another of its splits"
                raise FileError(
                    f"{folder} has other classes of {leaf!r} than {other}: the same number would "
                    "mean two things. Open each, make the numbers alike in a .map(), and join them "
                    "with Dataset.concatenate."
                )
        opened += found
    return opened


_NO_SPLITS = (
    "Leave `split` out, and write .split(0.8, 0.2) for random parts; a range alone, "
    "split='[:80%]', gives the first records."
)


def _select(found: Recognised, split: str | None, path: object) -> list[Opened]:
    splits = found.splits
    names = [name for name in splits if name]
    if not splits:
        raise FileError(f"{path} has no data: no split of it has a file.")
    if split is None:
        if len(splits) > 1:
            raise ArgumentError(
                f"{path} has the splits {_listed(names)}: choose one, split={names[0]!r}, or join "
                f"them, split={'+'.join(names[:2])!r}."
            )
        source = next(iter(splits.values()))()
        return [Opened(source, 0, len(source))]
    # A folder named "val" has the split "validation"; either name may be used.
    asked = {name: name if name in splits else canonical_split(name) for name in names_in(split)}
    for name, known in asked.items():
        if known not in splits:
            have = f"it has {_listed(names)}." if names else f"it has no splits. {_NO_SPLITS}"
            raise ArgumentError(f"{path} has no split {name!r}: {have}")
    sources = {name: splits[known]() for name, known in asked.items()}
    sizes = {name: SplitSize(len(one), _shard_counts(one)) for name, one in sources.items()}
    return [Opened(sources[name], start, stop) for name, start, stop in resolve_split(split, sizes)]


def _shard_counts(source: Source) -> Sequence[int] | None:
    return source.shard_counts if isinstance(source, FileSource) else None


# Recognising ------------------------------------------------------------------------------------


_LINES = ("jsonl", "text")
"""Formats that read compressed files without a copy."""

_TABLES = ("csv", "parquet", "arrow", "jsonl", "huggingface", "lance", "loaderx")
"""Formats that have missing values, and types."""


def recognise(
    path: PathLike | Sequence[PathLike], options: OpenOptions, format: str | None = None
) -> Recognised:
    """The format and the splits of a path."""
    try:
        found = _recognise(path, options, format)
    except (ArgumentError, FileError):
        if not register_installed():
            raise
        found = _recognise(path, options, format)  # again, with the formats of other packages
    if options.version is not None and found.format != "lance":
        raise ArgumentError(
            f"`version` chooses one of a Lance dataset, and {path} is {found.format}: leave it out."
        )
    for name, is_used in (("missing", options.missing.is_used), ("types", bool(options.types))):
        if is_used and found.format not in _TABLES:
            raise ArgumentError(
                f"`{name}` is for tables ({_listed(_TABLES)}), and {path} is {found.format!r}."
            )
    if found.format not in ("csv", "jsonl"):
        options.check_types_are_categories(str(path))
    return found


def _recognise(
    path: PathLike | Sequence[PathLike], options: OpenOptions, format: str | None
) -> Recognised:
    found = find(path, options.cache.files)
    if found.folder is None:
        files, kind = _files_and_format(found.files, options, format)
        if kind.name not in _LINES:
            unpack(options.cache.files.packed, options.cache)
        return Recognised(kind.name, _splits_inside(files, kind, options))
    folder = Folder(found.folder, options.cache.files)
    marked = [one for one in FOLDER_FORMATS if one.is_folder(folder)]
    if format is not None:
        marked = [one for one in FOLDER_FORMATS if one.name == format]
        if marked and marked[0].marks and not marked[0].is_folder(folder):
            raise FileError(
                f"{folder.path} is no folder of the format {format!r}: it has no {marked[0].marks}."
            )
    if len(marked) > 1:
        raise FileError(
            f"{folder.path} may be {_listed(one.name for one in marked)}: say which with format=."
        )
    if marked:
        return Recognised(marked[0].name, marked[0].splits(folder, options))
    return _folder_of_files(folder, options, format)


def _folder_of_files(folder: Folder, options: OpenOptions, format: str | None) -> Recognised:
    """A folder that is recognised by the files in it."""
    check_complete(folder.path, folder.names)
    weak = tuple(suffix for one in FILE_FORMATS for suffix in one.weak_suffixes)
    suffixes = _known_suffixes()
    strong = tuple(suffix for suffix in suffixes if suffix not in weak)
    # Beside data of other formats, .json and .txt are descriptions and licences.
    grouped = readme_splits(folder, suffixes)
    if not grouped and format is None:
        grouped = split_files(folder, strong)
    grouped = grouped or split_files(folder, suffixes)
    every = [file for files in grouped.values() for file in files]
    if not folder.names:
        raise FileError(f"{folder.path} is an empty folder.")
    if not every:
        raise FileError(f"{folder.path} has no files that loaderx knows. {_looked_for()}")
    kinds = {_suffix_format(file).name for file in every} if format is None else {format}
    if len(kinds) > 1:
        raise FileError(
            f"{folder.path} has files of several formats, {_listed(sorted(kinds))}: say which with "
            "format=, or open a pattern such as folder/*.parquet."
        )
    if format is not None:
        have = sorted({_suffix_format(file).name for file in every})
        wanted = _named(format, folder.path)
        grouped = {
            name: kept
            for name, files in grouped.items()
            if (kept := [one for one in files if _suffix_format(one) is wanted])
        }
        if not grouped:
            raise FileError(
                f"{folder.path} has no files of the format {format!r}, by their suffixes; it has "
                f"some of {_listed(have)}. Files of any name are opened by a pattern, folder/*."
            )
    (name,) = kinds
    kind = _named(name, folder.path)
    if list(grouped) == [""]:
        files = unpack_all(grouped[""], options.cache, in_memory=name in _LINES)
        return Recognised(name, _splits_inside(files, kind, options))

    def opener(files: list[str]) -> OpenSplit:
        return lambda: adapt(
            kind.open(unpack_all(files, options.cache, in_memory=name in _LINES), options)
        )

    return Recognised(name, {split: opener(files) for split, files in grouped.items()})


def _splits_inside(files: list[str], kind: FileFormat, options: OpenOptions) -> Splits:
    """The splits inside of files, or all of their records as one."""
    inside = kind.splits and kind.splits(files, options)
    return inside or {"": lambda: adapt(kind.open(files, options))}


def _files_and_format(
    files: list[str], options: OpenOptions, format: str | None
) -> tuple[list[str], FileFormat]:
    unpack_all(files, options.cache, in_memory=True)
    if format is not None:
        return files, _named(format, files[0])
    kinds = [_format_of(files[0], options)]
    suffixes = {os.path.splitext(unpacked_name(file))[1].lower(): file for file in files}
    for file in suffixes.values():  # shards have one suffix: check one file of each
        kind = _format_of(file, options)
        if kind is not kinds[0]:
            raise FileError(
                f"{files[0]} is {kinds[0].name} and {file} is {kind.name}: open files of one "
                "format at a time, and join the datasets with Dataset.concatenate."
            )
    return files, kinds[0]


def _format_of(file: str, options: OpenOptions) -> FileFormat:
    head, name = _head(file, options), plain_name(file).lower()
    by_head = [one for one in FILE_FORMATS if one.is_head is not None and one.is_head(head)]
    by_suffix = [one for one in FILE_FORMATS if name.endswith(one.suffixes)]
    # First bytes count before the suffix, which decides between several matches.
    candidates = by_head or by_suffix
    both = [one for one in by_head if one in by_suffix]
    candidates = both or candidates
    if len(candidates) > 1:
        raise FileError(
            f"{file} may be {_listed(one.name for one in candidates)}: say which with format=."
        )
    if not candidates and not head:
        raise FileError(f"{file} is empty.")
    if not candidates:
        raise FileError(f"{file} has a format that loaderx does not know. {_looked_for()}")
    return candidates[0]


def _head(file: str, options: OpenOptions) -> bytes:
    return options.cache.files.of(file).head(file, HEAD_BYTES)


def _suffix_format(file: str) -> FileFormat:
    name = plain_name(file).lower()
    return next(one for one in FILE_FORMATS if name.endswith(one.suffixes))


def _known_suffixes() -> tuple[str, ...]:
    return tuple(suffix for one in FILE_FORMATS for suffix in one.suffixes)


def _named(format: str, path: str) -> FileFormat:
    for one in FILE_FORMATS:
        if one.name == format:
            return one
    names = sorted({one.name for one in FILE_FORMATS} | {one.name for one in FOLDER_FORMATS})
    if format in names:
        raise ArgumentError(f"format={format!r} opens a folder, and {path} is a file.")
    word = str(format).lower().removeprefix(".")
    meant = [one.name for one in FILE_FORMATS if one.name == word or f".{word}" in one.suffixes]
    hint = f" Did you mean {meant[0]!r}?" if meant else ""
    raise ArgumentError(f"`format` must be one of {_listed(names)}, got {format!r}.{hint}")


def _looked_for() -> str:
    return (
        f"It opens files that end with {', '.join(_known_suffixes())} (also .gz and .zst), images, "
        f"and folders of {_listed(one.name for one in FOLDER_FORMATS)}. If the name says nothing, "
        "say which with format=."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
