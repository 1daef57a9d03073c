"""Decoders of the features of records into the leaves that users see.

A decoder needs one feature or several, of some records, and makes the values of all of them at
once: in an array where they have one shape (`spec`), or as a list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.sources.base import BadRecordError
from loaderx.sources.columns.column import OBJECT
from loaderx.sources.columns.elements import Runs
from loaderx.sources.formats.tf.example import (
    BYTES,
    DAMAGED,
    FLOAT,
)
from loaderx.sources.formats.tf.leaves import (
    Leaf,
    integers,
    lists,
    numbers_of,
    rows,
    texts,
)
from loaderx.tree import Array, ArraySpec

Leaves: TypeAlias = Mapping[str, Leaf]
"""The features of some records, by name."""


class NO_FILL:  # noqa: N801 (it stands for a value, and is a class so that pickles keep it)
    """Stands for the absence of a value to fill in."""


class Decoder:
    """Makes one leaf of all records; ``features`` are those that it needs."""

    features: tuple[str, ...]

    @property
    def spec(self) -> ArraySpec | None:
        """Shape and dtype of a value; None if they differ between records."""
        return None

    @property
    def items(self) -> ArraySpec | None:
        """Shape and dtype of an element, if the values are lists of numbers."""
        return None

    def runs(self, leaves: Leaves) -> Iterator[Runs]:
        """The numbers of lists; only where there are `items`."""
        raise NotImplementedError

    def take(self, leaves: Leaves, out: Array) -> None:
        """Writes the values into the rows of ``out``; only where there is a spec."""
        for number, value in enumerate(self.values(leaves)):
            out[number] = value

    def values(self, leaves: Leaves) -> Sequence[object]:
        """The values, in order."""
        raise NotImplementedError


def check_not_damaged(leaf: Leaf) -> None:
    """Raises if one of the records is not an Example."""
    if (leaf.sizes == DAMAGED).any():
        raise BadRecordError("it is not a tf.Example")


class Bytes(Decoder):
    """One run of bytes for each record."""

    def __init__(self, name: str, fill: object = NO_FILL) -> None:
        self.name, self.features, self._fill = name, (name,), fill

    @property
    def spec(self) -> ArraySpec | None:
        return OBJECT

    def take(self, leaves: Leaves, out: Array) -> None:
        out[:] = self.values(leaves)

    def values(self, leaves: Leaves) -> Sequence[object]:
        leaf = leaves[self.name]
        if leaf.is_plain:
            return list(map(self.value, texts(leaf))) if self._is_decoded else texts(leaf)
        check_not_damaged(leaf)
        return [self._or_fill(values.tolist()) for values in lists(leaf, BYTES)]

    @property
    def _is_decoded(self) -> bool:
        return type(self).value is not Bytes.value

    def _or_fill(self, found: list[bytes]) -> object:
        if not found and self._fill is not NO_FILL:
            return self._fill
        if len(found) != 1:
            raise BadRecordError(f"{self.name!r} has {len(found)} values instead of one")
        return self.value(found[0])

    def value(self, data: bytes) -> object:
        """The value of the bytes of a record."""
        return data


class Text(Bytes):
    """Text in UTF-8."""

    def value(self, data: bytes) -> object:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRecordError(f"{self.name!r} is not text in UTF-8 ({error})") from error


class _Arrays(Decoder):
    """The base of decoders whose values are arrays of one shape and dtype."""

    def __init__(self, name: str, spec: ArraySpec) -> None:
        self.name, self.features, self._spec = name, (name,), spec
        self._shape = tuple(axis for axis in spec.shape if axis is not None)

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def values(self, leaves: Leaves) -> Sequence[object]:
        found = np.empty((len(leaves[self.name]), *self._shape), self._spec.dtype)
        self.take(leaves, found)
        return list(found)


class Fixed(_Arrays):
    """Numbers, the same count in each record."""

    def __init__(self, name: str, kind: int, spec: ArraySpec, fill: object = NO_FILL) -> None:
        super().__init__(name, spec)
        self._kind, self._fill = kind, fill
        self._count = math.prod(self._shape)
        self._is_stored = kind == FLOAT and spec.dtype == np.dtype("<f4")

    def take(self, leaves: Leaves, out: Array) -> None:
        leaf = leaves[self.name]
        if not leaf.is_plain:
            check_not_damaged(leaf)
            self._fill_one_by_one(leaf, out)
        elif self._kind == FLOAT:
            self._fill_floats(leaf, out)
        else:
            numbers, counts = integers(leaf)
            self._check(counts)
            out[...] = numbers.reshape(out.shape)

    def _fill_floats(self, leaf: Leaf, out: Array) -> None:
        self._check(leaf.sizes / 4)
        if self._is_stored and out.flags.c_contiguous:
            rows(leaf, out)
            return
        stored = np.empty(out.shape, "<f4")
        rows(leaf, stored)
        out[...] = stored

    def _fill_one_by_one(self, leaf: Leaf, out: Array) -> None:
        for place, values in enumerate(lists(leaf, self._kind)):
            if not len(values) and self._count and self._fill is not NO_FILL:
                out[place] = self._fill
                continue
            self._check(np.array([len(values)]))
            out[place] = values.reshape(self._shape)

    def _check(self, counts: Array) -> None:
        is_wrong = counts != self._count
        if is_wrong.any():
            has = int(counts[np.argmax(is_wrong)])
            raise BadRecordError(f"{self.name!r} has {has} values instead of {self._count}")


class Ragged(Decoder):
    """Lists of numbers or of runs of bytes, of various lengths: one axis of ``shape`` is None."""

    def __init__(
        self,
        name: str,
        kind: int,
        dtype: np.dtype[np.generic] | None = None,
        shape: tuple[int | None, ...] = (None,),
    ) -> None:
        self.name, self.features, self._kind = name, (name,), kind
        self._dtype, self._shape = dtype, shape

    @property
    def items(self) -> ArraySpec | None:
        rest = tuple(axis for axis in self._shape[1:] if axis is not None)
        if self._kind == BYTES or self._shape[0] is not None or 0 in rest:
            return None
        dtype = self._dtype or np.dtype(np.float32 if self._kind == FLOAT else np.int64)
        return ArraySpec(rest, dtype)

    def runs(self, leaves: Leaves) -> Iterator[Runs]:
        leaf = leaves[self.name]
        check_not_damaged(leaf)
        yield numbers_of(leaf, self._kind, self._dtype)

    def values(self, leaves: Leaves) -> Sequence[object]:
        if self._kind == BYTES:
            check_not_damaged(leaves[self.name])
            found = lists(leaves[self.name], BYTES)
        else:
            (runs,) = self.runs(leaves)
            found = runs.views()
        if len(self._shape) != 1:
            found = [shaped(self.name, one, self._shape) for one in found]
        return found


def shaped(name: str, values: Array, shape: tuple[int | None, ...]) -> Array:
    """Values of one axis in a shape, one axis of which may be None."""
    known = math.prod(axis for axis in shape if axis is not None)
    if known == 0 or not len(values):
        has_shape = tuple(0 if axis is None else axis for axis in shape)
        is_right = not len(values) and 0 in has_shape
    else:
        has_shape = tuple(len(values) // known if axis is None else axis for axis in shape)
        is_right = math.prod(has_shape) == len(values)
    if not is_right:
        raise BadRecordError(f"{name!r} has {len(values)} values, which do not make {shape}")
    return values.reshape(has_shape)


class FixedBytes(Decoder):
    """Runs of bytes, the same count in each record."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.features, self._shape = name, (name,), shape

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self._shape, OBJECT.dtype)

    def values(self, leaves: Leaves) -> Sequence[object]:
        leaf = leaves[self.name]
        check_not_damaged(leaf)
        found = lists(leaf, BYTES)
        for one in found:
            if len(one) != math.prod(self._shape):
                raise BadRecordError(
                    f"{self.name!r} has {len(one)} values instead of {math.prod(self._shape)}"
                )
        return [one.reshape(self._shape) for one in found]


class Raw(_Arrays):
    """Arrays that were stored as the bytes of their elements."""

    def __init__(self, name: str, spec: ArraySpec) -> None:
        super().__init__(name, spec)
        self._nbytes = math.prod(self._shape) * spec.dtype.itemsize

    def take(self, leaves: Leaves, out: Array) -> None:
        leaf = leaves[self.name]
        check_not_damaged(leaf)
        is_wrong = leaf.sizes != self._nbytes
        if is_wrong.any():
            size = int(leaf.sizes[np.argmax(is_wrong)])
            has = f"{size} bytes" if size >= 0 else "no value, or several"
            raise BadRecordError(f"{self.name!r} has {has} instead of {self._nbytes} bytes")
        if out.flags.c_contiguous:
            rows(leaf, out)
        else:
            out[...] = self.values(leaves)
