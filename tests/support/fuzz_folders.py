"""Damaged folders and archives: MDS, zarr, Megatron, safetensors, compressed files.  A target.

A case copies a valid folder, damages one file of it, its description as often as its data, and
reads all records.
"""

from __future__ import annotations

import gzip
import random
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np

from file_families import WRITERS
from fuzz_case import run_case
from fuzz_files import damaged
from fuzz_parquet import check_refusal
from loaderx import Dataset, LoaderxError

MDS = Path(__file__).parents[1] / "files" / "mds"


def check(seed: int) -> str:
    return run_case(seed, CASES)


def _mds(draw: random.Random, place: Path) -> str:
    folder = place / "mds"
    shutil.copytree(MDS / draw.choice(["fixed", "mixed", "gz", "zstd"]), folder)
    return _damaged_file(draw, folder, place)


def _zarr(draw: random.Random, place: Path) -> str:
    folder = place / "store.zarr"
    shutil.copytree(_zarr_folder(draw.randrange(8)), folder)
    return _damaged_file(draw, folder, place)


def _family(draw: random.Random, place: Path) -> str:
    """Files that others damage by their own fields, here by any byte; also compressed."""
    family = draw.choice(["safetensors", "tar", "tfrecord", "jsonl", "text", "csv"])
    WRITERS[family](place / "x", list(range(draw.randint(1, 9))))
    (path,) = place.glob("x*")
    if draw.random() < 0.6 and family != "safetensors":
        packed = draw.choice([gzip.compress, _zstd])(path.read_bytes())
        path.unlink()
        path = path.with_name(path.name + (".gz" if packed[:1] == b"\x1f" else ".zst"))
        path.write_bytes(packed)
    content, is_whole = damaged(draw, path.read_bytes())
    path.write_bytes(content)
    return _read(draw, path, place, is_whole)


def _megatron(draw: random.Random, place: Path) -> str:
    lengths = np.array([draw.randrange(9) for _ in range(draw.randint(1, 9))], "<i4")
    starts = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([8])
    head += len(lengths).to_bytes(8, "little") + len(documents).to_bytes(8, "little")
    index = head + lengths.tobytes() + starts.tobytes() + documents.tobytes()
    files = {"x.idx": index, "x.bin": np.arange(int(lengths.sum()), dtype="<u2").tobytes() or b"\0"}
    name = draw.choice(list(files))
    files[name], _ = damaged(draw, files[name])
    for one, content in files.items():
        (place / one).write_bytes(content)
    return _read(draw, place / "x.idx", place, False)


CASES = (_mds, _mds, _zarr, _family, _family, _megatron)


# Valid folders ------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _zarr_folder(number: int) -> Path:
    import numcodecs
    import zarr

    folder = Path(f"valid{number}.zarr")
    group = zarr.open_group(folder, mode="w", zarr_format=2 if number % 2 else 3)
    codecs = [numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.GZip(), None]
    for name, shape in (("x", (7,)), ("y", (7, 3))):
        codec = {"compressors": codecs[number // 2]} if number % 2 else {}
        made = group.create_array(name, shape=shape, dtype="int32", chunks=(3, *shape[1:]), **codec)
        made[:] = np.arange(np.prod(shape)).reshape(shape)
    return folder.absolute()


def _zstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


# Damage and reading -------------------------------------------------------------------------------


def _damaged_file(draw: random.Random, folder: Path, place: Path) -> str:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    notes = [one for one in files if "json" in one.name or one.name.startswith(".z")]
    file = draw.choice(draw.choice([files, notes]) or files)
    content = file.read_bytes()
    if not content or draw.random() < 0.1:
        file.unlink()
        return _read(draw, folder, place, False)
    content, is_whole = damaged(draw, content)
    file.write_bytes(content)
    return _read(draw, folder, place, is_whole)


def _read(draw: random.Random, path: Path, place: Path, is_whole: bool) -> str:
    try:
        dataset = Dataset.open(path, cache=place / "cache")
        if len(dataset) < 1000:
            list(dataset)
        if len(dataset):
            dataset[draw.randrange(len(dataset))]
    except LoaderxError as error:
        check_refusal(error, Path(path.name.split(".")[0]), is_whole)
        return "refused"
    return "data"
