"""File systems of fsspec, for what users bring."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import FileError

fsspec = pytest.importorskip("fsspec", reason="needs fsspec")


@pytest.fixture
def memory(tmp_path):
    files = fsspec.filesystem("memory")
    for n in (1, 2, 10):
        np.savez(tmp_path / "one.npz", x=np.array([n, n]))
        files.pipe(f"/data/part-{n}.npz", (tmp_path / "one.npz").read_bytes())
    yield files
    files.rm("/data", recursive=True)


def xs(dataset):
    return [int(one["x"]) for one in dataset]


@pytest.mark.parametrize("path", ["/data", "/data/*.npz", "/data/part-{1,2,10}.npz"])
def test_schemes_that_fsspec_knows(memory, cache, path):
    assert xs(Dataset.open(f"memory:/{path}", cache=cache)) == [1, 1, 2, 2, 10, 10]


class Brought:
    """As a `UPath` has it."""

    def __init__(self, fs, path):
        self.fs, self.path = fs, path


def test_file_systems_that_are_brought(memory, cache):
    assert xs(Dataset.open(Brought(memory, "/data"), cache=cache)) == [1, 1, 2, 2, 10, 10]
    one = fsspec.open("memory://data/part-2.npz")
    assert xs(Dataset.open(one, cache=cache)) == [2, 2]
    assert xs(Dataset.open([one, Brought(memory, "/data/part-1.npz")], cache=cache)) == [2, 2, 1, 1]


def test_what_is_not_there(memory, cache):
    with pytest.raises(FileError, match="there is no file or folder memory://data/none"):
        Dataset.open("memory://data/none", cache=cache)
    with pytest.raises(FileError, match=r"neither loaderx \(s3, .*\) nor fsspec knows 'nonsense'"):
        Dataset.open("nonsense://data", cache=cache)


def test_a_file_that_changes(memory, cache):
    class Changing:
        """Changes the file once it was looked at."""

        def __init__(self):
            self.looks = 0

        def __getattr__(self, name):
            return getattr(memory, name)

        def info(self, path):
            self.looks += 1
            told = memory.info(path)
            return {**told, "created": self.looks}

    with pytest.raises(FileError, match="has changed since the dataset was opened: its size or"):
        Dataset.open(Brought(Changing(), "/data/part-1.npz"), cache=cache)
