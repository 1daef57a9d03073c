"""Columns of text as codes: numbers of the sorted distinct values.

Which values there are is known when all records were read.  So codes are first given in the order
in which values come, and then sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import ArgumentError, FileError, one_line
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.pick import spread
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow as pa

CODES = ColumnType("fixed", np.dtype(np.int32))
_STEP = 1 << 20  # codes that are sorted at once


class Categories:
    """The codes of some columns, by the value, in the order in which values came."""

    def __init__(self, names: Sequence[str], kinds: Mapping[str, ColumnType]) -> None:
        """A column of another type than text is refused; ``kinds`` has all that are read."""
        self._codes: dict[str, dict[str, int]] = {name: {} for name in names if name in kinds}
        for name in self._codes:
            if kinds[name].kind != "text":
                raise not_text(name, str(kinds[name]))
        self.kinds = {
            n: CODES.replace(nulls=k.nulls) if n in self._codes else k for n, k in kinds.items()
        }
        """The types with codes in place of text."""

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The sorted values."""
        return {name: tuple(sorted(codes)) for name, codes in self._codes.items()}

    def sort(self, name: str, values: Array) -> None:
        """Puts the numbers of sorted values in the places of codes, in their array."""
        ranks = {text: rank for rank, text in enumerate(self.classes[name])}
        sorted_codes = np.array([ranks[text] for text in self._codes[name]], np.int32)
        for start in range(0, len(values) if ranks else 0, _STEP):
            values[start : start + _STEP] = sorted_codes[values[start : start + _STEP]]

    def coded(self, records: Mapping[str, ColumnData]) -> dict[str, ColumnData]:
        """Some records, with codes in place of text; those that have codes are left as they are."""
        texts = [name for name in self._codes if records[name].offsets is not None]
        return {**records, **{name: self._one(name, records[name]) for name in texts}}

    def _one(self, name: str, data: ColumnData) -> ColumnData:
        import pyarrow as pa

        codes = self._codes[name]
        try:
            encoded = _texts(data).dictionary_encode()
        except pa.ArrowInvalid as error:
            raise FileError(f"column {name!r} is not text: {one_line(error)}.") from error
        have = encoded.dictionary.to_pylist()
        places = np.array([codes.setdefault(one, len(codes)) for one in have], np.int32)
        values = places[np.array(encoded.indices)]
        if data.valid is None:
            return ColumnData(data.length, values)
        blank = spread(CODES, ColumnData(len(values), values), data.valid)
        return blank._replace(valid=data.valid)


def _texts(data: ColumnData) -> pa.LargeStringArray:
    """The texts that are there."""
    import pyarrow as pa

    assert data.offsets is not None
    buffers = [None, pa.py_buffer(data.offsets.astype(np.int64)), pa.py_buffer(data.values)]
    texts = pa.Array.from_buffers(pa.large_string(), data.length, buffers)
    texts.validate(full=True)
    return texts if data.valid is None else texts.filter(pa.array(data.valid))


def not_text(name: str, have: str) -> ArgumentError:
    """The error for a category of another type."""
    return ArgumentError(
        f'`types` says "category" for {name!r}, which is {have}: codes are made of text alone. '
        "Leave it out of `types`."
    )
