"""What speeds reading up works for every format: a table says so, and why not where it does not.

A mechanism that is silently off is a fault.  `mapped_reads.txt` has a row for each format of mapped
files, and a column for each mechanism; each cell is observed here.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from array_record_examples import unpacked
from file_server import serving
from inside import source_of
from loaderx import Dataset
from loaderx.memory import Pool
from loaderx.sources.base import PadsLists
from loaderx.sources.files import cold
from loaderx.sources.files.cold import CAN_ADVISE, MappedRows

TABLE = Path(__file__).with_name("mapped_reads.txt")
FILES = Path(__file__).parents[1] / "files"
COUNT = 300
WIDE = np.arange(COUNT * 100, dtype=np.float32).reshape(COUNT, 100)
LISTS = [np.arange(n % 7, dtype=np.int32) for n in range(COUNT)]


def npy(folder):
    np.save(folder / "x.npy", WIDE)
    return "x.npy"


def npz(folder):
    np.savez(folder / "x.npz", x=WIDE)
    return ""


def native(folder):
    records = [{"x": x, "list": one} for x, one in zip(WIDE, LISTS, strict=True)]
    Dataset.from_source(records).save(folder / "data", part_bytes=20_000, engine="inline")
    return "data"


def native_lines(folder):
    marks = [np.repeat(np.arange(one, one + 40, dtype=np.int32), 40) for one in range(len(WIDE))]
    records = [{"marks": row, "list": one} for row, one in zip(marks, LISTS, strict=True)]
    Dataset.from_source(records).save(folder / "data", part_bytes=200_000, engine="inline")
    told = json.loads((folder / "data" / "loaderx.json").read_text())
    assert told["columns"]["marks"]["kind"] == "linear"
    return "data"


def idx(folder):
    pixels = WIDE.astype(np.uint8)
    head = bytes([0, 0, 8, 2]) + np.array(pixels.shape, ">u4").tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    return ""


def safetensors(folder):
    header = {"x": {"dtype": "F32", "shape": WIDE.shape, "data_offsets": [0, WIDE.nbytes]}}
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + WIDE.tobytes()
    (folder / "x.safetensors").write_bytes(whole)
    return ""


def hdf5(folder):
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        file["x"] = WIDE
    return ""


def table():
    pa = pytest.importorskip("pyarrow")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(WIDE.reshape(-1)), 100)
    return pa.table({"x": vectors, "list": LISTS, "text": [f"text {n}" for n in range(COUNT)]})


def arrow(folder):
    pa = pytest.importorskip("pyarrow")
    made = table()
    with pa.ipc.new_stream(folder / "x.arrow", made.schema) as writer:
        writer.write_table(made, max_chunksize=30)
    return ""


def huggingface(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset(table()).save_to_disk(folder / "data")
    return "data"


def parquet(folder):
    pytest.importorskip("pyarrow.parquet").write_table(table(), folder / "x.parquet")
    return ""


def csv(folder):
    pytest.importorskip("pyarrow")
    lines = (f"{n},{n / 2},{'word ' * 10}\n" for n in range(20_000))
    (folder / "x.csv").write_text("x,half,text\n" + "".join(lines))
    return ""


def jsonl(folder):
    rows = ({"x": n, "list": list(range(n % 7)), "t": "word " * 10} for n in range(20_000))
    (folder / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ""


def text(folder):
    (folder / "x.txt").write_text("".join(f"line {n}\n" for n in range(COUNT)))
    return ""


def tfrecord(folder):
    from tf_files import example, write_tfrecord

    rows = zip(WIDE, LISTS, strict=True)
    payloads = [example({"x": x, "list": one.tolist() or [0]}) for x, one in rows]
    write_tfrecord(folder / "x.tfrecord", payloads)
    return ""


def tfds(folder):
    shutil.copytree(FILES / "tfds" / "tfrecord" / "kinds", folder / "kinds")
    return "kinds"


def array_record(folder):
    unpacked("zstd", folder)
    return ""


def mds(folder):
    """Samples of a vector and a text, in two shards."""
    shards = []
    for number, rows in enumerate(np.split(WIDE, [100])):
        name = f"shard.{number:05}.mds"
        samples = [b"\2\0\0\0ab" + row.tobytes() for row in rows]
        offsets = 4 * (len(samples) + 2) + np.cumsum([0, *map(len, samples)])
        head = np.array([len(samples), *offsets], "<u4").tobytes()
        (folder / name).write_bytes(head + b"".join(samples))
        shards.append({
            "format": "mds", "column_names": ["t", "x"], "samples": len(samples),
            "column_encodings": ["str", "ndarray:float32:100"], "column_sizes": [None, 400],
            "raw_data": {"basename": name}, "zip_data": None, "compression": None,
        })  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return ""


def webdataset(folder):
    with tarfile.open(folder / "x.tar", "w") as archive:
        for number in range(COUNT):
            info = tarfile.TarInfo(f"{number:04}.txt")
            info.size = 200
            archive.addfile(info, io.BytesIO(b"text" * 50))
    return ""


def megatron(folder):
    tokens = WIDE.astype("<u2")
    (folder / "a.bin").write_bytes(tokens.tobytes())
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, COUNT, 1)
    lengths, starts = np.full(COUNT, 100, "<i4"), np.arange(COUNT, dtype="<i8") * 200
    lengths[::3] = 40
    index = head + lengths.tobytes() + starts.tobytes() + np.array([0], "<i8").tobytes()
    (folder / "a.idx").write_bytes(index)
    return ""


def images(folder):
    image = pytest.importorskip("PIL.Image")
    (folder / "cats").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 20, 3), np.uint8)
        image.fromarray(pixels).save(folder / "cats" / f"{number}.png")
    return ""


FORMATS = {
    "npy": npy, "npz": npz, "native": native, "native, lines": native_lines,
    "idx": idx, "safetensors": safetensors, "hdf5": hdf5,
    "arrow": arrow, "huggingface": huggingface, "parquet copy": parquet, "csv copy": csv,
    "jsonl copy": jsonl, "text": text, "tfrecord": tfrecord, "tfds": tfds,
    "array_record": array_record, "mds": mds, "webdataset": webdataset, "megatron": megatron,
    "images": images,
}  # fmt: skip
SPLITS = {"idx": "train", "tfds": "train"}
COLUMNS = {"tfds": ["label", "tokens"]}
LISTS_OF = {"megatron": {"tokens": 128}, "tfds": {"tokens": 16}}


class Format:
    """Files of a format, opened here or behind a URL."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self._below = FORMATS[name](folder)

    def open(self, place, cache):
        place = f"{place}/{self._below}" if self._below else f"{place}"
        columns = COLUMNS.get(self.name)
        return Dataset.open(place, split=SPLITS.get(self.name), columns=columns, cache=cache)

    def read(self, source, indices):
        return source.gather(indices, Pool().lend) if source.gathers else source.records(indices)


