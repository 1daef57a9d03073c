"""Files that fit into memory are read from beginning to end while their rows come from disk."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.sources.files import cold as cold_reads
from loaderx.sources.files import cold as whole_files
from loaderx.sources.files.cold import CAN_ADVISE, PIECE_BYTES, WholeFiles
from loaderx.sources.mapping import CAN_REQUEST, request_pages


class Mapped:
    """A mapped file that says what the kernel was asked for."""

    def __init__(self, size, asked):
        self.size, self.asked, self.closed = size, asked, False

    def __len__(self):
        if self.closed:
            raise ValueError("mmap closed or invalid")
        return self.size

    def madvise(self, option, start, length):
        before = self.asked.pop() if self.asked else None
        if before is not None and (before[0], before[1] + before[2]) == (self.size, start):
            self.asked.append((self.size, before[1], before[2] + length))
            return
        self.asked += [one for one in (before, (self.size, start, length)) if one is not None]


@pytest.fixture
def asked():
    return []


def memory_of(monkeypatch, size):
    monkeypatch.setattr(whole_files, "free_memory", lambda: size)


def test_each_file_is_read_once_from_beginning_to_end(asked, monkeypatch):
    memory_of(monkeypatch, 100 * PIECE_BYTES)
    maps = [Mapped(2 * PIECE_BYTES + 5, asked), Mapped(7, asked)]
    files = WholeFiles()
    files.read_on()  # nothing is known of yet
    for mapped in [*maps, maps[0]]:
        files.add(mapped)
    size = maps[0].size
    for reached in (PIECE_BYTES, 2 * PIECE_BYTES, size):
        files.read_on()
        assert asked == [(size, 0, reached)]
    for _ in range(10):
        files.read_on()
    assert asked == [(size, 0, size), (7, 0, 7)]


@pytest.mark.skipif(not CAN_REQUEST, reason="this system takes no hints for mapped files")
def test_no_request_is_larger_than_what_the_kernel_reads_ahead():
    lengths = []

    class Wide:
        def madvise(self, option, start, length):
            lengths.append((start, length))

    request_pages(Wide(), 4096, 300 << 10)
    assert lengths == [(4096, 131072), (135168, 131072), (266240, 45056)]


@pytest.mark.parametrize("memory", [None, 0, 3 * PIECE_BYTES])
def test_files_that_do_not_fit_together_are_left_alone(asked, monkeypatch, memory):
    memory_of(monkeypatch, memory)  # half of it may be used
    maps = [Mapped(PIECE_BYTES, asked), Mapped(PIECE_BYTES, asked)]
    files = WholeFiles()
    for mapped in maps:
        files.add(mapped)
    files.read_on()
    assert asked == []


def test_a_closed_file_is_passed_over(asked, monkeypatch):
    memory_of(monkeypatch, 100 * PIECE_BYTES)
    maps = [Mapped(5, asked), Mapped(7, asked)]
    files = WholeFiles()
    for mapped in maps:
        files.add(mapped)
    maps[0].closed = True
    files.read_on()
    assert asked == [(7, 0, 7)]


@pytest.mark.skipif(not CAN_ADVISE, reason="this system takes no hints for mapped files")
@pytest.mark.parametrize("kind", ["arrays", "text"])
def test_a_source_reads_on_while_rows_come_from_disk(tmp_path, monkeypatch, kind):
    if kind == "arrays":
        np.save(tmp_path / "x.npy", np.arange(4000))
        path = tmp_path / "x.npy"
    else:
        path = tmp_path / "x.txt"
        path.write_text("".join(f"line {number}\n" for number in range(4000)))
    times = []
    monkeypatch.setattr(WholeFiles, "read_on", lambda files: times.append(files))
    blocks = iter([1, 2, 3, *[3] * 1000])
    monkeypatch.setattr(cold_reads, "blocks_read", lambda: next(blocks))
    batches = list(Dataset.open(path).shuffle(0).batch(100))
    assert len(batches) == 40
    assert len(times) == 3
    assert len(set(map(id, times))) == 1
