"""Some records of files: which can be read, and where values are missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, FileError, LoaderxError
from loaderx.sources.base import Source
from loaderx.sources.open.opening import Opened

OpenParts: TypeAlias = Callable[[Mapping[str, object]], list[Opened]]
"""Opens a split with these values in place of missing ones."""

Choose: TypeAlias = Callable[[Sequence[Opened]], list[int]]
"""The numbers of the records of a split to look at."""


def located(parts: Sequence[Opened], number: int) -> tuple[Source, int]:
    """The source of a record of a split, and its index there."""
    for source, start, stop in parts:
        if number < stop - start:
            return source, start + number
        number -= stop - start
    raise IndexError(number)


class Look(NamedTuple):
    """Some records of a split, by number."""

    parts: list[Opened]
    records: dict[int, dict[str, object]]  # the leaves of each by path; None where one is missing
    problems: dict[int, str]  # why others cannot be read
    filled: list[str]  # columns that need `fill`

    @property
    def total(self) -> int:
        """The records of the split."""
        return sum(stop - start for _, start, stop in self.parts)

    def mark_missing(self, other: Look) -> None:
        """Removes values that are not those of a look with other values in `fill`."""
        for number, record in self.records.items():
            for path, value in record.items():
                if not _is_same(value, other.records.get(number, {}).get(path)):
                    record[path] = None


# Pairs of values, one for each kind of column.  A value that follows them is missing in the file.
_FILLS: tuple[tuple[object, object], ...] = (
    (0, 1), (False, True), ("", "-"), (b"", b"-"), ([], [0]),
)  # fmt: skip
_QUOTED = re.compile(r"'([^']+)'")
_ASKS_FOR_FILL = re.compile(r"fill=\{'([^']+)': ")


def look(open_parts: OpenParts, chosen: Choose, fill: Mapping[str, object]) -> Look:
    """Reads some records, with the values of ``fill`` in place of missing ones.

    Columns with missing values are shown even where opening needs a value for them: each gets
    values of one kind after the other, until one fits.  Then the records are read again with other
    values: what follows them is missing in the file.
    """
    left: dict[str, list[tuple[object, object]]] = {}  # the kinds to be tried for each column
    while True:
        pairs = {name: kinds[0] for name, kinds in left.items() if kinds}
        found: Look | LoaderxError
        try:
            one, two = ({name: pair[n] for name, pair in pairs.items()} for n in (0, 1))
            found = _read(open_parts, chosen, {**fill, **one})
            if pairs:
                found.mark_missing(_read(open_parts, chosen, {**fill, **two}))
            texts = list(found.problems.values())
        except (FileError, ArgumentError) as error:
            found, texts = error, [str(error)]
        asked = dict.fromkeys(name for text in texts for name in _to_fill(text, pairs))
        name = next((name for name in asked if left.get(name, _FILLS)), None)
        if name is None:
            break
        left[name] = left[name][1:] if name in left else list(_FILLS)
    if isinstance(found, LoaderxError):
        raise found
    return found._replace(filled=list(pairs))


def _to_fill(text: str, pairs: Container[str]) -> list[str]:
    """The columns that a message asks to fill, or to fill with another value."""
    if "`fill`" in text:
        return [name for name in _QUOTED.findall(text) if name in pairs]
    return _ASKS_FOR_FILL.findall(text)


def _read(open_parts: OpenParts, chosen: Choose, fill: Mapping[str, object]) -> Look:
    parts = open_parts(fill)
    made = Look(parts, {}, {}, [])
    for number in chosen(parts):
        source, index = located(parts, number)
        try:
            (record,) = source.records(np.array([index]))
        except ArgumentError:  # a value of `fill` that does not fit its column
            raise
        except Exception as error:
            made.problems[number] = str(error) or type(error).__name__
        else:
            made.records[number] = dict(leaves_of(record))
    return made


def leaves_of(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values of a record, with those in dicts and tuples by their paths; lists stay whole."""
    if not isinstance(value, (Mapping, tuple)):
        yield path, value
        return
    for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves_of(inner, f"{path}.{name}" if path else str(name))


def _is_same(one: object, two: object) -> bool:
    def text(value: object) -> str:
        return repr(value.tolist() if isinstance(value, np.ndarray) else value)

    return text(one) == text(two)
