"""Folders of Hugging Face: saved datasets and the cache."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, RecordError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

pytestmark = pytest.mark.foreign

N = 12
VALUE = datasets.Value
FEATURES = datasets.Features(
    {
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "image": datasets.Image(),
        "sound": datasets.Audio(decode=False),
        "tokens": datasets.Sequence(VALUE("int32")),
        "matrix": datasets.Array2D((2, 3), "float32"),
        "frames": datasets.Array3D((None, 2, 2), "uint8"),
        "point": datasets.Sequence(VALUE("float64"), length=2),
        "pair": {"en": VALUE("string"), "tag": datasets.ClassLabel(names=["a", "b", "c"])},
        "turns": [{"role": VALUE("string"), "text": VALUE("string")}],
    }
)


def png(i):
    file = io.BytesIO()
    Image.fromarray(np.full((3, 2 + i % 2, 3), i * 9, np.uint8)).save(file, "PNG")
    return file.getvalue()


def row(i):
    return {
        "label": i % 2,
        "image": {"bytes": png(i), "path": f"{i}.png"},
        "sound": {"bytes": bytes([i] * 3), "path": None},
        "tokens": list(range(i % 4)),
        "matrix": np.full((2, 3), i / 2, np.float32),
        "frames": np.full((1 + i % 2, 2, 2), i, np.uint8),
        "point": [i, -i],
        "pair": {"en": f"word {i}", "tag": i % 3},
        "turns": [{"role": "user", "text": str(k)} for k in range(i % 3)],
    }


def expected(i):
    return {
        "label": np.int64(i % 2),
        "image": np.full((3, 2 + i % 2, 3), i * 9, np.uint8),
        "sound": bytes([i] * 3),
        "tokens": np.arange(i % 4, dtype=np.int32),
        "matrix": np.full((2, 3), i / 2, np.float32),
        "frames": np.full((1 + i % 2, 2, 2), i, np.uint8),
        "point": np.array([i, -i], np.float64),
        "pair": {"en": f"word {i}", "tag": np.int64(i % 3)},
        "turns": [{"role": "user", "text": str(k)} for k in range(i % 3)],
    }


@pytest.fixture(scope="module")
def made():
    # `datasets` encodes sounds with torch; as dicts they are the same on disk.
    as_dict = {"bytes": VALUE("binary"), "path": VALUE("string")}
    features = datasets.Features({**FEATURES, "sound": as_dict})
    plain = datasets.Dataset.from_list([row(i) for i in range(N)], features)
    return datasets.Dataset(plain.data, datasets.DatasetInfo(features=FEATURES))


@pytest.fixture(scope="module")
def saved(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "data"
    made.save_to_disk(folder, num_shards=3)
    return folder


class TestSaved(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, saved):
        self.folder = saved

    def make_source(self):
        ((found, _, _),) = open_path(self.folder)
        return found

    def expected_records(self):
        return [expected(i) for i in range(N)]


def test_classes_and_shards(saved):
    found = Dataset.open(saved)
    assert found.classes == {"label": ("cat", "dog"), "pair.tag": ("a", "b", "c")}
    assert len(Dataset.open(saved, split="[:1shard]")) == 4
    assert "huggingface" in repr(found)


def test_without_decoding(saved):
    assert Dataset.open(saved, decode=False, columns=["image"])[5] == {"image": png(5)}


def test_a_dict_of_splits(made, tmp_path):
    both = datasets.DatasetDict({"train": made.select(range(8)), "test": made.select(range(8, N))})
    both.save_to_disk(tmp_path / "data")
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(tmp_path / "data")
    assert len(Dataset.open(tmp_path / "data", split="train")) == 8
    found = Dataset.open(tmp_path / "data", split="test+train[:2]", columns=["pair"])
    assert [one["pair"]["en"] for one in found] == [f"word {i}" for i in (8, 9, 10, 11, 0, 1)]


def test_results_of_map_are_not_data(made, tmp_path):
    made.select_columns(["label"]).save_to_disk(tmp_path / "data")
    loaded = datasets.load_from_disk(tmp_path / "data")
    loaded.map(lambda one: {"twice": one["label"] * 2}, load_from_cache_file=False)
    assert list((tmp_path / "data").glob("cache-*.arrow"))
    assert list(Dataset.open(tmp_path / "data")[0]) == ["label"]


def test_the_cache_folder(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {i}\n" for i in range(20)))
    cache = str(tmp_path / "cache")
    files = {"train": str(lines), "validation": str(lines)}
    datasets.load_dataset("text", data_files=files, cache_dir=cache)
    (info,) = (tmp_path / "cache").rglob("dataset_info.json")
    (info.parent / "cache-0123.arrow").write_bytes(b"not this")
    with pytest.raises(ArgumentError, match="has the splits 'train', 'validation'"):
        Dataset.open(info.parent)
    found = Dataset.open(info.parent, split="validation")
    assert [one["text"] for one in found] == [f"line {i}" for i in range(20)]
    (file,) = info.parent.glob("*-train.arrow")
    assert len(Dataset.open(file)) == 20


def test_indices_of_old_versions(made, tmp_path):
    made.select_columns(["label", "pair"]).save_to_disk(tmp_path / "data", num_shards=2)
    rows = [11, 3, 3, 0, 7, 1]
    indices = pa.table({"indices": pa.array(rows, pa.uint64())})
    with pa.ipc.new_stream(str(tmp_path / "data" / "indices.arrow"), indices.schema) as writer:
        writer.write_table(indices, max_chunksize=4)
    state = json.loads((tmp_path / "data" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "data" / "state.json").write_text(json.dumps(state))
    found = Dataset.open(tmp_path / "data")
    assert [one["pair"]["en"] for one in found] == [f"word {i}" for i in rows]
    assert [int(label) for label in next(iter(found.batch(6)))["label"]] == [1, 1, 1, 0, 1, 1]


def test_row_numbers_of_another_type(made, tmp_path):
    made.select_columns(["label"]).save_to_disk(tmp_path / "data")
    indices = pa.table({"indices": pa.array([3, 1, 0], pa.uint32())})
    with pa.ipc.new_stream(str(tmp_path / "data" / "indices.arrow"), indices.schema) as writer:
        writer.write_table(indices)
    state = json.loads((tmp_path / "data" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "data" / "state.json").write_text(json.dumps(state))
    with pytest.raises(FileError, match=r"indices.arrow has no row numbers .*: indices .uint32."):
        Dataset.open(tmp_path / "data")[0]


def test_features_of_dataset_info(made, tmp_path):
    """Files without features in their schema take them from the description."""
    made.select_columns(["label", "matrix"]).save_to_disk(tmp_path / "data")
    (file,) = (tmp_path / "data").glob("*.arrow")
    with pa.memory_map(str(file)) as opened:
        table = pa.ipc.open_stream(opened).read_all()
    plain = pa.schema([("label", pa.int64()), ("matrix", pa.list_(pa.list_(pa.float32())))])
    columns = [table["label"], pa.chunked_array([one.storage for one in table["matrix"].chunks])]
    with pa.ipc.new_stream(str(file) + ".new", plain) as writer:
        writer.write_table(pa.table(columns, plain))
    os.replace(str(file) + ".new", file)
    found = Dataset.open(tmp_path / "data")
    assert found.classes == {"label": ("cat", "dog")}
    np.testing.assert_array_equal(found[3]["matrix"], np.full((2, 3), 1.5, np.float32))


def test_images_by_path(tmp_path):
    (tmp_path / "a.png").write_bytes(png(1))
    rows = [{"image": str(tmp_path / "a.png")}, {"image": {"bytes": png(2), "path": None}}]
    rows.append({"image": str(tmp_path / "a.png")})
    features = datasets.Features({"image": datasets.Image()})
    made = datasets.Dataset.from_list(rows, features)
    with datasets.arrow_writer.ArrowWriter(path=str(tmp_path / "x.arrow"), features=features) as w:
        w.write_table(made.data.table)
        w.finalize()
    found = Dataset.open(tmp_path / "x.arrow")
    np.testing.assert_equal(list(found), [{"image": expected(i)["image"]} for i in (1, 2, 1)])
    (tmp_path / "a.png").unlink()
    with pytest.raises(RecordError, match=r"x\.arrow, record 0: its bytes are in another file"):
        list(Dataset.open(tmp_path / "x.arrow"))
    assert len(list(Dataset.open(tmp_path / "x.arrow").on_error("skip"))) == 1


def test_a_damaged_image_fails_alone(tmp_path):
    rows = [{"image": {"bytes": png(i)[: 30 if i == 2 else None], "path": None}} for i in range(5)]
    made = datasets.Dataset.from_list(rows, datasets.Features({"image": datasets.Image(False)}))
    made.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "data")
    with pytest.raises(RecordError, match=r"data-00000-of-00001\.arrow, record 2"):
        list(Dataset.open(tmp_path / "data"))
    assert len(list(Dataset.open(tmp_path / "data").on_error("skip"))) == 4


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("state.json", "{", r"state\.json is damaged"),
        ("state.json", "[]", "does not describe a dataset"),
        ("state.json", '{"_data_files": []}', "names no files"),
        ("state.json", '{"_data_files": [{"filename": "../x"}]}', "where the name of a file"),
        (
            "state.json",
            '{"_data_files": [{"filename": "x.arrow"}]}',
            r"there is no file .*x\.arrow",
        ),
        ("dataset_info.json", "x", r"dataset_info\.json is damaged"),
    ],
)
def test_damaged_descriptions(saved, tmp_path, file, text, message):
    shutil.copytree(saved, tmp_path / "data")
    (tmp_path / "data" / file).write_text(text)
    with pytest.raises(FileError, match=message):
        Dataset.open(tmp_path / "data")


def test_without_the_package(saved):
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from loaderx import Dataset\n"
        f"found = Dataset.open({str(saved)!r}, columns=['matrix', 'tokens', 'label'])\n"
        "assert found[3]['matrix'].shape == (2, 3) and found[3]['matrix'].dtype == 'float32'\n"
        "assert 'pandas' not in sys.modules\n"
        "print(len(found), found.classes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "12 {'label': ('cat', 'dog')}\n", done.stderr
