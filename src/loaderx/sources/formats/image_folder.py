"""Folders of images: ``class/image.jpg``, with or without folders for splits; and image files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError, warn_user
from loaderx.sources.base import Source
from loaderx.sources.columns.column import Column
from loaderx.sources.decoding import image_decoder
from loaderx.sources.files.parts import Located
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits, open_options
from loaderx.sources.formats import image_pairs
from loaderx.sources.formats.loose_files import (
    AnyFiles,
    LooseFiles,
    UrlFiles,
    files_in,
    folders_in,
    names_below,
    split_folders,
)
from loaderx.sources.formats.media import (
    IMAGES,
    MOST_LOOKED_AT,
    FileColumn,
    FilesTable,
    Media,
    has_other_data,
    holds,
    metadata_of,
)
from loaderx.sources.formats.splits import folder_split, splits_of
from loaderx.sources.images import check_channels
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array, ArraySpec

_LABEL = ArraySpec((), np.dtype(np.int64))


class ClassFolders(FilesTable):
    """Files in folders that are named after their classes."""

    def __init__(
        self,
        folder: Folder,
        options: OpenOptions,
        media: Media,
        classes: Sequence[str] | None = None,
        channels: int | None = None,
    ) -> None:
        found = sorted(folders_in(folder), key=lambda one: os.fsencode(one.name))
        names = _names(classes, [one.name for one in found], folder.path)
        beside = [one for one in sorted(folder.files, key=os.fsencode) if media.is_file(one)]
        each = [[*filter(media.is_file, names_below(one, f"{one.name}/"))] for one in found]
        files = files_in(folder, [name for below in each for name in below] if found else beside)
        _check_files(files, media, bool(found), len(beside), folder.path)
        have: dict[str, Column] = {**media.columns(files, media.leaf, options.decode)}
        way = options.decode.of_file(media.leaf)
        if way and channels:
            have[media.leaf] = FileColumn(files, image_decoder(way, channels))
        if found:
            numbers = {name: number for number, name in enumerate(names)}
            labels = np.array([numbers[one.name] for one in found], np.int64)
            have["label"] = _LabelColumn(np.repeat(labels, [*map(len, each)]))
        chosen = options.chosen(list(have), folder.path)
        known = {"label": names} if "label" in chosen else {}
        super().__init__(
            files, {name: have[name] for name in chosen}, label=media.name, classes=known
        )


class ImageFolder(ClassFolders):
    """Images in folders that are named after their classes: records ``{"image", "label"}``.

    Every folder in ``root`` is a class, even an empty one; images may lie in further folders below
    it.  Classes are numbered in the order of their names.  Where ``root`` has images and no
    folders, records are ``{"image"}``.  Files are sorted by name, plainly: ``10.jpg`` comes before
    ``2.jpg``.

    Args:
        root: the folder of the classes; for one with splits, that of a split.
        classes: the names of the classes in the order of their numbers; by default the sorted names
            of the folders in ``root``.
        channels: 1, 3 or 4 makes all images gray, RGB or RGBA; None leaves what the files have.
        decode: False gives the bytes of the files.
        columns: ``["image"]`` or ``["label"]`` reads only that; for labels no file is opened.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        channels: int | None = None,
        decode: bool = True,
        columns: Sequence[str] | None = None,
    ) -> None:
        check_channels(channels)
        folder = Folder(os.path.abspath(os.path.expanduser(os.fsdecode(root))))
        super().__init__(
            folder, open_options(columns, decode, None, None), IMAGES, classes, channels
        )


def _check_files(
    files: AnyFiles, media: Media, has_classes: bool, beside: int, folder: str
) -> None:
    if not len(files):
        looked_for = ", ".join(media.suffixes)
        raise FileError(f"{folder} has no {media.name}: files that end with {looked_for} are read.")
    if has_classes and beside:
        warn_user(
            f"{folder} has class folders, and beside them {beside} {media.name} that belong to no "
            "class: these are left out."
        )


def _names(classes: Sequence[str] | None, found: list[str], folder: str) -> tuple[str, ...]:
    """The names of the classes, which include those of the folders."""
    have = tuple(found)
    if classes is None:
        if splits_of(have):
            raise ArgumentError(
                f"{folder} has a folder for each split, {', '.join(have)}: give one of them, such "
                f"as {os.path.join(folder, have[0])}, or write Dataset.open({folder!r}, "
                f"split={folder_split(have[0])!r})."
            )
        return have
    if isinstance(classes, str):
        raise ArgumentTypeError(f"`classes` must be a list of names, got the text {classes!r}.")
    names = tuple(classes)
    known = set(names)
    for name in have:
        if name not in known:
            raise ArgumentError(f"{folder} has a folder {name!r}, which is not in `classes`.")
    return names


class _LabelColumn(Column):
    """The number of the class, which only depends on the folder."""

    def __init__(self, labels: npt.NDArray[np.int64]) -> None:
        self._labels = labels

    @property
    def spec(self) -> ArraySpec:
        return _LABEL

    def take(self, at: Located, out: Array) -> None:
        out[:] = self._labels[at.rows]

    def values(self, at: Located) -> Sequence[object]:
        return list(self._labels[at.rows])


# Recognition ------------------------------------------------------------------------------------


def is_folder(folder: Folder, media: Media = IMAGES) -> bool:
    """True if there are such files in it, and no files that another format would read."""
    folders = folders_in(folder)
    has_metadata = any(map(metadata_of, split_folders(folder).values()))
    if has_metadata or has_other_data(folder) or image_pairs.is_folder(folder):
        return False
    return holds(folder, media) if folders else any(map(media.is_file, folder.files))


def _refuse_texts(folder: Folder, media: Media) -> None:
    """Refuses files with a file of the same name, such as a caption, which would be left out."""
    stems = {os.path.splitext(name)[0]: name for name in folder.files if media.is_file(name)}
    for name in folder.files:
        file = stems.get(os.path.splitext(name)[0])
        if file is not None and not media.is_file(name):
            suffix = os.path.splitext(file)[1]
            raise FileError(
                f"{folder.join(name)} lies beside {file} and would be left out. For the "
                f"{media.name} alone open a pattern, {folder.join('*' + suffix)}; to read both, "
                "list the files and read them in a map."
            )


def folder_splits(folder: Folder, options: OpenOptions, media: Media = IMAGES) -> Splits:
    splits = split_folders(folder)
    _refuse_texts(folder, media)

    def opener(below: Folder, classes: list[str] | None) -> OpenSplit:
        return lambda: ClassFolders(below, options, media, classes)

    if not splits:
        _refuse_metadata(folders_in(folder)[:MOST_LOOKED_AT])
        return {"": opener(folder, None)}
    names = [below.name for one in splits.values() for below in folders_in(one)]
    classes = sorted(set(names), key=os.fsencode)  # of all splits, so that numbers agree
    return {split: opener(one, classes) for split, one in splits.items()}


def _refuse_metadata(folders: list[Folder]) -> None:
    for folder in folders:
        for name in metadata_of(folder):
            raise FileError(
                f"{folder.join(name)} has columns for the files of its folder alone. Open "
                f"{folder.path}, or put one such file for all folders above them."
            )


def open_files(paths: list[str], options: OpenOptions, media: Media = IMAGES) -> Source:
    """The records of files that were named one by one, without labels."""
    is_remote = any(map(is_url, paths))
    files = UrlFiles(paths, options.cache.files) if is_remote else LooseFiles("", paths)
    have = media.columns(files, media.leaf, options.decode)
    chosen = options.chosen(list(have), paths[0])
    return FilesTable(files, {name: have[name] for name in chosen}, label=media.name)
