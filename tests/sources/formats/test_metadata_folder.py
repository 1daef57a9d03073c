"""Folders of images or sound with a file of columns beside them."""

from __future__ import annotations

import csv
import json
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaderx import ArgumentError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import LoaderxWarning
from loaderx.testing import SourceContract
from oracle import assert_same

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

NAMES = ["b.png", "more/a.png", "a.png", "c.png", "more/deep/d.png"]
ROWS = [
    {"file_name": name, "text": f"é {number}", "age": number} for number, name in enumerate(NAMES)
]
KINDS = ["metadata.jsonl", "metadata.csv", "metadata.parquet"]


def picture(number, shape=(5, 4, 3)):
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def write_image(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(number)).save(path)


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def write_folder(root, kind="metadata.jsonl", rows=ROWS):
    for number, row in enumerate(rows):
        write_image(root / row["file_name"], number)
    write_rows(root / kind, rows)


class TestMetadata(SourceContract):
    """In the order of the rows, which is not that of the files."""

    @pytest.fixture(autouse=True, params=KINDS)
    def folder(self, request, tmp_path):
        self.root = tmp_path
        self.number = int if request.param == "metadata.jsonl" else np.int64  # as the file alone
        write_folder(tmp_path, request.param)

    def make_source(self):
        return Dataset.open(self.root)

    def expected_records(self):
        return [
            {"image": picture(n), "text": f"é {n}", "age": self.number(n)} for n in range(len(ROWS))
        ]


class TestColumns(TestMetadata):
    def make_source(self):
        return Dataset.open(self.root, columns=["age", "text"])

    def expected_records(self):
        return [{"age": self.number(n), "text": f"é {n}"} for n in range(len(ROWS))]


class TestFiles(TestMetadata):
    def make_source(self):
        return Dataset.open(self.root, columns=["image"], decode=False)

    def expected_records(self):
        return [{"image": (self.root / name).read_bytes()} for name in NAMES]


@pytest.mark.foreign
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an open file
@pytest.mark.parametrize("kind", KINDS)
def test_like_hugging_face(tmp_path, kind):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    write_folder(tmp_path / "data", kind)
    theirs = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache")
    )["train"]
    ours = Dataset.open(tmp_path / "data")
    assert len(ours) == len(theirs)
    assert list(ours[0]) == theirs.column_names
    for mine, one in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine["image"], np.asarray(one["image"]))
        assert (mine["text"], int(mine["age"])) == (one["text"], one["age"])


def test_what_hugging_face_names_otherwise(tmp_path):
    rows = [
        {"input_file_name": "0.png", "mask_file_name": "1.png", "file_names": ["2.png", "3.png"]},
        {"input_file_name": "1.png", "mask_file_name": "0.png", "file_names": []},
    ]
    for number in range(4):
        write_image(tmp_path / f"{number}.png", number)
    write_rows(tmp_path / "metadata.jsonl", rows)
    dataset = Dataset.open(tmp_path)
    assert repr(dataset).startswith("Dataset.open(metadata: input, mask, images)")
    first, second = dataset[0], dataset[1]
    np.testing.assert_array_equal(first["mask"], picture(1))
    np.testing.assert_array_equal(second["input"], picture(1))
    for found, number in zip(first["images"], (2, 3), strict=True):
        np.testing.assert_array_equal(found, picture(number))
    assert second["images"] == []
    (tmp_path / "3.png").write_bytes(b"none")
    with pytest.raises(RecordError, match=r"0\.png: .*3\.png: it is no image that Pillow knows"):
        dataset[0]


def test_lists_of_files_alone(tmp_path):
    for number in range(3):
        write_image(tmp_path / f"{number}.png", number)
    rows = [{"file_names": ["0.png", "1.png"]}, {"file_names": ["2.png"]}]
    write_rows(tmp_path / "metadata.jsonl", rows)
    dataset = Dataset.open(tmp_path)
    assert [len(record["images"]) for record in dataset] == [2, 1]
    np.testing.assert_array_equal(dataset[1]["images"][0], picture(2))


def test_a_mask_is_read_as_stored(tmp_path):
    write_image(tmp_path / "a.png", 0)
    indices = np.arange(20, dtype=np.uint8).reshape(5, 4) % 3
    mask = Image.fromarray(indices, "P")
    mask.putpalette([200, 0, 0, 0, 99, 0, 0, 0, 255])
    mask.save(tmp_path / "b.png")
    row = {"file_name": "a.png", "mask_file_name": "b.png"}
    write_rows(tmp_path / "metadata.jsonl", [row])
    np.testing.assert_array_equal(Dataset.open(tmp_path)[0]["mask"], indices[..., None])


