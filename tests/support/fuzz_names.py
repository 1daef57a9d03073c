"""Descriptions whose names lead out of their folder.  A target of `fuzz.py`.

`fuzz.py` watches which files are opened; whatever a description says, those of its folder are.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from file_families import WRITERS
from fuzz_case import run_case
from loaderx import Dataset, LoaderxError

FILES = Path(__file__).parents[1] / "files"
NAMES = (
    "..", "../../x", "/etc/hostname", "//etc/hostname", "a/../../../x", "", ".", "\0", "~/x",
    "C:\\x", "file:///etc/hostname", "../" * 20 + "etc/hostname", "\ud800",
)  # fmt: skip


def check(seed: int) -> str:
    return run_case(seed, (_mds, _tfds, _huggingface, _native))


def _mds(draw: random.Random, place: Path) -> str:
    shutil.copytree(FILES / "mds" / draw.choice(["fixed", "mixed", "gz", "zstd"]), place / "x")
    return _read(draw, place / "x", "index.json")


def _tfds(draw: random.Random, place: Path) -> str:
    folder = draw.choice(sorted((FILES / "tfds").rglob("dataset_info.json"))).parent
    shutil.copytree(folder, place / "x")
    return _read(draw, place / "x", "dataset_info.json", "train")


def _huggingface(draw: random.Random, place: Path) -> str:
    folder = place / "x"
    folder.mkdir()
    with pa.ipc.new_stream(folder / "x.arrow", pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": [1, 2]}))
    state = {"_data_files": [{"filename": "x.arrow"}], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return _read(draw, folder, "state.json")


def _native(draw: random.Random, place: Path) -> str:
    WRITERS["native"](place / "x", [1, 2, 3])
    return _read(draw, place / "x", "loaderx.json")


def _read(draw: random.Random, folder: Path, note: str, split: str | None = None) -> str:
    path = folder / note
    told = json.loads(path.read_text())
    is_changed = draw.random() < 0.9
    if is_changed:
        places = list(_texts(told))
        names = [one for one in places if set(".{") & set(one[0][one[1]])]  # of files
        holder, key = draw.choice(draw.choice([names, names, places]) or places)
        holder[key] = draw.choice(NAMES)
    path.write_text(json.dumps(told))
    try:
        list(Dataset.open(folder, split=split, cache=folder.parent / "cache"))
    except LoaderxError:
        if not is_changed:
            raise
        return "refused"
    return "data"


def _texts(told: object) -> Iterator[tuple[Any, Any]]:
    """Where texts stand in a description: what holds each, and its key there."""
    pairs = told.items() if isinstance(told, dict) else enumerate(told)
    for key, value in list(pairs):
        if isinstance(value, (dict, list)):
            yield from _texts(value)
        elif isinstance(value, str):
            yield told, key
