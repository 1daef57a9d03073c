"""Damaged Parquet files and folders in the native layout.  A target of `fuzz.py`.

What loaderx reads of a damaged Parquet file must be what pyarrow reads of it, where pyarrow reads
it.  A folder in the native layout has no checksums: what is read of it need only have the right
shapes.
"""

from __future__ import annotations

import io
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz_case import run_case
from fuzz_files import damaged
from loaderx import Dataset, FileError, LoaderxError, RecordError
from native_files import fixed, kinds_of, lines, runs, write

COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4")


def check(seed: int) -> str:
    return run_case(seed, (_parquet, _parquet, _native))


def _parquet(draw: random.Random, place: Path) -> str:
    path = place / "x.parquet"
    content, is_whole = damaged(draw, _valid(draw.randrange(60)))
    path.write_bytes(content)
    cache = draw.choice([place / "cache", False])
    try:
        records = list(Dataset.open(path, cache=cache))
    except LoaderxError as error:
        check_refusal(error, path, is_whole)
        return "refused"
    try:
        expected = pq.ParquetFile(path).read().to_pylist()
    except Exception:
        return "data"  # it reads some of what it read for us only once
    assert len(records) == len(expected)
    for record, wanted in zip(records, expected):
        assert list(record) == list(wanted)
        for name, value in record.items():
            assert _same(value, wanted[name]), f"{value!r} is not {wanted[name]!r}"
    return "data"


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        one = one.tolist()
    return one == other or (one != one and other != other)  # NaN


def check_refusal(error: LoaderxError, path: Path, is_whole: bool) -> None:
    assert not is_whole, f"refused although it is as it was: {error}"
    if isinstance(error, RecordError):
        cause = error.__cause__
        assert isinstance(cause, (LoaderxError, UnicodeDecodeError)), repr(cause)
        error = cause if isinstance(cause, FileError) else error
    if isinstance(error, FileError):
        assert path.name in str(error), f"the message does not name {path}: {error}"


@lru_cache(maxsize=60)
def _valid(number: int) -> bytes:
    draw = random.Random(number)
    rows = draw.randint(1, 30)
    columns = {
        "i": pa.array([draw.randrange(-99, 99) for _ in range(rows)], pa.int32()),
        "f": pa.array([draw.random() for _ in range(rows)]),
        "s": ["é" * draw.randrange(5) for _ in range(rows)],
        "b": [draw.randbytes(draw.randrange(5)) for _ in range(rows)],
        "l": pa.array([[7] * draw.randrange(4) for _ in range(rows)], pa.list_(pa.int16())),
        "z": pa.array([[1, 2]] * rows, pa.list_(pa.int8(), 2)),
        "t": [[str(k) for k in range(draw.randrange(3))] for _ in range(rows)],
        "o": [draw.random() < 0.5 for _ in range(rows)],
    }
    names = draw.sample(list(columns), draw.randint(1, 4))
    out = io.BytesIO()
    pq.write_table(
        pa.table({name: columns[name] for name in names}),
        out,
        row_group_size=draw.choice([4, 100]),
        compression=draw.choice(COMPRESSIONS),
        use_dictionary=draw.random() < 0.5,
        write_page_checksum=draw.random() < 0.3,
        data_page_version=draw.choice(["1.0", "2.0"]),
    )
    return out.getvalue()


def _native(draw: random.Random, place: Path) -> str:
    rows = draw.randint(1, 9)
    records = {
        "x": fixed(np.arange(rows)),
        "t": runs(["é" * draw.randrange(4) for _ in range(rows)]),
        "l": runs([[1] * draw.randrange(4) for _ in range(rows)], np.int32),
        "p": lines([[(3, 5, 1), (8, 0, 0)][draw.randrange(2) :] for _ in range(rows)]),
    }
    folder = place / "d"
    write(folder, kinds_of(records, l="ragged", p="linear 8"), *[records] * draw.choice([1, 2]))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.choice([*files, folder / "loaderx.json"])
    content, is_whole = damaged(draw, path.read_bytes())
    path.write_bytes(content)
    try:
        found = list(Dataset.open(folder))
    except LoaderxError as error:
        check_refusal(error, folder, is_whole)
        return "refused"
    for record in found:
        assert isinstance(record.get("t", ""), str)
        assert np.shape(record.get("x", 0)) == ()
        assert np.shape(record.get("p", np.empty(8))) == (8,)
    return "data"
