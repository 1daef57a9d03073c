"""Sources that decode chunks: `ChunkSource`, and the chunks that are kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunk_sources import Chunks, Documents, Logged, reads
from inside import node_of
from loaderx import ArgumentError, ArgumentTypeError, ChainError, Dataset, LoaderxWarning
from loaderx.sources import ChunkSource
from loaderx.sources.adapt.kept_chunks import KeptChunks
from loaderx.testing import SourceContract


class TestChunks(SourceContract):
    def make_source(self):
        return Chunks([9, 4, 11, 5])

    def expected_records(self):
        return [{"x": np.int64(n), "y": np.array([n, -n], np.float32)} for n in range(29)]


class TestDocuments(SourceContract):
    def make_source(self):
        return Documents([3, 8, 2])

    def expected_records(self):
        return [{"x": n, "t": np.full(n % 4 + 1, n), "text": "ä" * (n % 3)} for n in range(13)]


def test_a_global_shuffle_is_refused():
    with pytest.raises(ChainError, match=r"\.shuffle\(block=\"source\", window=10_000\)\.$"):
        Dataset.from_source(Chunks([5, 5])).shuffle()


def test_what_a_subclass_lacks_is_named():
    class Nothing(ChunkSource):
        def chunks(self):
            return np.array([0, 5])

    with pytest.raises(ArgumentTypeError) as caught:
        Dataset.from_source(Nothing())
    assert str(caught.value) == (
        "Nothing needs chunks(self), where its chunks begin, and read_chunk(self, number), the "
        "records of one."
    )


@pytest.mark.parametrize("kind", [Chunks, Documents])
def test_a_chunk_of_another_length_is_named(kind):
    class Short(kind):
        def read_chunk(self, number):
            found = super().read_chunk(number)
            if isinstance(found, list):
                return found[1:]
            return {name: column[1:] for name, column in found.items()}

    with pytest.raises(Exception, match=r"Short\.read_chunk\(0\) gave 3 records; chunks\(\) says"):
        Dataset.from_source(Short([4, 4]))[0]


# What is kept -----------------------------------------------------------------------------------


class Weighted:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def kept(tmp_path, monkeypatch, budget):
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", str(budget))
    return KeptChunks(Logged(lambda number: Weighted(10), tmp_path / "log"), np.full(9, 4))


def test_the_chunks_that_were_used_last_are_kept(tmp_path, monkeypatch):
    chunks = kept(tmp_path, monkeypatch, 30)
    for number in (0, 1, 2, 0, 3, 0, 1):
        chunks.get(number)
    assert reads(tmp_path / "log") == {0: 1, 1: 2, 2: 1, 3: 1}
    assert chunks.nbytes == 30


def test_all_chunks_of_a_window_are_kept_and_then_none(tmp_path, monkeypatch):
    chunks = kept(tmp_path, monkeypatch, 15)
    with chunks.window():
        for number in (0, 1, 2, 0, 1, 2):
            chunks.get(number)
        assert chunks.nbytes == 30
    assert chunks.nbytes == 0
    assert reads(tmp_path / "log") == {0: 1, 1: 1, 2: 1}


def read_twice(chunks):
    with chunks.together({0: 1, 1: 1, 2: 1}):
        for number in (0, 1, 2, 0, 1, 2):
            chunks.get(number)


def test_what_is_needed_together_is_there_together(tmp_path, monkeypatch):
    chunks = kept(tmp_path, monkeypatch, 20)
    with pytest.warns(LoaderxWarning) as caught:
        read_twice(chunks)
    assert reads(tmp_path / "log") == {0: 1, 1: 1, 2: 1}
    assert str(caught[0].message) == (
        "records that are read together lie in 3 chunks of 0 MB, and 0 MB are kept decoded: chunks "
        "are decoded again and again. Use a smaller window, or set LOADERX_CHUNK_BYTES to 60 or "
        "more."
    )


def test_threads_decode_different_chunks_and_wait_for_the_same(tmp_path, monkeypatch):
    """Each of two threads decodes one of the two chunks: both are under way at once."""
    both = threading.Barrier(2)
    calls = []

    def decode(number):
        calls.append(number)
        both.wait(60)
        return Weighted(1)

    monkeypatch.setenv("LOADERX_CHUNK_BYTES", "100")
    chunks = KeptChunks(decode, np.array([2, 4]))

    def read(_):
        with chunks.together({0: 1, 1: 2}) as found:
            return sorted(found)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(read, range(2))) == [[0, 1], [0, 1]]
    assert sorted(calls) == [0, 1]


def test_a_chunk_whose_records_have_all_been_read_goes_first(tmp_path, monkeypatch):
    chunks = kept(tmp_path, monkeypatch, 20)
    for counts in ({0: 3}, {1: 3}, {1: 1}):
        with chunks.together(counts):
            pass
    chunks.get(2)  # in the place of 1, which was used last
    chunks.get(0)
    assert reads(tmp_path / "log") == {0: 1, 1: 1, 2: 1}
    chunks.get(1)
    assert reads(tmp_path / "log") == {0: 1, 1: 2, 2: 1}


def test_a_chunk_that_fails_is_tried_again(tmp_path):
    tries = []

    def decode(number):
        tries.append(number)
        if len(tries) == 1:
            raise ValueError("torn")
        return Weighted(1)

    chunks = KeptChunks(decode, np.full(9, 4))
    with pytest.raises(ValueError, match="torn"):
        chunks.get(5)
    assert chunks.get(5).nbytes == 1


@pytest.mark.parametrize("given", ["much", "-3", "0", "1.5"])
def test_a_budget_that_is_no_number_is_refused(given, monkeypatch):
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", given)
    with pytest.raises(ArgumentError) as caught:
        KeptChunks(lambda number: Weighted(1), np.ones(1))
    assert str(caught.value) == (
        f"LOADERX_CHUNK_BYTES is '{given}', and must be a number of bytes, at least 1: 1073741824 "
        "is 1 GiB, the default."
    )


def test_empty_chunks_are_left_out():
    node = node_of(Dataset.from_source(Chunks([9, 4, 11, 5])))
    assert node.block_starts.tolist() == [0, 9, 13, 24, 29]

    class WithEmpty(Chunks):
        def chunks(self):
            return np.array([0, 0, 9, 9, 13])

    assert node_of(Dataset.from_source(WithEmpty([9, 4]))).block_starts.tolist() == [0, 9, 13]
