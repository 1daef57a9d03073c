"""WebDataset: samples in tar files."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import LoaderxWarning
from loaderx.sources import WebDataset
from loaderx.sources.formats.tar.index import split_name
from loaderx.testing import SourceContract

WRITTEN_BY_WEBDATASET = Path(__file__).parents[2] / "files" / "webdataset"


def write(path, members, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def samples(start, stop):
    for number in range(start, stop):
        yield f"{number:04}.txt", f"text {number} ü".encode()
        yield f"{number:04}.cls", str(number).encode()
        yield f"{number:04}.x.npy", npy(np.arange(number, number + 3.0))


def expected(start, stop):
    return [
        {
            "__key__": f"{number:04}",
            "txt": f"text {number} ü",
            "cls": np.int64(number),
            "x.npy": np.arange(number, number + 3.0),
        }
        for number in range(start, stop)
    ]


@pytest.fixture
def shards(tmp_path):
    write(tmp_path / "train-2.tar", samples(0, 4))
    write(tmp_path / "train-9.tar", [])
    write(tmp_path / "train-10.tar", samples(4, 9))
    return tmp_path


class _Shards(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, shards):
        self.folder = shards


class TestShards(_Shards):
    def make_source(self):
        return Dataset.open(self.folder / "*.tar")

    def expected_records(self):
        return expected(0, 9)


class TestWebDataset(TestShards):
    def make_source(self):
        return WebDataset(self.folder / "train-{2,9,10}.tar", cache=False)


class TestBytes(_Shards):
    def make_source(self):
        return Dataset.open(self.folder, decode=False)

    def expected_records(self):
        members = dict(samples(0, 9))
        return [
            {
                "__key__": f"{number:04}",
                **{end: members[f"{number:04}.{end}"] for end in ("txt", "cls", "x.npy")},
            }
            for number in range(9)
        ]


class TestSamplesThatDiffer(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = write(
            tmp_path / "a.tar",
            [(f"{n}.{end}", b"7") for n in range(6) for end in ("cls", "txt", "id")[: n % 3 + 1]],
        )

    def make_source(self):
        return Dataset.open(self.path)

    def expected_records(self):
        values = {"cls": np.int64(7), "txt": "7", "id": np.int64(7)}
        return [
            {"__key__": str(n), **{end: values[end] for end in ("cls", "txt", "id")[: n % 3 + 1]}}
            for n in range(6)
        ]


def records(path, **options):
    return list(Dataset.open(path, **options))


# Names and grouping -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "ending"),
    [
        ("a.jpg", "a", "jpg"),
        ("a.b/c.JPG", "a.b/c", "jpg"),
        ("./a.Seg.Png", "./a", "seg.png"),
        ("a/b.json.gz", "a/b", "json.gz"),
        ("no-ending", "no-ending", ""),
        ("a/._b.jpg", "a/", ""),
        (".hidden.jpg", "", ""),
        ("__meta__", "__meta__", ""),
        ("__meta__/a.json", "__meta__/a", ""),
        ("__a__b.json", "__a__b", "json"),
    ],
)
def test_names(name, key, ending):
    assert split_name(name) == (key, ending)


def test_what_belongs_to_no_sample(tmp_path):
    members = [("a.txt", b"x"), ("__meta__", b""), ("._a.txt", b"y"), ("README", b"z")]
    assert records(write(tmp_path / "a.tar", members)) == [{"__key__": "a", "txt": "x"}]


def test_members_of_a_sample_may_lie_apart(tmp_path):
    members = [(f"{key}.{end}", end.encode()) for end in ("txt", "text") for key in "abc"]
    found = records(write(tmp_path / "a.tar", members))
    assert found == [{"__key__": key, "txt": "txt", "text": "text"} for key in "abc"]


def test_the_order_of_members_does_not_matter(tmp_path):
    members = [("a.cls", b"1"), ("a.txt", b"x"), ("b.txt", b"y"), ("b.cls", b"2")]
    dataset = Dataset.open(write(tmp_path / "a.tar", members))
    assert list(dataset[1]) == ["__key__", "cls", "txt"]
    (batch,) = dataset.batch(2)
    assert batch["cls"].tolist() == [1, 2]


def test_a_member_twice_is_refused(tmp_path):
    path = write(tmp_path / "a.tar", [("a.jpg", b"1"), ("b.cls", b""), ("a.JPG", b"2")])
    with pytest.raises(FileError, match=r"a\.tar has a\.jpg twice, and 0 other members"):
        Dataset.open(path)


def test_equal_keys_in_archives_that_were_joined(tmp_path):
    one, two = (write(tmp_path / f"{n}.tar", [("a.cls", b"%d" % n)]) for n in (1, 2))
    (tmp_path / "both.tar").write_bytes(one.read_bytes() + two.read_bytes())
    assert [int(record["cls"]) for record in records(tmp_path / "both.tar")] == [1, 2]


def test_numbers_behind_the_first_dot(tmp_path):
    path = write(tmp_path / "a.tar", [(f"img.{n}.jpg", b"") for n in range(5000)])
    with pytest.raises(FileError, match=r"more than 4096 endings, such as '4096.jpg': what stands"):
        Dataset.open(path)


def test_pax_headers_and_long_names(tmp_path):
    name = "long/" + "x" * 300
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write(tmp_path / f"{format}.tar", [(f"{name}.txt", b"a"), ("ü.txt", b"b")],
                     format=format)  # fmt: skip
        assert [record["__key__"] for record in records(path)] == [name, "ü"]


# Values -----------------------------------------------------------------------------------------


def value_of(tmp_path, ending, data, **options):
    (record,) = records(write(tmp_path / "a.tar", [(f"a.{ending}", data)]), **options)
    return record[ending]


def test_text_and_numbers(tmp_path):
    assert value_of(tmp_path, "txt", "ü\n".encode()) == "ü\n"
    assert value_of(tmp_path, "transcript", b"") == ""
    found = value_of(tmp_path, "cls", b" 12345678901\n")
    assert found == 12345678901
    assert found.dtype == np.int64


def test_json(tmp_path):
    value = {"caption": "a cat", "sizes": [1, 2], "none": None}
    assert value_of(tmp_path, "json", json.dumps(value).encode()) == value
    packed = gzip.compress(json.dumps(value).encode())
    assert value_of(tmp_path, "json.gz", packed) == value


def test_arrays(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = value_of(tmp_path, "npy", npy(array))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array)
    fortran = value_of(tmp_path, "depth.npy", npy(np.asfortranarray(array)))
    np.testing.assert_array_equal(fortran, array)
    out = io.BytesIO()
    np.savez(out, a=array, b=np.arange(3))
    found = value_of(tmp_path, "npz", out.getvalue())
    assert list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], array)


def test_other_endings_are_bytes(tmp_path):
    assert value_of(tmp_path, "mp4", b"\0\1") == b"\0\1"
    assert value_of(tmp_path, "bin.gz", gzip.compress(b"xyz")) == b"xyz"


def test_images(tmp_path):
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    out = io.BytesIO()
    image_module.fromarray(pixels).save(out, "PNG")
    found = value_of(tmp_path, "seg.png", out.getvalue())
    np.testing.assert_array_equal(found, pixels)
    # A name says what it is not.
    np.testing.assert_array_equal(value_of(tmp_path, "jpg", out.getvalue()), pixels)
    source = WebDataset(tmp_path / "a.tar", channels=1)
    assert source[0]["jpg"].shape == (4, 5, 1)
    assert value_of(tmp_path, "jpg", out.getvalue(), decode=False) == out.getvalue()


class Boom:
    def __reduce__(self):
        return exec, ("raise SystemExit('it was unpickled')",)


@pytest.mark.parametrize("ending", ["pyd", "pkl", "pickle", "pth", "x.pyd", "pkl.gz"])
def test_pickles_are_refused(tmp_path, ending):
    data = pickle.dumps(Boom())
    path = write(tmp_path / "a.tar", [(f"a.{ending}", data), ("a.cls", b"1")])
    with pytest.raises(FileError, match=rf"has members \.{ending}, which are pickles.*'cls'"):
        Dataset.open(path)
    assert records(path, columns=["cls"]) == [{"cls": 1}]
    assert records(path, decode=False)[0][ending] == data


def test_object_arrays_are_refused(tmp_path):
    data = npy(np.array([Boom()], object))
    with pytest.raises(RecordError, match=r"a\.npy cannot be decoded: the array holds Python obj"):
        value_of(tmp_path, "npy", data)
    out = io.BytesIO()
    np.savez(out, a=np.array([Boom()], object))
    with pytest.raises(
        RecordError, match=r"a\.npz cannot be decoded: .*loaderx never unpickles a file"
    ):
        value_of(tmp_path, "npz", out.getvalue())


# Columns ----------------------------------------------------------------------------------------


def test_columns(shards):
    found = records(shards, columns=["cls", "txt"])
    assert [list(record) for record in found] == [["cls", "txt"]] * 9
    assert records(shards, columns=["__key__"])[8] == {"__key__": "0008"}
    with pytest.raises(ArgumentError, match="no column 'jpg'; it has '__key__', 'txt', 'cls', 'x"):
        records(shards, columns=["jpg"])
    with pytest.raises(ArgumentTypeError, match="`columns` must be a list of names"):
        WebDataset(shards / "train-2.tar", columns="cls")


def test_members_that_some_samples_lack(tmp_path):
    path = write(tmp_path / "a.tar", [("a.txt", b"x"), ("a.cls", b"1"), ("b.txt", b"y")])
    assert [list(record) for record in records(path)] == [["__key__", "txt", "cls"],
                                                          ["__key__", "txt"]]  # fmt: skip
    with pytest.raises(FileError, match=r"a\.tar: 1 of 2 samples have no 'cls'. Give a value"):
        records(path, columns=["txt", "cls"])
    filled = records(path, columns=["txt", "cls"], fill={"cls": np.int64(-1)})
    assert [int(record["cls"]) for record in filled] == [1, -1]
    assert records(path, fill={"cls": -1})[1] == {"__key__": "b", "txt": "y", "cls": -1}


def test_shards_and_splits(shards):
    write(shards / "test-0.tar", samples(20, 22))
    assert len(Dataset.open(shards, split="train")) == 9
    assert len(Dataset.open(shards, split="test+train[:1shard]")) == 6
    assert len(Dataset.open(shards, split="train[2shard:]")) == 5


def test_compressed_shards(shards):
    path = shards / "train-2.tar"
    packed = shards / "other" / "x.tgz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(Dataset.open(packed)) == 4


def test_the_index_is_kept(shards, tmp_path):
    cache = tmp_path / "cache"
    for _ in range(2):
        assert len(Dataset.open(shards / "*.tar", cache=cache)) == 9
    (kept,) = (cache / "index").iterdir()
    assert (kept / "start.npy").exists()
    write(shards / "train-9.tar", samples(30, 31))
    assert len(Dataset.open(shards / "*.tar", cache=cache)) == 10


# Damage -----------------------------------------------------------------------------------------


def test_a_damaged_member_fails_alone(tmp_path):
    members = [(f"{n}.cls", b"x" if n == 3 else b"%d" % n) for n in range(6)]
    path = write(tmp_path / "a.tar", members)
    dataset = Dataset.open(path)
    with pytest.raises(RecordError, match=r"a\.tar: 3\.cls cannot be decoded: ValueError") as error:
        list(dataset.batch(6))
    assert error.value.index == 3
    (batch,) = dataset.on_error("skip").batch(6)
    assert batch["cls"].tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("ending", "data", "message"),
    [
        ("txt", b"\xff", "UnicodeDecodeError"),
        ("cls", b"1" * 5000, "5000 bytes are not a whole number"),
        ("cls", b"1" * 30, "OverflowError"),
        ("json", b"{", "JSONDecodeError"),
        ("json", b"[" * 100_000, "RecursionError"),
        ("json.gz", b"{}", "incorrect header check"),
        ("npy", b"\x93NUMPY", "the array is not a NumPy array file"),
        ("npy", npy(np.arange(9))[:-1], "the array is cut off"),
        ("npz", b"PK\3\4", "BadZipFile"),
    ],
)
def test_damaged_values(tmp_path, ending, data, message):
    with pytest.raises(RecordError, match=rf"a\.{ending} cannot be decoded: .*{message}"):
        value_of(tmp_path, ending, data)


def test_a_shard_that_is_cut_off(shards):
    path = shards / "train-10.tar"
    path.write_bytes(path.read_bytes()[:1030])
    with pytest.raises(FileError, match=r"train-10\.tar is cut off"):
        Dataset.open(shards / "*.tar")
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.warns(LoaderxWarning, match=r"train-10\.tar ends without the mark that ends"):
        assert len(Dataset.open(shards / "*.tar")) == 5


def test_nothing_in_it(tmp_path):
    with pytest.raises(FileError, match=r"a\.tar has no samples: members such as"):
        Dataset.open(write(tmp_path / "a.tar", [("README", b"x")]))
    with pytest.raises(ArgumentError, match=r"is a folder: write .*/\*\.tar"):
        WebDataset(tmp_path)
    with pytest.raises(ArgumentError, match="`channels` must be None, 1, 3 or 4, got 7"):
        WebDataset(tmp_path / "a.tar", channels=7)


def test_a_file_that_has_changed(shards):
    dataset = Dataset.open(shards / "train-2.tar")
    write(shards / "train-2.tar", samples(1, 3))
    with pytest.raises(RecordError, match=r"train-2\.tar has .* since the dataset was made"):
        dataset[0]


def test_workers_and_states(shards):
    dataset = Dataset.open(shards).shuffle(0).batch(4)
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        steps = iter(loader)
        next(steps)
        state = steps.get_state()
        rest = [batch["cls"].tolist() for batch in steps]
    again = iter(DataLoader(dataset, engine="inline"))
    again.set_state(state)
    assert [batch["cls"].tolist() for batch in again] == rest


# Files that webdataset has written ---------------------------------------------------------------


def test_files_written_by_webdataset():
    found = records(WRITTEN_BY_WEBDATASET / "shard-{000000..000001}.tar", columns=None)
    assert [record["__key__"] for record in found] == [f"sample{n:03}" for n in range(5)]
    for n, record in enumerate(found):
        assert record["txt"] == f"caption {n} ü"
        assert record["cls"] == n
        assert record["json"] == {"id": n, "tags": ["a", "b"]}
        np.testing.assert_array_equal(record["npy"], np.arange(n + 2, dtype=np.float32))
        assert zlib.crc32(record["bin"]) == zlib.crc32(bytes([n]) * 9)


def packed_npz(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize(
    ("ending", "data"),
    [
        ("bin.gz", gzip.compress(bytes(5000))),
        ("json.gz", gzip.compress(bytes(2500)) * 2),
        ("npz", packed_npz(a=np.zeros(5000, np.uint8))),
        ("npz", packed_npz(a=np.zeros(2000, np.uint8), b=np.zeros(2000, np.uint8))),
    ],
    ids=["bytes", "two members", "an array", "two arrays"],
)
def test_values_that_unpack_to_too_much(tmp_path, monkeypatch, ending, data):
    monkeypatch.setattr("loaderx.sources.files.unpacking.SMALL", 3000)
    monkeypatch.setattr("loaderx.sources.files.unpacking.RATIO", 1)
    with pytest.raises(
        RecordError, match=rf"a\.{ending} cannot be decoded: .*LOADERX_UNPACK_LIMIT"
    ):
        value_of(tmp_path, ending, data)
    monkeypatch.setenv("LOADERX_UNPACK_LIMIT", "5200")
    if ending != "json.gz":
        value_of(tmp_path, ending, data)


def test_a_small_member_does_not_fill_the_memory(tmp_path):
    """306 kB that would be 315 MB."""
    with pytest.raises(RecordError, match="more than the 67108864 bytes that it may have"):
        value_of(tmp_path, "bin.gz", gzip.compress(bytes(315_000_000), 9))
