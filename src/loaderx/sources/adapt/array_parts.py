"""Gathers rows of many arrays of equal dtypes and shapes into one batch.

With a gather for each source, a batch that takes a row or two from each of a hundred would cost a
hundred gathers.  A view of each row, and one `np.concatenate` of them, costs 0.2 µs a row, however
many sources there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.memory import Layout, Lend
from loaderx.sources.adapt.arrays import ArraySource
from loaderx.sources.base import Indices
from loaderx.tree import Tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaderx.sources.files.cold import ColdReads, Span


class ArrayParts:
    """Sources of arrays, in memory or mapped, with records of equal dtypes and shapes."""

    def __init__(self, sources: Sequence[ArraySource]) -> None:
        self._sources = sources
        self._structure = sources[0].structure
        self._columns = list(zip(*[source.arrays or () for source in sources], strict=True))
        self._first = [arrays[0] for arrays in self._columns]
        self._cold = self._hints() if any(source.is_mapped for source in sources) else None

    def __reduce__(self) -> tuple[object, ...]:
        return ArrayParts, (self._sources,)

    @staticmethod
    def of(sources: Sequence[ArraySource]) -> ArrayParts | None:
        """None if their records differ in dtype or shape, or some are lazy."""
        looks = _looks(sources[0])
        alike = looks is not None and all(
            source.structure is sources[0].structure and _looks(source) == looks
            for source in sources
        )
        return ArrayParts(sources) if alike else None

    def gather(self, which: npt.NDArray[np.intp], rows: Indices, lend: Lend) -> Tree:
        """Row ``rows[i]`` of source ``which[i]``, for each i."""
        if self._cold is not None:
            self._cold.before(self._starts[which] + rows)
        shapes = [((len(rows), *first.shape[1:]), first.dtype) for first in self._first]
        out = lend(Layout.of(*shapes))
        places = list(zip(which.tolist(), rows.tolist(), strict=True))
        for arrays, target in zip(self._columns, out, strict=True):
            np.concatenate([arrays[part][row : row + 1] for part, row in places], out=target)
        return self._structure.build(out)

    def _hints(self) -> ColdReads | None:
        from loaderx.sources.files.cold import ColdReads  # late: most arrays are in memory

        ends = np.cumsum([len(source) for source in self._sources])
        self._starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        cold = ColdReads(find=self._spans)
        return cold if cold.is_needed else None

    def _spans(self, numbers: Indices) -> Iterator[Span]:
        """Where the rows with these numbers lie, counted through all sources."""
        from loaderx.sources.files.cold import Span

        which = np.searchsorted(self._starts, numbers, side="right") - 1
        for part, row in zip(which.tolist(), numbers - self._starts[which], strict=True):
            for arrays in self._columns:
                yield Span(arrays[part], row[None], row[None] + 1)


def _looks(source: ArraySource) -> list[object] | None:
    arrays = source.arrays
    return None if arrays is None else [(array.shape[1:], array.dtype) for array in arrays]
