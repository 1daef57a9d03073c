"""Columns: one leaf of all records, each kind with its own way to be read in bulk.

A column with a `spec` can be gathered: `take` fills an array, with no Python per number.  The
others (lists and images of various sizes) are read as a list of `values`.  Every kind exists once,
over the buffers in which a format has its values (`Elements`), and over what says where the lists
of each record begin and end (`Lists`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.elements import Elements, Needs, Runs, items_at, new_rows
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
from loaderx.tree import LEAF, Array, ArraySpec, Structure, Tree

OBJECT = ArraySpec((), np.dtype(object))
"""Text and bytes: Python objects, never cut to a length."""


class Locator(Protocol):
    """Says where records lie."""

    def at(self, indices: Indices) -> Located: ...


class OnePart:
    """The `Locator` of columns that have no parts."""

    def at(self, indices: Indices) -> Located:
        return Located(None, indices)


class Column:
    """One leaf of all records, or of all items of lists."""

    is_large = False  # are values made of much less, as pixels are of files?
    parts: Locator = OnePart()
    """Where records lie; all columns of a table have the same."""

    @property
    def spec(self) -> ArraySpec | None:
        """Shape and dtype of a value; None if they differ between records."""
        raise NotImplementedError

    def take(self, at: Located, out: Array) -> None:
        """Writes these values into the rows of ``out``; only where there is a spec."""
        for number, value in enumerate(self.values(at)):
            out[number] = value

    def values(self, at: Located) -> Sequence[object]:
        """These values: arrays (new, or read-only views), numbers, text or bytes."""
        raise NotImplementedError

    @property
    def items(self) -> ArraySpec | None:
        """Shape and dtype of an element of lists of numbers, if the values are such."""
        return None

    def runs(self, at: Located) -> Iterator[Runs]:
        """Where these values lie; only of those that are runs of elements."""
        raise NotImplementedError

    def spans(self, at: Located) -> Iterator[Span]:
        """What is read for these values, in the order in which it is read."""
        return iter(())

    def needs(self, at: Located) -> Iterator[Needs]:
        """What must be fetched for these values, in rounds: one must be here before the next."""
        return iter(())

    @property
    def is_fetched(self) -> bool:
        """Are values fetched as they are read?"""
        return False

    def count(self, part: int) -> int:
        """How many values a part has."""
        raise NotImplementedError


def together(rounds: Sequence[Iterator[Needs]]) -> Iterator[Needs]:
    """The rounds of several: the first ones of all, then the second ones, and so on."""
    for each in zip_longest(*rounds, fillvalue=()):
        yield [need for needs in each for need in needs]


class ColumnSpans:
    """What is read for records of several columns of a table; a `FindSpans`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def __call__(self, indices: Indices) -> Iterator[Span]:
        at = self._columns[0].parts.at(indices)
        for column in self._columns:
            yield from column.spans(at)


class FixedColumn(Column):
    """Values of one shape and dtype, each an element."""

    def __init__(self, parts: Locator, elements: Elements, spec: ArraySpec) -> None:
        self.parts, self.elements, self._spec = parts, elements, spec

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def take(self, at: Located, out: Array) -> None:
        self.elements.take(at, out)

    def values(self, at: Located) -> Sequence[object]:
        found = new_rows(self._spec, len(at))
        self.elements.take(at, found)
        return list(found)

    def spans(self, at: Located) -> Iterator[Span]:
        return self.elements.spans(at, at.rows + 1)

    def needs(self, at: Located) -> Iterator[Needs]:
        yield self.elements.needs(at, at.rows + 1)

    @property
    def is_fetched(self) -> bool:
        return self.elements.is_fetched

    def count(self, part: int) -> int:
        return self.elements.count(part)


# Runs of elements -------------------------------------------------------------------------------


class Lists:
    """Where the list of each record begins and ends, in elements of its part."""

    def find(self, at: Located) -> tuple[Indices, Indices]:
        raise NotImplementedError

    def spans(self, at: Located) -> Iterator[Span]:
        """What is read to find them."""
        return iter(())

    def needs(self, at: Located) -> Iterator[Needs]:
        """What must be fetched to find them, in rounds."""
        return iter(())

    def of_run(self, run: Run) -> Array | None:
        """The offsets of records that follow each other, and the one behind them, if there are."""
        return None

    def whole(self, at: Located) -> Array | None:
        """All offsets of the part in which these records lie, if that is one array."""
        return None

    def count(self, part: int) -> int:
        """How many lists a part has."""
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
            if lie_outside(starts[places], stops[places], have):  # before so many are asked for
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
    """Lists of numbers, of various lengths; read-only views, where that can be."""

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
        """Values that follow each other: pyarrow takes half the time of one call for each.

        None where that cannot be, or where something is damaged.
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


# Columns of other columns -----------------------------------------------------------------------


class ColumnOver(Column):
    """The base of columns over another one, from which all that is not said here follows."""

    def __init__(self, column: Column) -> None:
        self._column, self.parts = column, column.parts

    @property
    def spec(self) -> ArraySpec | None:
        return None

    def spans(self, at: Located) -> Iterator[Span]:
        return self._column.spans(at)

    def needs(self, at: Located) -> Iterator[Needs]:
        return self._column.needs(at)

    @property
    def is_fetched(self) -> bool:
        return self._column.is_fetched

    def count(self, part: int) -> int:
        return self._column.count(part)


class DecodedColumn(ColumnOver):
    """Values of another column, each put through a function: images, say."""

    def __init__(self, column: Column, decode: Callable[[object], object]) -> None:
        super().__init__(column)
        self._decode = decode

    def values(self, at: Located) -> Sequence[object]:
        return list(map(self._decode, self._column.values(at)))


class Missing(Protocol):
    """Says which values are not there."""

    def missing(self, at: Located) -> npt.NDArray[np.bool_] | None:
        """Which of these are not there; None if all are, as far as that is told at once."""
        ...

    def needs(self, at: Located) -> Needs: ...


class Valid:
    """A bool for each value: is it there?  A `Missing`."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements

    def missing(self, at: Located) -> npt.NDArray[np.bool_]:
        is_there = np.empty(len(at), np.bool_)
        self._elements.take(at, is_there)
        return ~is_there

    def needs(self, at: Located) -> Needs:
        return self._elements.needs(at, at.rows + 1)


