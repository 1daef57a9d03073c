"""Folders whose images belong together by name: ``images/0001.jpg`` and ``masks/0001.png``.

They are recognised by the names of the folders: one for the images, and one for masks, labels,
annotations, depth and so on.  All other folders beside these are paired, too.  The folders may lie
in folders for splits, or have such folders in them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.decoding import MASK_WORDS, STORED_WORDS
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.loose_files import files_in, folders_in, names_below, split_folders
from loaderx.sources.formats.media import (
    IMAGES,
    FilesTable,
    has_other_data,
    some_of,
)
from loaderx.sources.formats.splits import in_order
from loaderx.sources.progress import tell

_IMAGE_WORDS = ("image", "images", "img", "imgs")


def is_folder(folder: Folder) -> bool:
    """True if the folders in it have names of images and of masks, and nothing else is data."""
    if has_other_data(folder):
        return False
    return any(map(_has_pairs, list(split_folders(folder).values()) or [folder]))


def _has_pairs(folder: Folder) -> bool:
    words = [one.name.lower() for one in folders_in(folder)]
    is_image = [word in _IMAGE_WORDS for word in words]
    return sum(is_image) == 1 and any(word in STORED_WORDS for word in words)


def _leaves(folder: Folder) -> dict[str, Folder]:
    """The folders in a folder by the names of their leaves; that of the images comes first."""
    folders = folders_in(folder)
    masks = [one.name for one in folders if one.name.lower() in MASK_WORDS]
    found: dict[str, Folder] = {}
    for one in folders:
        is_image = one.name.lower() in _IMAGE_WORDS
        leaf = "image" if is_image else "mask" if masks == [one.name] else one.name
        if found.setdefault(leaf, one) is not one:
            raise FileError(f"{folder.path} has {found[leaf].name} and {one.name}: rename one.")
    return dict(sorted(found.items(), key=lambda one: one[0] != "image"))


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    by_split = {split: _leaves(one) for split, one in split_folders(folder).items()}
    if not by_split:
        for leaf, one in _leaves(folder).items():
            for split, inside in (split_folders(one) or {"": one}).items():
                by_split.setdefault(split, {})[leaf] = inside
        if "" in by_split and len(by_split) > 1:
            (whole, *_) = by_split[""].values()
            raise FileError(
                f"{folder.path} has folders for splits, and {whole.name} has none: give it the "
                "same folders."
            )

    def opened(split: str) -> Source:
        return _paired(folder, by_split.get(split, {}), options)

    return {split: partial(opened, split) for split in in_order(by_split or [""])}


def _paired(folder: Folder, folders: Mapping[str, Folder], options: OpenOptions) -> FilesTable:
    named = {leaf: _by_stem(one) for leaf, one in folders.items()}
    first = next(iter(named), "")
    if not named.get(first):
        raise FileError(f"{folder.path} has no images in folders such as 'images' and 'masks'.")
    for leaf, one in folders.items():
        _check_pairs(folders[first], named[first], one, named[leaf])
    files = {leaf: files_in(folders[leaf], list(named[leaf].values())) for leaf in named}
    columns = {}
    for leaf in options.chosen(list(files), folder.path):
        columns.update(IMAGES.columns(files[leaf], leaf, options.decode))
        columns[leaf].is_named = leaf != first
    told = [f"{os.path.relpath(one.path, folder.path)} ({leaf})" for leaf, one in folders.items()]
    tell(f"{folder.path}: {len(files[first]):,} records of {', '.join(told)}, paired by name")
    label = f"image_pairs of {'+'.join(one.name for one in folders.values())}"
    return FilesTable(files[first], columns, label=label)


def _by_stem(folder: Folder) -> dict[str, str]:
    """The images below a folder by their path without the ending, in the order of these."""
    found: dict[str, str] = {}
    for name in filter(IMAGES.is_file, names_below(folder)):
        other = found.setdefault(os.path.splitext(name)[0], name)
        if other != name:
            raise FileError(
                f"{folder.path} has {other} and {name}: which one is paired is not known. Remove "
                "one of them."
            )
    return dict(sorted(found.items()))


def _check_pairs(
    first: Folder, images: Mapping[str, str], second: Folder, masks: Mapping[str, str]
) -> None:
    alone = [
        f"{len(names)} of {folder.path} have no partner ({some_of(names)})"
        for folder, names in (
            (first, [name for stem, name in images.items() if stem not in masks]),
            (second, [name for stem, name in masks.items() if stem not in images]),
        )
        if names
    ]
    if alone:
        raise FileError(
            f"{' and '.join(alone)}: images of {first.name} and {second.name} are pairs if their "
            "names are equal but for the ending. Rename or remove these, open one folder alone, "
            "or write format='images' if the folders are classes."
        )
