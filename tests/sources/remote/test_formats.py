"""Streams from URLs are those from local files: for all formats, engines and states."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from file_families import WRITERS
from loaderx import DataLoader, Dataset
from loaderx.sources import TFRecord, WebDataset
from oracle import assert_same

COUNT, BATCH = 24, 8
X = np.arange(20).reshape(10, 2)
SUFFIXES = {
    "arrow": ".arrow", "csv": ".csv", "hdf5": ".h5", "jsonl": ".jsonl", "npz": ".npz",
    "parquet": ".parquet", "safetensors": ".safetensors", "tar": ".tar", "text": ".txt",
    "tfrecord": ".tfrecord",
}  # fmt: skip


def write(family, folder):
    """Records 0 to 23 in three shards; the native layout has its parts in one folder."""
    folder.mkdir()
    if family == "native":
        WRITERS[family](folder / "part", list(range(COUNT)))
        return folder / "part"
    for number, (start, stop) in enumerate([(0, 7), (7, 15), (15, COUNT)]):
        WRITERS[family](folder / f"part-{number}", list(range(start, stop)))
    return folder


def stream(dataset):
    return dataset.shuffle(5).batch(BATCH, drop_remainder=True).repeat(2)


@pytest.fixture
def hub(server, monkeypatch):
    """The server as the hub, whose folders can be listed."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN_PATH", "/none")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


@pytest.mark.parametrize("family", WRITERS)
def test_a_folder(family, hub, tmp_path, cache):
    folder = write(family, tmp_path / "data")
    hub.add(folder, "me/data")
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    url = "hf://datasets/me/data"
    cold = stream(Dataset.open(url, cache=cache))
    assert_same(DataLoader(cold, engine="inline"), expected)
    assert hub.fetched_twice() == {}
    before = len(hub.requests)
    warm = stream(Dataset.open(url, cache=cache))
    assert_same(DataLoader(warm, engine="inline"), expected)
    sent = [one for one in hub.requests[before:] if "/resolve/" in one]
    heads = sum(family not in ("images", "native") for _ in range(3))
    assert len(sent) <= heads


@pytest.mark.parametrize("family", SUFFIXES)
def test_files_of_a_web_server(family, server, tmp_path, cache):
    folder = write(family, tmp_path / "data")
    server.add(folder)
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    url = server.url + "/part-{0..2}" + SUFFIXES[family]
    made = stream(Dataset.open(url, cache=cache))
    assert_same(DataLoader(made, engine="inline"), expected)
    assert server.fetched_twice() == {}


@pytest.mark.parametrize("family", ["images", "native", "parquet", "hdf5"])
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines(family, engine, hub, tmp_path, cache):
    folder = write(family, tmp_path / "data")
    hub.add(folder, "me/data")
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    made = stream(Dataset.open("hf://datasets/me/data", cache=cache))
    with DataLoader(made, engine=engine, num_workers=2) as loader:
        assert_same(loader, expected)
    assert hub.fetched_twice() == {}


@pytest.mark.parametrize("family", ["images", "tar"])
def test_restored_at_every_step_with_a_warm_or_a_cold_cache(family, hub, tmp_path, cache):
    hub.add(write(family, tmp_path / "data"), "me/data")

    def loader(place):
        made = stream(Dataset.open("hf://datasets/me/data", cache=place))
        return DataLoader(made, engine="inline")

    expected = list(loader(cache))
    for step in range(len(expected)):
        iterator = iter(loader(cache))
        for _ in range(step):
            next(iterator)
        state = iterator.get_state()
        iterator.close()
        restored = iter(loader(cache / str(step) if step % 2 else cache))
        restored.set_state(state)
        assert_same(list(restored), expected[step:])


