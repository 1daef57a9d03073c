"""Arrow arrays of every type, sliced and with nulls, give the values that Arrow itself gives."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from loaderx import ArgumentError, FileError
from loaderx.sources.columns.build import DataArrays, build_column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Parts
from loaderx.sources.formats.arrow.columns import arrow_data
from loaderx.sources.formats.arrow.types import Features, column_type, column_types

NOON = dt.datetime(2024, 5, 6, 12, 30, 1)
STRUCT = pa.struct([("n", pa.int16()), ("inner", pa.struct([("s", pa.string())]))])


def many(value):
    return [value(number) for number in range(11)]


ARRAYS = {
    "bool": pa.array(many(lambda n: n % 3 == 0)),
    "int8": pa.array(many(lambda n: -n), pa.int8()),
    "int64": pa.array(many(lambda n: 2**53 + n)),
    "uint64": pa.array(many(lambda n: 2**63 + n), pa.uint64()),
    "float16": pa.array(np.arange(11, dtype=np.float16)),
    "float32": pa.array(many(lambda n: n / 4), pa.float32()),
    "double": pa.array(many(lambda n: n / 7)),
    "string": pa.array(many(lambda n: "é" * n)),
    "large_string": pa.array(many(lambda n: "é" * n), pa.large_string()),
    "dictionary": pa.array(many(lambda n: "ab"[n % 2])).dictionary_encode(),
    "dictionary_of_numbers": pa.array(many(lambda n: n % 3)).dictionary_encode(),
    "binary": pa.array(many(lambda n: bytes(n))),
    "large_binary": pa.array(many(lambda n: bytes(n)), pa.large_binary()),
    "fixed_binary": pa.array(many(lambda n: bytes([n] * 3)), pa.binary(3)),
    "list": pa.array(many(lambda n: list(range(n)))),
    "large_list": pa.array(many(lambda n: list(range(n))), pa.large_list(pa.int32())),
    "list_of_bools": pa.array(many(lambda n: [True, False, n > 4][: n % 4])),
    "fixed_list": pa.array(many(lambda n: [n, -n]), pa.list_(pa.float32(), 2)),
    "matrix": pa.array(many(lambda n: [[n, 1, 2], [3, 4, n]]), pa.list_(pa.list_(pa.int8(), 3), 2)),
    "list_of_rows": pa.array(many(lambda n: [[n, 1]] * n), pa.list_(pa.list_(pa.int8(), 2))),
    "list_of_text": pa.array(many(lambda n: ["x" * k for k in range(n)])),
    "list_of_lists": pa.array(many(lambda n: [[1] * k for k in range(n % 4)])),
    "list_of_structs": pa.array(many(lambda n: [{"role": "user", "n": k} for k in range(n % 3)])),
    "fixed_list_of_text": pa.array(many(lambda n: ["a", "b" * n]), pa.list_(pa.string(), 2)),
    "struct": pa.array(many(lambda n: {"n": n, "inner": {"s": str(n)}}), STRUCT),
    "timestamp": pa.array(many(lambda n: NOON), pa.timestamp("us")),
    "zoned": pa.array(many(lambda n: NOON), pa.timestamp("ns", "UTC")),
    "date32": pa.array(many(lambda n: NOON.date())),
    "date64": pa.array(many(lambda n: NOON.date()), pa.date64()),
    "time32": pa.array(many(lambda n: NOON.time()), pa.time32("s")),
    "time64": pa.array(many(lambda n: NOON.time()), pa.time64("us")),
    "duration": pa.array(many(lambda n: dt.timedelta(seconds=n)), pa.duration("ms")),
}  # fmt: skip
if hasattr(pa, "string_view"):
    ARRAYS["string_view"] = pa.array(many(lambda n: "é" * n), pa.string_view())
    ARRAYS["binary_view"] = pa.array(many(lambda n: b"e" * n), pa.binary_view())
if hasattr(pa, "run_end_encoded"):
    ARRAYS["runs"] = pa.RunEndEncodedArray.from_arrays([4, 11], pa.array(["a", "b"]))


def read(array, feature=None, **fill):
    """The values that loaderx makes of an array."""
    kind = column_type(array.type, feature, "x")
    data = arrow_data(array, kind, "x", fill, "a.parquet")
    made = build_column(kind, Parts([len(array)]), DataArrays(lambda _: data))
    source = TableSource({"x": made}, len(array), label="test")
    return [record["x"] for record in source.records(np.arange(len(array)))]


def plain(value):
    """Arrays and NumPy scalars as Python's own."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value.astype(value.dtype.str.replace("ns", "us")).item()
    return value.item() if isinstance(value, np.generic) else value


