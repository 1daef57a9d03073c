"""Rows of a step on their way from the worker that made them to the one that makes the batch.

They must arrive as the very records that they were, since the functions after them may look at
anything.  So they are pickled.  To pickle thousands of small arrays takes longer than many a
function does: where records are alike, as they mostly are, each leaf of them is one array or one
list instead, and records are built of that on arrival.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Hashable
from typing import TypeAlias

import cloudpickle
import numpy as np

from loaderx.engines.processes.protocol import SLOT_BYTES, RowsPlace, slot_start
from loaderx.engines.sharing import MadeRows
from loaderx.errors import LoaderxError
from loaderx.memory import ALIGNMENT, Array
from loaderx.reading.rows import Record

_HEAD = struct.Struct("<QQ")  # bytes of the pickle, and how many buffers follow
_BUFFER = struct.Struct("<QQ?")  # where a buffer begins, its bytes, may it be written to?
_MOST_BYTES = 1 << 30  # that the system writes in one call, at least


Stacked: TypeAlias = tuple[Array, bool]
"""Arrays of one shape and type, or NumPy's numbers of one type, as one; may they be written to?"""

Columns: TypeAlias = tuple[type, tuple[Hashable, ...], list[Stacked | list[Record]]]
"""Records that are alike, leaf by leaf: what they are (object: each is a leaf), their keys."""


def write_rows(descriptor: int, start: int, made: MadeRows) -> int:
    """Writes rows to a place in a file, and says how many bytes that took."""
    buffers: list[pickle.PickleBuffer] = []
    content = (*_as_columns(made.records), made.is_stacked, made.failures, made.times)
    pickled = _dumps(content, buffers)
    raws = [buffer.raw() for buffer in buffers]
    offset = _HEAD.size + len(raws) * _BUFFER.size + len(pickled)
    table = []
    for raw in raws:
        offset += -offset % ALIGNMENT
        table.append((offset, raw.nbytes, not raw.readonly))
        offset += raw.nbytes
    if offset > SLOT_BYTES:
        raise LoaderxError(f"{offset} bytes do not fit into a slot.")
    head = _HEAD.pack(len(pickled), len(raws)) + b"".join(_BUFFER.pack(*one) for one in table)
    _write(descriptor, start, head + pickled)
    for (place, _, _), raw in zip(table, raws, strict=True):
        _write(descriptor, start + place, raw)
    return offset


def _dumps(content: object, buffers: list[pickle.PickleBuffer]) -> bytes:
    try:
        return pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    except Exception:  # a class of a script, say; to try costs far less than cloudpickle does
        buffers.clear()
        made: bytes = cloudpickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        return made


def _write(descriptor: int, start: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        written = os.pwrite(descriptor, view[:_MOST_BYTES], start)
        start, view = start + written, view[written:]


def read_rows(descriptor: int, place: RowsPlace) -> MadeRows:
    """The rows that lie in a slot, in memory of their own."""
    data = np.empty(place.nbytes + ALIGNMENT, np.uint8)
    first = -data.ctypes.data % ALIGNMENT
    view = data.data[first : first + place.nbytes]
    _read(descriptor, slot_start(place.slot) + place.start, view)
    pickled, count = _HEAD.unpack_from(view)
    end = _HEAD.size + count * _BUFFER.size
    buffers = []
    for start, nbytes, is_writable in _BUFFER.iter_unpack(view[_HEAD.size : end]):
        buffer = view[start : start + nbytes]
        buffers.append(buffer if is_writable else buffer.toreadonly())
    kind, keys, columns, *more = pickle.loads(view[end : end + pickled], buffers=buffers)
    return MadeRows(_as_records(kind, keys, columns), *more)


def _read(descriptor: int, start: int, view: memoryview) -> None:
    while view.nbytes:
        count = os.preadv(descriptor, [view[:_MOST_BYTES]], start)
        if not count:
            raise LoaderxError("rows that another worker has made are not there any more.")
        start, view = start + count, view[count:]


def _as_columns(records: list[Record]) -> Columns:
    kinds = set(map(type, records))
    if kinds == {dict}:
        keys = tuple(records[0])
        if {tuple(record) for record in records} == {keys}:
            return dict, keys, [_column(records, key) for key in keys]
    elif kinds in ({tuple}, {list}):
        widths = {len(record) for record in records}
        if len(widths) == 1 and widths != {0}:
            (kind,) = kinds
            places = tuple(range(*widths))
            return kind, places, [_column(records, place) for place in places]
    return object, (), [_stacked(records)]


def _column(records: list[Record], key: Hashable) -> Stacked | list[Record]:
    return _stacked([record[key] for record in records])


def _stacked(values: list[Record]) -> Stacked | list[Record]:
    """Arrays, or NumPy's numbers, that are alike as one array; all else as it is."""
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        return _stacked_arrays(values)
    if len(kinds) == 1 and issubclass(type(values[0]), (np.number, np.bool_)):
        return np.array(values), True
    return values


def _stacked_arrays(arrays: list[Array]) -> Stacked | list[Record]:
    first = arrays[0]
    looks = {(array.shape, array.dtype, array.flags.writeable) for array in arrays}
    if len(looks) > 1 or not first.ndim or not first.size or first.dtype.hasobject:
        return arrays
    stacked = np.empty((len(arrays), *first.shape), first.dtype)
    np.concatenate(arrays, out=stacked.reshape(-1, *first.shape[1:]), casting="no")
    return stacked, bool(first.flags.writeable)


def _as_records(
    kind: type, keys: tuple[Hashable, ...], packed: list[Stacked | list[Record]]
) -> list[Record]:
    columns = [_values(column) for column in packed]
    if kind is object:
        return columns[0]
    rows = zip(*columns, strict=True)
    if kind is dict:
        return [dict(zip(keys, row, strict=True)) for row in rows]
    return list(rows) if kind is tuple else [list(row) for row in rows]


def _values(column: Stacked | list[Record]) -> list[Record]:
    if isinstance(column, list):
        return column
    array, is_writable = column
    array.flags.writeable = is_writable
    return list(array)