@pytest.mark.parametrize("family", ["npz", "jsonl"])
def test_a_server_that_fails_now_and_then(family, server, tmp_path, cache, small_ranges, pauses):
    folder = write(family, tmp_path / "data")
    server.add(folder)
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    server.fault = lambda number, path: [503, ("cut", 100), None, None, None][number % 5]
    url = server.url + "/part-{0..2}" + SUFFIXES[family]
    made = stream(Dataset.open(url, cache=cache))
    assert_same(DataLoader(made, engine="inline"), expected)
    assert pauses
    assert server.fetched_twice() == {}


FILES = Path(__file__).parents[2] / "files"


def write_zarr(folder):
    group = zarr.open_group(folder, mode="w")
    group.create_array("x", shape=(10, 2), dtype="int64", chunks=(3, 2))[:] = X
    group.create_array("y", shape=(10,), dtype="int64", chunks=(4,))[:] = X[:, 0]


def write_idx(folder):
    for name, kind, shape in (("images-idx3", 3, (4, 2, 2)), ("labels-idx1", 1, (4,))):
        head = bytes([0, 0, 8, kind]) + np.array(shape, ">u4").tobytes()
        data = np.arange(np.prod(shape), dtype=np.uint8).tobytes()
        for split in ("train", "t10k"):
            (folder / f"{split}-{name}-ubyte").write_bytes(head + data)


def write_megatron(folder):
    tokens = np.arange(20, dtype="<u2")
    (folder / "a.bin").write_bytes(tokens.tobytes())
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 4, 1)
    lengths, starts = np.full(4, 5, "<i4"), np.arange(4, dtype="<i8") * 10
    index = head + lengths.tobytes() + starts.tobytes() + np.array([0], "<i8").tobytes()
    (folder / "a.idx").write_bytes(index)


@pytest.mark.foreign  # zarr keeps threads of its own
@pytest.mark.parametrize(
    ("make", "split"),
    [
        (write_zarr, None),
        (write_idx, "train"),
        (write_megatron, None),
        (FILES / "mds" / "fixed", None),
        (FILES / "mds" / "splits", "train"),
        (FILES / "mds" / "zstd", None),
        (FILES / "tfds" / "tfrecord", "train"),
        (FILES / "tfds" / "array_record", "train"),
        (FILES / "webdataset", None),
    ],
    ids=lambda one: getattr(one, "name", getattr(one, "__name__", one)),
)
def test_folders_with_marks(make, split, hub, tmp_path, cache):
    folder = make if isinstance(make, Path) else tmp_path / "data"
    if not isinstance(make, Path):
        folder.mkdir()
        make(folder)
    hub.add(folder, "me/data")
    expected = list(Dataset.open(folder, split=split, decode=False))
    made = Dataset.open("hf://datasets/me/data", split=split, decode=False, cache=cache)
    assert_same(list(made), expected)
    assert made.classes == Dataset.open(folder, split=split, decode=False).classes


def test_folders_of_a_web_server_that_name_their_files(server, tmp_path, cache):
    folder = write("native", tmp_path / "data")
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    whole = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    datasets.DatasetDict(train=whole, test=whole).save_to_disk(tmp_path / "data" / "saved")
    server.add(folder, "native")
    server.add(tmp_path / "data" / "saved", "saved")
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    made = stream(Dataset.open(f"{server.url}/native/", cache=cache))
    assert_same(DataLoader(made, engine="inline"), expected)
    saved = Dataset.open(f"{server.url}/saved/", split="test", cache=cache)
    assert [int(one["x"]) for one in saved] == [1, 2, 3]


def test_single_files(server, tmp_path, cache):
    np.save(tmp_path / "a.npy", np.arange(5))
    np.savez_compressed(tmp_path / "b.npz", x=np.arange(4))
    server.add(tmp_path)
    assert [one["a"] for one in Dataset.open(f"{server.url}/a.npy", cache=cache)] == [*range(5)]
    packed = Dataset.open(f"{server.url}/b.npz", cache=cache)
    assert [one["x"] for one in packed] == [*range(4)]
    with DataLoader(packed.batch(2), engine="processes", num_workers=1) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_packed_files(server, tmp_path, cache):

    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n{"x": 2}\n'))
    server.add(tmp_path)
    assert [one["x"] for one in Dataset.open(f"{server.url}/a.jsonl.gz", cache=cache)] == [1, 2]


