"""HDF5 files: contiguous datasets are mapped where they lie, others are read with h5py.

A dataset that is neither chunked nor compressed lies in the file in one piece (`h5_datasets`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.adapt.arrays import LazyArray
from loaderx.sources.adapt.h5_datasets import H5Dataset, offset_of
from loaderx.sources.base import Source
from loaderx.sources.files.arrays import PlacedArray
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.paths import below, is_below
from loaderx.sources.format import OpenOptions, Splits
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.formats.splits import group_splits
from loaderx.sources.mapping import Identity, changed, reading
from loaderx.sources.remote.urls import is_url


class H5File(Protocol):
    """The part of `h5py.File` that is used."""

    def __getitem__(self, name: str, /) -> H5Dataset: ...
    def visititems(self, visit: Callable[[str, object], None], /) -> object: ...
    def __enter__(self) -> H5File: ...
    def __exit__(self, *exception: object) -> None: ...


class LazyDataset:
    """A dataset that h5py reads; opened again in each process, at its first use."""

    def __init__(self, files: FileSet, number: int, name: str, dataset: H5Dataset) -> None:
        self._files, self._number, self._name = files, number, name
        self.shape, self.dtype, self.chunks = tuple(dataset.shape), dataset.dtype, dataset.chunks
        told: Mapping[str, object] = (
            dataset.dtype.metadata or {}
        )  # h5py keeps the type of objects there
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


def open_files(files: list[str], options: OpenOptions, group: str = "") -> Source:
    """The records of files of this format, or of one group in them, with a slash at its end."""
    opened = FileSet(files, files=options.cache.files)
    shards = [_arrays(opened, number, options, group) for number in opened.fetched()]
    return source_of_arrays(files, shards, "hdf5")


def file_splits(files: list[str], options: OpenOptions) -> Splits:
    """The groups that are splits."""
    opened = FileSet(files[:1], files=options.cache.files)
    (number,) = opened.fetched()
    with _h5py_file(opened, number) as file, reading(files[0]):
        groups = group_splits(_dataset_names(file), options.columns)
    return {split: partial(open_files, files, options, group) for split, group in groups.items()}


def _arrays(files: FileSet, number: int, options: OpenOptions, group: str) -> dict[str, LazyArray]:
    path, identity = files.paths[number], files.identities[number]
    found: dict[str, LazyArray] = {}
    with _h5py_file(files, number) as file, reading(path):
        names = _dataset_names(file)
        if not names:
            raise FileError(f"{path} has no datasets with an axis of records.")
        inside = [name.removeprefix(group) for name in names if name.startswith(group)]
        for name in options.chosen(inside, path):
            dataset = file[group + name]
            _check_kind(dataset, f"{path}, dataset {name!r}")
            is_own = not is_url(path) and not files.files.has_copy(path)
            folder = os.path.dirname(path) if is_own else None
            _check_inside(dataset, folder, f"{path}, dataset {name!r}")
            offset = offset_of(dataset)
            if offset is None:
                found[name] = LazyDataset(files, number, group + name, dataset)
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


def _check_inside(dataset: H5Dataset, folder: str | None, where: str) -> None:
    """Refuses datasets in other files, except virtual datasets of files below the folder.

    Files that were downloaded or unpacked have none.  External links are not followed: h5py does
    not visit their targets.
    """
    if dataset.external:
        raise FileError(
            f"{where} lies in another file (external storage), which libhdf5 would look for "
            "anywhere. Write it into the file itself, with h5repack."
        )
    if not dataset.is_virtual:
        return
    names = {one.file_name for one in dataset.virtual_sources()} - {"."}
    outside = [name for name in names if not is_below(name)]
    if outside or folder is None:
        what = f"of {outside[0]!r:.100}" if outside else "in a file that was downloaded or unpacked"
        raise FileError(
            f"{where} is a virtual dataset {what}: it may name only files below its own folder, on "
            "this machine. Write it as a plain dataset, or leave it out with columns=."
        )
    # libhdf5 would look for them in the current folder, and else return zeros without an error.
    missing = [one for one in names if "%" not in one and not os.path.exists(below(folder, one))]
    if missing:
        raise FileError(
            f"{where} is a virtual dataset of {missing[0]!r}, which is not in {folder}."
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
    with files.open(number) as on_disk, reading(path):
        if isinstance(identity, Identity) and (change := identity.change(Identity.of(on_disk))):
            raise changed(path, change)
        opened: H5File = h5py.File(on_disk.name, "r")
        return opened
