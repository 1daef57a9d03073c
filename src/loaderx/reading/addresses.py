"""Addresses that have been resolved: which records of which sources, and what stages need to know.

Addresses are resolved in stretches of thousands of rows.  The result mirrors the operators: each
class here belongs to one kind of operator, and can be cut down to the rows of one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from loaderx.rng import Keys
from loaderx.sources.base import Indices

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Addresses(Protocol):
    """The addresses of rows.  Only their operator looks inside; others use length and `cut`."""

    def __len__(self) -> int: ...

    def cut(self, start: int, stop: int) -> Addresses: ...


class SourceAddresses:
    """Records of one source."""

    __slots__ = ("epochs", "index")

    def __init__(self, epochs: Keys, index: Indices) -> None:
        self.epochs = epochs  # one entry, or one per row
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def cut(self, start: int, stop: int) -> SourceAddresses:
        epochs = self.epochs
        if epochs.size > 1:
            epochs = epochs[start:stop]
        return SourceAddresses(epochs, self.index[start:stop])


class TaggedAddresses:
    """Rows with one value each: random keys, or positions."""

    __slots__ = ("inner", "values")

    def __init__(self, inner: Addresses, values: Any) -> None:
        self.inner = inner
        self.values = values

    def __len__(self) -> int:
        return len(self.inner)

    def cut(self, start: int, stop: int) -> TaggedAddresses:
        return TaggedAddresses(self.inner.cut(start, stop), self.values[start:stop])


class AnchoredAddresses:
    """Rows with their address at the place where another row may replace them."""

    __slots__ = ("epochs", "inner", "positions")

    def __init__(self, epochs: Keys, positions: Positions, inner: Addresses) -> None:
        self.epochs, self.positions, self.inner = epochs, positions, inner

    def __len__(self) -> int:
        return len(self.inner)

    def cut(self, start: int, stop: int) -> AnchoredAddresses:
        epochs = self.epochs
        if epochs.size > 1:
            epochs = epochs[start:stop]
        return AnchoredAddresses(epochs, self.positions[start:stop], self.inner.cut(start, stop))


Which: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
"""The component of each row."""


def groups(which: Which) -> Iterator[tuple[int, Which]]:
    """Each component that has rows, and their places, ascending."""
    if not len(which):
        return
    order = np.argsort(which, kind="stable")
    found = which[order]
    borders = (np.flatnonzero(found[1:] != found[:-1]) + 1).tolist()
    for start, stop in zip([0, *borders], [*borders, len(which)], strict=True):
        yield int(found[start]), order[start:stop]


class MergedAddresses:
    """Rows of several components.

    Row i is number ``numbers[i]`` of the rows that were found in component ``which[i]``.  Cutting
    only cuts these two; rows are looked up by component when they are read.
    """

    __slots__ = ("found", "numbers", "which")

    def __init__(self, which: Which, numbers: Positions, found: Mapping[int, Addresses]) -> None:
        self.which, self.numbers, self.found = which, numbers, found

    @staticmethod
    def of_parts(which: Which, parts: Iterable[tuple[int, Which, Addresses]]) -> MergedAddresses:
        numbers, found = np.empty(len(which), np.int64), {}
        for component, places, rows in parts:
            numbers[places] = np.arange(len(places))
            found[component] = rows
        return MergedAddresses(which, numbers, found)

    def __len__(self) -> int:
        return len(self.which)

    def cut(self, start: int, stop: int) -> MergedAddresses:
        return MergedAddresses(self.which[start:stop], self.numbers[start:stop], self.found)

    @property
    def parts(self) -> list[tuple[int, Which, Addresses]]:
        """For each component that has rows the places they take (ascending), and the rows."""
        return [(component, at, self._rows(component, at)) for component, at in groups(self.which)]

    def _rows(self, component: int, places: Which) -> Addresses:
        first, last = self.numbers[places[0]], self.numbers[places[-1]]
        return self.found[component].cut(int(first), int(last) + 1)


class MergedRecords(MergedAddresses):
    """Records of several sources: row i is record ``numbers[i]`` of source ``which[i]``."""

    __slots__ = ("epochs",)

    def __init__(self, which: Which, numbers: Indices, epochs: Keys) -> None:
        super().__init__(which, numbers, {})
        self.epochs = epochs  # one entry, or one per row

    def cut(self, start: int, stop: int) -> MergedRecords:
        epochs = self.epochs if self.epochs.size == 1 else self.epochs[start:stop]
        return MergedRecords(self.which[start:stop], self.numbers[start:stop], epochs)

    def _rows(self, component: int, places: Which) -> SourceAddresses:
        epochs = self.epochs if self.epochs.size == 1 else self.epochs[places]
        return SourceAddresses(epochs, self.numbers[places])


class ZippedAddresses:
    """The same rows of several components."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Addresses]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def cut(self, start: int, stop: int) -> ZippedAddresses:
        return ZippedAddresses([part.cut(start, stop) for part in self.parts])


