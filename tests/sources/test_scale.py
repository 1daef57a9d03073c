"""Opening takes no memory per record beyond the mapped index, and little per shard.

Each measurement is a process of its own.  It counts what Python and NumPy allocate (`tracemalloc`),
and the pages of the process that belong to no file.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from file_families import WRITERS
from loaderx import Dataset
from loaderx.sources.cache.folder import checksum_of
from processes import environment

RECORDS = 10**8
LITTLE = 8_000_000  # bytes: a twelfth of a byte for each of 10^8 records
PER_SHARD = 4_000  # bytes: its path, its identity, and where its arrays lie

MEASURE = """
import gc, json, sys, tracemalloc
from loaderx import Dataset

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

small, large, cache = sys.argv[1:]
Dataset.open(small, cache=cache).batch(2)[0]  # what is imported, and made once
gc.collect()
before = anonymous()
tracemalloc.start()
dataset = Dataset.open(large, cache=cache)
batch = dataset.batch(64)[0]
held, peak = tracemalloc.get_traced_memory()
tracemalloc.stop()
print(json.dumps([len(dataset), held, peak, anonymous() - before]))
"""


def measured(small, large, cache):
    """The records of a dataset; what it holds and what it took to open, in bytes; its own pages."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to tell pages of files from others")
    command = [sys.executable, "-c", MEASURE, str(small), str(large), str(cache)]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


# Records ----------------------------------------------------------------------------------------


def sparse_npy(path, dtype, shape):
    """Zeros that take no place on disk."""
    np.lib.format.open_memmap(path, "w+", dtype, shape)


def npy(path, count):
    sparse_npy(path, np.uint8, (count, 2))


def safetensors(path, count):
    header = {"x": {"dtype": "U8", "shape": [count, 2], "data_offsets": [0, 2 * count]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + 2 * count)


def hdf5(path, count):
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((count, 2))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, options)


def megatron(path, count):
    path.with_suffix(".bin").write_bytes(bytes(64))
    path.write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, count + 1))
    os.truncate(path, 34 + 12 * count + 8 * (count + 1))


def idx(path, count):
    path.write_bytes(struct.pack(">4B2I", 0, 0, 8, 2, count, 2))
    os.truncate(path, 12 + 2 * count)


def native(path, count):
    """A column of numbers and one of text, all of it empty."""
    WRITERS["native"](path, list(range(4)))
    part = path / "part-00000"
    shapes = {"x": ("<i8", (count,)), "v": ("<f4", (count, 3)), "t.offsets": ("<i8", (count + 1,))}
    for name, (dtype, shape) in shapes.items():
        sparse_npy(part / f"{name}.npy", dtype, shape)
    told = json.loads((path / "loaderx.json").read_text())
    told["records"] = told["parts"][0]["records"] = count
    told["parts"][0]["files"] = {file.name: file.stat().st_size for file in part.iterdir()}
    (path / "loaderx.json").write_text(json.dumps(told))


MAPPED = {
    "x.npy": npy,
    "x.safetensors": safetensors,
    "x.h5": hdf5,
    "x.idx": megatron,
    "x-idx2-ubyte": idx,
    "native": native,
}


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_files_of_many_records(tmp_path, name):
    places = []
    for count in (100, RECORDS):
        folder = tmp_path / str(count)
        folder.mkdir()
        MAPPED[name](folder / name, count)
        places.append(folder / name)
    records, _, peak, pages = measured(*places, tmp_path / "cache")
    assert records == RECORDS
    assert peak < LITTLE
    assert pages < 2 * LITTLE


def stretch_index(cache, count, records):
    """Makes an index one of ``records`` records; those behind the first ``count`` are zeros."""
    (description,) = cache.glob("index/*/index.json")
    told = json.loads(description.read_text())
    for name, (rows,) in told["counts"].items():
        if rows < count:
            continue  # not one for each record
        path = description.parent / f"{name}.npy"
        array = np.load(path)
        path.unlink()
        more = records + rows - count
        stretched = np.lib.format.open_memmap(path, "w+", array.dtype, (more, *array.shape[1:]))
        stretched[:rows] = array
        told["counts"][name] = [more]
    del told["checksum"]
    description.write_text(json.dumps({**told, "checksum": checksum_of(told)}))


@pytest.mark.parametrize("family", ["jsonl", "text", "tfrecord"])
def test_indexes_of_many_records(tmp_path, family):
    """The index of a small file, made longer without writing it."""
    count = 1500
    for name, numbers in (("small", range(3)), ("large", range(count))):
        (tmp_path / name).mkdir()
        WRITERS[family](tmp_path / name / "a", numbers)
    cache = tmp_path / "cache"
    assert len(Dataset.open(tmp_path / "large", cache=cache)) == count
    stretch_index(cache, count, RECORDS)
    records, _, peak, pages = measured(tmp_path / "small", tmp_path / "large", cache)
    assert records == RECORDS
    assert peak < LITTLE
    assert pages < 2 * LITTLE


# Shards -----------------------------------------------------------------------------------------


MANY_SHARDS = [
    pytest.param(family, 10_000, marks=pytest.mark.large)
    for family in WRITERS
    if family not in ("images", "native")  # an image is a file, and the layout has few parts
]


@pytest.mark.parametrize(("family", "count"), [("text", 1_000), ("npz", 1_000), *MANY_SHARDS])
def test_a_folder_of_many_shards(tmp_path, family, count):
    (tmp_path / "small").mkdir()
    WRITERS[family](tmp_path / "small" / "a", range(4))
    (file,) = (tmp_path / "small").iterdir()
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(count):  # one file under many names
        os.link(file, folder / f"a-{number}{file.suffix}")
    cache = tmp_path / "cache"
    assert len(Dataset.open(folder, cache=cache)) == 4 * count
    records, held, _, pages = measured(tmp_path / "small", folder, cache)
    assert records == 4 * count
    assert held < PER_SHARD * count
    assert pages < 2 * PER_SHARD * count + LITTLE


@pytest.mark.large
def test_the_making_of_a_large_index(tmp_path):
    """Ten bytes for each of 10^8 lines, and the index of them: one file in memory at a time."""
    line, count = b"123456789\n", RECORDS // 100
    for number in range(100):
        with open(tmp_path / f"a-{number}.txt", "wb") as file:
            file.write(line * count)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "a.txt").write_bytes(line * 2)
    records, held, peak, _ = measured(tmp_path / "small", tmp_path / "a-*.txt", tmp_path / "cache")
    assert records == RECORDS
    assert held < LITTLE
    assert peak < 8 * LITTLE  # the index of one file, 8 MB, some times over