def some(source):
    """Records in any order; far apart, so that they lie in few pieces."""
    return np.array([len(source) - 1, 0, len(source) // 2])


def sees_hints(one, cache, monkeypatch):
    """The kernel is told what is read, while files come from disk."""
    source = source_of(one.open(one.folder, cache))
    counter, told = iter(range(1 << 30)), []
    monkeypatch.setattr(cold, "blocks_read", lambda: next(counter))
    monkeypatch.setattr(MappedRows, "will_need_runs", lambda *runs: told.append(runs))
    expected = one.read(source_of(one.open(one.folder, cache)), some(source)[:1])
    assert not told
    one.read(source, some(source))
    assert expected is not None
    return bool(told)


def sees_pieces(one, cache, monkeypatch):
    """Of a dataset behind a URL, a part is fetched for a few records."""
    monkeypatch.setattr("loaderx.sources.remote.pieces.PIECE_BYTES", 1000)
    monkeypatch.setattr("loaderx.sources.formats.npy.LARGE", 0)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", "/none")
    here = source_of(one.open(one.folder, cache / "local"))
    with serving() as server:
        server.add(one.folder, "me/data")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        source = source_of(one.open("hf://datasets/me/data", cache / "remote"))
        few = some(source)
        found, expected = one.read(source, few), one.read(here, few)
        np.testing.assert_equal(found, expected)
        sent = sum(stop - start for _, start, stop in server.asked)
        whole = sum(path.stat().st_size for path in one.folder.rglob("*") if path.is_file())
        return bool(source.fetches) and sent < whole / 2


def sees_padding(one, cache, monkeypatch):
    """Lists are padded without a record for each."""
    source = source_of(one.open(one.folder, cache))
    lengths = LISTS_OF.get(one.name, {"list": 8})
    made = source.padded(lengths) if isinstance(source, PadsLists) else None
    if made is None:
        return False
    values = {path: np.zeros((), dtype) for path, dtype in made.dtypes().items()}
    found = made.gather(some(source), values, Pool().lend)
    for record, *rows in zip(
        source.records(some(source)), *(found.tree[p] for p in lengths), strict=True
    ):
        for path, row in zip(lengths, rows, strict=True):
            assert row[: len(record[path])].tolist() == record[path].tolist()
            assert not row[len(record[path]) :].any()
    return True


MECHANISMS = {
    "hints for cold files": sees_hints,
    "fetching in pieces": sees_pieces,
    "fast padding": sees_padding,
}


def cells():
    """The cells of the file: (format, mechanism) to "on", or the reason."""
    found = {}
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *each = (cell.strip() for cell in line.split("|"))
            found.update({(name, one): cell for one, cell in zip(MECHANISMS, each, strict=True)})
    return found


@pytest.mark.filterwarnings("ignore::loaderx.errors.LoaderxWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", FORMATS)
def test_the_table_is_true(name, mechanism, tmp_path, monkeypatch):
    if mechanism == "hints for cold files" and not CAN_ADVISE:
        pytest.skip("this system takes no hints for mapped files")
    folder = tmp_path / "data"
    folder.mkdir()
    is_on = MECHANISMS[mechanism](Format(name, folder), tmp_path / "cache", monkeypatch)
    expected = cells()[name, mechanism]
    assert is_on == (expected == "on"), expected


def test_every_cell_is_in_the_table():
    assert set(cells()) == {(name, one) for name in FORMATS for one in MECHANISMS}
