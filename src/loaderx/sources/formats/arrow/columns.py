"""Arrow arrays as the plain arrays of `ColumnData`, built from Arrow's own buffers.

Numbers, lists, text and bytes are views: nothing is copied, so this serves mapped files as well as
decoded data in memory.  `pyarrow.Array.to_numpy` is not used: it imports pandas where that is
installed, and makes floats of integers that have nulls.  Slices and nulls are handled: an array may
begin anywhere in its buffers, and nulls are refused or filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import ArgumentError, FileError, one_line
from loaderx.sources.columns.build import DataArrays, build_column
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType
from loaderx.sources.columns.gaps import refuse_gaps
from loaderx.sources.columns.pick import spread
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.formats.arrow.types import is_list, number_type
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow as pa

Fill = Mapping[str, object]
"""Values in place of nulls, by the path of the column."""

_DECODED = ("dictionary<", "run_end_encoded<")
_PLAIN = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}
_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}


def arrow_data(
    array: pa.Array, kind: ColumnType, name: str, fill: Fill, where: str = ""
) -> ColumnData:
    """The data of an Arrow array.

    Args:
        array: the values of some records of a column.
        kind: its type, from `column_types`.
        name: the path of the column, in messages and in ``fill``.
        fill: values in place of nulls.
        where: the file, for messages.
    """
    return _Reader(fill, where).read(array, kind, name)


def arrow_columns(
    batch: pa.RecordBatch,
    names: Sequence[str],
    kinds: Mapping[str, ColumnType],
    fill: Fill,
    where: str,
) -> dict[str, ColumnData]:
    """The data of these columns of a batch; all that have nulls are in one error."""
    arrays = {name: batch.column(name) for name in names}
    nulls: dict[str, int | None] = {
        name: array.null_count
        for name, array in arrays.items()
        if array.null_count
        and name not in fill
        and kinds[name].nulls is None
        and not str(array.type).startswith("struct")
    }
    refuse_gaps(where, nulls, kinds)
    return {name: arrow_data(one, kinds[name], name, fill, where) for name, one in arrays.items()}


class _Reader:
    def __init__(self, fill: Fill, where: str) -> None:
        self._fill, self._where = fill, where

    def read(self, array: pa.Array, kind: ColumnType, name: str) -> ColumnData:
        array = stored_array(array)
        if kind.kind == "struct":
            # Null structs become nulls of each field.
            fields = dict(zip([f.name for f in array.type], array.flatten(), strict=True))
            return ColumnData(
                len(array),
                fields={
                    field: self.read(fields[field], inner, f"{name}.{field}")
                    for field, inner in kind.fields.items()
                },
            )
        if kind.kind in ("image", "bytes") and str(array.type).startswith("struct"):
            array = self._file_bytes(array, name)
        if kind.nulls is not None:
            return self._with_nulls(array, kind.replace(nulls=None), name)
        if not is_list(array.type):
            array = self._without_nulls(array, name)
        if kind.kind == "fixed":
            assert kind.dtype is not None
            values = self._fixed(array, kind.dtype, kind.shape, name)
            return ColumnData(len(array), values)
        if kind.kind in ("ragged", "list"):
            return self._runs(array, kind, name)
        return _bytes(array)

    # Lists ------------------------------------------------------------------------------------

    def _runs(self, array: pa.Array, kind: ColumnType, name: str) -> ColumnData:
        array = self._whole_lists(array, name)
        offsets = list_offsets(array)
        start, stop = int(offsets[0]), int(offsets[-1])
        items = array.values.slice(start, stop - start)
        if kind.kind == "list":
            inner = self.read(items, kind.fields[ITEMS], name)
            return ColumnData(len(array), None, offsets - start, {ITEMS: inner})
        assert kind.dtype is not None
        items = stored_array(items)
        if not is_list(items.type):
            items = self._without_nulls(items, name)
        values = self._fixed(items, kind.dtype, kind.shape, name)
        return ColumnData(len(array), values, offsets - start if start else offsets)

    def _fixed(
        self, array: pa.Array, dtype: np.dtype[np.generic], shape: tuple[int, ...], name: str
    ) -> Array:
        """Rows of one shape; ``array`` has no nulls, unless it has lists."""
        if str(array.type).startswith("fixed_size_binary"):
            return _numbers(array, np.dtype((np.uint8, shape)))
        rows, axes = len(array), list(shape)
        while is_list(array.type):
            array = self._whole_lists(array, name)
            length = axes.pop(0)
            offsets = list_offsets(array)
            if (np.diff(offsets) != length).any():
                number = int(np.flatnonzero(np.diff(offsets) != length)[0])
                raise FileError(
                    f"{self._at(name)} has a list of {offsets[number + 1] - offsets[number]} where "
                    f"the shape {list(shape)} is expected."
                )
            array = stored_array(array.values.slice(int(offsets[0]), len(array) * length))
        if str(array.type).startswith("fixed_size_binary"):
            values = self._fixed(array, dtype, tuple(axes), name)
        else:
            values = _numbers(self._without_nulls(array, name), dtype)
        return values.reshape(rows, *shape)

    # Nulls ------------------------------------------------------------------------------------

    def _with_nulls(self, array: pa.Array, kind: ColumnType, name: str) -> ColumnData:
        """The values that are there, blanks between them, and where they are."""
        if not array.null_count:
            return self.read(array, kind, name)._replace(valid=np.ones(len(array), np.bool_))
        valid = _numbers(array.is_valid(), np.dtype(np.bool_))
        data = self.read(checked(array).drop_null(), kind, name)
        return spread(kind, data, valid)._replace(valid=valid)

    def _without_nulls(self, array: pa.Array, name: str) -> pa.Array:
        if not array.null_count:
            return array
        if name not in self._fill or isinstance(self._fill[name], (list, tuple)):
            refuse_gaps(self._where, {name: array.null_count})
        return filled(array, self._fill[name], name)

    def _whole_lists(self, array: pa.Array, name: str) -> pa.Array:
        if not array.null_count:
            return array
        if not isinstance(self._fill.get(name), (list, tuple)):
            refuse_gaps(self._where, {name: array.null_count}, {name: ColumnType("list")})
        return filled(array, self._fill[name], name)

    def _file_bytes(self, array: pa.Array, name: str) -> pa.Array:
        """The bytes of an image or a sound that Hugging Face keeps beside its path."""
        names = [field.name for field in array.type]
        fields = array.flatten()
        found = stored_array(fields[names.index("bytes")])
        if found.null_count and "path" in names and name not in self._fill:
            paths = checked(fields[names.index("path")])
            nulls = found.is_null().to_pylist()
            kept = [paths[at].as_py() for at, is_null in enumerate(nulls) if is_null]
            outside = [path for path in kept if path]
            if outside:
                raise FileError(
                    f"{self._at(name)} has the path of a file in place of its bytes, "
                    f"{outside[0]!r}. Write the dataset with its files embedded, or leave the "
                    "column out with columns=[...]."
                )
        return found

    def _at(self, name: str) -> str:
        return f"{self._where}: column {name!r}" if self._where else f"column {name!r}"


def filled(array: pa.Array, value: object, name: str) -> pa.Array:
    """The array with a value in place of its nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    checked(array)
    try:
        scalar = pa.scalar(value, array.type)
        is_same = not isinstance(value, float) or value != value or scalar.as_py() == value
        if scalar.is_valid and (is_same or str(array.type).endswith(("float", "double"))):
            return pc.coalesce(array, scalar)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"`fill` has {value!r} for the column {name!r} of the type {array.type}: "
            f"{one_line(error)}"
        ) from error
    raise ArgumentError(f"`fill` has {value!r} for the column {name!r} of the type {array.type}.")


