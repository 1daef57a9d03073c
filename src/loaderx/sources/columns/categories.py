"""Columns of text as codes: numbers of the sorted distinct values.

Which values there are is known when all records were read.  So codes are first given in the order
in which values come; `sorted_classes` has those that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import ArgumentError, FileError, one_line
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.pick import spread

if TYPE_CHECKING:
    import pyarrow as pa

CODES = ColumnType("fixed", np.dtype(np.int32))


class Categories:
    """The codes of some columns, by the value, in the order in which values came."""

    def __init__(self, names: Sequence[str]) -> None:
        self._codes: dict[str, dict[str, int]] = {name: {} for name in names}

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(codes) for name, codes in self._codes.items()}

    def kinds(self, kinds: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
        """The types with codes in place of text; a column of another type is refused."""
        for name in self._codes:
            if name in kinds and kinds[name].kind != "text":
                raise not_text(name, str(kinds[name]))
        return {
            n: CODES.replace(nulls=k.nulls) if n in self._codes else k for n, k in kinds.items()
        }

    def coded(self, records: Mapping[str, ColumnData]) -> dict[str, ColumnData]:
        """Some records, with codes in place of text."""
        made = {name: self._one(name, records[name]) for name in self._codes if name in records}
        return {**records, **made}

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


def sorted_classes(
    classes: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The classes, of which those of categories have the order of the codes that are read."""
    return {n: tuple(sorted(one) if n in names else one) for n, one in classes.items()}
