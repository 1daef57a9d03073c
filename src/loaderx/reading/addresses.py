"""Rows that have been found: which records of which sources, and what stages must know of them.

Addresses are resolved in blocks of thousands of rows.  What comes out mirrors the operators: each
class here belongs to one kind of operator, and can be cut down to the rows of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.rng import Keys
from loaderx.sources.base import Indices

Positions = npt.NDArray[np.int64]


class SourceRows:
    """Records of one source."""

    __slots__ = ("epochs", "index")

    def __init__(self, epochs: Keys, index: Indices) -> None:
        self.epochs = epochs  # one entry, or one per row
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def cut(self, start: int, stop: int) -> SourceRows:
        epochs = self.epochs
        if epochs.size > 1:
            epochs = epochs[start:stop]
        return SourceRows(epochs, self.index[start:stop])


class TaggedRows:
    """Rows with one value each: random keys, or positions."""

    __slots__ = ("inner", "values")

    def __init__(self, inner: Any, values: Any) -> None:
        self.inner = inner
        self.values = values

    def __len__(self) -> int:
        return len(self.inner)

    def cut(self, start: int, stop: int) -> TaggedRows:
        return TaggedRows(self.inner.cut(start, stop), self.values[start:stop])


class AnchoredRows:
    """Rows with their address at the place where another row may replace them."""

    __slots__ = ("epochs", "inner", "positions")

    def __init__(self, epochs: Keys, positions: Positions, inner: Any) -> None:
        self.epochs, self.positions, self.inner = epochs, positions, inner

    def __len__(self) -> int:
        return len(self.inner)

    def cut(self, start: int, stop: int) -> AnchoredRows:
        epochs = self.epochs
        if epochs.size > 1:
            epochs = epochs[start:stop]
        return AnchoredRows(epochs, self.positions[start:stop], self.inner.cut(start, stop))


class MergedRows:
    """Rows of several components: for each, the places they take (ascending) and their rows."""

    __slots__ = ("count", "parts")

    def __init__(self, count: int, parts: Sequence[tuple[int, Positions, Any]]) -> None:
        self.count = count
        self.parts = parts

    def __len__(self) -> int:
        return self.count

    def cut(self, start: int, stop: int) -> MergedRows:
        parts = []
        for component, places, rows in self.parts:
            first, last = np.searchsorted(places, (start, stop)).tolist()
            if first < last:
                parts.append((component, places[first:last] - start, rows.cut(first, last)))
        return MergedRows(stop - start, parts)


class ZippedRows:
    """The same rows of several components."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def cut(self, start: int, stop: int) -> ZippedRows:
        return ZippedRows([part.cut(start, stop) for part in self.parts])


class BatchRows:
    """The rows of one batch: ``count`` real ones, to be filled up to ``size``."""

    __slots__ = ("count", "inner", "size")

    def __init__(self, inner: Any, count: int, size: int) -> None:
        self.inner, self.count, self.size = inner, count, size

    def __len__(self) -> int:
        return self.size

    def cut(self, start: int, stop: int) -> BatchRows:
        return BatchRows(self.inner.cut(start, stop), stop - start, stop - start)


class Steps:
    """A block of steps of a batched dataset."""

    __slots__ = ()

    def step(self, number: int) -> Any:
        """What is to be read for one step of the block."""
        raise NotImplementedError

    def bounds(self, number: int) -> tuple[int, int]:
        """The step's rows within the rows of the block."""
        raise NotImplementedError

    @property
    def row_count(self) -> int:
        """The rows of the block."""
        raise NotImplementedError


class BatchSteps(Steps):
    """Equal runs of ``width`` rows per step, of which the first ``counts`` are real."""

    __slots__ = ("counts", "padded", "rows", "width")

    def __init__(self, rows: Any, width: int, counts: list[int] | None, padded: bool) -> None:
        self.rows, self.width, self.counts, self.padded = rows, width, counts, padded

    def step(self, number: int) -> BatchRows:
        width = self.width
        start = number * width
        if self.counts is None:
            return BatchRows(self.rows.cut(start, start + width), width, width)
        count = self.counts[number]
        rows = self.rows.cut(start, start + max(count, 1))  # one row shows how padding must look
        return BatchRows(rows, count, width if self.padded else count)

    def bounds(self, number: int) -> tuple[int, int]:
        start = number * self.width
        full = self.counts is None or self.padded
        return start, start + (self.width if full else self.counts[number])  # type: ignore[index]

    @property
    def row_count(self) -> int:
        return len(self.rows)


class TaggedSteps(Steps):
    """Steps with the random keys of their rows, or with their own positions."""

    __slots__ = ("inner", "per_row", "values")

    def __init__(self, inner: Steps, values: Any, per_row: bool) -> None:
        self.inner, self.values, self.per_row = inner, values, per_row

    def step(self, number: int) -> TaggedRows:
        if not self.per_row:
            return TaggedRows(self.inner.step(number), self.values[number])
        start, stop = self.inner.bounds(number)
        return TaggedRows(self.inner.step(number), self.values[start:stop])

    def bounds(self, number: int) -> tuple[int, int]:
        return self.inner.bounds(number)

    @property
    def row_count(self) -> int:
        return self.inner.row_count


class MergedSteps(Steps):
    """Steps of several components; step s is step ``ordinal[s]`` of component ``which[s]``."""

    __slots__ = ("blocks", "offsets", "ordinal", "which")

    def __init__(
        self, which: list[int], ordinal: list[int], blocks: Sequence[Any], offsets: Sequence[int]
    ) -> None:
        self.which, self.ordinal, self.blocks, self.offsets = which, ordinal, blocks, offsets

    def step(self, number: int) -> tuple[int, Any]:
        component = self.which[number]
        return component, self.blocks[component].step(self.ordinal[number])

    def bounds(self, number: int) -> tuple[int, int]:
        component = self.which[number]
        start, stop = self.blocks[component].bounds(self.ordinal[number])
        return start + self.offsets[component], stop + self.offsets[component]

    @property
    def row_count(self) -> int:
        return sum(block.row_count for block in self.blocks if block is not None)


class ZippedSteps(Steps):
    """The same steps of several components."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.blocks = blocks

    def step(self, number: int) -> list[Any]:
        return [block.step(number) for block in self.blocks]

    def bounds(self, number: int) -> tuple[int, int]:
        first: tuple[int, int] = self.blocks[0].bounds(number)
        return first

    @property
    def row_count(self) -> int:
        return int(self.blocks[0].row_count)
