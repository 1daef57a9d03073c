"""Columns of other columns: decoded, filled, optional and nested values, dicts and tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loaderx.sources.base import Indices
from loaderx.sources.columns.column import Column, Locator, records_of, together
from loaderx.sources.columns.elements import Elements, Needs, items_at, new_rows
from loaderx.sources.columns.run_columns import Lists
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Located
from loaderx.tree import Array, ArraySpec, Structure


class ColumnOver(Column):
    """The base of columns over another one, whose answers are the default."""

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
    """Values of another column, each put through a function, such as an image decoder."""

    def __init__(self, column: Column, decode: Callable[[object], object]) -> None:
        super().__init__(column)
        self._decode = decode

    def values(self, at: Located) -> Sequence[object]:
        return list(map(self._decode, self._column.values(at)))


class Missing(Protocol):
    """Says which values are missing."""

    def missing(self, at: Located) -> npt.NDArray[np.bool_] | None:
        """Which of these values are missing; None if it is known at once that none is."""
        ...

    def needs(self, at: Located) -> Needs: ...


class Valid:
    """A `Missing` over a bool for each value, True where it is present."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements

    def missing(self, at: Located) -> npt.NDArray[np.bool_]:
        is_there = np.empty(len(at), np.bool_)
        self._elements.take(at, is_there)
        return ~is_there

    def needs(self, at: Located) -> Needs:
        return self._elements.needs(at, at.rows + 1)


class FilledColumn(ColumnOver):
    """Another column, with a given value in place of missing ones."""

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
        there = np.flatnonzero(~missing)  # a missing list may have no items to take
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
    """Another column, with None in place of missing values."""

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
        """All items of these lists, and the length of each list."""
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
