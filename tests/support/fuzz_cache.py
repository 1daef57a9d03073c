"""A damaged cache folder.  A target of `fuzz.py`.

A case opens files with a cache folder, damages what lies in it, and opens them again.  Damage of an
index or a description gives the same records as before; of the arrays of a copy, which are not
compared, any records of the same shape, or a refusal.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from file_families import WRITERS
from fuzz_case import run_case
from fuzz_files import damaged
from loaderx import Dataset, LoaderxError
from loaderx.sources.native import copies as native_copies

FAMILIES = ("arrow", "csv", "jsonl", "parquet", "tar", "text", "tfrecord", "gz")
VALUES = (None, 0, -1, 2**63, 1.5, "x", "", [], {}, [[]], [None] * 3, True)


def check(seed: int) -> str:
    native_copies.LEAST_BYTES = 0  # copies of small files, too
    return run_case(seed, (_case,))


def _case(draw: random.Random, place: Path) -> str:
    family = draw.choice(FAMILIES)
    WRITERS["jsonl" if family == "gz" else family](place / "x", list(range(draw.randint(1, 9))))
    (path,) = place.glob("x*")
    if family == "gz":
        packed = path.with_name("x.jsonl.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = packed
    before = _records(path, place)
    file = draw.choice(sorted(one for one in (place / "cache").rglob("*") if one.is_file()))
    how = draw.random()
    if how < 0.1:
        file.unlink()
    elif how < 0.4 and file.suffix == ".json":
        file.write_text(json.dumps(_changed(draw, json.loads(file.read_text()))))
    elif content := file.read_bytes():
        file.write_bytes(damaged(draw, content)[0])
    is_data = "files" in file.parts and file.suffix != ".json"
    try:
        after = _records(path, place)
    except LoaderxError:
        assert is_data, f"{file} is damaged, and was not made again"
        return "refused"
    if is_data:
        assert len(after) == len(before) or family == "gz", f"{len(after)} of {len(before)} records"
        return "refused" if after != before else "data"
    assert after == before, f"{file} was believed"
    return "data"


def _records(path: Path, place: Path) -> list[str]:
    return [str(record) for record in Dataset.open(path, cache=place / "cache")]


def _changed(draw: random.Random, told: object) -> object:
    """JSON that can be read, with another value somewhere."""
    if isinstance(told, dict) and told and draw.random() < 0.9:
        key = draw.choice(list(told))
        return {**told, key: _changed(draw, told[key])}
    if isinstance(told, list) and told and draw.random() < 0.9:
        at = draw.randrange(len(told))
        return [*told[:at], _changed(draw, told[at]), *told[at + 1 :]]
    return told + 1 if type(told) is int and draw.random() < 0.5 else draw.choice(VALUES)
