"""zarr groups and arrays, read chunk by chunk with the package zarr."""

from __future__ import annotations

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.adapt.arrays import LazyArray
from loaderx.sources.base import Indices, Source
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.mapping import reading
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Leaf

_MARKS = (".zarray", ".zgroup", "zarr.json")


def _open(folder: Folder, name: str, options: OpenOptions) -> Source:
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
        is_group = hasattr(opened, "arrays")
        arrays: dict[str, LazyArray] = dict(opened.arrays()) if is_group else {name: opened}
        if hasattr(store, "know"):
            store.know(arrays.values())
    if not arrays:
        raise FileError(f"{path} has no arrays at its top. Open one of its groups.")
    found = {
        one: _Rows(arrays[one], f"{path}, array {one!r}" if is_group else path)
        for one in options.chosen(sorted(arrays), path)
    }
    return source_of_arrays([path], [found], "zarr")


class _Rows:
    """A zarr array whose errors name it."""

    def __init__(self, array: LazyArray, where: str) -> None:
        self._array, self._where = array, where
        self.shape, self.dtype = tuple(array.shape), array.dtype

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
    name = folder.name.removesuffix(".zarr")
    return {"": lambda: _open(folder, name, options)}


def is_folder(folder: Folder) -> bool:
    return any(folder.has(mark) for mark in _MARKS)