class BatchAddresses:
    """The rows of one batch: ``count`` real ones, padded to ``size``."""

    __slots__ = ("count", "inner", "size")

    def __init__(self, inner: Addresses, count: int, size: int) -> None:
        self.inner, self.count, self.size = inner, count, size

    def __len__(self) -> int:
        return self.size

    def cut(self, start: int, stop: int) -> BatchAddresses:
        return BatchAddresses(self.inner.cut(start, stop), stop - start, stop - start)


class Steps:
    """A stretch of steps of a batched dataset."""

    __slots__ = ()

    def step(self, number: int) -> Any:
        """The addresses to read for one step of the stretch, in its operator's form."""
        raise NotImplementedError

    def bounds(self, number: int) -> tuple[int, int]:
        """The step's rows within the rows of the stretch."""
        raise NotImplementedError

    @property
    def row_count(self) -> int:
        """The rows of the stretch."""
        raise NotImplementedError


class BatchSteps(Steps):
    """Equal runs of ``width`` rows per step, of which the first ``counts`` are real."""

    __slots__ = ("addresses", "counts", "padded", "width")

    def __init__(
        self, addresses: Addresses, width: int, counts: list[int] | None, padded: bool
    ) -> None:
        self.addresses, self.width, self.counts, self.padded = addresses, width, counts, padded

    def step(self, number: int) -> BatchAddresses:
        width = self.width
        start = number * width
        if self.counts is None:
            return BatchAddresses(self.addresses.cut(start, start + width), width, width)
        count = self.counts[number]
        least = max(count, 1)  # padding is made like a row that is there
        cut = self.addresses.cut(start, start + least)
        return BatchAddresses(cut, count, width if self.padded else count)

    def bounds(self, number: int) -> tuple[int, int]:
        start = number * self.width
        if self.counts is None or self.padded:
            return start, start + self.width
        return start, start + self.counts[number]

    @property
    def row_count(self) -> int:
        return len(self.addresses)


class TaggedSteps(Steps):
    """Steps with the random keys of their rows, or with their own positions."""

    __slots__ = ("inner", "per_row", "values")

    def __init__(self, inner: Steps, values: Any, per_row: bool) -> None:
        self.inner, self.values, self.per_row = inner, values, per_row

    def step(self, number: int) -> TaggedAddresses:
        if not self.per_row:
            return TaggedAddresses(self.inner.step(number), self.values[number])
        start, stop = self.inner.bounds(number)
        return TaggedAddresses(self.inner.step(number), self.values[start:stop])

    def bounds(self, number: int) -> tuple[int, int]:
        return self.inner.bounds(number)

    @property
    def row_count(self) -> int:
        return self.inner.row_count


class MergedSteps(Steps):
    """Steps of several components; step s is step ``ordinal[s]`` of component ``which[s]``."""

    __slots__ = ("components", "offsets", "ordinal", "which")

    def __init__(
        self,
        which: list[int],
        ordinal: list[int],
        components: Mapping[int, Steps],
        offsets: Mapping[int, int],
    ) -> None:
        self.which, self.ordinal = which, ordinal
        self.components, self.offsets = components, offsets

    def step(self, number: int) -> tuple[int, object]:
        component = self.which[number]
        return component, self.components[component].step(self.ordinal[number])

    def bounds(self, number: int) -> tuple[int, int]:
        component = self.which[number]
        start, stop = self.components[component].bounds(self.ordinal[number])
        return start + self.offsets[component], stop + self.offsets[component]

    @property
    def row_count(self) -> int:
        return sum(steps.row_count for steps in self.components.values())


class ZippedSteps(Steps):
    """The same steps of several components."""

    __slots__ = ("components",)

    def __init__(self, components: Sequence[Steps]) -> None:
        self.components = components

    def step(self, number: int) -> list[object]:
        return [steps.step(number) for steps in self.components]

    def bounds(self, number: int) -> tuple[int, int]:
        return self.components[0].bounds(number)

    @property
    def row_count(self) -> int:
        return self.components[0].row_count
