"""``tf.Example`` as it lies in memory: a complete parser of one record, without protobuf.

An Example is a message of messages.  A message is a row of fields, each a tag (its number and how
its value is stored) and a value; numbers are varints, seven bits a byte::

    Example       1: Features
    Features      1: entries of a map, each  1: key  2: Feature
    Feature       one of  1: BytesList  2: FloatList  3: Int64List
    ...List       1: values; numbers may be packed into one run, or stand alone

Fields come in any order, and the last one of a kind wins.  A Feature without a list is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import ArgumentTypeError
from loaderx.sources.base import BadRecordError
from loaderx.tree import Array

BYTES, FLOAT, INT64 = 1, 2, 3
KIND_NAMES = {BYTES: "bytes", FLOAT: "float32", INT64: "int64"}

MISSING, PARSED_LATE, DAMAGED = -1, -2, -3
"""In place of a size: no value; values that are not one run; a record that is not an Example."""

Value: TypeAlias = "bytes | float | int"

_VARINT, _FIXED64, _RUN, _FIXED32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")


class Field(NamedTuple):
    """A field of a message: where its run starts and stops, or else the place of its value."""

    number: int
    wire: int
    start: int
    stop: int


class FoundLeaf(NamedTuple):
    """A feature of a record.

    Its values are the bytes from ``at`` on, if it is one text, or packed numbers; otherwise
    ``size`` is `PARSED_LATE`, and ``at`` is where the length of its Feature stands.
    """

    kind: int
    at: int
    size: int
    values: int  # how many


def read_varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
    value = shift = 0
    while True:
        if at >= stop:
            raise BadRecordError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 70:
            raise BadRecordError("a number has more than ten bytes")


def fields(data: memoryview, at: int, stop: int) -> Iterator[Field]:
    """The fields of a message."""
    while at < stop:
        tag, at = read_varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if wire == _RUN:
            length, at = read_varint(data, at, stop)
            end = at + length
        elif wire == _VARINT:
            _, end = read_varint(data, at, stop)
        elif wire in (_FIXED32, _FIXED64):
            end = at + (4 if wire == _FIXED32 else 8)
        else:
            raise BadRecordError(f"a field of the unknown type {wire}")
        if end > stop or number == 0:
            raise BadRecordError("a field is longer than its message")
        yield Field(number, wire, at, end)
        at = end


def find_leaves(data: memoryview, start: int, stop: int) -> dict[bytes, FoundLeaf | None]:
    """The features of a record, by key; None for one that is missing."""
    found: dict[bytes, FoundLeaf | None] = {}
    for field in fields(data, start, stop):
        if field.number == 2 and field.wire == _RUN:
            raise BadRecordError("it is a tf.SequenceExample, not a tf.Example")
        if field.number != 1 or field.wire != _RUN:
            raise BadRecordError(f"a tf.Example has no field {field.number}")
        for entry in fields(data, field.start, field.stop):
            if entry.number == 1 and entry.wire == _RUN:
                key, leaf = _entry(data, entry.start, entry.stop)
                found[key] = leaf
    return found


def _entry(data: memoryview, start: int, stop: int) -> tuple[bytes, FoundLeaf | None]:
    key, leaf, at = b"", None, start
    for field in fields(data, start, stop):
        if field.wire == _RUN and field.number == 1:
            key = bytes(data[field.start : field.stop])
        elif field.wire == _RUN and field.number == 2:
            leaf = _leaf(data, at, field.start, field.stop)
        at = field.stop
    return key, leaf


def _leaf(data: memoryview, tag_at: int, start: int, stop: int) -> FoundLeaf | None:
    lists = [one for one in fields(data, start, stop) if one.wire == _RUN and one.number <= 3]
    if not lists:
        return None
    kind = lists[-1].number
    values = [
        one
        for each in lists
        if each.number == kind
        for one in fields(data, each.start, each.stop)
        if one.number == 1
    ]
    if not values and kind != BYTES:
        return FoundLeaf(kind, start, 0, 0)
    if len(values) == 1 and values[0].wire == _RUN:
        one = values[0]
        count = 1 if kind == BYTES else len(_numbers(data, kind, one))
        return FoundLeaf(kind, one.start, one.stop - one.start, count)
    _, length_at = read_varint(data, tag_at, start)
    return FoundLeaf(kind, length_at, PARSED_LATE, len(values_at(data, length_at, kind, stop)))


def values_at(data: memoryview, at: int, kind: int, end: int) -> list[Value]:
    """The values of the Feature whose length stands at ``at``."""
    length, start = read_varint(data, at, end)
    if start + length > end:
        raise BadRecordError("a feature is longer than its record")
    return _values(data, start, start + length, kind)


def _values(data: memoryview, start: int, stop: int, kind: int) -> list[Value]:
    values: list[Value] = []
    for each in fields(data, start, stop):
        if each.number == kind and each.wire == _RUN:
            for one in fields(data, each.start, each.stop):
                if one.number != 1:
                    continue
                if kind == BYTES:
                    _expect(one.wire == _RUN)
                    values.append(bytes(data[one.start : one.stop]))
                else:
                    values += _numbers(data, kind, one)
    return values


def _numbers(data: memoryview, kind: int, field: Field) -> list[Value]:
    if kind == FLOAT:
        run = data[field.start : field.stop]
        _expect(field.wire in (_FIXED32, _RUN) and len(run) % 4 == 0)
        return [value for (value,) in _FLOAT.iter_unpack(run)]
    _expect(field.wire in (_VARINT, _RUN))
    found: list[Value] = []
    at = field.start
    while at < field.stop:
        value, at = read_varint(data, at, field.stop)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found


def _expect(is_right: bool) -> None:
    if not is_right:
        raise BadRecordError("a list has values of another type")


def as_array(values: list[Value], kind: int) -> Array:
    """Values of a list as an array of one axis."""
    if kind == BYTES:
        found = np.empty(len(values), object)
        found[:] = values
        return found
    return np.array(values, np.float32 if kind == FLOAT else np.int64)


def parse_example(data: bytes) -> dict[str, Array]:
    """The features of a serialised ``tf.Example``, each an array of one axis.

    For records that hold one, such as those of ArrayRecord files: ``.map(lambda record:
    parse_example(record["data"]))``.  Texts are arrays of `bytes`; a missing feature is left out.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"parse_example takes bytes, got a {type(data).__name__}.")
    view = memoryview(data)
    found = {}
    for key, leaf in find_leaves(view, 0, len(view)).items():
        if leaf is None:
            continue
        if leaf.size == PARSED_LATE:
            values = values_at(view, leaf.at, leaf.kind, len(view))
        elif leaf.kind == BYTES:
            values = [bytes(view[leaf.at : leaf.at + leaf.size])]
        else:
            values = _numbers(view, leaf.kind, Field(1, _RUN, leaf.at, leaf.at + leaf.size))
        found[key.decode("utf-8", "backslashreplace")] = as_array(values, leaf.kind)
    return found
