"""How many rows the batches of a stage have."""

from __future__ import annotations

from typing import NamedTuple

from loaderx.frozen import Frozen


class ShortBatches(NamedTuple):
    """Batches number ``first``, ``first + every``, ... have only ``rows`` rows, or are padded."""

    first: int
    every: int | None  # None: it is the only one
    rows: int
    padded: bool

    def among(self, start: int, count: int | None) -> tuple[ShortBatches, ...]:
        """The short ones of ``count`` batches from ``start`` on (None: of all)."""
        first = self.first - start
        if first < 0:
            if self.every is None:
                return ()
            first %= self.every
        if count is not None and first >= count:
            return ()
        is_last = self.every is None or (count is not None and first + self.every >= count)
        return (self._replace(first=first, every=None if is_last else self.every),)


class RowCount(Frozen):
    """A number of records that a batch of a stage can have."""

    rows: int | None  # None: not known before the stream ends
    stage: str
    is_rest: bool
