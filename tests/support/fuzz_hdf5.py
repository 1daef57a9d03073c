"""Damaged HDF5 files.  A target of `fuzz.py`.

libhdf5 reads what loaderx does not map, and some damaged files crash it or hang in it: that is
counted, and not held against loaderx.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np

from fuzz_case import run_case
from fuzz_files import damaged
from fuzz_parquet import check_refusal
from loaderx import Dataset, LoaderxError


def check(seed: int) -> str:
    return run_case(seed, (_case,))


def _case(draw: random.Random, place: Path) -> str:
    path = place / "x.h5"
    content, is_whole = damaged(draw, _valid(draw.randrange(20)))
    path.write_bytes(content)
    try:
        dataset = Dataset.open(path, cache=False)
        if len(dataset) < 1000:
            list(dataset)
        if len(dataset):
            dataset[draw.randrange(len(dataset))]
    except LoaderxError as error:
        check_refusal(error, path, is_whole)
        return "refused"
    return "data"


@lru_cache(maxsize=20)
def _valid(number: int) -> bytes:
    draw = random.Random(number)
    path, rows = Path(f"valid{number}.h5"), draw.randint(1, 9)
    with h5py.File(path, "w") as file:
        file["plain"] = np.arange(rows * 3).reshape(rows, 3)
        packed = draw.choice([{}, {"compression": "gzip"}, {"shuffle": True, "fletcher32": True}])
        file.create_dataset(
            "packed", data=np.arange(rows), chunks=(2,) if rows > 1 else (1,), **packed
        )
        if draw.random() < 0.5:
            file.create_dataset(
                "text", data=["é" * n for n in range(rows)], dtype=h5py.string_dtype()
            )
        if draw.random() < 0.5:
            file.create_group("group")["x"] = np.arange(rows, dtype=draw.choice([">f4", "<i2"]))
    return path.read_bytes()
