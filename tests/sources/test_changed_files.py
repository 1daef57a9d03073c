"""Files that change while a dataset is used: workers read the rows that this process reads."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import loaderx as lx
from loaderx import DataLoader, Dataset, FileError, LoaderxError, LoaderxWarning
from loaderx.engines import Processes
from loaderx.sources import Tokens
from oracle import assert_same
from workers import own_pss, pids

ROWS = 40_000  # of one number: more than what is sent by value


def numbers(path):
    np.save(path, np.arange(ROWS))
    return Dataset.open(path).batch(10_000)


def tokens(path):
    np.arange(ROWS, dtype=np.uint16).tofile(path)
    return Dataset.from_source(Tokens(path, 100)).batch(100)


def bytes_in_idx(path):
    head = bytes([0, 0, 8, 1]) + np.array([ROWS], ">u4").tobytes()
    path.write_bytes(head + (np.arange(ROWS) % 251).astype(np.uint8).tobytes())
    return Dataset.from_arrays(x=lx.sources.open_idx(path)).batch(10_000)


def mapped_by_hand(path):
    np.save(path, np.arange(ROWS))
    return Dataset.from_arrays(x=np.load(path, mmap_mode="r")).batch(10_000)


KINDS = {
    "a.npy": numbers,
    "a.bin": tokens,
    "a.idx": bytes_in_idx,
    "b.npy": mapped_by_hand,
}


def touched(path, size=None):
    """Changes one byte in the middle, or the size, and makes sure that the clock has moved on."""
    before = path.stat().st_mtime_ns
    if size is not None:
        os.truncate(path, size)
    else:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2 + 1)
            file.write(b"!")
    os.utime(path, ns=(before + 10**9, before + 10**9))


def in_a_worker(dataset):
    with DataLoader(dataset, engine=Processes(1)) as loader:
        return list(loader)


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return tmp_path / request.param


def test_what_is_appended_to_is_refused(path):
    dataset = KINDS[path.name](path)
    size = path.stat().st_size
    touched(path, size + 2)
    with pytest.raises(
        FileError, match=rf"{path.name} has grown from {size} to {size + 2} bytes .* again"
    ):
        in_a_worker(dataset)


def test_what_is_shortened_is_refused(path):
    dataset = KINDS[path.name](path)
    size = path.stat().st_size
    touched(path, size - 2)
    with pytest.raises(FileError, match=f"has shrunk from {size} to {size - 2} bytes since the"):
        in_a_worker(dataset)


def test_what_is_written_to_is_refused(path):
    dataset = KINDS[path.name](path)
    touched(path)
    with pytest.raises(FileError, match="has been written to since the dataset was made"):
        in_a_worker(dataset)


def test_what_is_replaced_is_sent_as_it_was(path):
    """The other file differs in one byte, where nobody has taken a sample."""
    dataset = KINDS[path.name](path)
    expected = list(dataset)
    data = bytearray(path.read_bytes())
    data[len(data) // 64 * 3 - 50] ^= 1
    other = path.with_name("other")
    other.write_bytes(data)
    os.replace(other, path)
    with pytest.warns(LoaderxWarning, match=f"no longer the files that were mapped: .*{path.name}"):
        assert_same(in_a_worker(dataset), expected)


def test_what_is_not_changed_is_mapped_again(path):
    dataset = KINDS[path.name](path)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)
        (pid,) = pids()
        assert str(path) in Path(f"/proc/{pid}/maps").read_text()


def test_a_small_file_that_is_shortened(tmp_path):
    """Small arrays are sent by value; looking at what is gone would end this process."""
    np.save(tmp_path / "x.npy", np.arange(1000))
    dataset = Dataset.open(tmp_path / "x.npy").batch(10)
    os.truncate(tmp_path / "x.npy", 0)
    with pytest.raises(FileError, match="has shrunk from 8128 to 0 bytes"):
        in_a_worker(dataset)


def test_writing_through_a_map_of_ones_own_is_seen_by_everybody(tmp_path):
    counts = np.memmap(tmp_path / "counts", np.int64, "w+", shape=(ROWS,))
    dataset = Dataset.from_arrays(x=counts).batch(10_000)
    counts[:] = np.arange(ROWS)
    counts.flush()
    touched(tmp_path / "counts", ROWS * 8 + 8)  # longer does no harm
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)
    touched(tmp_path / "counts", ROWS * 8 - 8)
    with pytest.raises(FileError, match=f"has shrunk from {ROWS * 8} to {ROWS * 8 - 8} bytes"):
        in_a_worker(dataset)


def test_a_pickle_of_tokens_finds_files_of_another_length(tmp_path):
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "a.bin")
    shipped = pickle.dumps(Tokens(tmp_path / "a.bin", 2))
    np.arange(12, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(FileError, match=r"a\.bin has 12 tokens, and had 10 when this dataset"):
        pickle.loads(shipped)


def compressed(path, rows):
    x = np.zeros((rows, 1000), np.uint8)
    x[:, 0] = np.arange(rows) % 251
    np.savez_compressed(path, x=x)
    return x, Dataset.open(path).batch(1000)


def test_a_compressed_array_is_unpacked_once_for_all_workers(tmp_path):
    x, dataset = compressed(tmp_path / "x.npz", 150_000)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        iterator = iter(loader)
        next(iterator)
        (tmp_path / "x.npz").unlink()  # nobody needs it any more
        for step, batch in enumerate(iterator, 1):
            assert np.array_equal(batch["x"], x[step * 1000 :][:1000])
        assert step == 149
        for pid in pids():
            assert own_pss(pid) < 100_000  # kB, beside the 150 MB that they share


@pytest.mark.parametrize("engine", ["inline", Processes(1)])
def test_a_compressed_file_that_is_changed_before_it_is_read(engine, tmp_path):
    _, dataset = compressed(tmp_path / "x.npz", 3000)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((3000, 1000), np.uint8))
    with pytest.raises(LoaderxError, match=r"x\.npz has shrunk from \d+ to \d+ bytes since the da"):
        list(DataLoader(dataset, engine=engine))


def test_a_pickle_of_a_compressed_array_finds_another_file(tmp_path):
    for rows in (20, 30):
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((rows, 4)))
        if rows == 20:
            shipped = pickle.dumps(Dataset.open(tmp_path / "x.npz"))
            assert pickle.loads(shipped)[3]["x"].tolist() == [0.0] * 4
    with pytest.raises(LoaderxError, match=r"x\.npz has .* since the dataset was made"):
        pickle.loads(shipped)[3]
