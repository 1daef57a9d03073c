"""MDS folders, as mosaicml-streaming wrote them (`tests/files/make_mds.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from loaderx import Dataset, RecordError
from loaderx.errors import ArgumentError, FileError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

FILES = Path(__file__).parents[2] / "files" / "mds"


def source(name, **options):
    ((found, _, _),) = open_path(FILES / name, **options)
    return found


def image(number, channels):
    pixels = (np.arange(6 * 5 * channels) * (number + 1) % 256).astype(np.uint8)
    return pixels.reshape(6, 5, channels)


class TestFixed(SourceContract):
    """Columns of one size, in twelve shards of which one is empty."""

    def make_source(self):
        return source("fixed")

    def expected_records(self):
        return [
            {
                "image": np.full((4, 3), n, np.uint8),
                "label": np.int64(n - 3),
                "weight": np.float32(n / 2),
            }
            for n in range(11)
        ]


class TestMixed(SourceContract):
    """Columns of all kinds."""

    def make_source(self):
        return source("mixed", columns=["any", "floats", "number", "pil", "png", "raw", "text"])

    def expected_records(self):
        kinds = [np.uint8, np.int32, np.float16]
        return [
            {
                "any": np.arange(n + 1, dtype=kinds[n % 3]).reshape(1, -1),
                "floats": np.arange(300 * (n % 2) + 2) / 4,
                "number": np.int16(-n),
                "pil": image(n, 1),
                "png": image(n, 3),
                "raw": bytes(range(n)),
                "text": "ö" * n,
            }
            for n in range(7)
        ]


def test_columns_come_in_the_order_that_was_asked_for():
    names = ["text", "raw", "number"]
    for order in (names, names[::-1]):
        dataset = Dataset.open(FILES / "mixed", columns=order)
        assert list(dataset[0]) == order
        (batch,) = dataset.batch(7)
        assert list(batch) == order


def test_texts_and_numbers_are_gathered():
    (batch,) = Dataset.open(FILES / "mixed", columns=["text", "number", "raw"]).batch(7)
    assert batch["text"].tolist() == ["ö" * n for n in range(7)]
    assert batch["number"].tolist() == [-n for n in range(7)]
    assert batch["raw"].tolist() == [bytes(range(n)) for n in range(7)]


def test_other_kinds():
    names = ["digits", "real", "tree", "pngs"]
    for n, record in enumerate(Dataset.open(FILES / "mixed", columns=names)):
        assert record["digits"] == 10**30 + n
        assert record["real"] == n / 3
        assert record["tree"] == {"a": [n]}
        assert [one.tolist() for one in record["pngs"]] == [
            image(k, 3).tolist() for k in range(n % 3)
        ]


def test_images_as_bytes():
    record = Dataset.open(FILES / "mixed", columns=["png"], decode=False)[0]
    assert record["png"].startswith(b"\x89PNG")


def test_splits_and_shards():
    with pytest.raises(ArgumentError, match="has the splits 'train', 'val'"):
        Dataset.open(FILES / "splits")
    texts = [r["text"] for r in Dataset.open(FILES / "splits", split="val[1:3]+train[:1]")]
    assert texts == ["val 1", "val 2", "train 0"]
    labels = [int(r["label"]) for r in Dataset.open(FILES / "fixed", split="[-1shard:]")]
    assert labels == [7]


@pytest.mark.parametrize("kind", ["zstd", "gz"])
def test_packed_shards(kind, tmp_path):
    found = Dataset.open(FILES / kind, cache=tmp_path)
    assert [int(record["x"]) for record in found] == list(range(5))


def test_what_is_refused():
    with pytest.raises(FileError, match=r"is packed with br; loaderx unpacks zstd and gz"):
        Dataset.open(FILES / "brotli")
    with pytest.raises(FileError, match=r"column 'bad' has pickles, which could run any code"):
        Dataset.open(FILES / "pickles")
    assert len(Dataset.open(FILES / "pickles", columns=["x"])) == 5
    with pytest.raises(ArgumentError, match=r"has no column 'z'; it has 'image', 'label'"):
        Dataset.open(FILES / "fixed", columns=["z"])


def changed_index(tmp_path, change):
    place = tmp_path / "mds"
    shutil.copytree(FILES / "fixed", place)
    told = json.loads((place / "index.json").read_text())
    change(told["shards"])
    (place / "index.json").write_text(json.dumps(told))
    return place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s[1].update(format="csv"), "shard 1 has the format 'csv'"),
        (lambda s: s[1].update(column_names=["a"]), "shard 1 has other column names"),
        (lambda s: s[1].update(samples=7), "it does not hold the 7 samples"),
        (lambda s: [one.update(column_sizes=[1, 8, 4]) for one in s], "has 1 bytes, and its"),
        (lambda s: s.clear(), "lists no shards"),
        (lambda s: s[0].pop("format"), r"index.json is damaged or cut off: 'format'"),
    ],
)
def test_an_index_that_is_wrong(tmp_path, change, message):
    with pytest.raises(FileError, match=message):
        Dataset.open(changed_index(tmp_path, change))


def test_a_shard_that_is_cut_or_gone(tmp_path):
    place = tmp_path / "mds"
    shutil.copytree(FILES / "mixed", place)
    shard = place / "shard.00000.mds"
    data = shard.read_bytes()
    shard.write_bytes(data[:-50])
    found = Dataset.open(place, columns=["text"])
    assert found[5]["text"] == "ö" * 5
    with pytest.raises(RecordError, match=r"shard.00000.mds is damaged or cut off: sample 6"):
        found[6]
    shard.write_bytes(data[:20])
    with pytest.raises(FileError, match="it does not hold the 7 samples"):
        Dataset.open(place)
    shard.unlink()
    with pytest.raises(
        FileError, match=r"index.json lists .*shard.00000.mds, and there is no such file"
    ):
        Dataset.open(place, format="mds")


@pytest.mark.parametrize("name", ["fixed", "zstd"])
def test_a_folder_without_its_shards_is_still_mds(tmp_path, name):
    folder = tmp_path / "mds"
    folder.mkdir()
    shutil.copy(FILES / name / "index.json", folder)
    with pytest.raises(FileError, match=r"index.json lists .*shard.* Copy or download the whole"):
        Dataset.open(folder)


def test_a_value_that_cannot_be_decoded_names_the_shard(tmp_path):
    place = tmp_path / "mds"
    shutil.copytree(FILES / "mixed", place)
    shard = place / "shard.00000.mds"
    data = shard.read_bytes()
    assert "ö".encode() in data
    shard.write_bytes(data.replace("ö".encode(), b"\xff\xff"))
    with pytest.raises(
        RecordError, match=r"shard.00000.mds, sample \d+: UnicodeDecodeError: 'utf-8'"
    ) as caught:
        list(Dataset.open(place, columns=["text"]))
    assert isinstance(caught.value.__cause__, FileError)
