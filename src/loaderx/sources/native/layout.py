"""The native layout: plain ``.npy`` columns in parts, and a description.

::

    folder/
      loaderx.json               version, records, columns, classes, parts with the sizes of files
      part-00000/
        label.npy                int64[n]                  fixed
        image.npy                uint8[n, 32, 32, 3]       fixed
        text.npy                 uint8[total]              the bytes of one record after another
        text.offsets.npy         int64[n + 1]              where each begins
        box.x.npy                float32[n]                the field x of the struct box
        words.offsets.npy        int64[n + 1]              a list of text: its lists ...
        words.items.npy          uint8[total]              ... and its items, as a column
        words.items.offsets.npy  int64[items + 1]
        positions.npy            int32[total, 3]           rows of lines: stop, first value, rise
        positions.offsets.npy    int64[n + 1]              where the lines of each row begin
        age.npy, age.valid.npy   int64[n], bool[n]         False: there is no value

It is read with NumPy alone, ``np.load(..., mmap_mode="r")``.  In the names of files, characters
other than letters, digits, ``_``, ``-`` and spaces are written as ``%2E``.  ``loaderx.json`` is
written last: a folder without it is not complete.  Records are dicts of the columns; they are
tuples if ``record`` is "tuple" (of the columns "0", "1", ...), and the values of the one column
"value" if it is "value".
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.data import ColumnType, Kind
from loaderx.sources.columns.linear import are_linear
from loaderx.sources.files.file_system import LOCAL_FILES, FileSystems
from loaderx.sources.files.paths import is_below
from loaderx.sources.mapping import read_whole, reading

MARK = "loaderx.json"
VERSIONS = 1, 2
"""The second has columns of lines, and is written only where there are some."""

VALUES, OFFSETS, VALID = "values", "offsets", "valid"
VALUE = "value"
"""The one column of records that are neither dicts nor tuples."""

RecordKind: TypeAlias = Literal["dict", "tuple", "value"]

_LEAVES: tuple[Kind, ...] = ("fixed", "linear", "ragged", "text", "bytes", "image")
_KINDS: tuple[Kind, ...] = (*_LEAVES, "list", "struct", "tuple")
_RECORDS: tuple[RecordKind, ...] = ("dict", "tuple", "value")
_MOST_NESTED = 32
_MOST_BYTES = 1 << 30  # of a description, which has at most 10^6 parts
_ODD = re.compile(r"[^\w\- ]")


class Part(Frozen):
    """A folder of columns."""

    name: str
    records: int
    files: Mapping[str, int]  # the size of each, in bytes


class Shard(Frozen):
    """A file that some of the records came from."""

    name: str
    records: int


class Description(Frozen):
    """The content of ``loaderx.json``."""

    columns: Mapping[str, ColumnType]
    parts: list[Part]
    classes: Mapping[str, tuple[str, ...]] = {}
    made_from: tuple[Shard, ...] = ()  # the files that it is a copy of, in order
    record: RecordKind = "dict"
    made_by: Json = None  # identifies the dataset that was saved

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The files that it is a copy of; else its own parts."""
        return self.made_from or tuple(Shard(part.name, part.records) for part in self.parts)


def file_name(path: tuple[str, ...], which: str) -> str:
    """The file of the values, offsets or validity of a column or field.

    >>> file_name(("a", "b.c"), "offsets")
    'a.b%2Ec.offsets.npy'
    """
    stem = ".".join(_ODD.sub(_escaped, name) or "%" for name in path)
    return f"{stem}.npy" if which == VALUES else f"{stem}.{which}.npy"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def part_name(number: int) -> str:
    """The folder of a part."""
    return f"part-{number:05d}"


# Writing ----------------------------------------------------------------------------------------


def write_description(folder: str, description: Description) -> None:
    """Writes ``loaderx.json``, which makes the folder complete."""
    temporary = os.path.join(folder, f"{MARK}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "wb") as file:
        file.write(described(description))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, MARK))
    sync_folder(folder)


def described(description: Description) -> bytes:
    """The content of ``loaderx.json``."""
    told: Json = {
        "format": "loaderx",
        "version": VERSIONS[any(map(_has_lines, description.columns.values()))],
        "records": description.records,
        "record": description.record,
        "columns": {name: type_json(kind) for name, kind in description.columns.items()},
        "classes": {name: list(names) for name, names in description.classes.items()},
        "parts": [part_json(part) for part in description.parts],
        "made_from": [[shard.name, shard.records] for shard in description.made_from],
        "made_by": description.made_by,
    }
    return json.dumps(told, indent=1).encode()


