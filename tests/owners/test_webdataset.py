"""Tar files read by webdataset and by loaderx."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.sources import WebDataset

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore"),  # webdataset leaves its files open
]

webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def encoded(number, kind, mode="RGB"):
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (rng.integers(8, 40), rng.integers(8, 40), 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.fixture
def shards(tmp_path):
    pattern = str(tmp_path / "x-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=7, verbose=0) as writer:
        for n in range(20):
            writer.write(
                {
                    "__key__": f"folder.x/sample{n}",
                    "jpg": encoded(n, "JPEG", "L" if n % 5 == 0 else "RGB"),
                    "seg.png": encoded(n, "PNG", "P" if n % 3 == 0 else "RGB"),
                    "cls": n,
                    "json": {"number": n, "nested": {"list": [n, n + 1]}},
                    "txt": f"text {n} ü",
                    "depth.npy": np.full((2, n + 1), n, np.float16),
                    "arrays.npz": {"a": np.arange(n), "b": np.eye(2)},
                    "json.gz": {"packed": n},
                    "bin": bytes([n]) * n,
                }
            )
    return sorted(map(str, tmp_path.glob("*.tar")))


def theirs(paths, *decoders):
    pipeline = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
    return list(pipeline.decode(*decoders) if decoders else pipeline)


def check_equal(ours, others):
    assert len(ours) == len(others)
    for one, other in zip(ours, others):
        other = {name: value for name, value in other.items() if name not in SKIPPED}
        assert set(one) == set(other)
        for name, value in other.items():
            check_value(one[name], value)


SKIPPED = ("__url__", "__local_path__")


def check_value(one, other):
    if isinstance(other, dict):
        assert set(one) == set(other)
        for name, value in other.items():
            check_value(one[name], value)
    elif isinstance(other, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def test_bytes(shards):
    check_equal(list(Dataset.open(shards, decode=False)), theirs(shards))


def test_decoded(shards):
    """Its decoder makes all images RGB; without `channels` ours leaves gray ones gray."""
    check_equal(list(WebDataset(shards, channels=3)), theirs(shards, "rgb8"))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_any_tar(tmp_path, format):
    names = ["a.txt", "a.CLS", "b/c.txt", "b/c.Seg.Txt", "__meta__/x.txt", "__url__", "noending",
             "._x.txt", "d.e/f.txt", "./g.txt", "h" * 80 + "/" + "i" * 60 + ".txt"]  # fmt: skip
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=format) as archive:
        for n, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"%02d" % n))
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "a.txt"
        archive.addfile(link)
        archive.add(tmp_path, "folder.txt", recursive=False)
    check_equal(list(Dataset.open(path)), theirs([str(path)], lambda key, data: None))
