"""The columns of a table in several files, each as one array (`joined_maps`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from loaderx.errors import LoaderxError
from loaderx.sources.base import Indices
from loaderx.sources.columns import Column, FixedColumn
from loaderx.sources.joined_maps import joined_maps
from loaderx.sources.parts import Parts
from loaderx.tree import Array


class JoinedColumns:
    """The columns whose values are rows of mapped files, if they can be joined.

    That is done when records of several files are first read together, in no order.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._begin()

    def _begin(self) -> None:
        fixed = [column for column in self._columns if _is_mapped(column)]
        self._parts = fixed[0].parts if fixed else Parts(())
        self._is_open = len(self._parts.counts) > 1 and all(
            np.array_equal(column.parts.ends, self._parts.ends) for column in fixed
        )
        self.arrays: list[Array | None] = []  # one for each column, once they are joined
        self._shifts = np.zeros(0, np.int64)  # from the numbers of records to those of rows

    def __bool__(self) -> bool:
        """Are they joined, or may they be?"""
        return self._is_open or bool(self.arrays)

    def rows(self, indices: Indices) -> Indices | None:
        """Where these records are in the arrays; None if nothing is joined."""
        if not self:
            return None
        numbers = self._parts.ends.searchsorted(indices, "right")
        if not self.arrays and (numbers[1:] < numbers[:-1]).any():
            self._join()
        return indices + self._shifts[numbers] if self.arrays else None

    def _join(self) -> None:
        fixed = list(filter(_is_mapped, self._columns))
        try:
            found = joined_maps([column.part for column in fixed], self._parts.counts)
        except LoaderxError:  # it is said when that part is read
            found = None
        # JAX takes numbers in the byte order of the machine: others are turned round when read.
        dtypes = [array.dtype for array in found.arrays] if found is not None else []
        if found is not None and dtypes == [column.spec.dtype for column in fixed]:
            self._shifts = found.starts - self._parts.starts
            arrays = iter(found.arrays)
            self.arrays = [next(arrays) if _is_mapped(one) else None for one in self._columns]
        self._is_open = False

    def __getstate__(self) -> dict[str, object]:
        return {"_columns": self._columns}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


def _is_mapped(column: Column) -> TypeGuard[FixedColumn]:
    return type(column) is FixedColumn and getattr(column.part, "is_mapped", False)