def _has_lines(kind: ColumnType) -> bool:
    return kind.kind == "linear" or any(map(_has_lines, kind.fields.values()))


def sync_folder(folder: str) -> None:
    """Waits until the names in a folder are on disk, where the system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def part_json(part: Part) -> dict[str, Json]:
    """A part in the form of a description."""
    return {"name": part.name, "records": part.records, "files": dict(part.files)}


def type_json(kind: ColumnType) -> Json:
    """A type in the form of a description."""
    told: dict[str, Json] = {"kind": kind.kind}
    if kind.dtype is not None:
        told["dtype"], told["shape"] = kind.dtype.str, list(kind.shape)
    if kind.nulls is not None:
        told["nulls"] = kind.nulls
    if kind.fields:
        told["fields"] = {name: type_json(field) for name, field in kind.fields.items()}
    return told


# Reading ----------------------------------------------------------------------------------------


def read_description(folder: str, files: FileSystems = LOCAL_FILES) -> Description:
    """The description of a folder, checked as far as possible without its files."""
    path = os.path.join(folder, MARK)
    with files.open(path) as file, reading(path):
        told = json.loads(read_whole(file, _MOST_BYTES))
        if not isinstance(told, dict) or told.get("format") != "loaderx":
            raise FileError(f"{path} does not describe a dataset of loaderx.")
        if told.get("version") not in VERSIONS:
            raise FileError(
                f"{path} has version {told.get('version')!r} of the layout, and this loaderx reads "
                f"{VERSIONS[0]} and {VERSIONS[1]}: install a newer one."
            )
        columns = {name: type_of(kind) for name, kind in told["columns"].items()}
        found = Description(
            columns=columns,
            parts=[part_of(one) for one in told["parts"]],
            classes={name: tuple(map(str, names)) for name, names in told["classes"].items()},
            made_from=tuple(Shard(str(name), _whole(n)) for name, n in told["made_from"]),
            record=next(one for one in _RECORDS if one == told.get("record", "dict")),
            made_by=told.get("made_by"),
        )
        counts = {told["records"], found.records, sum(shard.records for shard in found.shards)}
        if len(counts) > 1 or not columns:
            raise ValueError(f"the numbers of records differ, {sorted(counts)}")
        if found.record == "value" and list(columns) != [VALUE]:
            raise ValueError(f"records are values, and its columns are {list(columns)}")
    return found


def part_of(told: dict[str, Json]) -> Part:
    """A part from its form in a description."""
    name, records, files = told["name"], told["records"], told["files"]
    if not is_below(name) or type(records) is not int or records < 0 or not isinstance(files, dict):
        raise ValueError(f"a part is {told!r:.100}")
    if any(type(size) is not int or size < 0 for size in files.values()):
        raise ValueError(f"sizes of part {name!r}")
    return Part(str(name), records, {str(file): _whole(size) for file, size in files.items()})


def type_of(told: dict[str, Json], depth: int = 0) -> ColumnType:
    """A type from its form in a description."""
    kind = next(one for one in _KINDS if one == told["kind"])
    fields = told.get("fields", {})
    is_leaf = kind in _LEAVES
    if not isinstance(fields, dict) or bool(fields) == is_leaf or depth > _MOST_NESTED:
        raise ValueError(f"a column is {told!r:.100}")
    if kind == "list" and list(fields) != ["items"]:
        raise ValueError(f"a list has the fields {list(fields)}")
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()
    if kind in ("fixed", "linear", "ragged"):
        text, axes = told["dtype"], told["shape"]
        assert isinstance(text, str)
        assert isinstance(axes, list)
        dtype, shape = np.dtype(text), tuple(_whole(axis) for axis in axes)
        if dtype.hasobject or dtype.subdtype is not None or not dtype.itemsize:
            raise ValueError(f"a column has the dtype {text!r}")
        if kind == "linear" and not are_linear(dtype, shape):
            raise ValueError(f"a column of lines is {text}{list(shape)}")
    nulls = told.get("nulls")
    return ColumnType(
        kind,
        dtype,
        shape,
        {name: type_of(_object(field), depth + 1) for name, field in fields.items()},
        None if nulls is None else _whole(nulls),
    )


def _object(told: Json) -> dict[str, Json]:
    if not isinstance(told, dict):
        raise ValueError(f"{told!r:.100} where an object is expected")
    return told


def _whole(told: Json) -> int:
    if type(told) is not int or told < 0:
        raise ValueError(f"{told!r:.100} where a number is expected")
    return told
