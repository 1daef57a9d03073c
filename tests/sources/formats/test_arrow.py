"""Arrow IPC: files, streams, Feather; mapped, or copied once where they are compressed."""

from __future__ import annotations

import datetime as dt
import pickle

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from descriptors import few_descriptors, room
from loaderx import Dataset
from loaderx.errors import ArgumentError, ChainError, FileError, RecordError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

N = 30
ROWS = [
    {
        "number": i,
        "flag": i % 3 == 0,
        "text": f"text {i} é",
        "tokens": list(range(i % 5)),
        "vector": [float(i), -1.5],
        "box": {"x": i * 2, "name": str(i)},
        "words": [f"w{k}" for k in range(i % 3)],
        "day": dt.date(2020, 1, 1) + dt.timedelta(i),
    }
    for i in range(N)
]
SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "flag": pa.bool_(),
        "text": pa.string(),
        "tokens": pa.list_(pa.int32()),
        "vector": pa.list_(pa.float32(), 2),
        "box": pa.struct({"x": pa.int16(), "name": pa.large_string()}),
        "words": pa.list_(pa.string()),
        "day": pa.date32(),
    }
)


def expected(rows=ROWS):
    return [
        {
            "number": np.int64(row["number"]),
            "flag": np.bool_(row["flag"]),
            "text": row["text"],
            "tokens": np.array(row["tokens"], np.int32),
            "vector": np.array(row["vector"], np.float32),
            "box": {"x": np.int16(row["box"]["x"]), "name": row["box"]["name"]},
            "words": row["words"],
            "day": np.datetime64(row["day"]),
        }
        for row in rows
    ]


def table(rows=ROWS, schema=SCHEMA):
    return pa.Table.from_pylist(rows, schema)


def write(path, data, *, batch=7, stream=False, compression=None):
    options = ipc.IpcWriteOptions(compression=compression)
    new = ipc.new_stream if stream else ipc.new_file
    with new(str(path), data.schema, options=options) as writer:
        for one in data.to_batches(max_chunksize=batch):
            writer.write_batch(one)
    return path


def source(path, **options):
    ((found, _, _),) = open_path(path, **options)
    return found


