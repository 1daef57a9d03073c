"""Parts of a shared file: the right bytes wherever they are mapped, with large pages or without."""

from __future__ import annotations

import errno
import mmap
import os
import sys

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Processes
from loaderx.engines.processes import mapped_ranges, pickling
from loaderx.engines.processes.mapped_ranges import LARGE_PAGE, MappedRange
from loaderx.engines.processes.protocol import shared_file
from oracle import assert_same

START = 3 * LARGE_PAGE
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")


@pytest.fixture
def file():
    descriptor = shared_file("test")
    os.ftruncate(descriptor, 20 * LARGE_PAGE)
    yield descriptor
    os.close(descriptor)


class CountedMap(mmap.mmap):
    """A mapping that counts what it is advised, and may refuse it with an error."""

    calls: list[tuple[int, ...]]
    error: int = 0

    def madvise(self, *advice: int) -> None:
        self.calls.append(advice)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def counted(monkeypatch):
    def counted_map(descriptor: int, size: int, **how: int) -> CountedMap:
        return CountedMap(descriptor, size, **how)

    monkeypatch.setattr(mapped_ranges, "map_file", counted_map)
    CountedMap.calls, CountedMap.error = [], 0
    return CountedMap


@pytest.mark.parametrize("size", [1, 5000, LARGE_PAGE - 1, LARGE_PAGE, 5 * LARGE_PAGE + 77])
def test_a_range_is_the_bytes_of_its_place(file, size):
    data = np.random.default_rng(size).bytes(size)
    one, other = MappedRange(file, START, size), MappedRange(file, START, size)
    one.write(0, data)
    assert (one.size, len(one.root)) == (size, size)
    assert one.root.ctypes.data == one.address
    assert os.pread(file, size, START) == data
    assert other.read(0, size) == other.root.tobytes() == bytes(other.view(0, size)) == data
    assert other.read(size // 2, size - size // 2) == data[size // 2 :]
    assert os.pread(file, 1, START - 1) + os.pread(file, 1, START + size) == b"\0\0"


@on_linux
def test_an_address_suits_its_place_in_the_file(file):
    held = []
    for size in (LARGE_PAGE, 3 * LARGE_PAGE + 4096, 7 * LARGE_PAGE):
        for start in (LARGE_PAGE, START, START + 12288):
            held.append(MappedRange(file, start, size))
            assert (held[-1].address - start) % LARGE_PAGE == 0


def test_an_address_that_does_not_suit_is_used_all_the_same(file, monkeypatch):
    monkeypatch.setattr(mapped_ranges, "TRIES", 0)
    os.pwrite(file, b"here", START + 4096)
    found = MappedRange(file, START, 4 * LARGE_PAGE)
    found.use_large_pages(0, found.size)
    assert found.read(4096, 4) == b"here"


def test_large_pages_have_the_same_bytes(file):
    size = 3 * LARGE_PAGE + 5000
    data = np.random.default_rng(0).bytes(size)
    before, found = MappedRange(file, START, size), MappedRange(file, START, size)
    found.write(0, data)
    assert before.read(0, size) == data
    found.use_large_pages(0, size)
    assert found.read(0, size) == before.read(0, size) == os.pread(file, size, START) == data
    found.root[:] = 7
    assert set(before.read(0, size)) == {7}


def test_only_memory_of_the_range_is_freed(file):
    os.pwrite(file, b"before", START - 6)
    os.pwrite(file, b"after", START + 4 * LARGE_PAGE)
    found = MappedRange(file, START, 4 * LARGE_PAGE)
    found.root[:] = 1
    found.use_large_pages(0, found.size)
    found.free_memory()
    assert os.pread(file, 6, START - 6) == b"before"
    assert os.pread(file, 5, START + 4 * LARGE_PAGE) == b"after"
    if hasattr(mmap, "MADV_REMOVE"):
        assert not found.root.any()


@on_linux
def test_pages_are_asked_for_in_pieces_and_none_that_is_not_full(file, counted, monkeypatch):
    monkeypatch.setattr(mapped_ranges, "PIECE", 2 * LARGE_PAGE)
    found = MappedRange(file, START, 5 * LARGE_PAGE)
    found.use_large_pages(0, LARGE_PAGE - 1)
    assert counted.calls == []
    found.use_large_pages(0, 5 * LARGE_PAGE - 1)
    advice, first, _ = counted.calls[0]
    assert counted.calls == [
        (advice, first, 2 * LARGE_PAGE),
        (advice, first + 2 * LARGE_PAGE, 2 * LARGE_PAGE),
    ]


@on_linux
@pytest.mark.parametrize(
    ("number", "calls"), [(errno.EINVAL, 1), (errno.ENOMEM, 1), (errno.EAGAIN, 5)]
)
def test_a_refusal_is_final_unless_a_page_was_in_use(file, counted, monkeypatch, number, calls):
    monkeypatch.setattr(mapped_ranges, "PIECE", LARGE_PAGE)
    found = MappedRange(file, START, 5 * LARGE_PAGE)
    counted.error = number
    found.use_large_pages(0, 2 * LARGE_PAGE)
    found.use_large_pages(2 * LARGE_PAGE, 3 * LARGE_PAGE)
    assert len(counted.calls) == calls


@on_linux
def test_a_system_that_takes_too_long_is_not_asked_again(file, counted, monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(mapped_ranges, "perf_counter", lambda: next(times))
    monkeypatch.setattr(mapped_ranges, "PIECE", LARGE_PAGE)
    found = MappedRange(file, START, 5 * LARGE_PAGE)
    found.use_large_pages(0, 5 * LARGE_PAGE)
    assert len(counted.calls) == 1


def test_data_is_shared_where_this_process_has_no_address_space_left(monkeypatch):
    def no_room(*_: int) -> MappedRange:
        raise LoaderxError("no address space")

    monkeypatch.setattr(pickling, "MappedRange", no_room)
    dataset = Dataset.from_arrays(x=np.arange(600_000).reshape(10, -1)).batch(2)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)


def test_large_batches_of_large_data():
    """Slots are used again, grow and get large pages; so does the data."""

    def grown(batch):
        count = 1 + int(batch["key"][0]) // 8 % 3
        return {**batch, "more": np.repeat(batch["x"][:1], 2 * count, axis=0)}

    x = np.arange(48 * 150_000, dtype=np.int32).reshape(48, -1)
    frozen = x[::-1].copy()
    frozen.flags.writeable = False
    small = np.arange(48 * 100.0).reshape(48, -1)
    dataset = Dataset.from_arrays(x=x, y=frozen, small=small, key=np.arange(48))
    dataset = dataset.batch(4).map(grown).repeat(2)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        assert_same(loader, dataset)
