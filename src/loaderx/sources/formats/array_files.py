"""Files of named arrays (``.npz``, safetensors, HDF5, zarr): one file, or several as shards.

`mapped_arrays` is public: formats from outside are opened by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.adapt.arrays import ArraySource, LazyArray, read_lazy
from loaderx.sources.base import Source
from loaderx.sources.columns.build import fixed_column
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.elements import ListedArrays
from loaderx.sources.columns.table import ColumnTree, TableSource
from loaderx.sources.files.arrays import PlacedArray, placed_arrays
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.files.paths import unpacked_name
from loaderx.sources.format import OpenFiles, OpenOptions
from loaderx.sources.mapping import reading
from loaderx.tree import Array, ArraySpec, Tree, flatten, map_leaves


class LazyColumn(Column):
    """Rows of lazy arrays, one in each part."""

    def __init__(
        self, parts: Parts, arrays: Sequence[Array | LazyArray], spec: ArraySpec | None
    ) -> None:
        self.parts, self._arrays, self._spec = parts, list(arrays), spec

    @property
    def spec(self) -> ArraySpec | None:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        for part, places in at.groups():
            out[places] = read_lazy(self._arrays[part], at.rows[places])

    def values(self, at: Located) -> Sequence[object]:
        first = self._arrays[0]
        out = np.empty((len(at), *first.shape[1:]), first.dtype.newbyteorder("="))
        self.take(at, out)
        return list(out)


ReadArrays: TypeAlias = Callable[[Array, str], Mapping[str, Array]]
"""Finds the arrays in the bytes of a file, given as uint8, and its path."""


def mapped_arrays(read: ReadArrays) -> OpenFiles:
    """Opens files of named arrays, for a `FileFormat`.

    ``read(data, path)`` is given the bytes of a mapped file, as read-only uint8, and returns its
    arrays by name, one row for each record.  Views of ``data`` are read from the file, batch by
    batch; other arrays stay in memory.

    >>> open_rows = mapped_arrays(lambda data, path: {"x": data.view("<f4")})
    """

    def open_files(files: list[str], options: OpenOptions) -> Source:
        opened = FileSet(files, files=options.cache.files)
        shards = [_shard(opened, number, read, options) for number in opened.fetched()]
        suffix = os.path.splitext(unpacked_name(files[0]))[1]
        return source_of_arrays(files, shards, suffix.removeprefix(".") or "open")

    return open_files


def _shard(
    files: FileSet, number: int, read: ReadArrays, options: OpenOptions
) -> dict[str, Array | PlacedArray]:
    path, data = files.paths[number], files.data(number)
    found: object
    with reading(path):
        found = read(data, path)
    if not isinstance(found, Mapping) or not found:
        raise FileError(f"{path}: a dict of arrays is needed, and the format gave {found!r}.")
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise FileError(f"{path}: {name!r} must be an array, and the format gave a {kind}.")
    return {
        name: _placed(files, number, data, found[name])
        for name in options.chosen(list(found), path)
    }


def _placed(files: FileSet, number: int, data: Array, array: Array) -> Array | PlacedArray:
    """The array by its place in the file, if it is a view of the file."""
    if not array.size or not np.may_share_memory(array, data):
        return array
    offset = array.__array_interface__["data"][0] - data.__array_interface__["data"][0]
    return PlacedArray(files, number, offset, array.dtype, array.shape, strides=array.strides)


def source_of_arrays(files: Sequence[str], shards: Sequence[Tree], label: str) -> Source:
    """The rows of named arrays, those of each file after those of the file before."""
    if len(shards) == 1 and not any(map(_is_special, flatten(shards[0])[0])):
        _check_lengths(files[0], shards[0])
        return ArraySource(map_leaves(_mapped, shards[0]), "open")
    structures = [flatten(tree)[1] for tree in shards]
    for file, structure in zip(files, structures, strict=True):
        if set(structure.paths()) != set(structures[0].paths()):
            raise FileError(
                f"{files[0]} has the arrays {structures[0].paths()} and {file} has "
                f"{structure.paths()}: the shards of a dataset have the same ones. Choose some "
                "with columns=."
            )
    counts = [_check_lengths(file, tree) for file, tree in zip(files, shards, strict=True)]
    leaves = [_by_path(tree) for tree in shards]
    columns = [
        _column(path, [one[path] for one in leaves], files, counts)
        for path in structures[0].paths()
    ]
    tree: ColumnTree = structures[0].build(columns)
    return TableSource(tree, sum(counts), label=label, shard_counts=counts)


def _mapped(array: Array | LazyArray) -> Array | LazyArray:
    return array.array() if isinstance(array, PlacedArray) else array


def _is_special(array: object) -> bool:
    """True if only a column can read it: ragged, in pieces, or in another byte order."""
    if isinstance(array, PlacedArray) and array.is_fetched:
        return True
    return _is_ragged(array) or not getattr(array, "dtype", np.dtype(object)).isnative


def _is_ragged(array: object) -> bool:
    """True if its elements are arrays of various lengths."""
    return bool(getattr(array, "is_ragged", False))


def _by_path(tree: Tree) -> dict[str, Array | LazyArray]:
    leaves, structure = flatten(tree)
    return dict(zip(structure.paths(), leaves, strict=True))


def _check_lengths(file: str, tree: Tree) -> int:
    arrays = _by_path(tree)
    lengths: Mapping[str, int] = {
        path: array.shape[0] for path, array in arrays.items() if array.shape
    }
    advice = ""
    if os.path.splitext(file)[1] in ("", ".npz"):  # a folder has no suffix
        advice = " If each file is a record, open its folder with format='arrays'."
    for path, array in arrays.items():
        if not array.shape:
            raise FileError(
                f"{file}: the array {path!r} is a single number, with no axis of records. Leave it "
                f"out: columns={list(lengths)!r}.{advice}"
            )
    first = next(iter(lengths.values()))
    if any(length != first for length in lengths.values()):
        listed = ", ".join(f"{path!r} {length}" for path, length in lengths.items())
        raise FileError(
            f"{file}: the arrays have different numbers of rows ({listed}), and a record is one "
            f"row of each. Choose those that belong together with columns=.{advice}"
        )
    return first


def _column(
    name: str, arrays: Sequence[Array | LazyArray], files: Sequence[str], counts: Sequence[int]
) -> Column:
    first = arrays[0]
    for file, array in zip(files, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise FileError(
                f"{name!r} is {first.dtype}{list(first.shape[1:])} in {files[0]}, and "
                f"{array.dtype}{list(array.shape[1:])} in {file}: shards have one dtype and shape."
            )
    # JAX takes numbers in the byte order of the machine only.
    spec = ArraySpec(tuple(first.shape[1:]), np.dtype(first.dtype).newbyteorder("="))
    placed = [array for array in arrays if isinstance(array, PlacedArray)]
    if len(placed) == len(arrays):
        return fixed_column(Parts(counts), placed_arrays(placed), spec)
    plain = [array for array in arrays if isinstance(array, np.ndarray)]
    if len(plain) == len(arrays):
        return fixed_column(Parts(counts), ListedArrays(plain), spec)
    return LazyColumn(Parts(counts), arrays, None if _is_ragged(first) else spec)
