"""Datasets of Hugging Face as objects: read by address, with the values of their own code."""

from __future__ import annotations

import datetime as dt
import pickle

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets.table import InMemoryTable
from PIL import Image

from inside import source_of
from loaderx import Dataset, StackError
from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources import HuggingFace, ObjectSource
from loaderx.sources.formats.arrow.objects import PlainTable
from loaderx.testing import SourceContract
from oracle import assert_same, stack

pytestmark = pytest.mark.foreign

N = 50
VALUE = datasets.Value
FEATURES = {
    "int8": VALUE("int8"),
    "int64": VALUE("int64"),
    "uint16": VALUE("uint16"),
    "float16": VALUE("float16"),
    "float32": VALUE("float32"),
    "float64": VALUE("float64"),
    "flag": VALUE("bool"),
    "text": VALUE("string"),
    "long_text": VALUE("large_string"),
    "file": VALUE("binary"),
    "label": datasets.ClassLabel(names=["cat", "dog"]),
    "tokens": datasets.Sequence(VALUE("int32")),
    "flags": datasets.Sequence(VALUE("bool")),
    "vector": datasets.Sequence(VALUE("float32"), length=3),
    "words": datasets.Sequence(VALUE("string")),
    "lists": datasets.Sequence(datasets.Sequence(VALUE("int64"))),
    "matrix": datasets.Array2D((2, 3), "uint8"),
    "nested": {"a": VALUE("int64"), "b": {"c": VALUE("string")}},
    "turns": [{"role": VALUE("string"), "count": VALUE("int32")}],
    "answers": datasets.Sequence({"start": VALUE("int32"), "text": VALUE("string")}),
    "image": datasets.Image(decode=False),
    "some": VALUE("int64"),
}


def record(i):
    return {
        "int8": i - 20,
        "int64": i * 1000,
        "uint16": i,
        "float16": i / 4,
        "float32": i / 3,
        "float64": i / 7,
        "flag": i % 3 == 0,
        "text": f"text {i} é",
        "long_text": "x" * (i % 5),
        "file": bytes([i, 0]),
        "label": i % 2,
        "tokens": list(range(i % 6)),
        "flags": [True, False, i % 2 == 0][: i % 4],
        "vector": [i, i + 0.5, -i],
        "words": [f"w{k}" for k in range(i % 3)],
        "lists": [list(range(k)) for k in range(i % 4)],
        "matrix": np.full((2, 3), i, np.uint8),
        "nested": {"a": i, "b": {"c": str(i)}},
        "turns": [{"role": f"r{k}", "count": k} for k in range(i % 3)],
        "answers": {"start": list(range(i % 3)), "text": ["t"] * (i % 3)},
        "image": {"bytes": bytes([i]), "path": None if i % 2 else f"{i}.png"},
        "some": None if i % 5 else i,
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    made = datasets.Dataset.from_list([record(i) for i in range(N)], datasets.Features(FEATURES))
    folder = tmp_path_factory.mktemp("hf") / "saved"
    made.save_to_disk(folder)
    return datasets.load_from_disk(folder)


def mapped(data):
    return data.map(lambda r: {"text": r["text"] * 2}, load_from_cache_file=False, batch_size=7,
                    writer_batch_size=7)  # fmt: skip


CHANGES = {
    "as it is": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=3),
    "a slice": lambda data: data.select(range(11, 40)),
    "selected": lambda data: data.select([40, 3, 3, 17, 0]),
    "filtered": lambda data: data.filter(lambda r: r["int64"] % 3000 == 0),
    "mapped": mapped,
    "concatenated": lambda data: datasets.concatenate_datasets(
        [data.select(range(5, 20)), mapped(data).shuffle(seed=1), data.select([2])]
    ),
    "renamed": lambda data: data.rename_column("int64", "number"),
    "shuffled twice": lambda data: data.shuffle(seed=3).shuffle(seed=4).select(range(9)),
    "flattened": lambda data: data.shuffle(seed=3).flatten_indices(),
    "in memory": lambda data: datasets.Dataset.from_list(data.to_list(), data.features),
}


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("change", CHANGES)
def test_records_are_those_of_indexing(plain, change):
    data = CHANGES[change](plain)
    source = source_of(Dataset.from_source(data))
    assert isinstance(source, PlainTable)
    for indices in (np.arange(len(data)), np.array([3, 0, 3, len(data) - 1]), np.array([2])):
        same(source.records(indices), data.__getitems__(indices.tolist()))


@pytest.mark.parametrize("change", CHANGES)
def test_batches_are_those_of_indexing(plain, change):
    stacked = ["int8", "uint16", "float16", "float32", "float64", "flag", "text", "file", "vector"]
    data = CHANGES[change](plain).select_columns([*stacked, "nested"])
    dataset = Dataset.from_source(data)
    assert source_of(dataset).gathers
    records = data.__getitems__(list(range(len(data))))
    expected = [stack(records[i : i + 16]) for i in range(0, len(data), 16)]
    assert_same(dataset.batch(16), expected)
    before = Dataset.from_source(Indexed(data))
    assert_same(dataset.shuffle(3).batch(4), list(before.shuffle(3).batch(4)))


