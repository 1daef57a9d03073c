"""NumPy files: ``.npy``, ``.npz``, folders of ``.npy``, and several ``.npz`` as shards of one."""

from __future__ import annotations

from collections.abc import Sequence

from loaderx.errors import FileError
from loaderx.sources.arrays import ArraySource
from loaderx.sources.base import Source
from loaderx.sources.columns import FixedColumn, ListedArrays
from loaderx.sources.files import open_arrays
from loaderx.sources.format import FileFormat, Folder, FolderFormat, OpenOptions, Splits
from loaderx.sources.npy import MAGIC
from loaderx.sources.ondisk.paths import is_data
from loaderx.sources.parts import Parts
from loaderx.sources.table import TableSource
from loaderx.tree import Array, ArraySpec


def _open(files: list[str], options: OpenOptions) -> Source:
    if len(files) == 1:
        return _open_one(files[0], options)
    if any(not file.endswith(".npz") for file in files):
        raise FileError(
            f"{files[0]} and {len(files) - 1} more: several .npy files may be columns or shards. "
            "For columns put them into one folder and open that; for shards open each, and join "
            "them with Dataset.concatenate."
        )
    shards = [open_arrays(file, options.columns) for file in files]
    names = list(shards[0])
    for file, arrays in zip(files, shards, strict=True):
        if set(arrays) != set(names):
            raise FileError(
                f"{files[0]} has the arrays {names} and {file} has {list(arrays)}: the shards of a "
                "dataset have the same ones. Choose some with columns=."
            )
    counts = [len(next(iter(arrays.values()))) for arrays in shards]
    columns = {
        name: _column(name, [arrays[name] for arrays in shards], counts, files) for name in names
    }
    return TableSource(columns, sum(counts), label="npz", shard_counts=counts)


def _column(
    name: str, arrays: Sequence[Array], counts: Sequence[int], files: list[str]
) -> FixedColumn:
    first = arrays[0]
    for file, array, count in zip(files, arrays, counts, strict=True):
        if len(array) != count:
            raise FileError(f"{file}: {name!r} has {len(array)} rows, another array has {count}.")
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise FileError(
                f"{name!r} is {first.dtype}{list(first.shape[1:])} in {files[0]}, and "
                f"{array.dtype}{list(array.shape[1:])} in {file}: shards have one dtype and shape."
            )
    spec = ArraySpec(tuple(first.shape[1:]), first.dtype)
    return FixedColumn(Parts(counts), ListedArrays(arrays), spec)


def _open_one(path: str, options: OpenOptions) -> ArraySource:
    return ArraySource(open_arrays(path, options.columns), "open")


def _is_head(head: bytes) -> bool:
    return head.startswith((MAGIC, b"PK\x03\x04"))


def _is_folder(folder: Folder) -> bool:
    data = [name for name in folder.files if is_data(name)]
    return bool(data) and all(name.endswith(".npy") for name in data)


def _splits(folder: Folder, options: OpenOptions) -> Splits:
    return {"": lambda: _open_one(folder.path, options)}


NPY = FileFormat(name="npy", suffixes=(".npy", ".npz"), open=_open, is_head=_is_head)
NPY_FOLDER = FolderFormat(name="npy", is_folder=_is_folder, splits=_splits)
