"""zarr groups and arrays, read chunk by chunk with the package zarr."""

from __future__ import annotations

from functools import partial

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.adapt.arrays import LazyArray, is_group
from loaderx.sources.base import Indices, Source
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.formats.splits import group_splits
from loaderx.sources.mapping import reading
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Leaf, Tree

_MARKS = (".zarray", ".zgroup", "zarr.json")


def _opened(folder: Folder) -> dict[str, LazyArray]:
    """The arrays, those in groups as ``group/name``; a single one as the folder is called."""
    path = folder.path
    try:
        import zarr
    except ImportError as error:
        raise MissingPackageError(
            f"{path} is a zarr store, which needs the package zarr: "
            "pip install 'loaderx-jax[zarr]'."
        ) from error
    with reading(path):
        store = _store(folder)
        opened = zarr.open(store, mode="r")
        name = folder.name.removesuffix(".zarr")
        arrays = _named(opened) if is_group(opened) else {name: opened}
        if hasattr(store, "know"):
            store.know(arrays.values())
    if not arrays:
        raise FileError(f"{path} has no arrays.")
    return {
        name: _Rows(array, f"{path}, array {name!r}" if is_group(opened) else path)
        for name, array in sorted(arrays.items())
    }


def _named(group: Tree, prefix: str = "") -> dict[str, LazyArray]:
    """All arrays with an axis of records."""
    found = {f"{prefix}{name}": array for name, array in group.arrays() if array.shape}
    for name, below in group.groups():
        found |= _named(below, f"{prefix}{name}/")
    return found


def _open(folder: Folder, arrays: dict[str, LazyArray], group: str, options: OpenOptions) -> Source:
    inside = [name.removeprefix(group) for name in arrays if name.startswith(group)]
    chosen = {name: arrays[group + name] for name in options.chosen(inside, folder.path)}
    return source_of_arrays([folder.path], [chosen], "zarr")


class _Rows:
    """A zarr array whose errors name it."""

    def __init__(self, array: LazyArray, where: str) -> None:
        self._array, self._where = array, where
        self.shape, self.dtype = tuple(array.shape), array.dtype
        self.chunks = getattr(array, "chunks", None)

    def __getitem__(self, index: slice | Indices) -> Leaf:
        with reading(self._where):
            # Only the outer index takes lists of rows.
            by: LazyArray = getattr(self._array, "oindex", self._array)
            return (self._array if isinstance(index, slice) else by)[index]


def _store(folder: Folder) -> object:
    try:
        from loaderx.sources.formats.zarr_store import store_of  # which imports zarr
    except ImportError as error:
        if not is_url(folder.path):
            return folder.path  # of zarr 2
        raise MissingPackageError(
            f"{folder.path}: zarr stores behind URLs need zarr 3: pip install 'zarr>=3'."
        ) from error
    return store_of(folder.path, folder.file_systems)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    arrays = _opened(folder)
    groups = group_splits(arrays, options.columns) or {"": ""}
    return {name: partial(_open, folder, arrays, group, options) for name, group in groups.items()}


def is_folder(folder: Folder) -> bool:
    return any(folder.has(mark) for mark in _MARKS)