class FilledColumn(ColumnOver):
    """Another column, with a value in place of those that are not there."""

    def __init__(self, column: Column, missing: Missing, value: object) -> None:
        super().__init__(column)
        self._missing, self._value = missing, value

    @property
    def spec(self) -> ArraySpec | None:
        return self._column.spec

    def take(self, at: Located, out: Array) -> None:
        missing = self._missing.missing(at)
        if missing is None or not missing.any():
            self._column.take(at, out)
            return
        there = np.flatnonzero(~missing)  # a list that is not there may have no items to take
        found = np.empty((len(there), *out.shape[1:]), out.dtype)
        self._column.take(at.pick(there), found)
        out[there] = found
        out[missing] = self._value

    def values(self, at: Located) -> Sequence[object]:
        spec = self._column.spec
        if spec is not None and spec.dtype != object and self._value is not None:
            found = new_rows(spec, len(at))
            self.take(at, found)
            return list(found)
        missing = self._missing.missing(at)
        if missing is None or not missing.any():
            return self._column.values(at)
        values: list[object] = [self._value] * len(at)
        there = np.flatnonzero(~missing)
        for place, value in zip(there.tolist(), self._column.values(at.pick(there)), strict=True):
            values[place] = value
        return values

    def needs(self, at: Located) -> Iterator[Needs]:
        return together([self._column.needs(at), iter([self._missing.needs(at)])])


class OptionalColumn(FilledColumn):
    """Another column, with None in place of values that are not there."""

    def __init__(self, column: Column, missing: Missing) -> None:
        super().__init__(column, missing, None)

    @property
    def spec(self) -> None:
        return None


class BranchColumn(Column):
    """Dicts or tuples: the values of several columns together."""

    def __init__(self, columns: Sequence[Column], structure: Structure) -> None:
        self._columns, self._structure = columns, structure
        self.parts = columns[0].parts

    @property
    def spec(self) -> None:
        return None

    def values(self, at: Located) -> Sequence[object]:
        return records_of(self._structure, [column.values(at) for column in self._columns])

    def spans(self, at: Located) -> Iterator[Span]:
        for column in self._columns:
            yield from column.spans(at)

    def needs(self, at: Located) -> Iterator[Needs]:
        return together([column.needs(at) for column in self._columns])

    @property
    def is_fetched(self) -> bool:
        return any(column.is_fetched for column in self._columns)

    def count(self, part: int) -> int:
        return min(column.count(part) for column in self._columns)


class NestedColumn(ColumnOver):
    """Lists of text, of dicts, of lists: a Python list for each record."""

    def __init__(self, parts: Locator, lists: Lists, items: Column) -> None:
        super().__init__(items)
        self.parts, self._lists = parts, lists

    def _find(self, at: Located) -> tuple[Located, Indices]:
        """All items of these lists, and how many each list has."""
        starts, stops = self._lists.find(at)
        return items_at(at.moved(starts), stops - starts), stops - starts

    def values(self, at: Located) -> Sequence[object]:
        within, lengths = self._find(at)
        items = list(self._column.values(within))
        pairs = zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True)
        return [items[end - length : end] for end, length in pairs]

    def spans(self, at: Located) -> Iterator[Span]:
        yield from self._lists.spans(at)
        yield from self._column.spans(self._find(at)[0])

    def needs(self, at: Located) -> Iterator[Needs]:
        yield from self._lists.needs(at)
        yield from self._column.needs(self._find(at)[0])

    def count(self, part: int) -> int:
        return self._lists.count(part)


# Records ----------------------------------------------------------------------------------------


def records_of(structure: Structure, columns: Sequence[Sequence[object]]) -> list[Tree]:
    """The records whose leaves are the values of these columns."""
    if structure is LEAF:
        return list(columns[0])
    if _is_of_dicts(structure):
        return list(_dicts(structure, iter(columns)))
    return [structure.build(row) for row in zip(*columns, strict=True)]


def _is_of_dicts(structure: Structure) -> bool:
    is_dict = structure.kind == "dict" and bool(structure.children)
    return is_dict and all(one is LEAF or _is_of_dicts(one) for one in structure.children)


def _dicts(structure: Structure, columns: Iterator[Sequence[object]]) -> Sequence[Tree]:
    """Dicts, or the values of a leaf."""
    if structure is LEAF:
        return next(columns)
    # Leaf by leaf: five times as fast as a dict(zip(...)) for each record.
    first, *others = zip(structure.keys, structure.children, strict=True)
    records: list[Tree] = [{first[0]: value} for value in _dicts(first[1], columns)]
    for key, child in others:
        for record, value in zip(records, _dicts(child, columns), strict=True):
            record[key] = value
    return records
