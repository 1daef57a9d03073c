"""Folders in the native layout, written from Python values."""

from __future__ import annotations

import numpy as np

from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.native.layout import Description, write_description
from loaderx.sources.native.writer import PartWriter


def runs(values, dtype=np.uint8) -> ColumnData:
    """Lists, texts or bytes, one after the other."""
    raw = [one.encode() if isinstance(one, str) else one for one in values]
    arrays = [
        np.frombuffer(one, np.uint8) if isinstance(one, bytes) else np.asarray(one, dtype)
        for one in raw
    ]
    offsets = np.cumsum([0, *map(len, arrays)])
    return ColumnData(len(values), np.concatenate(arrays) if arrays else np.empty(0), offsets)


def fixed(values, dtype=None) -> ColumnData:
    array = np.asarray(values, dtype)
    return ColumnData(len(array), array)


def lines(rows, dtype=np.int32) -> ColumnData:
    """Rows as lists of lines: (stop, first value, rise)."""
    flat = np.array([line for row in rows for line in row], dtype).reshape(-1, 3)
    return ColumnData(len(rows), flat, np.cumsum([0, *map(len, rows)]))


def kinds_of(records: dict[str, ColumnData], **kinds: str) -> dict[str, ColumnType]:
    """The types of columns; runs are text unless ``kinds`` says otherwise."""
    found = {}
    for name, data in records.items():
        kind = kinds.get(name, "fixed" if data.offsets is None else "text")
        has_dtype = kind in ("fixed", "ragged") or kind.startswith("linear")
        dtype, shape = (data.values.dtype, data.values.shape[1:]) if has_dtype else (None, ())
        if kind.startswith("linear"):  # with the length of rows
            kind, _, length = kind.partition(" ")
            shape = (int(length),)
        found[name] = ColumnType(kind, dtype, shape)
    return found


def write(folder, columns, *parts, classes=None) -> None:
    """Each of ``parts`` is a dict of columns."""
    done = []
    folder.mkdir(exist_ok=True)
    for number, records in enumerate(parts):
        with PartWriter(str(folder), number, columns) as writer:
            writer.append(records)
            done.append(writer.close())
    write_description(str(folder), Description(columns, done, classes or {}))
