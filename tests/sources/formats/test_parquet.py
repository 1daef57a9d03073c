"""Parquet files: copied once, or read row group by row group; what does not fit is refused."""

from __future__ import annotations

import builtins
import io
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_sources import Logged, reads
from inside import node_of
from loaderx import (
    ArgumentError,
    ChainError,
    DataLoader,
    Dataset,
    FileError,
    MissingPackageError,
    RecordError,
)
from loaderx.sources.columns.table_columns import table_columns
from loaderx.testing import SourceContract
from loaderx.testing.comparing import check_all_equal

COUNT = 23


def table(count=COUNT, start=0):
    numbers = list(range(start, start + count))
    return pa.table(
        {
            "x": pa.array(numbers, pa.int32()),
            "text": [f"text é {n}" * (n % 4) for n in numbers],
            "fixed": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.float32(), 2)),
            "inner": [{"flag": n % 2 == 0, "data": bytes(n)} for n in numbers],
        }
    )


def expected(count=COUNT):
    return [
        {
            "x": np.int32(n),
            "text": f"text é {n}" * (n % 4),
            "fixed": np.array([n, n + 1], np.float32),
            "inner": {"flag": np.bool_(n % 2 == 0), "data": bytes(n)},
        }
        for n in range(count)
    ]


def write_shards(folder, **options):
    pq.write_table(table(10), folder / "a-1.parquet", row_group_size=4, **options)
    pq.write_table(table(0), folder / "a-2.parquet", **options)  # whose columns have other types
    pq.write_table(table(13, 10), folder / "a-10.parquet", row_group_size=5, **options)


@pytest.fixture
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