class Kind(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.place = tmp_path
        self.write()

    def make_source(self):
        return source(self.place / "*.arrow")

    def expected_records(self):
        return expected()


class TestFile(Kind):
    def write(self):
        write(self.place / "a.arrow", table())


class TestStreams(Kind):
    """Shards, one of them empty, and one with an empty batch."""

    def write(self):
        write(self.place / "a-0.arrow", table(ROWS[:9]), stream=True)
        write(self.place / "a-1.arrow", table([]), stream=True)
        with ipc.new_stream(str(self.place / "a-2.arrow"), SCHEMA) as writer:
            for rows in (ROWS[9:20], [], ROWS[20:]):
                writer.write_table(table(rows))
                writer.write_batch(pa.RecordBatch.from_pylist([], SCHEMA))


class TestFixedColumns(Kind):
    def write(self):
        write(self.place / "a.arrow", table().select(["number", "flag", "vector", "text"]))

    def expected_records(self):
        names = ("number", "flag", "vector", "text")
        return [{name: one[name] for name in names} for one in expected()]


class TestCompressed(Kind):
    def write(self):
        write(self.place / "a.arrow", table(), compression="lz4")
        write(self.place / "b.arrow", table(), compression="zstd", stream=True)

    def expected_records(self):
        return expected() * 2


class TestCompressedWithoutCopy(TestCompressed):
    def make_source(self):
        return source(self.place / "*.arrow", cache=False)

    test_shuffled_batches = None  # of all records: that is refused


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_equal(one, other)


def test_feather_by_any_name(tmp_path):
    data = table().select(["number", "text"])
    feather.write_feather(data, str(tmp_path / "packed.feather"))
    feather.write_feather(data, str(tmp_path / "plain"), compression="uncompressed")
    wanted = [{"number": one["number"], "text": one["text"]} for one in expected()]
    same(list(Dataset.open(tmp_path / "packed.feather")), wanted)
    same(list(Dataset.open(tmp_path / "plain")), wanted)


def test_only_compressed_files_are_copied(tmp_path):
    write(tmp_path / "plain.arrow", table())
    write(tmp_path / "packed.arrow", table(), compression="zstd")
    cache = tmp_path / "cache"
    Dataset.open(tmp_path / "plain.arrow", cache=cache)
    assert not (cache / "files").exists()
    Dataset.open(tmp_path / "packed.arrow", cache=cache)
    assert len(list((cache / "files").iterdir())) == 1


def test_a_global_shuffle_of_compressed_files_needs_the_copy(tmp_path):
    write(tmp_path / "a.arrow", table(), compression="lz4")
    with pytest.raises(ChainError, match="leave cache=False out"):
        Dataset.open(tmp_path / "a.arrow", cache=False).shuffle(0)
    assert len(list(Dataset.open(tmp_path / "a.arrow").shuffle(0))) == N


OTHER_TYPES = {
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "string_view": (pa.array(["a", "b" * 50, "é"]).cast(pa.string_view()), ["a", "b" * 50, "é"]),
    "runs": (
        pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]),
        [np.int64(7), np.int64(7), np.int64(8)],
    ),
    "binary": (pa.array([b"a", b"", b"\0"], pa.large_binary()), [b"a", b"", b"\0"]),
    "fixed binary": (
        pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        [np.frombuffer(one, np.uint8) for one in (b"ab", b"cd", b"ef")],
    ),
    "lists of fixed binary": (
        pa.array([[b"ab"], [], [b"cd", b"ef"]], pa.list_(pa.binary(2))),
        [np.frombuffer(one, np.uint8).reshape(-1, 2) for one in (b"ab", b"", b"cdef")],
    ),
    "large lists": (
        pa.array([[1], [], [2, 3]], pa.large_list(pa.uint8())),
        [np.array(one, np.uint8) for one in ([1], [], [2, 3])],
    ),
    "bools in lists": (
        pa.array([[True], [], [False, True]]),
        [np.array(one, np.bool_) for one in ([True], [], [False, True])],
    ),
    "days in lists": (
        pa.array([[1], [], [2, 3]], pa.list_(pa.date32())),
        [np.array(one, "M8[D]") for one in ([1], [], [2, 3])],
    ),
    "pairs of text": (
        pa.array([["a", "b"], ["c", "d"], ["e", "f"]], pa.list_(pa.string(), 2)),
        [["a", "b"], ["c", "d"], ["e", "f"]],
    ),
    "matrices": (
        pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.int8(), 2), 2)),
        [np.array([[1, 2], [3, 4]], np.int8)] * 3,
    ),
    "rows of pairs": (
        pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8(), 2))),
        [np.array(one, np.int8).reshape(-1, 2) for one in ([1, 2], [], [3, 4, 5, 6])],
    ),
    "dicts in lists": (
        pa.array([[{"a": 1, "b": "x"}], [], [{"a": 2, "b": "y"}, {"a": 3, "b": "z"}]]),
        [[{"a": 1, "b": "x"}], [], [{"a": 2, "b": "y"}, {"a": 3, "b": "z"}]],
    ),
    "timestamps": (
        pa.array([1, 2, 3], pa.timestamp("us", "Europe/Berlin")),
        [np.datetime64(k, "us") for k in (1, 2, 3)],
    ),
    "float16": (pa.array(np.array([1, 2, 3], np.float16)), [np.float16(k) for k in (1, 2, 3)]),
    "uint64": (pa.array([2**64 - 1, 0, 1], pa.uint64()), [np.uint64(2**64 - 1), 0, 1]),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_types(tmp_path, name, stream):
    array, wanted = OTHER_TYPES[name]
    path = write(tmp_path / "a.arrow", pa.table({"x": array}), stream=stream, batch=2)
    found = source(path).records(np.array([2, 0, 1]))
    same([one["x"] for one in found], [wanted[2], wanted[0], wanted[1]])


def test_slices_of_arrays(tmp_path):
    """Writers may cut a table anywhere: the first offset need not be 0."""
    path = write(tmp_path / "a.arrow", table().slice(3, 20), batch=6)
    same(list(Dataset.open(path)), expected()[3:23])


def test_sequences_of_text_are_read_together(tmp_path):
    texts = [f"{'é' * (i % 7)}{i}" for i in range(500)]
    path = write(tmp_path / "a.arrow", pa.table({"t": texts}), batch=90)
    batches = list(Dataset.open(path).batch(100))
    assert [text for batch in batches for text in batch["t"]] == texts


# Nulls ------------------------------------------------------------------------------------------