def expected(array):
    def convert(value):
        if isinstance(value, dt.time):
            return dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
        if isinstance(value, dt.datetime):
            return value.replace(tzinfo=None)
        if hasattr(value, "to_pydatetime"):
            return value.to_pydatetime(warn=False).replace(tzinfo=None)
        return value

    values = [convert(value) for value in array.to_pylist()]
    if str(array.type).startswith("fixed_size_binary"):
        return [list(value) for value in values]
    if str(array.type) == "date64[ms]":  # a date that counts in milliseconds
        return [dt.datetime.combine(value, dt.time()) for value in values]
    return values


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_and_any_slice(name):
    array = ARRAYS[name]
    for part in (array, array.slice(3), array.slice(1, 7), array.slice(9), array.slice(11)):
        assert plain(read(part)) == expected(part), (name, part.offset)


def test_numbers_keep_their_dtype_and_are_views():
    array = pa.array([1, 2, 3], pa.int16())
    data = arrow_data(array, column_type(array.type, None, "x"), "x", {})
    assert data.values.dtype == np.int16
    assert not data.values.flags.owndata


@pytest.mark.parametrize(
    ("array", "value", "wanted"),
    [
        (pa.array([1, None]), 7, [1, 7]),
        (pa.array([2**53 + 1, None]), -1, [2**53 + 1, -1]),
        (pa.array([True, None]), False, [True, False]),
        (pa.array(["a", None]), "é", ["a", "é"]),
        (pa.array([b"a", None]), b"", [b"a", b""]),
        (pa.array(["a", None]).dictionary_encode(), "z", ["a", "z"]),
        (pa.array([[1], None]), [], [[1], []]),
        (pa.array([[1], None]), [4, 5], [[1], [4, 5]]),
        (pa.array([[1, None], [2]]), 0, [[1, 0], [2]]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [0, 9], [[1, 2], [0, 9]]),
        (pa.array([b"ab", None], pa.binary(2)), b"cd", [[97, 98], [99, 100]]),
        (pa.array([0.5, None]), 1, [0.5, 1.0]),
        (pa.array([0.5, None], pa.float32()), 0.1, [0.5, np.float32(0.1).item()]),
        (pa.array([["a"], None]), [], [["a"], []]),
        (pa.array([["a", None]]), "?", [["a", "?"]]),
    ],
)
def test_nulls_are_refused_or_filled(array, value, wanted):
    with pytest.raises(FileError, match="a.parquet: column 'x' has 1 null, and .* fill={'x'"):
        read(array)
    assert plain(read(array, x=value)) == wanted
    assert plain(read(array.slice(0, 1), x=value)) == wanted[:1]


def test_a_null_struct_is_a_null_of_its_fields():
    array = pa.array([{"n": 1, "inner": {"s": "a"}}, None], STRUCT)
    with pytest.raises(FileError, match=r"column 'x.n' has 1 null"):
        read(array)
    found = read(array, **{"x.n": 0, "x.inner.s": "?"})
    assert plain(found) == [{"n": 1, "inner": {"s": "a"}}, {"n": 0, "inner": {"s": "?"}}]


