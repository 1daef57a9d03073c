"""zarr groups and arrays, read chunk by chunk with the package zarr."""

from __future__ import annotations

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.array_files import source_of_arrays
from loaderx.sources.arrays import LazyArray
from loaderx.sources.base import Source
from loaderx.sources.format import Folder, FolderFormat, OpenOptions, Splits
from loaderx.sources.mapping import reading

_MARKS = (".zarray", ".zgroup", "zarr.json")


def _open(path: str, name: str, options: OpenOptions) -> Source:
    try:
        import zarr
    except ImportError as error:
        raise MissingPackageError(
            f"{path} is a zarr store, which needs the package zarr: "
            "pip install 'loaderx-jax[zarr]'."
        ) from error
    with reading(path):
        opened = zarr.open(path, mode="r")
    if not hasattr(opened, "arrays"):  # a single array
        chosen = options.chosen([name], path)
        return source_of_arrays([path], [dict.fromkeys(chosen, opened)], "zarr")
    with reading(path):
        arrays: dict[str, LazyArray] = dict(opened.arrays())
    if not arrays:
        raise FileError(f"{path} has no arrays at its top. Open one of its groups.")
    chosen = options.chosen(sorted(arrays), path)
    return source_of_arrays([path], [{name: arrays[name] for name in chosen}], "zarr")


def _splits(folder: Folder, options: OpenOptions) -> Splits:
    name = folder.name.removesuffix(".zarr")
    return {"": lambda: _open(folder.path, name, options)}


def _is_folder(folder: Folder) -> bool:
    return any(folder.has(mark) for mark in _MARKS)


ZARR = FolderFormat(name="zarr", is_folder=_is_folder, splits=_splits, marks=" or ".join(_MARKS))
