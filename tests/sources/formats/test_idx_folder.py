"""IDX files through `Dataset.open`: a file, and MNIST's folder with its splits."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path):
    for split, count in (("train", 6), ("t10k", 3)):
        images = np.arange(count * 4).reshape(count, 2, 2)
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        with gzip.open(tmp_path / f"{split}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(idx(np.arange(count)))
    return tmp_path


def test_splits(mnist):
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(mnist)
    train = Dataset.open(mnist, split="train")
    (batch,) = train.batch(6)
    assert batch["image"].shape == (6, 2, 2)
    assert batch["label"].tolist() == list(range(6))
    assert len(Dataset.open(mnist, split="test[1:]", columns=["label"])) == 2


def test_packed_files_beside_the_unpacked_ones(mnist):
    """As torchvision leaves them in MNIST/raw."""
    for split in ("train", "t10k"):
        for packed in mnist.glob(f"{split}-labels*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        for plain in mnist.glob(f"{split}-images*"):
            plain.with_name(plain.name + ".gz").write_bytes(gzip.compress(plain.read_bytes()))
    (batch,) = Dataset.open(mnist, split="train").batch(6)
    assert batch["image"].shape == (6, 2, 2)
    assert batch["label"].tolist() == list(range(6))


def test_single_files(mnist):
    found = Dataset.open(mnist / "train-images-idx3-ubyte")
    assert found[1]["image"].tolist() == [[4, 5], [6, 7]]
    packed = Dataset.open(mnist / "train-labels-idx1-ubyte.gz")
    assert int(packed[5]["label"]) == 5
    both = Dataset.open(mnist / "train-*")
    assert sorted(both[0]) == ["image", "label"]
    with pytest.raises(FileError, match="two IDX files of 'image'"):
        Dataset.open(mnist / "*-images-idx3-ubyte")


def test_the_folder_above_them(mnist):
    raw = mnist / "MNIST" / "raw"
    shutil.copytree(mnist, raw)
    with pytest.raises(FileError, match=rf"two IDX files of .*, or the folder {raw} with split="):
        Dataset.open(mnist / "MNIST")
