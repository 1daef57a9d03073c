"""zarr groups and arrays, read chunk by chunk with the package zarr."""

from __future__ import annotations

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.array_files import source_of_arrays
from loaderx.sources.arrays import LazyArray
from loaderx.sources.base import Source
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.mapping import reading
from loaderx.sources.remote.urls import is_url

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
        opened = zarr.open(_store(folder), mode="r")
    if not hasattr(opened, "arrays"):  # a single array
        chosen = options.chosen([name], path)
        return source_of_arrays([path], [dict.fromkeys(chosen, opened)], "zarr")
    with reading(path):
        arrays: dict[str, LazyArray] = dict(opened.arrays())
    if not arrays:
        raise FileError(f"{path} has no arrays at its top. Open one of its groups.")
    chosen = options.chosen(sorted(arrays), path)
    return source_of_arrays([path], [{name: arrays[name] for name in chosen}], "zarr")


def _store(folder: Folder) -> object:
    if not is_url(folder.path):
        return folder.path
    try:
        from loaderx.sources.formats.zarr_store import UrlStore  # which imports zarr
    except ImportError as error:
        raise MissingPackageError(
            f"{folder.path}: zarr stores behind URLs need zarr 3: pip install 'zarr>=3'."
        ) from error
    return UrlStore(folder.path, folder.file_systems)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    name = folder.name.removesuffix(".zarr")
    return {"": lambda: _open(folder, name, options)}


def is_folder(folder: Folder) -> bool:
    return any(folder.has(mark) for mark in _MARKS)
