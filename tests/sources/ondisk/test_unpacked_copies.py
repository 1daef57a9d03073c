"""Compressed files: read from an unpacked copy, and still known by their own path."""

from __future__ import annotations

import errno
import gzip
import pickle
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from loaderx import Dataset
from loaderx.errors import FileError, RecordError
from loaderx.sources.cache import unpack
from loaderx.sources.mapping import reading

LINES = b"".join(b'{"x": %d}\n' % n for n in range(20))


@pytest.fixture
def packed(tmp_path):
    path = tmp_path / "data" / "code-1.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(LINES))
    return path


class _FullFile:
    """A file on a disk that is full."""

    def __init__(self, path, *_, **__):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def write(self, piece):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_not_blamed_on_the_data(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "open", _FullFile, raising=False)
    with pytest.raises(FileError) as caught:
        Dataset.open(packed, cache=tmp_path / "cache")
    assert f"{packed} must be unpacked first, and the cache folder" in str(caught.value)
    assert "cannot be written to: [Errno 28] No space left on device" in str(caught.value)
    assert "damaged" not in str(caught.value)
    assert not [*(tmp_path / "cache" / "files").iterdir()]


def zstd_frame(data):
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(data)
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_the_disk_is_looked_at(tmp_path, monkeypatch, suffix):
    """Before anything is written: all files together, as far as they say what they need."""
    lines, paths = LINES * 20_000, [tmp_path / f"{number}.jsonl.{suffix}" for number in range(2)]
    for path in paths:
        path.write_bytes(zstd_frame(lines) if suffix == "zst" else gzip.compress(lines, 1))
    needed, bytes_free = 2 * len(lines) / 1e6, 2 * len(lines) - 1_000_000

    def disk_usage(folder):
        return SimpleNamespace(total=5000, free=bytes_free)

    monkeypatch.setattr(unpack, "shutil", SimpleNamespace(disk_usage=disk_usage))
    cache = tmp_path / "cache"
    with pytest.raises(FileError) as caught:
        Dataset.open(tmp_path / f"*.jsonl.{suffix}", cache=cache)
    message = str(caught.value)
    assert f"{paths[0]} and 1 more files, unpacked, does not fit into the cache folder" in message
    assert f"cache folder {cache}: it takes {needed:,.0f} MB or more, and the disk has" in message
    assert f"has {bytes_free / 1e6:,.0f} MB free, of which 0 MB are kept free" in message
    assert "Give another folder with `cache=` or LOADERX_CACHE" in message
    assert not cache.exists()


def test_columns_that_are_left_out_need_no_room(tmp_path, monkeypatch):
    table = pa.table({"x": [1, 2], "noise": [np.random.default_rng(0).bytes(100_000)] * 2})
    feather.write_feather(table, tmp_path / "x.feather", compression="zstd")

    def disk_usage(folder):
        return SimpleNamespace(total=5000, free=50_000)

    monkeypatch.setattr(unpack, "shutil", SimpleNamespace(disk_usage=disk_usage))
    with pytest.raises(FileError, match=r"a copy of .*x\.feather does not fit into the cache"):
        Dataset.open(tmp_path / "x.feather", cache=tmp_path / "cache")
    found = Dataset.open(tmp_path / "x.feather", columns=["x"], cache=tmp_path / "cache")
    assert [int(one["x"]) for one in found] == [1, 2]


def test_the_disk_is_looked_at_while_a_file_is_written(tmp_path, monkeypatch):
    """Members that are not the last one say nothing."""
    lines, path = LINES * 20_000, tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(lines, 1) + gzip.compress(b"\n"))

    def disk_usage(folder):
        written = sum(one.stat().st_size for one in (tmp_path / "cache").rglob("*.jsonl"))
        return SimpleNamespace(total=5000, free=2_000_000 - written)

    monkeypatch.setattr(unpack, "shutil", SimpleNamespace(disk_usage=disk_usage))
    with pytest.raises(FileError, match=r"it takes [0-9] MB or more, and the disk has 2 MB free"):
        Dataset.open(path, cache=tmp_path / "cache")
    assert not [*(tmp_path / "cache" / "files").iterdir()]