def test_compressed_lines_without_a_copy(server, tmp_path, monkeypatch):
    """Each file is fetched whole, once, into the default folder; nothing is unpacked there."""
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    folder = write("jsonl", tmp_path / "data")
    for path in list(folder.iterdir()):
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    server.add(folder)

    def chain(path):
        dataset = Dataset.open(path, cache=False)
        return dataset.shuffle(1, block="source", window=10).batch(BATCH).repeat(2)

    expected = list(chain(folder))
    found = chain(f"{server.url}/part-{{0..2}}.jsonl.gz")
    assert_same(DataLoader(found, engine="inline"), expected)
    assert_same(DataLoader(found, engine="processes", num_workers=2), expected)
    assert server.fetched_twice() == {}
    assert {one.name for one in (tmp_path / "cache").iterdir()} == {"answers", "downloads"}
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


def test_classes_with_options(server, tmp_path, cache):
    folder = write("tar", tmp_path / "data")
    WRITERS["tfrecord"](folder / "t", [1, 2])
    server.add(folder)
    tars = [f"{server.url}/part-{n}.tar" for n in range(3)]
    assert len(Dataset.from_source(WebDataset(tars, cache=cache))) == COUNT
    assert len(Dataset.from_source(TFRecord(f"{server.url}/t.tfrecord", cache=cache))) == 2


def test_missing_values_of_saved_and_copied_tables(server, tmp_path):
    """What says which values are there is fetched, like the values."""
    rows = [{"x": n if n % 3 else None, "t": "ab"[n % 2] if n % 5 else None} for n in range(60)]
    (tmp_path / "data" / "tables").mkdir(parents=True)
    Dataset.from_source(rows).save(tmp_path / "data" / "saved")
    path = tmp_path / "data" / "tables" / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    server.add(tmp_path / "data" / "saved", "saved")
    server.add(tmp_path / "data" / "tables", "tables")
    words = {"x": "valid", "t": "valid"}
    for name, cache in (("saved/", True), ("tables/x.parquet", True), ("tables/x.parquet", False)):
        place = tmp_path / "cache" if cache else False
        found = list(Dataset.open(f"{server.url}/{name}", missing=words, cache=place))
        assert [int(one["x"]) for one in found] == [row["x"] or 0 for row in rows]
        assert [one["t"] for one in found] == [row["t"] or "" for row in rows]
        assert [bool(one["x_valid"]) for one in found] == [row["x"] is not None for row in rows]


# Folders of files that are a record each, or a part of one ----------------------------------------


def write_pairs(folder):
    for name in ("images", "masks"):
        WRITERS["images"](folder / name, range(COUNT))


def write_metadata(folder):
    WRITERS["images"](folder / "more", range(COUNT))
    rows = "".join(f"more/{n:04}.png,{n}\n" for n in reversed(range(COUNT)))
    (folder / "metadata.csv").write_text("file_name,age\n" + rows)


def write_clips(folder):
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    for number in range(COUNT):
        path = folder / "ab"[number % 2] / f"{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, np.full(9, number / 32, np.float32), 8000, subtype="FLOAT")


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
@pytest.mark.parametrize("write_files", [write_pairs, write_metadata, write_clips])
def test_folders_of_files(write_files, engine, hub, tmp_path, cache):
    folder = tmp_path / "data"
    folder.mkdir()
    write_files(folder)
    hub.add(folder, "me/data")
    expected = list(DataLoader(stream(Dataset.open(folder)), engine="inline"))
    made = stream(Dataset.open("hf://datasets/me/data", cache=cache))
    workers = {} if engine == "inline" else {"num_workers": 2}
    with DataLoader(made, engine=engine, **workers) as loader:
        assert_same(loader, expected)
    assert hub.fetched_twice() == {}
