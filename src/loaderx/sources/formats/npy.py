"""NumPy files: ``.npy``, ``.npz``, folders of ``.npy``, and several ``.npz`` as shards of one."""

from __future__ import annotations

from loaderx.errors import FileError
from loaderx.sources.array_files import source_of_arrays
from loaderx.sources.base import Source
from loaderx.sources.files import open_arrays, open_shard
from loaderx.sources.format import Folder, OpenOptions, Splits, check_fill
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.sources.ondisk.paths import is_data
from loaderx.sources.remote.urls import file_name


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    if len(files) > 1 and any(not file_name(file).endswith(".npz") for file in files):
        raise FileError(
            f"{files[0]} and {len(files) - 1} more: several .npy files may be columns or shards. "
            "For columns put them into one folder and open that; for shards open each, and join "
            "them with Dataset.concatenate."
        )
    if len(files) == 1:
        shards = [open_arrays(files[0], options.columns, options.cache.files)]
    else:
        opened = FileSet(files, files=options.cache.files)
        shards = [open_shard(opened, number, options.columns) for number in opened.fetched()]
    if options.columns is None:
        check_fill(options.fill, list(shards[0]), files[0])
    return source_of_arrays(files, shards, "npz")


def is_folder(folder: Folder) -> bool:
    data = [name for name in folder.files if is_data(name)]
    return bool(data) and all(name.endswith(".npy") for name in data)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    return {"": lambda: open_files([folder.path], options)}
