"""Parquet behind URLs without a copy: footers, and then the columns of row groups that are read."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from inside import source_of
from loaderx import DataLoader, Dataset
from loaderx.errors import FileError
from loaderx.sources.formats.parquet import pieces as parquet_pieces
from oracle import assert_same

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

ROWS, FILES, GROUPS = 120, 3, 4


@pytest.fixture(autouse=True)
def _cache(cache, monkeypatch, small_ranges):
    monkeypatch.setenv("LOADERX_CACHE", str(cache))
    monkeypatch.setattr(parquet_pieces, "END_BYTES", 16)  # the files are small


def table(number):
    made = np.random.default_rng(number)
    return pa.table(
        {
            "x": np.arange(ROWS) + number * ROWS,
            "text": ["ab" * int(n) for n in made.integers(0, 20, ROWS)],
            "wide": pa.FixedSizeListArray.from_arrays(made.integers(0, 99, ROWS * 50), 50),
            "box": [{"y": float(n), "words": ["c"] * (n % 3)} for n in range(ROWS)],
        }
    )


@pytest.fixture
def local(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        place = tmp_path / "data" / f"{number}.parquet"
        pq.write_table(table(number), place, row_group_size=ROWS // GROUPS, compression="none")
    return tmp_path / "data"


@pytest.fixture
def url(server, local):
    server.add(local)
    return f"{server.url}/{{0..{FILES - 1}}}.parquet"


def sent(server):
    return sum(stop - start for _, start, stop in server.asked)


def test_all_records(server, local, url):
    assert_same(list(Dataset.open(url, cache=False)), list(Dataset.open(local, cache=False)))
    assert server.fetched_twice() == {}


@pytest.mark.parametrize("end_bytes", [16, 1 << 16])
def test_opening_takes_footers(server, url, monkeypatch, end_bytes):
    """Also those that are longer than what is fetched first."""
    monkeypatch.setattr(parquet_pieces, "END_BYTES", end_bytes)
    made = Dataset.open(url, cache=False)
    assert len(made) == ROWS * FILES
    footers = [pq.ParquetFile(pa.BufferReader(one)).metadata for one in server.files.values()]
    needed = sum(footer.serialized_size for footer in footers)
    if end_bytes == 16:
        assert sent(server) <= needed + FILES * (512 + 2 * 1000)  # the first bytes; whole pieces


def test_a_record_takes_its_row_group_and_column(server, local, url):
    made = Dataset.open(url, columns=["x"], cache=False)
    before = sent(server)
    assert int(made[ROWS + 1]["x"]) == ROWS + 1
    footer = pq.read_metadata(local / "1.parquet")
    chunk = footer.row_group(0).column(0)
    assert 0 < sent(server) - before <= chunk.total_compressed_size + 100 + 2 * 1000
    before = sent(server)
    assert int(made[ROWS]["x"]) == ROWS
    assert sent(server) == before


def test_fetch(server, local, url):
    source = source_of(Dataset.open(url, cache=False))
    assert source.fetches
    assert not source_of(Dataset.open(local, cache=False)).fetches
    before = sent(server)
    came = source.fetch(np.array([3, 200, 5, 130]))
    assert 0 < sent(server) - before <= came
    assert source.fetch(np.array([4, 201])) == 0
    before = sent(server)
    source.records(np.array([3, 5, 130, 200]))
    assert sent(server) == before


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_engines(server, local, url, engine):
    def stream(place):
        dataset = Dataset.open(place, columns=["x", "text", "wide"], cache=False)
        return dataset.shuffle(1, block="source", window=60).batch(16)

    expected = list(stream(local))
    workers = None if engine == "inline" else 2
    with DataLoader(stream(url), engine=engine, num_workers=workers) as loader:
        assert_same(loader, expected)
    assert server.fetched_twice() == {}


def test_columns_of_data_that_are_larger_than_the_limit(server, url, tmp_path, monkeypatch):
    monkeypatch.setattr("loaderx.sources.remote.pieces.PIECE_BYTES", 4096)  # a block on disk
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "70kB")
    made = np.random.default_rng(0)
    for path in server.files:  # 48 kB each
        wide = pa.FixedSizeListArray.from_arrays(made.normal(size=ROWS * 50), 50)
        pq.write_table(pa.table({"x": np.arange(ROWS), "wide": wide}), tmp_path / "x.parquet")
        server.files[path] = (tmp_path / "x.parquet").read_bytes()
    for _ in range(2):
        found = Dataset.open(url, columns=["x"], cache=False)
        for _ in range(2):
            assert [int(one["x"]) for one in found] == [*range(ROWS)] * FILES
    assert server.fetched_twice() == {}


def test_a_server_that_fails_now_and_then(server, local, url, pauses):
    server.fault = lambda number, path: [503, ("cut", 100), None, None, None][number % 5]
    assert_same(list(Dataset.open(url, cache=False)), list(Dataset.open(local, cache=False)))
    assert pauses


def test_files_that_are_none(server, url):
    server.files["/1.parquet"] = b""
    with pytest.raises(FileError, match=r"1\.parquet is damaged or cut off"):
        Dataset.open(url, cache=False)
    server.files["/1.parquet"] = b"x" * 3000
    with pytest.raises(FileError, match=r"1\.parquet is damaged or cut off"):
        Dataset.open(url.replace("{0..2}", "1"), cache=False)


DAMAGE = """
import sys
from loaderx import Dataset
from loaderx.errors import LoaderxError
sys.path.insert(0, sys.argv[1])
from file_server import serving
place = sys.argv[2]
whole = open(place, "rb").read()
first = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
refused = 0
with serving() as server:
    for number in range(first, len(whole) - 8):
        data = bytearray(whole)
        data[number] ^= 64
        open(place, "wb").write(data)
        opened = place
        if number % 20 == 0:
            server.files[f"/{number}.parquet"] = bytes(data)
            opened = f"{server.url}/{number}.parquet"
        try:
            list(Dataset.open(opened, cache=False))
        except LoaderxError:
            refused += 1
print("refused", refused)
"""


def test_damaged_footers_end_no_process(tmp_path):
    """Neither of files behind URLs nor of local ones: pyarrow aborts at some of what they say."""
    made = pa.table({"x": np.arange(9)})
    pq.write_table(made, tmp_path / "x.parquet", row_group_size=5, store_schema=False)
    support = next(place for place in sys.path if place.endswith("support"))
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, support, str(tmp_path / "x.parquet")],
        capture_output=True,
        text=True,
        env={"LOADERX_CACHE": str(tmp_path / "own"), "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 20
