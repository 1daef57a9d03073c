"""A column: one leaf of all records.

A column with a `spec` can be gathered: `take` fills an array, with no Python per number.  The
others (lists and images of various sizes) are read as a list of `values`.  Every kind exists once,
over the buffers in which a format has its values (`Elements`): values of one shape here, runs of
elements in `run_columns`, columns made of other columns in `derived_columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Protocol

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.columns.elements import Elements, Needs, Runs, new_rows
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Located
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

    is_large = False  # True if values are much larger than what is read, as pixels of image files
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
        """Shape and dtype of an element, if the values are lists of numbers."""
        return None

    def runs(self, at: Located) -> Iterator[Runs]:
        """Where these values lie; only for columns whose values are runs of elements."""
        raise NotImplementedError

    def spans(self, at: Located) -> Iterator[Span]:
        """The bytes that are read for these values, in the order in which they are read."""
        return iter(())

    def needs(self, at: Located) -> Iterator[Needs]:
        """The ranges to fetch for these values, in rounds: each needs the one before."""
        return iter(())

    @property
    def is_fetched(self) -> bool:
        """True if values are fetched as they are read."""
        return False

    def count(self, part: int) -> int:
        """The number of values in a part."""
        raise NotImplementedError


def together(rounds: Sequence[Iterator[Needs]]) -> Iterator[Needs]:
    """The rounds of several columns: the first rounds of all, then the second ones, and so on."""
    for each in zip_longest(*rounds, fillvalue=()):
        yield [need for needs in each for need in needs]


class ColumnSpans:
    """The bytes that are read for records of several columns of a table; a `FindSpans`."""

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
