"""Arrays that lie somewhere in a file: mapped when they are read, with few descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from loaderx.frozen import Frozen
from loaderx.sources.base import Indices
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.tree import Array, DType, Leaf


class PlacedArray(Frozen):
    """An array in a file of a set; a `LazyArray`."""

    files: FileSet
    number: int
    offset: int  # bytes
    dtype: DType
    shape: tuple[int, ...]
    fortran: bool = False

    def array(self) -> Array:
        """The array, read-only."""
        if 0 in self.shape:  # its file may have no bytes to map
            return np.empty(self.shape, self.dtype)
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        data = self.files.data(self.number)
        return np.ndarray(self.shape, self.dtype, data, self.offset, order=order)

    def __getitem__(self, index: slice | Indices) -> Leaf:
        return self.array()[index]


class PlacedArrays:
    """One array in each part; an `ArrayOf`."""

    def __init__(self, arrays: Sequence[PlacedArray]) -> None:
        self._arrays = list(arrays)
        self.is_mapped = not any(one.files.is_remote for one in self._arrays)
        self._kept: dict[int, Array] = {}  # few files: their maps stay anyway

    def __call__(self, part: int) -> Array:
        found = self._kept.get(part)
        if found is None:
            found = self._arrays[part].array()
            if self._arrays[part].files.keeps_maps:
                self._kept[part] = found
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}
