"""HDF5 files: contiguous datasets are mapped where they lie, others are read with h5py.

A dataset that is neither chunked nor compressed lies in the file in one piece (`h5_datasets`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.array_files import source_of_arrays
from loaderx.sources.arrays import LazyArray
from loaderx.sources.base import Source
from loaderx.sources.format import OpenOptions
from loaderx.sources.h5_datasets import H5Dataset, offset_of
from loaderx.sources.mapping import Identity, changed, reading
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.sources.ondisk.placed_arrays import PlacedArray


class H5File(Protocol):
    """What is used of `h5py.File`."""

    def __getitem__(self, name: str, /) -> H5Dataset: ...
    def visititems(self, visit: Callable[[str, object], None], /) -> object: ...
    def __enter__(self) -> H5File: ...
    def __exit__(self, *exception: object) -> None: ...


class LazyDataset:
    """A dataset that h5py reads; opened again in each process, at its first use."""

    def __init__(self, files: FileSet, number: int, name: str, dataset: H5Dataset) -> None:
        self._files, self._number, self._name = files, number, name
        self.shape, self.dtype = tuple(dataset.shape), dataset.dtype
        told: Mapping[str, object] = (
            dataset.dtype.metadata or {}
        )  # h5py says there what the objects are
        self._is_text = told.get("vlen") is str
        self.is_ragged = "vlen" in told and told["vlen"] not in (str, bytes)
        self._begin()

    def _begin(self) -> None:
        self._opened: H5Dataset | None = None
        self._lock = threading.Lock()

    def __getitem__(self, index: object) -> object:
        where = f"{self._files.paths[self._number]}, dataset {self._name!r}"
        with self._lock, reading(where):
            if self._opened is None:
                opened = _h5py_file(self._files, self._number)[self._name]
                self._opened = opened.asstr() if self._is_text else opened
            return self._opened[index]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    opened = FileSet(files, files=options.cache.files)
    shards = [_arrays(opened, number, options) for number in opened.fetched()]
    return source_of_arrays(files, shards, "hdf5")


def _arrays(files: FileSet, number: int, options: OpenOptions) -> dict[str, LazyArray]:
    path, identity = files.paths[number], files.identities[number]
    found: dict[str, LazyArray] = {}
    with _h5py_file(files, number) as file, reading(path):
        names = _dataset_names(file)
        if not names:
            raise FileError(f"{path} has no datasets with an axis of records.")
        for name in options.chosen(names, path):
            dataset = file[name]
            _check_kind(dataset, f"{path}, dataset {name!r}")
            offset = offset_of(dataset)
            if offset is None:
                found[name] = LazyDataset(files, number, name, dataset)
                continue
            if offset + dataset.nbytes > identity.size:
                raise FileError(f"{path}, dataset {name!r} is cut off.")
            found[name] = PlacedArray(files, number, offset, dataset.dtype, tuple(dataset.shape))
    return found


def _dataset_names(file: H5File) -> list[str]:
    """All datasets with an axis of records, those in groups as ``group/name``."""
    found: list[str] = []

    def visit(name: str, item: object) -> None:
        if getattr(item, "shape", None):
            found.append(name)

    file.visititems(visit)
    return found


def _check_kind(dataset: H5Dataset, where: str) -> None:
    told: Mapping[str, object] = dataset.dtype.metadata or {}
    is_reference = dataset.dtype.hasobject and "vlen" not in told
    if is_reference or (dataset.dtype.kind == "V" and dataset.dtype.names is None):
        raise FileError(
            f"{where} holds {'references' if is_reference else 'opaque data'}, which loaderx "
            "cannot interpret. Leave it out: choose others with columns=."
        )


def _h5py_file(files: FileSet, number: int) -> H5File:
    path, identity = files.paths[number], files.identities[number]
    try:
        import h5py
    except ImportError as error:
        raise MissingPackageError(
            f"{path} is an HDF5 file, which needs the package h5py: "
            "pip install 'loaderx-jax[hdf5]'."
        ) from error
    if isinstance(identity, Identity) and (change := identity.change(Identity.at(path))):
        raise changed(path, change)
    with files.open(number) as on_disk, reading(path):
        opened: H5File = h5py.File(on_disk.name, "r")
        return opened
