"""Columns whose values are runs of elements: bytes, text, lists of numbers.

`Lists` says where the run of each record begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.column import OBJECT, Column, Locator, together
from loaderx.sources.columns.elements import Elements, Needs, Runs, new_rows
from loaderx.sources.columns.text import (
    FEW,
    breaks_in,
    bulk_values,
    can_be_taken,
    can_be_viewed,
    is_imported,
    texts_in_order,
    texts_one_by_one,
    touch,
    viewed_texts,
)
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Located, Run, in_places, lie_outside
from loaderx.tree import Array, ArraySpec


class Lists:
    """Where the list of each record begins and ends, in elements of its part."""

    def find(self, at: Located) -> tuple[Indices, Indices]:
        raise NotImplementedError

    def spans(self, at: Located) -> Iterator[Span]:
        """The bytes that are read to find them."""
        return iter(())

    def needs(self, at: Located) -> Iterator[Needs]:
        """The ranges to fetch to find them, in rounds."""
        return iter(())

    def of_run(self, run: Run) -> Array | None:
        """The offsets of consecutive records, and the one behind them; None if there are none."""
        return None

    def whole(self, at: Located) -> Array | None:
        """All offsets of the part with these records; None if that is not one array."""
        return None

    def count(self, part: int) -> int:
        """The number of lists in a part."""
        raise NotImplementedError


class Offsets(Lists):
    """Each list ends where the next one begins."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements

    def find(self, at: Located) -> tuple[Indices, Indices]:
        return self._elements.pairs(at)

    def spans(self, at: Located) -> Iterator[Span]:
        return self._elements.spans(at, at.rows + 2)

    def needs(self, at: Located) -> Iterator[Needs]:
        yield self._elements.needs(at, at.rows + 2)

    def of_run(self, run: Run) -> Array | None:
        return self._elements.part(run.part, run.start, run.stop + 1)

    def whole(self, at: Located) -> Array | None:
        return self._elements.whole(at)

    def count(self, part: int) -> int:
        return self._elements.count(part) - 1


class ItemOffsets(Offsets):
    """Offsets that lead to the values of another column."""

    def __init__(self, elements: Elements, items: Column) -> None:
        super().__init__(elements)
        self._items = items

    def find(self, at: Located) -> tuple[Indices, Indices]:
        starts, stops = super().find(at)
        for part, places in at.groups():
            have = self._items.count(part)
            if lie_outside(starts[places], stops[places], have):  # before that many are read
                last = int(stops[places].max()) - 1
                raise BadRecordError(f"the offsets of a column are damaged: item {last} of {have}.")
        return starts, stops


class RunColumn(Column):
    """The base of columns whose values are runs of elements."""

    def __init__(self, parts: Locator, lists: Lists, elements: Elements) -> None:
        self.parts, self._lists, self.elements = parts, lists, elements

    def _values(self, runs: Runs, at: Located) -> Sequence[object]:
        raise NotImplementedError

    def runs(self, at: Located) -> Iterator[Runs]:
        starts, stops = self._lists.find(at)
        return self.elements.runs(at.moved(starts), stops)

    def values(self, at: Located) -> Sequence[object]:
        found = ((runs.places, self._values(runs, at)) for runs in self.runs(at))
        return in_places(len(at), found)

    def spans(self, at: Located) -> Iterator[Span]:
        yield from self._lists.spans(at)
        starts, stops = self._lists.find(at)
        yield from self.elements.spans(at.moved(starts), stops)

    def needs(self, at: Located) -> Iterator[Needs]:
        nothing = np.zeros_like(at.rows)
        headers = self.elements.needs(at.moved(nothing), nothing)
        yield from together([self._lists.needs(at), iter([headers])])
        starts, stops = self._lists.find(at)
        yield self.elements.needs(at.moved(starts), stops)

    @property
    def is_fetched(self) -> bool:
        return self.elements.is_fetched

    def count(self, part: int) -> int:
        return self._lists.count(part)


