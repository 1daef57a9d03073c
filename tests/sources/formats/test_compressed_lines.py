"""Compressed lines without a copy: the same records in the same order as of the plain files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chunk_sources import Logged, reads
from inside import node_of
from loaderx import ArgumentError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import ChainError
from loaderx.sources import Csv, Jsonl
from loaderx.testing import SourceContract

if sys.version_info >= (3, 14):
    from compression import zstd

    zstd_of = zstd.compress
else:
    zstd_of = pytest.importorskip("zstandard").ZstdCompressor(write_content_size=False).compress

COUNTS = (40, 0, 25, 61)
TEXTS = ["naïve \u2028 line", "", "tab\t", " ", "\r in it"]


def record(number):
    return {"id": number, "text": TEXTS[number % 5] + "x" * (number % 17), "tokens": [number, -1]}


def rows_of(shard):
    first = sum(COUNTS[:shard])
    return range(first, first + COUNTS[shard])


def lines_of(shard, kind):
    numbers = rows_of(shard)
    if kind == "array":
        return json.dumps([record(n) for n in numbers]).encode()
    if kind == "txt":
        return "".join(f"{n} {TEXTS[n % 4]}\n" for n in numbers).encode()
    lines = [json.dumps(record(n), ensure_ascii=False) + "\n\n" * (n % 7 == 0) for n in numbers]
    return "\r\n".join(lines).encode()


def write(folder, kind, compress=None):
    """Shards, in two frames each if compressed; the first one has a byte order mark."""
    folder.mkdir()
    for shard in range(len(COUNTS)):
        data = b"\xef\xbb\xbf" * (shard == 0) + lines_of(shard, kind)
        suffix = "json" if kind == "array" else kind
        half = len(data) // 2
        if compress is not None:
            data = compress(data[:half]) + compress(data[half:])
            suffix += ".zst" if compress is zstd_of else ".gz"
        (folder / f"{shard}.{suffix}").write_bytes(data)
    return folder


@pytest.fixture(scope="module", params=["jsonl", "array", "txt"])
def pair(request, tmp_path_factory):
    """A plain and a compressed folder."""
    folder = tmp_path_factory.mktemp("lines")
    compress = gzip.compress if request.param == "jsonl" else zstd_of
    return write(folder / "plain", request.param), write(folder / "packed", request.param, compress)


def opened(pair, **options):
    plain, packed = pair
    return Dataset.open(plain, cache=False, **options), Dataset.open(packed, cache=False, **options)


def chains(ds):
    """In order, a part, windows, blocks, two epochs, a stream."""
    yield ds
    yield ds[30:90:2]
    yield ds.shuffle(3, window=20)
    yield ds.shuffle(3, block="source", window=30)
    yield ds.shuffle(block="source", window=50).repeat(2)
    yield ds.shuffle(1, block="source", window=9).filter(bool)


def same(found, expected):
    assert repr(list(found)) == repr(list(expected))


def test_the_same_records_in_the_same_order(pair):
    plain, packed = opened(pair)
    assert len(plain) == len(packed) == sum(COUNTS)
    assert packed.element_spec == plain.element_spec
    for one, other in zip(chains(plain), chains(packed)):
        same(other, one)
        same(other.batch(7), one.batch(7))
        same(pickle.loads(pickle.dumps(other)), one)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines_and_states(pair, engine):
    plain, packed = opened(pair)
    for one, other in zip(list(chains(plain))[3:], list(chains(packed))[3:]):
        expected = list(DataLoader(one.batch(9), engine="inline"))
        with DataLoader(other.batch(9), engine=engine, num_workers=2) as loader:
            batches = iter(loader)
            states = [batches.get_state()]
            for batch in batches:
                same(batch.items(), expected[len(states) - 1].items())
                states.append(batches.get_state())
            assert len(states) == len(expected) + 1
            for step in range(0, len(expected), 4):
                batches = iter(loader)
                batches.set_state(states[step])
                same(batches, expected[step:])


def test_fingerprints_are_those_of_plain_files(pair):
    states = [iter(DataLoader(ds.shuffle(1, window=9).batch(4))).get_state() for ds in opened(pair)]
    assert states[0]["chain"] == states[1]["chain"]


def test_hosts_share_the_records(pair):
    plain, packed = (ds.shuffle(1, block="source", window=9).batch(6) for ds in opened(pair))
    for index in range(2):
        same(DataLoader(packed, shard=(index, 2)), DataLoader(plain, shard=(index, 2)))


def test_nothing_is_written(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    same(*reversed(opened(pair)))
    assert not (tmp_path / "cache").exists()


class TestJsonLines(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder = write(tmp_path / "data", "jsonl", zstd_of)

    def make_source(self):
        return Dataset.open(self.folder, cache=False)

    def expected_records(self):
        return [{**record(n), "tokens": np.array([n, -1], np.int32)} for n in range(sum(COUNTS))]


class TestOneFile(TestJsonLines):
    """One compressed beside plain ones."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder = write(tmp_path / "data", "jsonl")
        packed = self.folder / "2.jsonl"
        (self.folder / "2.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
        packed.unlink()


@pytest.mark.parametrize("workers", [None, 2])
def test_files_are_unpacked_once_in_an_epoch(tmp_path, workers):
    folder = write(tmp_path / "data", "jsonl", zstd_of)
    dataset = Dataset.open(folder, cache=False)
    kept = node_of(dataset).source.kept_chunks
    kept.decode = Logged(kept.decode, tmp_path / "log")
    shuffled = dataset.shuffle(1, block="source", window=30).batch(7)
    engine = "inline" if workers is None else "processes"
    with DataLoader(shuffled, engine=engine, num_workers=workers) as loader:
        assert sum(len(batch["id"]) for batch in loader) == sum(COUNTS)
    assert all(count == 1 for count in reads(tmp_path / "log").values())


def test_a_global_shuffle_is_refused(pair):
    _, packed = opened(pair)
    with pytest.raises(ChainError, match=r"leave cache=False out .* \.shuffle\(block="):
        packed.shuffle(1)


# Damaged files --------------------------------------------------------------------------------


def test_errors_name_file_and_line(tmp_path):
    lines = [b'{"x": %d}\n' % n for n in range(200)]
    lines[150] = b'{"x": \n'
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    dataset = Dataset.open(path, cache=False)
    with pytest.raises(RecordError, match=rf"{path}, line 151: it is not JSON"):
        list(dataset.batch(50))
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"a\n\xff\n"))
    with pytest.raises(RecordError, match=r"x\.txt\.gz, line 2: it is not UTF-8"):
        list(Dataset.open(tmp_path / "x.txt.gz", cache=False))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_that_is_cut_off_is_refused(tmp_path, suffix):
    compress = gzip.compress if suffix == "gz" else zstd_of
    packed = compress(lines_of(0, "jsonl"))
    path = tmp_path / f"x.jsonl.{suffix}"
    for stop in range(20, len(packed), 37):
        path.write_bytes(packed[:stop])
        with pytest.raises(FileError, match=rf"{path} is damaged or cut off: \S"):
            Dataset.open(path, cache=False)


