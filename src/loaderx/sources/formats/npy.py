"""NumPy files: ``.npy``, ``.npz``, folders of ``.npy``, and several ``.npz`` as shards of one."""

from __future__ import annotations

import io
import os

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.columns.build import fixed_column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.arrays import PlacedArray, open_arrays, open_shard, placed_arrays
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.npy import has_header, read_header
from loaderx.sources.files.parts import Parts
from loaderx.sources.files.paths import is_data, unpacked_name
from loaderx.sources.format import Folder, OpenOptions, Splits, check_named
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.remote.urls import file_name
from loaderx.tree import ArraySpec

LARGE = 8 << 20  # bytes: rows of larger arrays are fetched one by one, smaller arrays whole
_HEAD = 512


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    if len(files) > 1 and any(not unpacked_name(file).endswith(".npz") for file in files):
        raise FileError(
            f"{files[0]} and {len(files) - 1} more: several .npy files may be columns or shards. "
            "For columns put them into one folder and open that; for shards open each, and join "
            "them with Dataset.concatenate; if each file is a record, open its folder with "
            "format='arrays'."
        )
    if len(files) == 1:
        found = _fetched(files[0], options)
        if found is not None:
            return found
        shards = [open_arrays(files[0], options.columns, options.cache.files)]
    else:
        opened = FileSet(files, files=options.cache.files)
        shards = [open_shard(opened, number, options.columns) for number in opened.fetched()]
    if options.columns is None:
        check_named("fill", options.fill, list(shards[0]), files[0])
    return source_of_arrays(files, shards, "npz")


def _fetched(path: str, options: OpenOptions) -> Source | None:
    """A large array behind a URL, whose rows are fetched as they are read; None for others."""
    systems = options.cache.files
    if not systems.is_remote(path) or systems.of(path).is_folder(path):
        return None
    files = FileSet([path], files=systems)
    if files.sizes[0] < LARGE:
        return None
    head = systems.of(path).head(path, _HEAD)
    if not has_header(head):
        return None
    header = read_header(io.BytesIO(head), files.sizes[0], path)
    dtype, rows = header.dtype, header.shape[:1]
    is_plain = dtype.isnative and dtype.names is None and not header.fortran
    is_all = header.start + header.nbytes == files.sizes[0]
    if not (is_plain and is_all and rows) or 0 in header.shape:
        return None
    name = os.path.splitext(file_name(path))[0]
    (chosen,) = options.chosen([name], path)
    array = PlacedArray(files, 0, header.start, dtype, header.shape, in_pieces=True)
    spec = ArraySpec(header.shape[1:], dtype)
    column = fixed_column(Parts(rows), placed_arrays([array]), spec)
    return TableSource({chosen: column}, rows[0], label="npy")


def is_folder(folder: Folder) -> bool:
    data = [name for name in folder.files if is_data(name)]
    return bool(data) and all(name.endswith(".npy") for name in data)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    return {"": lambda: open_files([folder.path], options)}