@pytest.mark.parametrize("value", ["text", 0.5, 2**70, None])
def test_a_fill_that_does_not_fit(value):
    with pytest.raises(ArgumentError, match="`fill` has .* for the column 'x' of the type int64"):
        read(pa.array([1, None]), x=value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal128(5, 2),
        pa.map_(pa.string(), pa.int8()),
        pa.null(),
        pa.month_day_nano_interval(),
        pa.list_(pa.decimal128(5, 2)),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
)
def test_types_that_are_refused(kind):
    with pytest.raises(FileError, match=r"column 'x' has the Arrow type .* columns="):
        column_type(kind, None, "x")


# Hugging Face -------------------------------------------------------------------------------------


def schema(features, **columns):
    told = json.dumps({"info": {"features": features}}).encode()
    return pa.schema(list(columns.items()), metadata={b"huggingface": told})


def test_classes():
    label = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    features = {
        "label": label,
        "tags": {"_type": "Sequence", "feature": label},
        "old": [label],
        "a": {"b": label},
        "x": {"_type": "Value"},
    }
    found = Features.of(schema(features).metadata).classes()
    names = ("cat", "dog")
    assert found == {"label": names, "tags": names, "old": names, "a.b": names}


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b'{"info": {"features": 3}}', b"\xff"])
def test_damaged_metadata_say_nothing(text):
    assert Features.of({b"huggingface": text}).classes() == {}
    assert Features.of(None).classes() == {}


def test_images_are_their_bytes():
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "audio": {"_type": "Audio"}}
    found = schema(features, image=kind, audio=kind, other=kind)
    types = column_types(found, Features.of(found.metadata))
    assert {name: one.kind for name, one in types.items()} == {
        "image": "image",
        "audio": "bytes",
        "other": "struct",
    }
    image = {"_type": "Image"}
    array = pa.array([{"bytes": b"png", "path": None}, {"bytes": b"", "path": "a"}], kind)
    assert read(array, image) == [b"png", b""]
    outside = pa.array([{"bytes": b"png", "path": None}, {"bytes": None, "path": "/a.png"}], kind)
    with pytest.raises(FileError, match=r"column 'x' has the path of a file .* '/a.png'"):
        read(outside, image)
    with pytest.raises(FileError, match="column 'x' has 1 null"):
        read(pa.array([{"bytes": b"png", "path": None}, None], kind), image)


def test_arrays_of_known_shape():
    feature = {"_type": "Array2D", "shape": [2, 3], "dtype": "int32"}
    kind = pa.list_(pa.list_(pa.int32()))
    array = pa.array([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 1, 2]]], kind)
    first, second = read(array, feature)
    assert first.shape == (2, 3)
    assert second.tolist() == [[7, 8, 9], [0, 1, 2]]
    with pytest.raises(FileError, match=r"a list of 1 where the shape \[2, 3\] is expected"):
        read(pa.array([[[1, 2, 3], [1]]], kind), feature)
    rows = {"_type": "Array2D", "shape": [None, 3], "dtype": "int32"}
    found = read(pa.array([[[1, 2, 3]], [], [[4, 5, 6], [7, 8, 9]]], kind), rows)
    assert [one.shape for one in found] == [(1, 3), (0, 3), (2, 3)]


def test_pandas_is_not_imported():
    script = """
import sys, pyarrow as pa
from loaderx.sources.formats.arrow.columns import arrow_data
from loaderx.sources.formats.arrow.types import column_type
numbers = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
text = pa.Array.from_buffers(pa.string(), 1, [None, *map(pa.py_buffer, (bytes(8), b""))])
many = pa.Array.from_buffers(
    pa.list_(pa.int64()), 1, [None, pa.py_buffer(bytes(8))], children=[numbers]
)
for array in (numbers, text, many):
    arrow_data(array, column_type(array.type, None, "x"), "x", {})
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
