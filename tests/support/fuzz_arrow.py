"""Damaged Arrow files and Hugging Face folders.  A target of `fuzz.py`.

What loaderx reads of a damaged file must be what pyarrow reads of it, where pyarrow finds it valid.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from fuzz_case import run_case
from fuzz_files import NUMBERS, damaged
from fuzz_parquet import check_refusal
from loaderx import Dataset, LoaderxError

VIEWED = ("", "short", "longer than what a view has in itself", "é" * 9)
FILL = {"text": "-", "words": [], "view": "-", "hole": "-", "kind": "-", "lists": []}
DECODED = ("kind", "view", "blob", "views", "inside", "runs")
COMPRESSIONS = (None, None, None, "lz4", "zstd")


def check(seed: int) -> str:
    return run_case(seed, (_file, _file, _file, _folder, _gaps))


def _file(draw: random.Random, place: Path) -> str:
    path = place / "x.arrow"
    valid, fill = _valid(draw.randrange(120))
    content, is_whole = draw.choice([damaged, _damaged_number])(draw, valid)
    path.write_bytes(content)
    try:
        records = list(Dataset.open(path, fill=fill, cache=draw.choice([place / "cache", False])))
    except LoaderxError as error:
        check_refusal(error, path, is_whole)
        return "refused"
    expected = _by_pyarrow(content)
    if expected is None:
        return "data"
    assert len(records) == len(expected)
    for record, wanted in zip(records, expected):
        assert list(record) == list(wanted)
        for name, value in record.items():
            np.testing.assert_equal(value, wanted[name])
    return "data"


def _gaps(draw: random.Random, place: Path) -> str:
    """The same files, of which missing values are kept, and text becomes codes."""
    path = place / "x.arrow"
    content, is_whole = draw.choice([damaged, _damaged_number])(
        draw, _valid(draw.randrange(120))[0]
    )
    path.write_bytes(content)
    types = {"text": "category"} if draw.random() < 0.5 else {}
    try:
        records = list(Dataset.open(path, missing="valid", types=types, cache=place / "cache"))
    except LoaderxError as error:
        check_refusal(error, path, is_whole and not types)
        return "refused"
    assert all("hole_valid" not in one or one["hole_valid"] or not one["hole"] for one in records)
    return "data"


def _damaged_number(draw: random.Random, content: bytes) -> tuple[bytes, bool]:
    """Another number where offsets, sizes and views may be."""
    raw, width = bytearray(content), draw.choice([4, 8])
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(raw) // width) * width
        value = int.from_bytes(raw[at : at + width], "little")
        value = draw.choice([value + 1, value - 1, value + 1000, *NUMBERS])
        raw[at : at + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(raw), False


def _by_pyarrow(content: bytes) -> list[dict] | None:
    """What pyarrow reads; None where it finds that it is not valid."""
    try:
        opened = ipc.open_file if content.startswith(b"ARROW1") else ipc.open_stream
        table = opened(pa.BufferReader(content)).read_all()
        table.validate(full=True)
        return None if any(column.null_count for column in table.columns) else table.to_pylist()
    except Exception:
        return None


def _folder(draw: random.Random, place: Path) -> str:
    content, fill = _valid(draw.randrange(120))
    state = json.dumps({"_data_files": [{"filename": "x.arrow"}], "_split": None}).encode()
    info = json.dumps({"features": {"number": {"dtype": "int64", "_type": "Value"}}}).encode()
    files = {"x.arrow": content, "state.json": state, "dataset_info.json": info}
    name = draw.choice(list(files))
    files[name], is_whole = damaged(draw, files[name])
    for one, data in files.items():
        (place / one).write_bytes(data)
    try:
        list(Dataset.open(place, format="huggingface", fill=fill, cache=place / "cache"))
    except LoaderxError as error:
        check_refusal(error, place, is_whole)
        return "refused"
    return "data"


@lru_cache(maxsize=120)
def _valid(number: int) -> tuple[bytes, dict[str, object]]:
    """A file, and what fills the nulls in it."""
    draw = random.Random(number)
    rows = draw.randint(1, 12)
    columns = {
        "number": pa.array([draw.randrange(100) for _ in range(rows)], pa.int64()),
        "text": pa.array([draw.choice(["", "abc", "é" * 9]) for _ in range(rows)]),
        "flag": pa.array([draw.random() < 0.5 for _ in range(rows)]),
        "list": pa.array(
            [list(range(draw.randrange(4))) for _ in range(rows)], pa.list_(pa.int16())
        ),
        "fixed": pa.array([[1.5, 2.5]] * rows, pa.list_(pa.float32(), 2)),
        "words": pa.array(
            [["a", "bc"][: draw.randrange(3)] for _ in range(rows)], pa.list_(pa.string())
        ),
        "struct": pa.array([{"a": 1, "b": b"xy"}] * rows),
        "lists": pa.array(
            [[[1, 2], [], [3]][: draw.randrange(4)] for _ in range(rows)],
            pa.list_(pa.list_(pa.int32())),
        ),
        "kind": pa.array([draw.choice("xyz") for _ in range(rows)]).dictionary_encode(),
        "view": pa.array([draw.choice(VIEWED) for _ in range(rows)], pa.string_view()),
        "blob": pa.array([draw.choice(VIEWED).encode() for _ in range(rows)], pa.binary_view()),
        "views": pa.array(
            [[draw.choice(VIEWED)] * draw.randrange(3) for _ in range(rows)],
            pa.list_(pa.string_view()),
        ),
        "inside": pa.array(
            [{"v": draw.choice(VIEWED)} for _ in range(rows)], pa.struct([("v", pa.string_view())])
        ),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([rows], pa.int32()), pa.array([draw.choice(VIEWED)])
        ),
        "hole": pa.array([draw.choice([None, "abc", "é" * 9]) for _ in range(rows)], pa.string()),
    }
    names = draw.sample(list(columns), draw.randint(1, len(columns)))
    names = draw.choice([names, [name for name in names if name not in DECODED] or names])
    table = pa.table({name: columns[name] for name in names})
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=draw.choice(COMPRESSIONS))
    new = draw.choice([ipc.new_file, ipc.new_stream])
    with new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=draw.choice([1, 5, 100]))
    filled = draw.choice([("hole",), FILL])
    return sink.getvalue().to_pybytes(), {name: FILL[name] for name in names if name in filled}
