"""Padded batches that are made of columns are those that are stacked from records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from inside import source_of
from loaderx import DataLoader, Dataset
from loaderx.errors import LoaderxError, StackError
from loaderx.sources import HuggingFace, Jsonl, TFRecord
from loaderx.sources.columns.build import fixed_column, run_column
from loaderx.sources.columns.elements import ListedArrays
from loaderx.sources.columns.run_columns import ListColumn, TextColumn
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Parts
from loaderx.sources.native import copies as native_copies
from loaderx.tree import ArraySpec
from tf_files import example, write_tfrecord


def lists(counts, lengths, dtype=np.int32, shape=()):
    """A column of lists in parts of so many records."""
    rng = np.random.default_rng(0)
    data, offsets, at = [], [], 0
    for count in counts:
        ends = np.cumsum(lengths[at : at + count])
        at += count
        offsets.append(np.concatenate([[0], ends]).astype(np.int64))
        data.append(rng.integers(1, 100, (int(offsets[-1][-1]), *shape)).astype(dtype))
    return run_column(ListColumn, Parts(counts), ListedArrays(data), ListedArrays(offsets))


def table(columns, count):
    return TableSource(columns, count, label="lists")


def outcome(dataset):
    try:
        return [
            {path: (repr(leaf), leaf.dtype, leaf.shape) for path, leaf in _leaves(batch)}
            for batch in dataset
        ]
    except LoaderxError as error:
        return type(error).__name__, str(error)


def _leaves(batch, inside=""):
    for name, leaf in batch.items():
        if isinstance(leaf, dict):
            yield from _leaves(leaf, f"{inside}{name}.")
        else:
            yield f"{inside}{name}", leaf


def both(source, *args, **options):
    """The same batches from columns, and from records that went through a map."""
    dataset = Dataset.from_source(source).shuffle(3)
    return (
        outcome(dataset.batch(*args, **options)),
        outcome(dataset.map(lambda record: record).batch(*args, **options)),
    )


LENGTHS = np.random.default_rng(1).integers(0, 20, 60)
LENGTHS[[5, 59]] = 0, 19


@pytest.mark.parametrize("counts", [[60], [20, 0, 1, 39]])
@pytest.mark.parametrize(("dtype", "shape"), [("int32", ()), ("uint8", ()), ("float64", (3,))])
@pytest.mark.parametrize("pad_to", [19, 25, 400])
@pytest.mark.parametrize("value", [0, 7, {"x": 3}])
def test_lists(counts, dtype, shape, pad_to, value):
    parts = Parts(counts)
    numbers = np.split(np.arange(60), np.cumsum(counts)[:-1])
    label = fixed_column(parts, ListedArrays(numbers), ArraySpec((), np.dtype(np.int64)))
    source = table({"x": lists(counts, LENGTHS, dtype, shape), "label": label}, 60)
    ours, expected = both(source, 16, pad_to={"x": pad_to}, pad_value=value)
    assert ours == expected
    assert isinstance(ours, list)


def arrow_source(folder, of_lists):
    """Lists of one kind in record batches of two files, some of them at odd addresses."""
    pa = pytest.importorskip("pyarrow")
    ends = np.cumsum([0, *LENGTHS])
    numbers = np.arange(ends[-1])
    kinds = {
        "int16": pa.array(numbers, pa.int16()),
        "bool": pa.array(numbers % 3 > 0),
        "date": pa.array(numbers.astype(np.int32), pa.date32()),
        "pairs": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2.0 * len(numbers))), 2),
    }
    values = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), kinds[of_lists])
    made = pa.table({"x": values, "label": np.arange(60)})
    for number, part in enumerate((made.slice(0, 25), made.slice(25))):
        with pa.ipc.new_stream(folder / f"{number}.arrow", part.schema) as writer:
            writer.write_table(part, max_chunksize=7)
    return source_of(Dataset.open(folder))


@pytest.mark.parametrize("of_lists", ["int16", "bool", "date", "pairs"])
@pytest.mark.parametrize("pad_to", [20, 700])
def test_lists_of_arrow(of_lists, pad_to, tmp_path):
    source = arrow_source(tmp_path, of_lists)
    assert source.padded({"x": pad_to}) is not None
    ours, expected = both(source, 16, pad_to={"x": pad_to})
    assert ours == expected


def test_lists_of_a_dataset_of_hugging_face():
    """Its lists lie anywhere in memory."""
    datasets = pytest.importorskip("datasets")
    values = [list(range(n)) for n in LENGTHS.tolist()]
    source = HuggingFace(datasets.Dataset.from_dict({"x": values}))
    assert source.padded({"x": 20}) is not None
    ours, expected = both(source, 16, pad_to={"x": 20})
    assert ours == expected


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "of_lists", [None, ArraySpec((None,), np.dtype(np.int32)), ArraySpec((None, 2), np.dtype("i8"))]
)
def test_lists_of_examples(packed, of_lists, tmp_path):
    payloads = [
        example({"x": list(range(2 * n)), "label": [n]} if n else {"label": [0]}, packed)
        for n in LENGTHS.tolist()
    ]
    write_tfrecord(tmp_path / "x.tfrecord", payloads)
    features = {} if of_lists is None else {"x": of_lists}
    source = TFRecord(tmp_path / "x.tfrecord", features=features)
    assert source.padded({"x": 40}) is not None
    ours, expected = both(source, 16, pad_to={"x": 40})
    assert ours == expected


def test_all_lists_are_empty():
    source = table({"x": lists([5], np.zeros(5, int))}, 5)
    ours, expected = both(source, 5, pad_to={"x": 4})
    assert ours == expected


def test_fields_text_and_masks():
    text = np.frombuffer("".join(f"é{n}" for n in range(60)).encode(), np.uint8)
    ends = np.cumsum([0, *(len(f"é{n}".encode()) for n in range(60))])
    column = run_column(TextColumn, Parts([60]), ListedArrays([text]), ListedArrays([ends]))
    source = table({"a": {"x": lists([60], LENGTHS), "t": column}, "y": lists([60], LENGTHS)}, 60)
    for options in ({}, {"pad_remainder": True}, {"drop_remainder": True}):
        ours, expected = both(source, 16, pad_to={"a.x": 20, "y": 30}, **options)
        assert ours == expected
        assert isinstance(ours, list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": {"x": 10}}, r"cannot pad leaf \"x\" to 10: record \d+ has length 1\d"),
        ({"pad_to": {"z": 10}}, "`pad_to` names a leaf 'z' that records do not have"),
        ({"pad_to": {"x": 30, "label": 2}}, "it has no axis to pad"),
        ({"pad_to": {"x": 30}, "pad_value": 0.5}, '`pad_value` is 0.5, and leaf "x" is int32'),
    ],
)
def test_errors_are_those_of_records(options, message):
    label = fixed_column(
        Parts([60]), ListedArrays([np.arange(60)]), ArraySpec((), np.dtype(np.int64))
    )
    source = table({"x": lists([60], LENGTHS), "label": label}, 60)
    ours, expected = both(source, 60, **options)
    assert ours == expected
    with pytest.raises(StackError, match=message):
        list(Dataset.from_source(source).batch(60, **options))


def test_lists_that_are_not_padded():
    source = table({"x": lists([60], LENGTHS), "y": lists([60], np.full(60, 4))}, 60)
    ours, expected = both(source, 16, pad_to={"x": 30})
    assert ours == expected
    assert isinstance(ours, list)


def test_a_leaf_that_is_there_already():
    length = fixed_column(
        Parts([60]), ListedArrays([np.arange(60)]), ArraySpec((), np.dtype(np.int64))
    )
    source = table({"x": lists([60], LENGTHS), "x_length": length}, 60)
    ours, expected = both(source, 16, pad_to={"x": 30})
    assert ours == expected
    assert "records have one already" in ours[1]


def test_batches_that_are_taken_apart_again():
    dataset = Dataset.from_source(table({"x": lists([60], LENGTHS)}, 60))
    ours, expected = (
        outcome(one.batch(15, pad_to={"x": 30}).shuffle(0).unbatch().batch(7))
        for one in (dataset, dataset.map(lambda record: record))
    )
    assert ours == expected


@pytest.mark.parametrize("odd", [None, {"id": 2**70}, {"id": 2**40}, {"tokens": [1.5]}])
def test_json_lines(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    rows = [{"id": n, "t": f"{n}", "x": n / 3, "tokens": [n] * int(LENGTHS[n % 60])}
            for n in range(150)]  # fmt: skip
    rows[120].update(odd or {})
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    copied, plain = (Jsonl(path, cache=cache) for cache in (tmp_path / "c", False))
    ours = outcome(Dataset.from_source(copied).batch(16, pad_to={"tokens": 40}))
    assert ours == outcome(Dataset.from_source(plain).batch(16, pad_to={"tokens": 40}))
    assert isinstance(ours, list) == (odd is None)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_workers(engine, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(
        pa.table({"x": [[n] * int(LENGTHS[n]) for n in range(60)], "n": list(range(60))}),
        tmp_path / "x.parquet",
    )
    dataset = Dataset.open(tmp_path / "x.parquet").shuffle(1).batch(16, pad_to={"x": 20})
    with DataLoader(dataset, engine=engine, num_workers=1) as loader:
        assert outcome(loader) == outcome(dataset)
