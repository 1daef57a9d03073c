"""The column types of Arrow types, and the features that Hugging Face writes into a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from loaderx.errors import FileError, MissingPackageError
from loaderx.frozen import Frozen
from loaderx.sources.columns.data import ITEMS, ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

Feature: TypeAlias = "Mapping[str, object] | list[object] | None"
"""Hugging Face's description of a column: {"_type": "ClassLabel", "names": [...]}, ..."""

_NUMBERS = {
    "bool": "bool", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1",
    "uint16": "u2", "uint32": "u4", "uint64": "u8", "halffloat": "f2", "float": "f4",
    "double": "f8", "date32[day]": "M8[D]", "date64[ms]": "M8[ms]", "time32[s]": "m8[s]",
    "time32[ms]": "m8[ms]", "time64[us]": "m8[us]", "time64[ns]": "m8[ns]",
}  # fmt: skip
_TEXT = ("string", "large_string", "string_view")
_BINARY = ("binary", "large_binary", "binary_view")
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")
_LISTS = ("Sequence", "List", "LargeList")


def import_pyarrow(what: str) -> None:
    """Says what to install where pyarrow is missing."""
    try:
        import pyarrow as pa  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs the package pyarrow: pip install 'loaderx-jax[parquet]'."
        ) from error


class Features(Frozen):
    """Hugging Face's descriptions of the columns; empty where there are none."""

    by_name: Mapping[str, object]

    @staticmethod
    def of(metadata: Mapping[bytes, bytes] | None) -> Features:
        """The features in the metadata of an Arrow schema."""
        told = (metadata or {}).get(b"huggingface")
        try:
            found = json.loads(told)["info"]["features"] if told else {}
        except (ValueError, KeyError, TypeError):
            return Features({})
        return Features(found if isinstance(found, dict) else {})

    def classes(self) -> dict[str, tuple[str, ...]]:
        """The names of classes by the path of their leaf."""
        return dict(_classes("", self.by_name))


def _classes(path: str, feature: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(feature, list):
        for one in feature:
            yield from _classes(path, one)
    elif isinstance(feature, Mapping):
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list):
            yield path, tuple(map(str, names))
        elif feature.get("_type") in _LISTS:
            yield from _classes(path, feature.get("feature"))
        elif "_type" not in feature:
            for name, one in feature.items():
                yield from _classes(f"{path}.{name}" if path else name, one)


def column_types(
    schema: pa.Schema, features: Features, names: list[str] | None = None
) -> dict[str, ColumnType]:
    """The types of the named columns (all by default); other types are refused."""
    chosen = list(schema.names) if names is None else names
    return {
        name: column_type(schema.field(name).type, _feature(features.by_name.get(name)), name)
        for name in chosen
    }


def column_type(kind: pa.DataType, feature: Feature, name: str) -> ColumnType:
    """The type of the column of an Arrow type.

    ``name`` is the path of the column, for messages.
    """
    kind = stored_type(kind)
    fixed = number_type(kind)
    if fixed is not None:
        return ColumnType("fixed", fixed)
    text = str(kind)
    if text in _TEXT:
        return ColumnType("text")
    if text in _BINARY:
        return ColumnType("image" if _is(feature, "Image") else "bytes")
    if text.startswith("fixed_size_binary"):
        return ColumnType("fixed", np.dtype(np.uint8), (kind.byte_width,))
    if text.startswith("struct"):
        return _struct(kind, feature, name)
    if is_list(kind):
        return _list(kind, feature, name)
    raise FileError(
        f"column {name!r} has the Arrow type {kind}, which loaderx does not read. Leave it out "
        "with columns=[...], or convert it when the file is written."
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values themselves: without dictionaries, runs and extensions."""
    while True:
        if hasattr(kind, "storage_type"):
            kind = kind.storage_type
        elif str(kind).startswith(("dictionary<", "run_end_encoded<")):
            kind = kind.value_type
        else:
            return kind


def type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType:
    """The type of a column, or of a field within structs."""
    kind = stored_type(schema.field(path[0]).type)
    for name in path[1:]:
        kind = stored_type(kind.field(kind.get_field_index(name)).type)
    return kind


def number_type(kind: pa.DataType) -> np.dtype[np.generic] | None:
    """The dtype of numbers, bools and times; None for all else."""
    text = str(kind)
    if text.startswith(("timestamp[", "duration[")):  # in any time zone: the file has UTC
        return np.dtype(f"{'M8' if text.startswith('t') else 'm8'}[{kind.unit}]")
    return np.dtype(_NUMBERS[text]) if text in _NUMBERS else None


def is_list(kind: pa.DataType) -> bool:
    """True for lists of any kind, of one length or of various lengths."""
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def _struct(kind: pa.StructType, feature: Feature, name: str) -> ColumnType:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    is_file = _is(feature, "Image") or _is(feature, "Audio") or _is(feature, "Video")
    if is_file and "bytes" in names:
        return ColumnType("image" if _is(feature, "Image") else "bytes")
    if not names or len(set(names)) < len(names):
        raise FileError(f"column {name!r} is a struct with the fields {names}: leave it out.")
    told = feature if isinstance(feature, Mapping) else {}
    told = {} if "_type" in told and not isinstance(told["_type"], Mapping) else told
    return ColumnType(
        "struct",
        fields={
            field.name: column_type(field.type, _of(told, field.name), f"{name}.{field.name}")
            for field in fields
        },
    )


def _list(kind: pa.DataType, feature: Feature, name: str) -> ColumnType:
    shape = feature.get("shape") if isinstance(feature, Mapping) and _is_array(feature) else None
    if isinstance(shape, list):
        return _tensor(kind, shape, name)
    length = getattr(kind, "list_size", None)
    inner: Feature = None
    if isinstance(feature, list) and feature:
        inner = _feature(feature[0])
    elif isinstance(feature, Mapping) and feature.get("_type") in _LISTS:
        inner = _feature(feature.get("feature"))
    items = column_type(kind.value_type, inner, name)
    if items.kind == "fixed" and length is not None:
        return ColumnType("fixed", items.dtype, (length, *items.shape))
    if items.kind == "fixed":
        return ColumnType("ragged", items.dtype, items.shape)
    return ColumnType("list", fields={ITEMS: items})


def _tensor(kind: pa.DataType, shape: list[object], name: str) -> ColumnType:
    """Nested lists that are known to be arrays; the first axis may have any length."""
    inner = kind
    for _ in shape:
        if not is_list(inner):
            raise FileError(f"column {name!r} has the type {kind}, and not the shape {shape}.")
        inner = inner.value_type
    dtype = number_type(inner)
    axes = tuple(axis for axis in shape if isinstance(axis, int))
    if dtype is None or len(axes) < len(shape) - (shape[0] is None):
        raise FileError(
            f"column {name!r} is an array of {inner} with the shape {shape}, which loaderx does "
            "not read. Leave it out with columns=[...]."
        )
    return ColumnType("ragged" if shape[0] is None else "fixed", dtype, axes)


def _is(feature: Feature, kind: str) -> bool:
    return isinstance(feature, Mapping) and feature.get("_type") == kind


def _is_array(feature: Mapping[str, object]) -> bool:
    return feature.get("_type") in _ARRAYS


def _of(feature: Mapping[str, object], name: str) -> Feature:
    return _feature(feature.get(name))


def _feature(found: object) -> Feature:
    return found if isinstance(found, (Mapping, list)) else None
