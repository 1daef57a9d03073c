"""Rows of a sparse matrix of scipy, dense for the records that are read."""

from __future__ import annotations

from typing import Any, TypeAlias

from loaderx.errors import ArgumentTypeError
from loaderx.sources.base import Indices
from loaderx.tree import Array

Sparse: TypeAlias = Any
"""A sparse matrix or array of scipy, of any format."""


class SparseRows:
    """A matrix in compressed rows, read by slices and by numbers of rows."""

    def __init__(self, matrix: Sparse) -> None:
        if len(matrix.shape) != 2:
            raise ArgumentTypeError(
                f"a sparse array of shape {matrix.shape} has no rows: write .toarray()."
            )
        self._rows = matrix.tocsr()
        self.shape, self.dtype = self._rows.shape, self._rows.dtype

    def __getitem__(self, index: slice | Indices) -> Array:
        found: Array = self._rows[index].toarray()
        return found
