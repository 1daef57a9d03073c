"""Folders of images: ``class/image.jpg``, with or without folders for splits; and image files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError, check_bool, warn_user
from loaderx.sources.base import Indices, Source
from loaderx.sources.columns.column import OBJECT, Column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Located
from loaderx.sources.format import (
    Folder,
    OpenOptions,
    OpenSplit,
    Splits,
    check_columns,
)
from loaderx.sources.formats.loose_files import (
    FolderFiles,
    LooseFiles,
    UrlFiles,
    list_below,
    list_folder,
)
from loaderx.sources.formats.splits import are_splits, folder_split, in_order
from loaderx.sources.images import IMAGE_SUFFIXES, check_decoder, decode_image
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array, ArraySpec

_SUFFIXES = tuple(os.fsencode(suffix) for suffix in IMAGE_SUFFIXES)
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_OTHER_FORMATS = (
    ".parquet", ".arrow", ".feather", ".tar", ".tgz", ".gz", ".zst", ".jsonl", ".ndjson", ".csv",
    ".tsv", ".npy", ".npz", ".h5", ".hdf5", ".safetensors", ".bin", ".idx", ".mds", ".mdb",
    ".array_record", ".arrayrecord", ".tfrecord", ".tfrecords", ".riegeli",
)  # fmt: skip
_MOST_LOOKED_AT = 100  # folders that are searched for an image, to recognise the format
_DEEPEST = 4
_LABEL = ArraySpec((), np.dtype(np.int64))


class _ImageTable(TableSource):
    """A record for each image: its pixels, and the number of its class."""

    one_file_per_record = True

    def __init__(
        self, files: LooseFiles | UrlFiles, columns: dict[str, Column], names: tuple[str, ...]
    ) -> None:
        self._files, self._reads_files = files, "image" in columns
        classes = {"label": names} if "label" in columns else {}
        super().__init__(columns, len(files), label="images", classes=classes)

    def file_of(self, index: int) -> tuple[str, int]:
        return self._files.path(index), 0

    def where(self, index: int) -> str:
        return self._files.path(index)

    @property
    def fetches(self) -> bool:
        return isinstance(self._files, UrlFiles) and self._reads_files

    def fetch(self, indices: Indices) -> int:
        return self._files.fetch(indices) if isinstance(self._files, UrlFiles) else 0


class ImageFolder(_ImageTable):
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
        if channels not in (None, 1, 3, 4):
            raise ArgumentError(f"`channels` must be None, 1, 3 or 4, got {channels!r}.")
        folder = os.fsencode(os.path.abspath(os.path.expanduser(root)))
        found, beside = list_folder(folder, _SUFFIXES)
        names = _names(classes, found, os.fsdecode(folder))
        below = [list_below(os.path.join(folder, one), _SUFFIXES) for one in found]
        if found:
            files = LooseFiles([each for one in below for each in one])
        else:
            files = LooseFiles([FolderFiles.of(folder, beside)])
        _check_files(files, bool(found), len(beside), os.fsdecode(folder))
        have: dict[str, Column] = {
            "image": _ImageColumn(files, check_bool("decode", decode), channels)
        }
        if found:
            numbers = {name: number for number, name in enumerate(names)}
            each = [
                numbers[os.fsdecode(one)]
                for one, inside in zip(found, below, strict=True)
                for _ in inside
            ]
            have["label"] = _LabelColumn(files, np.array(each, np.int64))
        known = list(have)
        chosen = known if columns is None else check_columns(columns, known, os.fsdecode(folder))
        super().__init__(files, {name: have[name] for name in chosen}, names)


def _check_files(files: LooseFiles | UrlFiles, has_classes: bool, beside: int, folder: str) -> None:
    if not len(files):
        looked_for = ", ".join(IMAGE_SUFFIXES)
        raise FileError(f"{folder} has no images: files that end with {looked_for} are read.")
    if has_classes and beside:
        warn_user(
            f"{folder} has class folders, and beside them {beside} images that belong to no class: "
            "these are left out."
        )


def _names(classes: Sequence[str] | None, found: list[bytes], folder: str) -> tuple[str, ...]:
    """The names of the classes, which include those of the folders."""
    have = tuple(os.fsdecode(one) for one in found)
    if classes is None:
        if are_splits(have):
            raise ArgumentError(
                f"{folder} has a folder for each split, {', '.join(have)}: give one of them, such "
                f"as {os.path.join(folder, have[0])}, or write Dataset.open({folder!r}, "
                f"split={folder_split(have[0])!r})."
            )
        return have
    if isinstance(classes, str):
        raise ArgumentTypeError(f"`classes` must be a list of names, got the text {classes!r}.")
    names = tuple(classes)
    for name in have:
        if name not in names:
            raise ArgumentError(f"{folder} has a folder {name!r}, which is not in `classes`.")
    return names


class _ImageColumn(Column):
    """The content of files, decoded or not."""

    def __init__(self, files: LooseFiles | UrlFiles, decode: bool, channels: int | None) -> None:
        self._files, self._decode, self._channels = files, decode, channels
        self.is_large = decode
        if decode:
            check_decoder()

    @property
    def spec(self) -> ArraySpec | None:
        return None if self._decode else OBJECT

    def take(self, at: Located, out: Array) -> None:
        out[:] = self.values(at)

    def values(self, at: Located) -> Sequence[object]:
        contents = self._files.read(at.rows)
        if not self._decode:
            return list(contents)
        return [decode_image(data, channels=self._channels) for data in contents]


class _LabelColumn(Column):
    """The number of the class, which only depends on the folder."""

    def __init__(self, files: LooseFiles | UrlFiles, labels: npt.NDArray[np.int64]) -> None:
        self._files, self._labels = files, labels  # a label for each folder of `files`

    @property
    def spec(self) -> ArraySpec:
        return _LABEL

    def take(self, at: Located, out: Array) -> None:
        out[:] = self._labels[self._files.folder_numbers(at.rows)]

    def values(self, at: Located) -> Sequence[object]:
        return list(self._labels[self._files.folder_numbers(at.rows)])


class _UrlFolder(_ImageTable):
    """Like `ImageFolder`, for a folder behind a URL."""

    def __init__(
        self, folder: Folder, options: OpenOptions, classes: Sequence[str] | None = None
    ) -> None:
        found = sorted(_folders(folder), key=lambda one: os.fsencode(one.name))
        names = _names(classes, [os.fsencode(one.name) for one in found], folder.path)
        beside = [folder.join(name) for name in folder.files if _is_image(name)]
        below = [_images_below(one) for one in found] if found else [beside]
        files = UrlFiles(below, folder.file_systems)
        _check_files(files, bool(found), len(beside), folder.path)
        have: dict[str, Column] = {"image": _ImageColumn(files, options.decode, None)}
        if found:
            labels = [names.index(one.name) for one in found]
            have["label"] = _LabelColumn(files, np.array(labels, np.int64))
        chosen = options.chosen(list(have), folder.path)
        super().__init__(files, {name: have[name] for name in chosen}, names)


def _images_below(folder: Folder) -> list[str]:
    """The images in a folder and in those below it, folder after folder."""
    found = [(folder.path, [folder.join(name) for name in folder.files if _is_image(name)])]
    left = _folders(folder)
    while left:
        one = left.pop()
        found.append((one.path, [one.join(name) for name in one.files if _is_image(name)]))
        left += _folders(one)
    found.sort(key=lambda each: os.fsencode(each[0]))
    return [path for _, paths in found for path in sorted(paths, key=os.fsencode)]


class _ImageFiles(_ImageTable):
    """Image files that were named one by one: records ``{"image"}``."""

    def __init__(self, paths: list[str], options: OpenOptions) -> None:
        files: LooseFiles | UrlFiles
        if any(map(is_url, paths)):
            files = UrlFiles([paths], options.cache.files)
        else:
            split = (os.path.split(os.fsencode(path)) for path in paths)
            grouped = itertools.groupby(split, key=lambda one: one[0])  # a list keeps its order
            files = LooseFiles(
                [FolderFiles.of(folder, [name for _, name in each]) for folder, each in grouped]
            )
        options.chosen(["image"], paths[0])
        column = _ImageColumn(files, options.decode, None)
        super().__init__(files, {"image": column}, ())


# Recognition ------------------------------------------------------------------------------------


def is_folder(folder: Folder) -> bool:
    """True if there are images in it, and no files that another format would read."""
    others = [name for name in folder.files if name not in _METADATA]  # these are refused
    if any(name.lower().endswith(_OTHER_FORMATS) for name in others):
        return False
    if _folders(folder):
        return _holds_images(folder)
    return any(map(_is_image, folder.files))


def _holds_images(folder: Folder) -> bool:
    """True if one of the first folders below it has an image."""
    left, looked_at = [(folder, 0)], 0
    while left and looked_at < _MOST_LOOKED_AT:
        one, depth = left.pop(0)
        looked_at += 1
        if depth and any(map(_is_image, one.files)):
            return True
        if depth < _DEEPEST:
            left += [(below, depth + 1) for below in _folders(one)]
    return False


def _refuse_texts(folder: Folder) -> None:
    """Refuses images with a file of the same name, such as a caption, which would be left out."""
    stems = {os.path.splitext(name)[0]: name for name in folder.files if _is_image(name)}
    for name in folder.files:
        image = stems.get(os.path.splitext(name)[0])
        if image is not None and not _is_image(name):
            suffix = os.path.splitext(image)[1]
            raise FileError(
                f"{folder.join(name)} lies beside {image} and would be left out. For the images "
                f"alone open a pattern, {folder.join('*' + suffix)}; to read both, list the files "
                "and read them in a map."
            )


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def _folders(folder: Folder) -> list[Folder]:
    return [one for one in folder.folders if not one.name.startswith((".", "__MACOSX"))]


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    folders = _folders(folder)
    _refuse_texts(folder)
    _refuse_metadata([folder, *folders[:_MOST_LOOKED_AT]])
    if not are_splits([one.name for one in folders]):
        return {"": _opener(folder, options, None)}
    splits = {folder_split(one.name): one for one in folders}
    names = [below.name for one in folders for below in _folders(one)]
    classes = sorted(set(names), key=os.fsencode)  # of all splits, so that numbers agree
    return {name: _opener(splits[name], options, classes) for name in in_order(splits)}


def _refuse_metadata(folders: list[Folder]) -> None:
    for folder in folders:
        for name in _METADATA:
            if folder.has(name):
                raise FileError(
                    f"{folder.join(name)} has columns for the images, which loaderx does not "
                    "read. For the images alone write "
                    "Dataset.from_source(loaderx.sources.ImageFolder(folder)); for the columns "
                    "open that file, and read the images in a map."
                )


def _opener(folder: Folder, options: OpenOptions, classes: list[str] | None) -> OpenSplit:
    if is_url(folder.path):
        return lambda: _UrlFolder(folder, options, classes)
    return lambda: ImageFolder(
        folder.path, classes=classes, decode=options.decode, columns=options.columns
    )


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return _ImageFiles(files, options)