# Splits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_above", [False, True])
def test_splits(tmp_path, kind, is_above):
    above = []
    for split, numbers in {"train": [2, 0, 1], "test": [4, 3]}.items():
        rows = [{"file_name": f"{number}.png", "age": number} for number in numbers]
        for number in numbers:
            write_image(tmp_path / split / f"{number}.png", number)
        above += [{**row, "file_name": f"{split}/{row['file_name']}"} for row in rows]
        if not is_above:
            write_rows(tmp_path / split / kind, rows)
    if is_above:
        write_rows(tmp_path / kind, above)
    for split, numbers in {"train": [2, 0, 1], "test": [4, 3]}.items():
        dataset = Dataset.open(tmp_path, split=split)
        assert [int(record["age"]) for record in dataset] == numbers
        for record, number in zip(dataset, numbers, strict=True):
            np.testing.assert_array_equal(record["image"], picture(number))
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(tmp_path)


def test_a_split_without_metadata_has_images_alone(tmp_path):
    write_folder(tmp_path / "train")
    write_image(tmp_path / "test/x.png", 7)
    assert len(Dataset.open(tmp_path, split="train")) == 5
    assert list(Dataset.open(tmp_path, split="test")[0]) == ["image"]


def test_paths_need_not_be_plain(tmp_path):
    write_image(tmp_path / "more/a.png", 0)
    write_rows(tmp_path / "metadata.csv", [{"file_name": "./more//a.png", "age": 3}])
    assert int(Dataset.open(tmp_path)[0]["age"]) == 3


# What does not fit ------------------------------------------------------------------------------


def test_rows_without_files_are_counted_and_named(tmp_path):
    write_folder(tmp_path)
    for name in NAMES[:4]:
        (tmp_path / name).unlink()
    with pytest.raises(FileError) as caught:
        Dataset.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/metadata.jsonl names 4 files that do not exist: a.png, b.png, c.png and 1 "
        f"more. Paths are relative to {tmp_path}. Correct them, or remove their rows."
    )


def test_files_without_rows_are_counted_and_named(tmp_path):
    write_folder(tmp_path)
    write_image(tmp_path / "z.png", 0)
    write_image(tmp_path / "more/y.png", 0)
    (tmp_path / "README.md").write_text("text")
    with pytest.warns(LoaderxWarning, match=r"no row for 2 files, .* out: more/y\.png, z\.png\."):
        assert len(Dataset.open(tmp_path)) == 5


def test_names_of_another_type_are_columns(tmp_path):
    write_image(tmp_path / "a.png", 0)
    row = {"file_name": "a.png", "file_names": "a.png", "mask_file_name": 3}
    write_rows(tmp_path / "metadata.csv", [row])
    record = Dataset.open(tmp_path)[0]
    assert list(record) == ["image", "file_names", "mask_file_name"]


def test_no_column_of_names(tmp_path):
    write_image(tmp_path / "a.png", 0)
    write_rows(tmp_path / "metadata.csv", [{"name": "a.png", "age": 3}])
    with pytest.raises(FileError, match=r"has no column 'file_name', .*; it has \['name', 'age'\]"):
        Dataset.open(tmp_path)
    assert list(Dataset.open(tmp_path, format="images")[0]) == ["image"]
    assert list(Dataset.open(tmp_path / "metadata.csv")[0]) == ["name", "age"]


@pytest.mark.parametrize("name", ["../a.png", "/etc/passwd", "s3://bucket/a.png"])
def test_names_that_lead_elsewhere(tmp_path, name):
    write_image(tmp_path / "a.png", 0)
    write_rows(tmp_path / "metadata.jsonl", [{"file_name": name}])
    with pytest.raises(FileError, match="where the name of a file or folder below it is expected"):
        Dataset.open(tmp_path)


def test_two_files_of_metadata(tmp_path):
    write_folder(tmp_path)
    write_rows(tmp_path / "metadata.csv", ROWS)
    with pytest.raises(FileError, match=r"must have one of .*, and has metadata\.jsonl and meta"):
        Dataset.open(tmp_path)


def test_a_folder_without_metadata(tmp_path):
    write_image(tmp_path / "a.png", 0)
    with pytest.raises(FileError, match=r"must have one of metadata\.jsonl, .*, and has none\."):
        Dataset.open(tmp_path, format="metadata")