class TestCopied(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder, self.cache = tmp_path / "data", tmp_path / "cache"
        self.folder.mkdir()
        write_shards(self.folder)

    def make_source(self):
        return Dataset.open(self.folder, cache=self.cache)

    def expected_records(self):
        return expected()


class TestRowGroups(TestCopied):
    def make_source(self):
        return Dataset.open(self.folder, cache=False)

    def test_the_ways_to_shuffle(self):
        dataset = self.make_source()
        for shuffle in (dataset.shuffle, dataset.map(dict).take(9).shuffle):
            with pytest.raises(ChainError, match=r"leave cache=False out .* \.shuffle\(block="):
                shuffle()
        found = [int(one["x"]) for one in dataset.shuffle(0, window=7)]
        assert found != sorted(found) == list(range(COUNT))
        blocks = dataset.batch(5, drop_remainder=True).shuffle(0).unbatch().shuffle(1, window=10)
        assert sorted(int(one["x"]) for one in blocks) == list(range(20))


class TestLists(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.path, self.cache = tmp_path / "x.parquet", tmp_path / "cache"
        self.records = [
            {
                "tokens": np.arange(n, dtype=np.int32),
                "messages": [{"role": "user", "content": "x" * k} for k in range(n % 3)],
            }
            for n in range(COUNT)
        ]
        plain = [{**one, "tokens": one["tokens"].tolist()} for one in self.records]
        schema = pa.schema(
            {
                "tokens": pa.list_(pa.int32()),
                "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            }
        )
        pq.write_table(pa.Table.from_pylist(plain, schema), self.path, row_group_size=6)

    def make_source(self):
        return Dataset.open(self.path, cache=self.cache)

    def expected_records(self):
        return self.records


# The copy -----------------------------------------------------------------------------------------


def test_the_copy_is_made_once_and_said(tmp_path, cache, caplog):
    write_shards(tmp_path)
    with caplog.at_level(logging.INFO, "loaderx"):
        for _ in range(2):
            assert len(Dataset.open(tmp_path, cache=cache)) == COUNT
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"copying 3 Parquet files into {cache}: 23 records, ")
    assert len(list((cache / "files").iterdir())) == 1


def test_the_disk_is_looked_at_before_a_copy_is_written(tmp_path, cache, monkeypatch):
    write_shards(tmp_path)
    usage = namedtuple("usage", "total used free")(5000, 4000, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(FileError) as caught:
            Dataset.open(tmp_path, cache=cache)
    message = str(caught.value)
    begin = f"a copy of {tmp_path / 'a-1.parquet'} and 2 more does not fit into the cache folder"
    assert message.startswith(f"{begin} {cache}: it takes 0 MB or more, and the disk has 0 MB free")
    assert "Parquet and Lance are read without a copy with cache=False." in message
    assert not list((cache / "files").iterdir())
    assert len(Dataset.open(tmp_path, cache=cache)) == COUNT


def test_a_copy_needs_no_pyarrow(tmp_path, cache):
    write_shards(tmp_path)
    Dataset.open(tmp_path, cache=cache)
    script = (
        "import sys; from loaderx import Dataset\n"
        f"ds = Dataset.open({str(tmp_path)!r}, cache={str(cache)!r})\n"
        "print(len(ds), ds[3]['text'], 'pyarrow' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == f"23 {'text é 3' * 3} False False\n", done.stderr


def test_neither_way_imports_pandas(tmp_path, cache):
    write_shards(tmp_path)
    script = (
        "import sys; from loaderx import Dataset\n"
        f"for cache in (False, {str(cache)!r}):\n"
        f"    list(Dataset.open({str(tmp_path)!r}, cache=cache))\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_only_the_columns_that_were_asked_for_are_copied(tmp_path, cache):
    write_shards(tmp_path)
    dataset = Dataset.open(tmp_path, columns=["text", "x"], cache=cache)
    assert list(dataset[4]) == ["text", "x"]
    names = {path.name for path in cache.rglob("*.npy")}
    assert names == {"text.npy", "text.offsets.npy", "x.npy"}
    with pytest.raises(ArgumentError, match=r"a-1.parquet has no column 'y'; it has 'x', 'text'"):
        Dataset.open(tmp_path, columns=["y"], cache=cache)


def test_a_changed_file_is_copied_again(tmp_path, cache):
    path = tmp_path / "x.parquet"
    pq.write_table(table(5), path)
    Dataset.open(path, cache=cache)
    pq.write_table(table(6), path)
    os.utime(path, ns=(1, 1))
    assert len(Dataset.open(path, cache=cache)) == 6


def test_a_damaged_copy_is_made_again(tmp_path, cache):
    path = tmp_path / "x.parquet"
    pq.write_table(table(5), path)
    Dataset.open(path, cache=cache)
    (copied,) = cache.rglob("x.npy")
    copied.write_bytes(copied.read_bytes()[:-4])
    assert [int(one["x"]) for one in Dataset.open(path, cache=cache)] == [0, 1, 2, 3, 4]


def test_splits(tmp_path, cache):
    folder = tmp_path / "hub"
    (folder / "data").mkdir(parents=True)
    for name, count in (("train-00000-of-00002", 4), ("train-00001-of-00002", 3), ("test-0", 2)):
        pq.write_table(table(count), folder / "data" / f"{name}.parquet")
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(folder, cache=cache)
    assert len(Dataset.open(folder, split="train", cache=cache)) == 7
    assert len(Dataset.open(folder, split="train[1shard:]+test[:50%]", cache=False)) == 4
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: small\n"
        "    path: data/train-00001*\n---\n"
    )
    assert len(Dataset.open(folder, cache=cache)) == 3
    assert len(Dataset.open(folder, split="small", cache=cache)) == 3


def test_all_kinds_of_compression(tmp_path, cache):
    for name in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table(), path, compression=name, write_page_checksum=True)
        found = [int(one["x"]) for one in Dataset.open(path, cache=cache)]
        assert found == list(range(COUNT))


def test_a_name_without_suffix(tmp_path, cache):
    pq.write_table(table(5), tmp_path / "data")
    assert len(Dataset.open(tmp_path / "data", cache=cache)) == 5


@pytest.mark.parametrize("cached", [True, False])
def test_columns_in_the_names_of_folders(tmp_path, cache, cached):
    for year, lang in ((2023, "de"), (2023, "en"), (2024, "a%2Fb")):
        folder = tmp_path / "data" / f"year={year}" / f"lang={lang}"
        folder.mkdir(parents=True)
        pq.write_table(table(2), folder / "part-0.parquet")
    (tmp_path / "data" / "_SUCCESS").touch()
    dataset = Dataset.open(tmp_path / "data", cache=cache if cached else False)
    assert [int(one["year"]) for one in dataset] == [2023] * 4 + [2024] * 2
    assert [one["lang"] for one in dataset] == ["de", "de", "en", "en", "a/b", "a/b"]
    chosen = Dataset.open(tmp_path / "data", columns=["x"], cache=False)
    assert list(chosen[0]) == ["x"]
    folder = tmp_path / "data" / "year=2023" / "lang=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir()
    pq.write_table(table(1), folder / "part-0.parquet")
    with pytest.raises(FileError, match="column 'lang' has nulls"):
        Dataset.open(tmp_path / "data", cache=False)
    filled = Dataset.open(tmp_path / "data", fill={"lang": "?"}, cache=False)
    assert "?" in {one["lang"] for one in filled}


# Nulls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
def test_nulls_are_refused_when_it_is_opened(tmp_path, cache, cached):
    path, place = tmp_path / "x.parquet", cache if cached else False
    rows = [{"age": 3, "box": {"w": 1}, "tags": [1]}, {"age": None, "box": {"w": None}, "tags": []}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(FileError, match=r"x.parquet: column 'age' has 1 null, column 'box.w'"):
        Dataset.open(path, cache=place)
    with pytest.raises(FileError, match=r"column 'box.w' has 1 null"):
        Dataset.open(path, columns=["box"], cache=place)
    assert len(Dataset.open(path, columns=["tags"], cache=place)[1]["tags"]) == 0
    dataset = Dataset.open(path, fill={"age": -1, "box.w": 9}, cache=place)
    assert int(dataset[1]["age"]) == -1
    assert dataset[1]["age"].dtype == np.int64
    assert int(dataset[1]["box"]["w"]) == 9


@pytest.mark.parametrize("cached", [True, False])
def test_null_lists_are_found_when_they_are_read(tmp_path, cache, cached):
    path, place = tmp_path / "x.parquet", cache if cached else False
    pq.write_table(pa.table({"tags": [[1], None, [2, 3]]}), path)
    with pytest.raises((FileError, RecordError), match=r"x.parquet: column 'tags' has 1 null"):
        list(Dataset.open(path, cache=place))
    dataset = Dataset.open(path, fill={"tags": []}, cache=place)
    assert [one["tags"].tolist() for one in dataset] == [[1], [], [2, 3]]


def test_nulls_without_statistics(tmp_path, cache):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"age": [1, None]}), path, write_statistics=False)
    with pytest.raises(FileError, match=r"x.parquet: column 'age' has 1 null"):
        Dataset.open(path, cache=cache)
    assert not list((cache / "files").iterdir())


# Shards that differ -------------------------------------------------------------------------------


def shards(folder, *tables):
    for number, one in enumerate(tables):
        pq.write_table(one, folder / f"{number}.parquet")
    return folder


@pytest.mark.parametrize("cached", [True, False])
def test_order_and_width_of_columns_may_differ(tmp_path, cache, cached):
    one = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "c": [[1.5]]})
    two = pa.table(
        {
            "c": pa.array([[2.5]], pa.list_(pa.float32())),
            "b": pa.array(["y"], pa.large_string()),
            "a": pa.array([2**40]),
        }
    )
    dataset = Dataset.open(shards(tmp_path, one, two), cache=cache if cached else False)
    assert [int(record["a"]) for record in dataset] == [1, 2**40]
    assert {record["a"].dtype for record in dataset} == {np.dtype(np.int64)}
    assert [record["b"] for record in dataset] == ["x", "y"]
    assert [record["c"].tolist() for record in dataset] == [[1.5], [2.5]]
    assert {record["c"].dtype for record in dataset} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"b": ["x"]}, r"1.parquet has no column 'a', which .*0.parquet has"),
        (
            {"a": [1], "b": ["x"], "z": [1]},
            r"1.parquet has a column 'z', which .*0.parquet does not have",
        ),
        ({"a": ["1"], "b": ["x"]}, r"column 'a' is int64 in .*0.parquet, and text in .*1.parquet"),
        ({"a": [1.0], "b": ["x"]}, r"column 'a' is int64 in .*, and float64 in"),
        ({"a": pa.array([1], pa.uint64()), "b": ["x"]}, r"column 'a' is int64 in .*, and uint64"),
        ({"a": [[1]], "b": ["x"]}, r"column 'a' is int64 in .*, and lists of int64"),
        ({"a": [1], "b": [b"x"]}, r"column 'b' is text in .*, and bytes"),
    ],
)
def test_shards_that_do_not_fit(tmp_path, cache, other, message):
    folder = shards(tmp_path, pa.table({"a": [1], "b": ["x"]}), pa.table(other))
    for place in (cache, False):
        with pytest.raises(FileError, match=message):
            Dataset.open(folder, cache=place)


