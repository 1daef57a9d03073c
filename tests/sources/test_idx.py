"""IDX files, the format of MNIST."""

from __future__ import annotations

import gzip
import subprocess
import sys

import numpy as np
import pytest

import loaderx as lx
from loaderx import DataLoader, Dataset, FileError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array):
    array = np.asarray(array)
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim])
    sizes = np.array(array.shape, ">u4").tobytes()
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_arrays_come_back(kind, packed, tmp_path):
    array = (np.arange(24).reshape(4, 3, 2) - (0 if kind == "u1" else 9)).astype(kind)
    file = tmp_path / "file"
    file.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    got = lx.sources.open_idx(str(file))
    assert got.dtype == array.dtype
    assert got.dtype.isnative
    assert np.array_equal(got, array)


@pytest.mark.parametrize("packed", [False, True])
def test_a_dataset_of_them(packed, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (50, 28, 28), np.uint8)
    labels = np.arange(50, dtype=np.uint8) % 10
    for name, array in {"images-idx3-ubyte": images, "labels-idx1-ubyte": labels}.items():
        file = tmp_path / (name + ".gz" if packed else name)
        file.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    dataset = Dataset.from_arrays(
        image=lx.sources.open_idx(tmp_path / "images-idx3-ubyte"),
        label=lx.sources.open_idx(tmp_path / "labels-idx1-ubyte"),
    )
    assert repr(dataset.element_spec) == "{'image': uint8[28,28], 'label': uint8[]}"
    with DataLoader(dataset.shuffle(seed=0).batch(16), engine="threads") as loader:
        batches = list(loader)
    order = np.concatenate([batch["label"] for batch in batches])
    assert sorted(order.tolist()) == sorted(labels.tolist())
    first = batches[0]["image"]
    first[:] = 0  # ours: the file stays as it is
    assert np.array_equal(lx.sources.open_idx(tmp_path / "images-idx3-ubyte"), images)


def test_plain_bytes_are_mapped_and_read_only(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(idx(np.zeros((10, 4), np.uint8)))
    array = lx.sources.open_idx(file)
    assert isinstance(array.base, np.memmap)
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it begins with nothing"),
        (b"PK\x03\x04", "is not an IDX file: it begins with 50 4b 03 04"),
        (b"\0\0\x07\x01\0\0\0\0", "is not an IDX file: it begins with 00 00 07 01"),
        (b"\0\0\x08\x03\0\0", "is cut off: it ends within its header"),
        (idx(np.zeros((3, 4), np.uint8))[:-1], "is cut off: 3 x 4 numbers of 1 bytes are 12 bytes"),
        (idx(np.zeros(3, "f4")) + b"!", "has more than its header says"),
        (gzip.compress(idx(np.zeros(3000, np.uint8)))[:-12], "is damaged or cut off"),
        (
            gzip.compress(idx(np.zeros(30, np.uint8))[:-1]),
            "cut off: 30 bytes are expected, there are 29",
        ),
        (gzip.compress(b"hello"), "is not an IDX file: it begins with 68 65 6c 6c"),
    ],
    ids=range(9),
)
def test_damaged_files(content, message, tmp_path):
    file = tmp_path / "train-images"
    file.write_bytes(content)
    with pytest.raises(FileError) as caught:
        lx.sources.open_idx(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileError, match="there is no file .*, nor labels.gz beside it"):
        lx.sources.open_idx(tmp_path / "labels")
    with pytest.raises(FileError, match="is a folder, and a regular file is needed"):
        lx.sources.open_idx(tmp_path)


def test_it_is_imported_late():
    code = "import sys, loaderx; assert 'loaderx.sources.formats.idx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    assert not hasattr(lx.sources, "open_idxx")