def test_columns_that_do_not_exist(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(ArgumentError, match="has no column 'x'; it has 'image', 'text', 'age'"):
        Dataset.open(tmp_path, columns=["x"])
    with pytest.raises(ArgumentError, match="`decode` names 'images', and"):
        Dataset.open(tmp_path, decode={"images": False})


def test_missing_values_are_filled(tmp_path):
    rows = [{**ROWS[0], "age": None}, *ROWS[1:]]
    write_folder(tmp_path, rows=rows)
    dataset = Dataset.open(tmp_path, fill={"age": -1})
    assert [int(record["age"]) for record in dataset] == [-1, 1, 2, 3, 4]


@pytest.mark.parametrize("is_stream", [False, True])
def test_restored_at_every_step(tmp_path, is_stream):
    write_folder(tmp_path)
    dataset = Dataset.open(tmp_path, decode={"image": "upright"}).shuffle(seed=1)
    if is_stream:
        dataset = dataset.filter(lambda record: True)
    dataset = dataset.batch(2, drop_remainder=True).repeat(2)
    expected = list(DataLoader(dataset))
    iterator = iter(DataLoader(dataset))
    for step in range(len(expected)):
        restored = iter(DataLoader(dataset))
        restored.set_state(iterator.get_state())
        assert_same(list(restored), expected[step:])
        next(iterator)


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_a_damaged_image_is_named(tmp_path, engine):
    write_folder(tmp_path)
    (tmp_path / "a.png").write_bytes(b"none")
    workers = {} if engine == "inline" else {"num_workers": 2}
    dataset = Dataset.open(tmp_path)
    with (
        DataLoader(dataset.batch(5), engine=engine, **workers) as loader,
        pytest.raises(RecordError, match=r"record 2.*/a\.png: it is no image that Pillow knows"),
    ):
        list(loader)
    with DataLoader(dataset.on_error("skip").batch(4), engine=engine, **workers) as loader:
        (batch,) = loader
    assert batch["age"].tolist() == [0, 1, 3, 4]
    assert batch["text"].tolist() == ["é 0", "é 1", "é 3", "é 4"]


def test_arrays(tmp_path):
    (tmp_path / "arrays").mkdir()
    rows = [{"file_name": f"arrays/{number}.npy", "label": number} for number in range(3)]
    for number, row in enumerate(rows):
        np.save(tmp_path / row["file_name"], np.arange(number + 2.0))
    write_rows(tmp_path / "metadata.csv", rows)
    record = Dataset.open(tmp_path)[2]
    assert list(record) == ["array", "label"]
    np.testing.assert_array_equal(record["array"], np.arange(4.0))


def test_sound(tmp_path):
    pytest.importorskip("soundfile", reason="soundfile (the extra audio) is not installed")
    rows = [{"file_name": f"{number}.wav", "transcription": f"{number}"} for number in range(3)]
    for number, row in enumerate(rows):
        with wave.open(str(tmp_path / row["file_name"]), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(number + 5, 1 << 14, "<i2").tobytes())
    write_rows(tmp_path / "metadata.csv", rows)
    record = Dataset.open(tmp_path)[2]
    assert list(record) == ["audio", "sampling_rate", "transcription"]
    np.testing.assert_array_equal(record["audio"], np.full(7, 0.5, np.float32))


def test_a_name_of_a_file_that_is_missing(tmp_path):
    for number in range(2):
        write_image(tmp_path / f"{number}.png", number)
    rows = [
        {"file_name": "0.png", "mask_file_name": "1.png"},
        {"file_name": "1.png", "mask_file_name": None},
    ]
    write_rows(tmp_path / "metadata.jsonl", rows)
    dataset = Dataset.open(tmp_path, fill={"mask_file_name": "0.png"})
    np.testing.assert_array_equal(dataset[1]["mask"], picture(0))
    with pytest.raises(FileError, match="a row without the name of a file in 'mask_file_name'"):
        Dataset.open(tmp_path, fill={"mask_file_name": ""})


@pytest.mark.parametrize("is_first", [False, True])
def test_two_columns_for_a_leaf(tmp_path, is_first):
    write_image(tmp_path / "a.png", 0)
    own, named = {"image": 7}, {"file_name": "a.png"}
    write_rows(tmp_path / "metadata.jsonl", [{**own, **named} if is_first else {**named, **own}])
    with pytest.raises(FileError, match=r"has two columns for the leaf 'image', one of them"):
        Dataset.open(tmp_path)


def test_rows_without_files_belong_to_no_split(tmp_path):
    for split in ("train", "test"):
        write_image(tmp_path / split / "0.png", 0)
    rows = [{"file_names": names} for names in (["train/0.png"], [], ["test/0.png"])]
    write_rows(tmp_path / "metadata.jsonl", rows)
    with pytest.raises(FileError, match="rows without files, whose split is not known"):
        Dataset.open(tmp_path, split="train")