def test_a_file_that_is_changed_later(tmp_path):
    paths = [tmp_path / f"{number}.jsonl.gz" for number in range(2)]
    for path in paths:
        path.write_bytes(gzip.compress(b'{"x": 1}\n' * 9))
    dataset = pickle.dumps(Dataset.open(paths, cache=False))
    paths[1].write_bytes(gzip.compress(b'{"x": 1}\n' * 8))
    with pytest.raises(RecordError, match=r"1\.jsonl\.gz has been written to since the dataset"):
        list(pickle.loads(dataset))


def test_a_file_larger_than_the_room_for_it_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstd_of(b'{"x": 1}\n' * 200_000))
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", "1000000")
    with pytest.raises(FileError) as caught:
        Dataset.open(path, cache=False)
    assert str(caught.value) == (
        f"{path} unpacks to more than the 1 MB that may be kept in memory. Set LOADERX_CHUNK_BYTES "
        "to more bytes, or leave cache=False out: a copy is made once, in the cache folder."
    )
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", "2000000")
    assert len(Dataset.open(path, cache=False)) == 200_000


MEMORY = """
import sys
from loaderx import Dataset

def anonymous():  # pages of mapped files are not the process's own
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1000 for line in file if line.startswith("RssAnon"))

dataset = Dataset.open(sys.argv[1], cache=False).shuffle(1, block="source", window=20_000)
print(max([anonymous() for _ in dataset.batch(1000)]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_bounded(tmp_path, monkeypatch):
    """24 files of 20 MB, with room for three."""
    noise = np.random.default_rng(0).bytes(10_000_000).hex()
    lines = (f'{{"text": "{noise[at : at + 1000]}"}}\n' for at in range(0, len(noise), 1000))
    (tmp_path / "0.jsonl.zst").write_bytes(zstd_of("".join(lines).encode()))
    for number in range(1, 24):
        os.link(tmp_path / "0.jsonl.zst", tmp_path / f"{number}.jsonl.zst")
    monkeypatch.setenv("LOADERX_CHUNK_BYTES", "60000000")
    made = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(made.stdout) < 200, made.stdout


@pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.parquet"])
def test_other_formats_still_need_a_folder(tmp_path, name):
    path = Path(tmp_path, f"{name}.gz")
    path.write_bytes(gzip.compress(b"x,y\n1,2\n"))
    with pytest.raises(FileError, match=rf"{path} must be unpacked first, and there is no cache"):
        Dataset.open(path, cache=False)


@pytest.mark.parametrize("cache", [None, False])
def test_the_classes_read_compressed_files_too(tmp_path, cache):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 5000000000}\n'))
    assert Jsonl(path, types={"x": "int64"}, cache=cache)[0] == {"x": 5_000_000_000}
    if cache is None:
        (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"x;y\n1;2\n"))
        assert Csv(tmp_path / "x.csv.gz", delimiter=";")[0] == {"x": 1, "y": 2}


def test_columns_and_fill(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 1, "y": 2}\n{"x": null, "y": 3}\n'))
    assert list(Dataset.open(path, columns=["x"], fill={"x": 7}, cache=False)) == [
        {"x": 1},
        {"x": 7},
    ]
    with pytest.raises(ArgumentError, match="'z'"):
        Dataset.open(path, columns=["z"], cache=False)
