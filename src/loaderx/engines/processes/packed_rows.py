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
from typing import NamedTuple

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


class _Stacked(NamedTuple):
    """Arrays of one shape and type, as one."""

    array: Array
    is_writable: bool


class _Columns(NamedTuple):
    """Records that are alike, leaf by leaf."""

    kind: type  # dict, tuple or list; object: each record is one leaf
    keys: tuple[Hashable, ...]
    columns: list[_Stacked | list[Record]]


def write_rows(descriptor: int, start: int, made: MadeRows) -> int:
    """Writes rows to a place in a file, and says how many bytes that took."""
    buffers: list[pickle.PickleBuffer] = []
    packed = made._replace(records=[_as_columns(made.records)])
    pickled = cloudpickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
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
    made: MadeRows = pickle.loads(view[end : end + pickled], buffers=buffers)
    (columns,) = made.records
    assert isinstance(columns, _Columns)
    return made._replace(records=_as_records(columns))


def _read(descriptor: int, start: int, view: memoryview) -> None:
    while view.nbytes:
        count = os.preadv(descriptor, [view[:_MOST_BYTES]], start)
        if not count:
            raise LoaderxError("rows that another worker has made are not there any more.")
        start, view = start + count, view[count:]


def _as_columns(records: list[Record]) -> _Columns:
    kinds = set(map(type, records))
    if kinds == {dict}:
        keys = tuple(records[0])
        if {tuple(record) for record in records} == {keys}:
            return _Columns(dict, keys, [_column(records, key) for key in keys])
    elif kinds in ({tuple}, {list}):
        widths = {len(record) for record in records}
        if len(widths) == 1 and widths != {0}:
            (kind,) = kinds
            places = tuple(range(*widths))
            return _Columns(kind, places, [_column(records, place) for place in places])
    return _Columns(object, (), [_stacked(records)])


def _column(records: list[Record], key: Hashable) -> _Stacked | list[Record]:
    return _stacked([record[key] for record in records])


def _stacked(values: list[Record]) -> _Stacked | list[Record]:
    """Arrays that are alike as one array; all else as it is."""
    if set(map(type, values)) != {np.ndarray}:
        return values
    arrays: list[Array] = values
    first = arrays[0]
    looks = {(array.shape, array.dtype, array.flags.writeable) for array in arrays}
    if len(looks) > 1 or not first.ndim or not first.size or first.dtype.hasobject:
        return values
    stacked = np.empty((len(arrays), *first.shape), first.dtype)
    np.concatenate(arrays, out=stacked.reshape(-1, *first.shape[1:]), casting="no")
    return _Stacked(stacked, bool(first.flags.writeable))


def _as_records(packed: _Columns) -> list[Record]:
    columns = [_values(column) for column in packed.columns]
    if packed.kind is object:
        return columns[0]
    rows = zip(*columns, strict=True)
    if packed.kind is dict:
        return [dict(zip(packed.keys, row, strict=True)) for row in rows]
    return list(rows) if packed.kind is tuple else [list(row) for row in rows]


def _values(column: _Stacked | list[Record]) -> list[Record]:
    if not isinstance(column, _Stacked):
        return column
    column.array.flags.writeable = column.is_writable
    return list(column.array)