OPENS = """
import os, sys, time
from loaderx import Dataset

path, cache, meeting = sys.argv[1:]
begun = []


def hear(event, told):
    if event == "os.mkdir" and os.path.basename(os.path.dirname(told[0])) == "files":
        begun.append(told[0])


sys.addaudithook(hear)
os.mkdir(os.path.join(meeting, str(os.getpid())))
while len(os.listdir(meeting)) < 4:
    time.sleep(0.01)
print(len(Dataset.open(path, cache=cache)), len(begun))
"""


def test_processes_that_open_at_once_make_one_copy(tmp_path):
    """One of them makes it; the others wait for it, and then find it."""
    meeting, text = tmp_path / "meeting", LINES * 10_000
    meeting.mkdir()
    for number in range(3):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(text, 1))
    arguments = [sys.executable, "-c", OPENS, tmp_path / "*.jsonl.gz", tmp_path / "cache", meeting]
    made = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = [one.communicate() for one in made]
    assert [error for _, error in found] == [""] * 4
    counts, begun = zip(*(out.split() for out, _ in found))
    assert set(counts) == {f"{60 * 10_000}"}
    assert sum(map(int, begun)) == 4  # three unpacked files, and the columns of all of them
    assert not list((tmp_path / "cache" / "locks").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"x": 1}\n{"x": \n', "line 2"),
        ("a.csv", b"x,y\n1,2\n3\n", "line 3"),
        ("a.npz", b"PK\3\4", "is not a zip archive"),
        ("a.npy", b"\x93NUMPY\1\0\x10\0", "is damaged|is cut off"),
        ("a.parquet", b"PAR1....PAR1", "is damaged"),
        ("a.txt", b"", "there are no records"),
    ],
)
def test_errors_name_the_file_that_was_asked_for(tmp_path, name, content, message):
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises((FileError, RecordError), match=message) as caught:
        list(Dataset.open(path, cache=tmp_path / "cache"))
    assert str(path) in str(caught.value)
    assert str(tmp_path / "cache") not in str(caught.value)


def test_a_copy_that_went_away_is_said_so(packed, tmp_path):
    dataset = pickle.dumps(Dataset.open(packed, cache=tmp_path / "cache"))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(FileError) as caught:
        pickle.loads(dataset)[0]
    assert f"{packed} is read from a copy in the cache folder, and there is no file" in str(
        caught.value
    )


def test_names_of_arrays_are_those_of_the_unpacked_file(tmp_path):
    np.savez_compressed(tmp_path / "z.npz", y=np.arange(3))
    np.save(tmp_path / "x.npy", np.arange(3))
    for name in ("x.npy", "z.npz"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert [*Dataset.open(tmp_path / "x.npy.gz", cache=tmp_path)[1]] == ["x"]
    dataset = Dataset.open(tmp_path / "z.npz.gz", cache=tmp_path)
    assert int(pickle.loads(pickle.dumps(dataset))[1]["y"]) == 1


def test_folders_tell_columns_of_unpacked_files(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "year=2024").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    packed = tmp_path / "year=2024" / "x.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "x.parquet").read_bytes()))
    assert int(Dataset.open(packed, cache=tmp_path / "cache")[1]["year"]) == 2024


def test_a_name_behind_a_url_stays_in_the_cache():
    name = unpack.harmless_name(unpack.unpacked_name("https://host/..%2F..%2Fx.jsonl.gz"))
    assert name == "_.._x.jsonl"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_cannot_be_written_to_is_for_those_who_write(number):
    with pytest.raises(OSError, match="why") as caught, reading("x.bin"):
        raise OSError(number, "why")
    assert caught.value.errno == number


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_what_the_system_lacks_is_said_as_it_is(number):
    message = r"x\.bin cannot be read: \[Errno \d+\] why"
    with pytest.raises(FileError, match=message), reading("x.bin"):
        raise OSError(number, "why")
    message = r"x\.bin is damaged or cut off: not a gzip file"
    with pytest.raises(FileError, match=message), reading("x.bin"):
        raise gzip.BadGzipFile("not a gzip file")