class ListColumn(RunColumn):
    """Lists of numbers, of various lengths; read-only views where possible."""

    def __init__(
        self, parts: Locator, lists: Lists, elements: Elements, shape: tuple[int, ...] = ()
    ) -> None:
        """``shape`` is that of an element of a list, of which ``elements`` are the numbers."""
        super().__init__(parts, lists, elements)
        self._shape = shape

    @property
    def spec(self) -> None:
        return None

    @property
    def items(self) -> ArraySpec:
        spec = self.elements.spec
        return ArraySpec(self._shape, spec.dtype) if self._shape else spec

    def total(self, at: Located) -> int:
        """The number of elements in all of these lists."""
        starts, stops = self._lists.find(at)
        return int((stops - starts).sum()) // math.prod(self._shape)

    def _values(self, runs: Runs, at: Located) -> Sequence[object]:
        if not self._shape:
            return runs.views()
        try:
            return [one.reshape(-1, *self._shape) for one in runs.views()]
        except ValueError as error:
            shape = list(self._shape)
            raise BadRecordError(f"a list does not have the shape {shape} throughout.") from error


class FixedRunColumn(RunColumn):
    """Values of one shape and dtype, whose elements may lie anywhere."""

    def __init__(self, parts: Locator, lists: Lists, elements: Elements, spec: ArraySpec) -> None:
        super().__init__(parts, lists, elements)
        self._spec = spec
        self._nbytes = new_rows(spec, 1).nbytes

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        for runs in self.runs(at):
            lengths = runs.stops - runs.starts
            is_wrong = lengths * runs.data.dtype.itemsize != self._nbytes
            if is_wrong.any():
                wrong = int(lengths[np.flatnonzero(is_wrong)[0]])
                raise BadRecordError(
                    f"a list has {wrong} numbers, where the shape {list(self._spec.shape)} is "
                    "expected."
                )
            runs.take_rows(out)

    def values(self, at: Located) -> Sequence[object]:
        found = new_rows(self._spec, len(at))
        self.take(at, found)
        return list(found)


class BytesColumn(RunColumn):
    """Runs of bytes."""

    is_text = False

    @property
    def spec(self) -> ArraySpec | None:
        return OBJECT

    def take(self, at: Located, out: Array) -> None:
        out[:] = self.values(at)

    def values(self, at: Located) -> Sequence[object]:
        found = None if at.runs is None else self._in_order(at.runs)
        return super().values(at) if found is None else found

    def _in_order(self, runs: Sequence[Run]) -> list[object] | None:
        """Consecutive values: one call of pyarrow takes half the time of a call for each.

        None where they are not stored as such, or where something is damaged.
        """
        if not is_imported() or self.is_fetched:
            return None
        found: list[object] = []
        for run in runs:
            offsets = self._lists.of_run(run) if run.stop - run.start >= FEW else None
            if offsets is None or offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
                return None
            if int(offsets[-1]) > self.elements.count(run.part):
                return None
            data = self.elements.part(run.part, 0, int(offsets[-1]))
            if data is None:
                return None
            found += bulk_values(data, offsets, is_text=self.is_text)
        return found

    def _values(self, runs: Runs, at: Located) -> Sequence[object]:
        touch(runs.data, runs.starts, runs.stops - runs.starts)
        return runs.contents()


class TextColumn(BytesColumn):
    """Text in UTF-8."""

    is_text = True

    def _values(self, runs: Runs, at: Located) -> Sequence[object]:
        _, data, starts, stops = runs
        if len(starts) < FEW or not is_imported():
            return texts_one_by_one(data, starts, stops)
        breaks = breaks_in(starts, stops)
        if breaks is not None:
            return texts_in_order(data, starts, stops, breaks)
        offsets = self._lists.whole(at)
        part = None if offsets is None else self.elements.whole(at)
        if offsets is not None and part is not None and can_be_taken(part, offsets, len(at)):
            return bulk_values(part, offsets, is_text=True, rows=at.rows)
        if can_be_viewed(data, stops - starts):
            return viewed_texts(data, starts, stops - starts)
        return texts_one_by_one(data, starts, stops)
