"""Rows of a sparse matrix of scipy, dense for the records that are read."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from loaderx.errors import ArgumentTypeError
from loaderx.sources.base import Indices
from loaderx.sources.files.parts import numbers_from
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
        rows = matrix.tocsr()
        if not rows.has_canonical_format:  # else the values of one cell may be in several pieces
            rows = rows.copy()
            rows.sum_duplicates()
        self.shape, self.dtype = rows.shape, rows.dtype
        self._ends, self._columns, self._values = rows.indptr, rows.indices, rows.data

    def __getitem__(self, index: slice | Indices) -> Array:
        rows = np.arange(index.start, index.stop) if isinstance(index, slice) else index
        starts = self._ends[rows].astype(np.int64)
        counts = self._ends[rows + 1] - starts
        at = numbers_from(starts, counts)
        out = np.zeros((len(rows), self.shape[1]), self.dtype)
        out[np.repeat(np.arange(len(rows)), counts), self._columns[at]] = self._values[at]
        return out
