"""The data: made once from fixed seeds, and kept in a folder that git ignores."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np

from suite.augmented import CROPS, make_images
from suite.file_data import FILE_MAKERS, WITH_OPENCV, jpeg_bytes, photograph
from suite.workloads import (
    BLOCKS,
    FAR,
    IMAGE,
    JPEG_SHAPE,
    LARGE,
    PART,
    WORKLOADS,
    single_threaded_opencv,
)

VERSION = 1
"""Raise it when the data change, and old folders are made anew."""


def make(folder: Path, names: list[str], quick: bool) -> dict[str, str]:
    """Makes what these workloads need.  Returns why a workload has no data, if it has none."""
    needed = {WORKLOADS[name].does: WORKLOADS[name] for name in names}
    missing: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for does in needed:
        kind = SHARED.get(does, does)
        if kind not in MAKERS:
            continue
        largest = max(
            workload.quick_records if quick else workload.records
            for workload in WORKLOADS.values()
            if workload.does in (kind, does)
        )
        stamp = folder / f"{kind}.json"
        wanted = {"version": VERSION, "records": largest}
        try:
            if kind in ("jpeg", *WITH_OPENCV):
                single_threaded_opencv()  # the reference needs it as well
            if stamp.exists() and json.loads(stamp.read_text()) == wanted:
                continue
            MAKERS[kind](folder, largest)
        except ImportError as error:
            missing.update(
                {name: f"no data: {error}" for name in names if WORKLOADS[name].does == does}
            )
            continue
        stamp.write_text(json.dumps(wanted))
    return missing


SHARED = {"transform": "arrays", "step": "arrays"}
"""Workloads that use the data of another one."""


def arrays(folder: Path, records: int) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "image.npy", rng.integers(0, 256, (records, 28, 28), dtype=np.uint8))
    np.save(folder / "label.npy", np.arange(records, dtype=np.int32))


def tokens(folder: Path, records: int) -> None:
    out = np.lib.format.open_memmap(
        folder / "tokens.npy", "w+", dtype=np.int32, shape=(records, 512)
    )
    rng = np.random.default_rng(1)
    for start in range(0, records, 4096):
        part = out[start : start + 4096]
        part[...] = rng.integers(0, 50_000, part.shape, dtype=np.int32)
    out.flush()


def images(folder: Path, records: int) -> None:
    rng = np.random.default_rng(2)
    shape = (records, IMAGE, IMAGE, 3)
    np.save(folder / "image64.npy", rng.integers(0, 256, shape, dtype=np.uint8))
    np.save(folder / "label64.npy", np.arange(records, dtype=np.int32))


def augmented(name: str, folder: Path, records: int) -> None:
    np.save(folder / f"{name}.npy", make_images(CROPS[name][0], records))
    np.save(folder / f"label_{name}.npy", np.arange(records, dtype=np.int32))


def transport(folder: Path, records: int) -> None:
    rng = np.random.default_rng(3)
    np.save(folder / "blocks.npy", rng.integers(0, 256, (BLOCKS, LARGE), dtype=np.uint8))


def remote(folder: Path, records: int) -> None:
    """Files of `PART` records, for those who read arrays, and to make other formats from."""
    rng = np.random.default_rng(5)
    target = folder / "remote" / "npy"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    rows = min(PART, records // 4)  # a quick look has several files, too
    for number in range(records // rows):
        block = rng.integers(0, 256, (rows, FAR), dtype=np.uint8)
        np.save(target / f"part-{number:03}.npy", block)


def jpeg(folder: Path, records: int) -> None:
    """Colour images with large shapes and some texture: about 60 kB each."""
    rng = np.random.default_rng(4)
    target = folder / "jpeg"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for number in range(records):
        coded = jpeg_bytes(photograph(rng, *JPEG_SHAPE))
        (target / f"{number:05}.jpg").write_bytes(coded)


MAKERS = {
    "arrays": arrays,
    "tokens": tokens,
    "images": images,
    "aug32": partial(augmented, "aug32"),
    "aug128": partial(augmented, "aug128"),
    "transport": transport,
    "remote": remote,
    "jpeg": jpeg,
    **FILE_MAKERS,
}