def test_an_extra_column_is_no_matter_if_columns_are_chosen(tmp_path):
    folder = shards(tmp_path, pa.table({"a": [1]}), pa.table({"a": [2], "z": [1]}))
    assert len(Dataset.open(folder, columns=["a"], cache=False)) == 2


def test_types_that_are_refused(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1], "d": pa.array([1], pa.decimal128(5, 2))}), path)
    with pytest.raises(FileError, match=r"column 'd' has the Arrow type decimal128.* columns="):
        Dataset.open(path, cache=False)
    assert len(Dataset.open(path, columns=["a"], cache=False)) == 1


def test_no_records(tmp_path):
    pq.write_table(table(0), tmp_path / "x.parquet")
    with pytest.raises(FileError, match=r"x.parquet: there are no records"):
        Dataset.open(tmp_path / "x.parquet", cache=False)


def test_damaged_files(tmp_path, cache):
    path = tmp_path / "x.parquet"
    pq.write_table(table(), path)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:4], b"PAR1" + bytes(100)):
        path.write_bytes(content)
        for place in (cache, False):
            with pytest.raises(FileError, match=r"x.parquet is damaged or cut off"):
                Dataset.open(path, cache=place)


def test_without_pyarrow(tmp_path, monkeypatch):
    pq.write_table(table(), tmp_path / "x.parquet")
    usual = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[parquet\]'"):
        Dataset.open(tmp_path / "x.parquet", cache=False)