WITH_NULLS = pa.table(
    {
        "age": pa.array([2**53 + 1, None, 3, None], pa.int64()),
        "name": ["a", None, "c", "d"],
        "tokens": [[1], None, [2], []],
        "box": [{"x": 1}, {"x": None}, None, {"x": 4}],
        "inner": [[1, None], [], [2], [3]],
    }
)


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize(
    ("column", "count"), [("age", 2), ("name", 1), ("tokens", 1), ("box.x", 2), ("inner", 1)]
)
def test_nulls_are_refused_when_opened(tmp_path, column, count, compression):
    path = write(tmp_path / "a.arrow", WITH_NULLS, batch=3, compression=compression)
    with pytest.raises(FileError, match=rf"a\.arrow: column '{column}' has (\d )?null") as caught:
        Dataset.open(path, columns=[column.split(".")[0]])
    if compression is None and column != "inner":
        assert f"has {count} null" in str(caught.value)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_nulls_are_filled(tmp_path, compression):
    path = write(tmp_path / "a.arrow", WITH_NULLS, batch=3, compression=compression)
    fill = {"age": -1, "name": "?", "tokens": [], "box.x": 0}
    found = list(Dataset.open(path, columns=["age", "name", "tokens", "box"], fill=fill))
    assert [int(one["age"]) for one in found] == [2**53 + 1, -1, 3, -1]
    assert [one["age"].dtype for one in found] == [np.int64] * 4
    assert [one["name"] for one in found] == ["a", "?", "c", "d"]
    assert [one["tokens"].tolist() for one in found] == [[1], [], [2], []]
    assert [int(one["box"]["x"]) for one in found] == [1, 0, 0, 4]
    batch = next(iter(Dataset.open(path, columns=["age"], fill=fill).batch(4)))
    assert batch["age"].tolist() == [2**53 + 1, -1, 3, -1]


def test_what_does_not_fit_is_no_filling(tmp_path):
    path = write(tmp_path / "a.arrow", WITH_NULLS)
    with pytest.raises(ArgumentError, match="`fill` has 'x' for the column 'age'"):
        Dataset.open(path, columns=["age"], fill={"age": "x"})


# Shards -----------------------------------------------------------------------------------------


def test_shards_may_have_other_orders_and_widths(tmp_path):
    write(tmp_path / "a.arrow", pa.table({"x": pa.array([1], pa.int64()), "y": ["a"]}))
    write(tmp_path / "b.arrow", pa.table({"y": ["b"], "x": pa.array([2], pa.int64())}))
    found = list(Dataset.open(tmp_path / "*.arrow"))
    same(found, [{"x": np.int64(1), "y": "a"}, {"x": np.int64(2), "y": "b"}])
    write(tmp_path / "c.arrow", pa.table({"x": pa.array([3], pa.int32()), "y": ["c"]}))
    found = list(Dataset.open(tmp_path / "*.arrow"))
    assert [one["x"].dtype for one in found] == [np.int64] * 3
    assert [int(one["x"]) for one in found] == [1, 2, 3]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"y": [1]}, r"b\.arrow has no column 'x', which .*a\.arrow has"),
        ({"x": [1], "y": [1]}, r"b\.arrow has a column 'y', which .*a\.arrow does not have"),
        ({"x": ["1"]}, r"column 'x' is int64 in .*a\.arrow, and text in .*b\.arrow"),
    ],
)
def test_shards_that_differ(tmp_path, other, message):
    write(tmp_path / "a.arrow", pa.table({"x": [1]}))
    write(tmp_path / "b.arrow", pa.table(other))
    with pytest.raises(FileError, match=message):
        Dataset.open(tmp_path / "*.arrow")


def test_columns(tmp_path):
    odd = pa.array([1, 2], pa.decimal128(4, 1))
    path = write(tmp_path / "a.arrow", pa.table({"x": [1, 2], "money": odd, "y": ["a", "b"]}))
    assert list(Dataset.open(path, columns=["y"])) == [{"y": "a"}, {"y": "b"}]
    with pytest.raises(FileError, match=r"column 'money' has the Arrow type decimal128\(4, 1\)"):
        Dataset.open(path)
    with pytest.raises(ArgumentError, match=r"has no column 'z'; it has 'x', 'money', 'y'"):
        Dataset.open(path, columns=["z"])


def test_many_shards_take_few_descriptors(tmp_path):
    count = room() + 20
    for number in range(count):
        write(tmp_path / f"{number}.arrow", pa.table({"x": [number, number]}))
    with few_descriptors():
        found = list(Dataset.open(tmp_path / "*.arrow").shuffle(0).batch(10))
    assert sorted(np.concatenate([one["x"] for one in found])) == sorted([*range(count)] * 2)


def test_splits_by_shard(tmp_path):
    write(tmp_path / "a.arrow", pa.table({"x": [0, 1, 2]}))
    write(tmp_path / "b.arrow", pa.table({"x": [3, 4]}))
    found = Dataset.open(tmp_path / "*.arrow", split="[1shard:]")
    assert [int(one["x"]) for one in found] == [3, 4]


# Damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_files_that_are_cut_off(tmp_path, stream):
    whole = write(tmp_path / "whole", table(), stream=stream).read_bytes()
    path = tmp_path / "a.arrow"
    for size in (1, 8, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError, match=r"a\.arrow"):
            Dataset.open(path)


def test_a_stream_that_is_cut_off_between_batches(tmp_path):
    whole = write(tmp_path / "whole", table(), stream=True).read_bytes()
    (tmp_path / "a.arrow").write_bytes(whole[:-8])
    with pytest.raises(FileError, match=r"a\.arrow is cut off: its end mark is missing"):
        Dataset.open(tmp_path / "a.arrow")
    (tmp_path / "a.arrow").write_bytes(whole + whole)
    with pytest.raises(FileError, match="bytes behind the end of the stream"):
        Dataset.open(tmp_path / "a.arrow")


def test_empty_files(tmp_path):
    write(tmp_path / "a.arrow", table([]))
    with pytest.raises(FileError, match=r"a\.arrow: there are no records"):
        Dataset.open(tmp_path / "a.arrow")
    (tmp_path / "b.arrow").write_bytes(b"")
    with pytest.raises(FileError, match=r"b\.arrow"):
        Dataset.open(tmp_path / "b.arrow")
    (tmp_path / "old.feather").write_bytes(b"FEA1" + bytes(40))
    with pytest.raises(FileError, match="a Feather file of version 1"):
        Dataset.open(tmp_path / "old.feather")


def test_damaged_offsets_and_text(tmp_path):
    texts = [f"text {i}" for i in range(20)]
    path = write(tmp_path / "a.arrow", pa.table({"t": texts}), batch=20)
    data = bytearray(path.read_bytes())
    at = data.index(b"text 7")
    data[at] = 0xFF
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"a\.arrow, record 7"):
        list(Dataset.open(path).batch(20))
    found = [one["t"] for one in Dataset.open(path).on_error("skip")]
    assert found == [text for text in texts if text != "text 7"]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    at = bytes(data).index(offsets.tobytes())
    data[at + 20 : at + 24] = (10**6).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises((FileError, RecordError), match="damaged"):
        list(Dataset.open(path).batch(20))


def test_states_and_pickles(tmp_path):
    path = write(tmp_path / "a.arrow", table())
    again = pickle.loads(pickle.dumps(source(path)))
    same(again.records(np.arange(N)), expected())


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_records_that_follow_each_other(kind, tmp_path):
    """They are read at once, batch by batch, and are those that are read in any other order."""
    rows = range(700)
    table = pa.table({
        "text": [f"é{n}" * (n % 4) for n in rows],
        "large": pa.array([f"\U0001f600{n}" for n in rows], pa.large_string()),
        "binary": [bytes([n % 256]) * (n % 3) for n in rows],
        "n": pa.array(rows, pa.int16()), "bit": [n % 3 > 0 for n in rows],
        "day": pa.array(rows, pa.date32()),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(1400.0)), 2),
        "fixed": pa.array([bytes([n % 256, 1]) for n in rows], pa.binary(2)),
    })  # fmt: skip
    path = tmp_path / f"{kind}.arrow"
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table.slice(3), max_chunksize=97)
    dataset = Dataset.open(path)
    back = [repr(one) for one in reversed([dataset[n] for n in reversed(range(697))])]
    for size in (5, 20, 97, 300, 697):
        batches = list(dataset.batch(size, collate_fn=list))
        assert [repr(one) for batch in batches for one in batch] == back
        order = np.arange(697)[::-1]
        ours, theirs = dataset.batch(697)[0], dataset[order].batch(697)[0]
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name][::-1].tolist() == theirs[name].tolist()


@pytest.mark.foreign  # polars has threads of its own
@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_files_of_polars(tmp_path, compression):
    """Its text is views, and categories are dictionaries of views."""
    columns = {
        "x": [1, 2, 3],
        "text": ["a", "bb", "longer than a view holds in itself"],
        "category": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
        "enum": pl.Series(["u", "v", "u"], dtype=pl.Enum(["u", "v"])),
        "lists": [["a"], [], ["b", "c"]],
    }
    pl.DataFrame(columns).write_ipc(tmp_path / "a.arrow", compression=compression)
    expected = pl.DataFrame(columns).to_dicts()
    assert list(Dataset.open(tmp_path / "a.arrow")) == expected
