"""IDX files (MNIST and its kin): single files, and folders of images and labels with splits."""

from __future__ import annotations

import os
import re

from loaderx.errors import FileError
from loaderx.sources.array_files import source_of_arrays
from loaderx.sources.base import Source
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.idx import read_idx
from loaderx.sources.ondisk.paths import unpacked_name

_NAME = re.compile(r"(?:(.+)-)?(images|labels)[-.]idx\d-u?byte(\.gz)?")
_SPLITS = {"t10k": "test"}
_LEAVES = {"images": "image", "labels": "label"}


def open_files(files: list[str], options: OpenOptions) -> Source:
    """Each file is a leaf, in the name of the file: ``train-images-idx3-ubyte`` is ``image``."""
    arrays = {}
    for file in files:
        match = _NAME.fullmatch(unpacked_name(file))
        name = _LEAVES[match[2]] if match else unpacked_name(file).split(".")[0]
        if name in arrays:
            raise FileError(
                f"{file}: two IDX files of {name!r}. Each is a leaf of the records: open those of "
                f"one split, or the folder {os.path.dirname(file)} with split=."
            )
        arrays[name] = read_idx(file, options.cache.files)
    chosen = options.chosen(list(arrays), files[0])
    return source_of_arrays([files[0]], [{name: arrays[name] for name in chosen}], "idx")


def _matches(folder: Folder) -> dict[str, list[str]]:
    """The files of each split."""
    found: dict[str, list[str]] = {}
    for file in folder.files:
        if match := _NAME.fullmatch(file):
            if match[3] and folder.has(file.removesuffix(match[3])):
                continue  # torchvision leaves what it has downloaded beside what it has unpacked
            split = match[1] or ""
            found.setdefault(_SPLITS.get(split, split), []).append(folder.join(file))
    return found


def is_folder(folder: Folder) -> bool:
    return bool(_matches(folder))


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    def opener(files: list[str]) -> OpenSplit:
        return lambda: open_files(files, options)

    return {split: opener(sorted(files)) for split, files in sorted(_matches(folder).items())[::-1]}