class Indexed:
    """Only the indexing of a dataset: nothing of it is recognised."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def test_what_is_left_to_their_own_code(plain):
    times = [{"when": dt.datetime(2020, 1, 1)}]
    image = datasets.Features({"image": datasets.Image()})
    png = [{"image": {"bytes": b"", "path": None}}]
    for data in (
        plain.with_format("numpy"),
        plain.with_format(columns=["text"]),
        plain.with_transform(lambda batch: {"n": batch["int64"]}),
        datasets.Dataset.from_list(times),
        datasets.Dataset.from_list(png, image),
        datasets.Dataset.from_list([{"a": {"b": 1}}, {"a": None}]),
        datasets.Dataset.from_list([{"a": [1, None]}]),
    ):
        assert isinstance(source_of(Dataset.from_source(data)), ObjectSource)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.uint32(), pa.uint8()])
def test_row_numbers_of_other_types(kind):
    """They were read eight bytes at a time."""
    rows = [5, 3, 39, 7]
    table = InMemoryTable(pa.table({"x": range(40)}))
    numbers = InMemoryTable(pa.table({"indices": pa.array(rows, kind)}))
    data = datasets.Dataset(table, indices_table=numbers)
    for source in (data, HuggingFace(data)):
        assert [int(record["x"]) for record in Dataset.from_source(source)] == rows


def test_translations():
    features = datasets.Features({"pair": datasets.Translation(["en", "de"])})
    data = datasets.Dataset.from_list(
        [{"pair": {"en": "a", "de": f"{i}"}} for i in range(4)], features
    )
    source = source_of(Dataset.from_source(data))
    assert isinstance(source, PlainTable)
    same(source.records(np.arange(4)), data.__getitems__([0, 1, 2, 3]))


def test_numbers_that_do_not_fit_are_reported_as_before():
    data = datasets.Dataset.from_dict({"x": [1, 2**40, 3]})
    with pytest.raises(StackError, match="the Python integer 1099511627776 does not fit"):
        list(Dataset.from_source(data).batch(3))
    data = datasets.Dataset.from_dict({"x": [1.0, 1e300]})
    with pytest.raises(StackError, match="does not fit into float32"):
        list(Dataset.from_source(data).batch(2))


def test_classes_and_label(plain):
    dataset = Dataset.from_source(plain)
    assert dataset.classes == {"label": ("cat", "dog")}
    assert "from_source(Dataset, 50 records)" in repr(dataset)


class TestPlainTable(SourceContract):
    can_be_sent = False  # which would import `datasets`, for half a minute on a busy machine

    @pytest.fixture(autouse=True)
    def _data(self, plain):
        self.data = plain.shuffle(seed=5).select_columns(["text", "int8", "vector"])

    def make_source(self):
        return PlainTable(self.data)

    def expected_records(self):
        return self.data.to_list()


# HuggingFace ------------------------------------------------------------------------------------


class TestHuggingFace(SourceContract):
    can_be_sent = False

    @pytest.fixture(autouse=True)
    def _data(self, plain):
        self.data = plain.shuffle(seed=5)

    def make_source(self):
        return HuggingFace(self.data, columns=["text", "tokens", "matrix"])

    def expected_records(self):
        return [
            {
                "text": one["text"],
                "tokens": np.array(one["tokens"], np.int32),
                "matrix": np.array(one["matrix"], np.uint8),
            }
            for one in self.data
        ]


def test_arrays_in_their_own_dtypes(plain):
    source = HuggingFace(plain.with_format("numpy"), fill={"some": -1}, decode=False)
    dataset = Dataset.from_source(source)
    found = dataset[7]
    assert found["int64"].dtype == np.int64
    assert found["float16"].dtype == np.float16
    assert found["tokens"].tolist() == [0]
    assert found["matrix"].shape == (2, 3)
    assert found["lists"][2].tolist() == [0, 1]
    assert found["turns"] == [{"role": "r0", "count": 0}]
    assert found["image"] == bytes([7])
    assert found["some"] == -1
    assert dataset.classes == {"label": ("cat", "dog")}
    assert pickle.loads(pickle.dumps(source))[7]["text"] == "text 7 é"


def test_gray_images_have_one_channel_whoever_reads_them(tmp_path):
    pixels = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(2)})
    rows = {"image": [Image.fromarray(pixels + n) for n in range(4)], "label": [0, 1, 0, 1]}
    data = datasets.Dataset.from_dict(rows, features)
    data.save_to_disk(tmp_path / "gray")
    expected = np.stack([pixels + n for n in range(4)])[..., None]
    for source, label in (
        (Dataset.open(tmp_path / "gray"), np.int64),
        (Dataset.from_source(HuggingFace(data)), np.int64),
        (Dataset.from_source(data), np.int32),  # Python's numbers, as everywhere
    ):
        (batch,) = source.batch(4)
        np.testing.assert_array_equal(batch["image"], expected, strict=True)
        assert batch["label"].dtype == label
        assert source.element_spec["image"].shape == (4, 6, 1)
    assert Dataset.from_source(data)[0]["image"].mode == "L"  # records stay what indexing gives


def test_what_it_refuses(plain):
    with pytest.raises(FileError, match="column 'some' has 40 nulls"):
        HuggingFace(plain)
    with pytest.raises(ArgumentError, match="has no column 'x'"):
        HuggingFace(plain, columns=["x"])
    with pytest.raises(ArgumentTypeError, match="a datasets.Dataset is needed, got dict"):
        HuggingFace({})
    with pytest.raises(ArgumentError, match="is empty"):
        HuggingFace(plain.select([]), fill={"some": 0})
