"""The type of a column, and its data as plain arrays.

Arrow data, Parquet and the native layout come down to the same few arrays: rows of one shape
(fixed), or elements one after the other with the offsets at which each record begins (ragged, text,
bytes, image, list, and the lines of linear rows).  `columns.build` makes a `Column` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from loaderx.frozen import Frozen
from loaderx.tree import Array

Kind: TypeAlias = Literal[
    "fixed", "linear", "ragged", "text", "bytes", "image", "list", "struct", "tuple"
]

ITEMS = "items"
"""The name of the one field that a list has."""

LINE = 3
"""The numbers of a line: see `columns.linear`."""


class ColumnType(Frozen):
    """The type of a column.

    ``fixed`` has a dtype and a shape, ``ragged`` the dtype and shape of one element of its arrays.
    ``linear`` is like ``fixed``, with one axis, and stored as lines (`columns.linear`).
    ``image`` is the bytes of an image file.  ``list`` is a list of anything else, which is its
    field ``items``; ``struct`` has fields by name, ``tuple`` has them by number (``"0"``, ...).
    ``nulls`` is how many records have no value, where that is kept beside the values
    (`ColumnData.valid`); None where all have one.
    """

    kind: Kind
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()
    fields: Mapping[str, ColumnType] = {}
    nulls: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.kind, self.dtype, self.shape))

    def _key(self) -> tuple[object, ...]:
        return self.kind, self.dtype, self.shape, dict(self.fields), self.nulls

    @property
    def is_branch(self) -> bool:
        """True if it has no values of its own, only fields."""
        return self.kind in ("struct", "tuple")

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a row of its values, as they are stored."""
        return (LINE,) if self.kind == "linear" else self.shape

    def __str__(self) -> str:
        if self.is_branch:
            inner = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
            return f"{self.kind}({inner})"
        if self.kind == "list":
            return f"list of {self.fields[ITEMS]}"
        if self.dtype is None:
            return self.kind
        spec = f"{self.dtype}{list(self.shape) if self.shape else ''}"
        return spec if self.kind in ("fixed", "linear") else f"lists of {spec}"


class ColumnData(NamedTuple):
    """The arrays of some records of a column.

    ``values`` are the rows (fixed), the elements (ragged) or the bytes (text, bytes, image);
    ``offsets`` say where each record begins in them, and where the last one ends.  They need not
    begin at 0.  ``valid`` is False where there is no value.
    """

    length: int
    values: Array | None = None
    offsets: Array | None = None
    fields: Mapping[str, ColumnData] = {}
    valid: Array | None = None

    @property
    def nbytes(self) -> int:
        own = sum(one.nbytes for one in (self.values, self.offsets, self.valid) if one is not None)
        return own + sum(field.nbytes for field in self.fields.values())


def joined(kind: ColumnType, pieces: Sequence[ColumnData]) -> ColumnData:
    """The data of pieces that follow each other."""
    if len(pieces) == 1:
        return pieces[0]
    fields = {
        name: joined(field, [piece.fields[name] for piece in pieces])
        for name, field in kind.fields.items()
    }
    length = sum(piece.length for piece in pieces)
    values: list[Array] = []
    offsets: list[Array] = [np.zeros(1, np.int64)]
    end = 0
    for piece in pieces:
        if piece.offsets is None:
            if piece.values is not None:
                values.append(piece.values)
            continue
        start, stop = int(piece.offsets[0]), int(piece.offsets[-1])
        offsets.append(piece.offsets[1:].astype(np.int64) + (end - start))
        end += stop - start
        if piece.values is not None:
            values.append(piece.values[start:stop])
    return ColumnData(
        length,
        np.concatenate(values) if values else None,
        np.concatenate(offsets) if len(offsets) > 1 else None,
        fields,
        _joined_valid(pieces),
    )


def _joined_valid(pieces: Sequence[ColumnData]) -> Array | None:
    if all(piece.valid is None for piece in pieces):
        return None
    return np.concatenate(
        [np.ones(one.length, np.bool_) if one.valid is None else one.valid for one in pieces]
    )


def collect(
    kind: ColumnType, find: Callable[[tuple[str, ...], Which], Array], path: tuple[str, ...] = ()
) -> ColumnData:
    """Data of this type, whose arrays are found one by one.

    ``find`` is called in the order of `arrays_of`.
    """
    values = None if kind.kind == "list" or kind.is_branch else find(path, "values")
    offsets = None if kind.kind == "fixed" or kind.is_branch else find(path, "offsets")
    valid = None if kind.nulls is None else find(path, "valid")
    fields = {name: collect(field, find, (*path, name)) for name, field in kind.fields.items()}
    if offsets is not None:
        length = len(offsets) - 1
    else:
        length = len(values) if values is not None else next(iter(fields.values())).length
    return ColumnData(length, values, offsets, fields, valid)


def arrays_of(kind: ColumnType, data: ColumnData) -> Iterator[Array]:
    """The arrays of data, in a fixed order: values, offsets, valid, then those of the fields."""
    for array in (data.values, data.offsets, data.valid):
        if array is not None:
            yield array
    for name, field in kind.fields.items():
        yield from arrays_of(field, data.fields[name])


Which: TypeAlias = Literal["values", "offsets", "valid"]