# Hugging Face -------------------------------------------------------------------------------------


def png(number):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    out = io.BytesIO()
    image.fromarray(np.full((2, 3, 3), number, np.uint8)).save(out, "png")
    return out.getvalue()


def with_features(columns, features):
    told = json.dumps({"info": {"features": features}})
    return pa.table(columns).replace_schema_metadata({"huggingface": told})


def test_features_of_hugging_face(tmp_path, cache):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [{"bytes": b"no image", "path": None}] * 5
    grid = [[[n, 2], [3, 4]] for n in range(5)]
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
        "grid": {"_type": "Array2D", "shape": [2, 2], "dtype": "int64"},
    }
    columns = {"image": pa.array(images, kind), "label": [0, 1, 0, 1, 1], "grid": grid}
    pq.write_table(with_features(columns, features), tmp_path / "x.parquet")
    for place in (cache, False):
        raw = Dataset.open(tmp_path / "x.parquet", decode=False, cache=place)
        assert raw.classes == {"label": ("cat", "dog")}
        assert raw[2]["image"] == b"no image"
        assert raw[2]["grid"].tolist() == [[2, 2], [3, 4]]


@pytest.mark.parametrize("cached", [True, False])
def test_images_are_decoded(tmp_path, cache, cached):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [{"bytes": png(n), "path": None} for n in range(5)]
    images[3]["bytes"] = b"no image"
    columns = {"image": pa.array(images, kind), "n": list(range(5))}
    pq.write_table(with_features(columns, {"image": {"_type": "Image"}}), tmp_path / "x.parquet")
    dataset = Dataset.open(tmp_path / "x.parquet", cache=cache if cached else False)
    assert dataset[2]["image"].tolist() == np.full((2, 3, 3), 2).tolist()
    with pytest.raises(RecordError, match=r"record 3: .*x.parquet, record 3: .*image") as caught:
        list(dataset.batch(5))
    assert caught.value.index == 3
    assert [int(one["n"]) for one in dataset.on_error("replace")].count(3) == 0


# Without a copy ---------------------------------------------------------------------------------


LARGE = pytest.mark.large


@pytest.mark.parametrize(
    "workers", [None, 2, pytest.param(1, marks=LARGE), pytest.param(4, marks=LARGE)]
)
def test_row_groups_are_decoded_once_in_an_epoch(workers, tmp_path):
    for number in range(3):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table(50, 50 * number), path, row_group_size=8)
    dataset = Dataset.open(tmp_path, cache=False).shuffle(1, block="source", window=30).batch(7)
    expected = [batch["x"].tolist() for batch in dataset]
    assert sorted(x for batch in expected for x in batch) == list(range(150))
    dataset = Dataset.open(tmp_path, cache=False)
    blocks = node_of(dataset).source.kept_chunks
    blocks.decode = Logged(blocks.decode, tmp_path / "log")
    engine = "inline" if workers is None else "processes"
    shuffled = dataset.shuffle(1, block="source", window=30).batch(7)
    with DataLoader(shuffled, engine=engine, num_workers=workers) as loader:
        assert [batch["x"].tolist() for batch in loader] == expected
    assert reads(tmp_path / "log") == dict.fromkeys(range(21), 1)


def test_texts_of_damaged_blocks_are_named_where_they_are(tmp_path):
    """One wrong text among many: the others of its row group can be read, in any order."""
    texts = [f"text {number}".encode() for number in range(60)]
    texts[33] = b"\xff\xfe"
    column = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet", row_group_size=30)
    dataset = Dataset.open(tmp_path / "x.parquet", cache=False)
    shuffled = dataset.shuffle(1, block="source", window=60)
    with pytest.raises(RecordError, match="record 33"):
        list(shuffled.batch(20))
    kept = [record["text"] for record in shuffled.on_error("skip")]
    assert sorted(kept) == sorted(text.decode() for text in texts if b"\xff" not in text)
    assert kept != sorted(kept)


def test_row_groups_are_saved_without_making_records(tmp_path):
    pq.write_table(table(), tmp_path / "x.parquet", row_group_size=4)
    ds = Dataset.open(tmp_path / "x.parquet", cache=False)
    pieces = table_columns(node_of(ds).source, np.arange(3, 9))
    assert [piece.data.length for piece in pieces] == [1, 4, 1]
    assert pieces[0].kind.fields["text"].kind == "text"
    ds.save(tmp_path / "out", engine="inline")
    check_all_equal(list(Dataset.open(tmp_path / "out")), expected(), "record")