def filler(kind: ColumnType, arrow: pa.DataType, value: object, name: str) -> object:
    """The value in place of nulls, as a record has it; one that does not fit is refused."""
    import pyarrow as pa

    if kind.kind in ("bytes", "image"):
        arrow = pa.large_binary()
    data = arrow_data(filled(pa.nulls(1, arrow), value, name), kind, name, {})
    column = build_column(kind, Parts([1]), DataArrays(lambda _: data))
    assert isinstance(column, Column)
    return column.values(Located(None, np.zeros(1, np.int64)))[0]


# Buffers ----------------------------------------------------------------------------------------


def checked(array: pa.Array) -> pa.Array:
    """The array, if all that it holds lies within it.

    pyarrow's functions trust offsets, views and the ends of runs, which may be damaged: they would
    read other memory, or crash.
    """
    plain = _PLAIN.get(str(array.type))  # whether text is UTF-8 is checked where it is read
    (array if plain is None else array.view(plain)).validate(full=True)
    return array


def stored_array(array: pa.Array) -> pa.Array:
    """The values themselves: without dictionaries, runs, extensions and views."""
    while True:
        text = str(array.type)
        if hasattr(array, "storage"):
            array = array.storage
        elif text.startswith("dictionary<"):
            # Not `dictionary_decode`: pyarrow cannot take from the views that polars writes.
            array = checked(stored_array(array.dictionary)).take(array.indices)
        elif text.startswith("run_end_encoded<"):
            import pyarrow.compute as pc

            array = pc.run_end_decode(checked(array))
        elif text in _VIEWS:
            array = checked(array).cast(_VIEWS[text])
        else:
            return array


def list_offsets(array: pa.Array) -> Array:
    """Where each list of an array begins in its values, and where the last one ends."""
    if hasattr(array.type, "list_size"):
        size = array.type.list_size
        first, last = int(array.offset), int(array.offset) + len(array)
        return np.arange(first, last + 1, dtype=np.int64) * int(size)
    return _offsets(array, 8 if str(array.type).startswith("large") else 4)


def _offsets(array: pa.Array, width: int) -> Array:
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:  # an empty array may have none
        return np.zeros(1, np.int64)
    dtype = np.dtype(np.int64 if width == 8 else np.int32)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * width)


def _bytes(array: pa.Array) -> ColumnData:
    """Text or bytes."""
    offsets = _offsets(array, 8 if str(array.type).startswith("large") else 4)
    buffer = array.buffers()[2]
    values = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else _NOTHING
    start, stop = int(offsets[0]), int(offsets[-1])
    return ColumnData(len(array), values[start:stop], offsets - start if start else offsets)


_NOTHING = np.empty(0, np.uint8)


def _numbers(array: pa.Array, dtype: np.dtype[np.generic]) -> Array:
    """Numbers as an array: a copy of bools and of dates in days, else a view."""
    count, start, buffer = len(array), array.offset, array.buffers()[1]
    if not count or not dtype.itemsize:
        return np.empty((count, *dtype.shape), dtype.base)
    text = str(array.type)
    if text == "bool":
        raw = np.frombuffer(buffer, np.uint8)[start // 8 : (start + count + 7) // 8]
        bits = np.unpackbits(raw, count=start % 8 + count, bitorder="little")
        return bits[start % 8 :].view(np.bool_)
    if text.startswith(("date32", "time32")):
        days = np.frombuffer(buffer, "<i4", count, start * 4)
        return days.astype(np.int64).view(dtype)
    found = number_type(array.type)
    if found is not None and found != dtype:  # a shard with narrower integers than others
        return np.frombuffer(buffer, found, count, start * found.itemsize).astype(dtype)
    return np.frombuffer(buffer, dtype, count, start * dtype.itemsize)
