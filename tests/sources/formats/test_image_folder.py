"""Folders of images, and image files."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError, RecordError
from loaderx.errors import LoaderxWarning
from loaderx.sources import ImageFolder, decoding
from loaderx.testing import SourceContract

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")


def picture(number, shape=(5, 4, 3)):
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def png(array):
    out = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(out, "PNG")
    return out.getvalue()


def write(root, name, number=0, shape=(5, 4, 3)):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(picture(number, shape)))
    return path


FILES = ["cat/a.png", "cat/b.PNG", "cat/more/a.png", "dog/1.png", "dog/10.png", "dog/2.png"]


@pytest.fixture
def animals(tmp_path):
    root = tmp_path / "animals"
    for number, name in enumerate(FILES):
        write(root, name, number)
    (root / "bird").mkdir()  # no image of this class
    (root / "cat" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    write(root, ".cache/x.png")
    write(root, "__MACOSX/cat/x.png")
    write(root, "cat/._a.png")
    return root


LABELS = [1, 1, 1, 2, 2, 2]


class _Animals(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, animals):
        self.root = animals


class TestImageFolder(_Animals):
    def make_source(self):
        return ImageFolder(self.root)

    def expected_records(self):
        return [
            {"image": picture(number), "label": np.int64(label)}
            for number, label in enumerate(LABELS)
        ]


class TestOpenedFolder(TestImageFolder):
    def make_source(self):
        return Dataset.open(self.root)


class TestBytes(_Animals):
    def make_source(self):
        return Dataset.open(self.root, decode=False)

    def expected_records(self):
        return [
            {"image": png(picture(number)), "label": np.int64(label)}
            for number, label in enumerate(LABELS)
        ]


class TestLabelsOnly(_Animals):
    def make_source(self):
        return Dataset.open(self.root, columns=["label"])

    def expected_records(self):
        return [{"label": np.int64(label)} for label in LABELS]


class TestImagesOfManySizes(SourceContract):
    shapes = ((5, 4, 3), (2, 2, 1), (7, 1, 4), (1, 1, 3), (9, 9, 3))

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.root = tmp_path
        for number, shape in enumerate(self.shapes):
            write(tmp_path, f"{number}.png", number, shape)

    def make_source(self):
        return ImageFolder(self.root)

    def expected_records(self):
        return [{"image": picture(number, shape)} for number, shape in enumerate(self.shapes)]


# Classes and splits -----------------------------------------------------------------------------


def test_classes_are_the_folders_in_order(animals):
    """An empty one has its number, too: another split may have images of it."""
    dataset = Dataset.open(animals)
    assert dataset.classes == {"label": ("bird", "cat", "dog")}
    assert [int(record["label"]) for record in dataset] == LABELS
    assert repr(dataset).splitlines()[0] == "Dataset.open(images: image, label)"


def test_labels_need_no_file(animals):
    for name in FILES:
        (animals / name).write_bytes(b"")
    (batch,) = Dataset.open(animals, columns=["label"]).batch(6)
    assert batch["label"].dtype == np.int64
    assert batch["label"].tolist() == LABELS


def test_splits(tmp_path):
    write(tmp_path, "train/ant/a.png", 1)
    write(tmp_path, "train/bee/a.png", 2)
    write(tmp_path, "val/bee/a.png", 3)
    write(tmp_path, "test/x.png", 4)  # without classes
    with pytest.raises(ArgumentError, match="has the splits 'train', 'validation', 'test'"):
        Dataset.open(tmp_path)
    assert [int(record["label"]) for record in Dataset.open(tmp_path, split="train")] == [0, 1]
    for name in ("val", "validation"):
        dataset = Dataset.open(tmp_path, split=name)
        assert dataset.classes == {"label": ("ant", "bee")}  # as in the other splits
        assert int(dataset[0]["label"]) == 1
    assert list(Dataset.open(tmp_path, split="test")[0]) == ["image"]
    assert len(Dataset.open(tmp_path, split="train+val")) == 3
    assert len(Dataset.open(tmp_path, split="train[:50%]")) == 1
    with pytest.raises(ArgumentError, match=r"a folder for each split, test, train, val: give one"):
        ImageFolder(tmp_path)


def test_one_split_need_not_be_named(tmp_path):
    write(tmp_path, "train/ant/a.png")
    assert Dataset.open(tmp_path).classes == {"label": ("ant",)}


@pytest.mark.parametrize("names", [("train", "car"), ("test1", "test2"), ("val", "valid")])
def test_classes_that_sound_like_splits(tmp_path, names):
    for name in names:
        write(tmp_path, f"{name}/a.png")
    assert Dataset.open(tmp_path).classes == {"label": tuple(sorted(names))}


def test_splits_with_a_year(tmp_path):
    write(tmp_path, "train2017/a.png")
    write(tmp_path, "val2017/a.png")
    assert list(Dataset.open(tmp_path, split="train")[0]) == ["image"]


def test_given_classes(animals):
    source = ImageFolder(animals, classes=["dog", "cat", "bird", "cow"])
    assert source.classes == {"label": ("dog", "cat", "bird", "cow")}
    assert [int(source[index]["label"]) for index in (0, 5)] == [1, 0]
    with pytest.raises(ArgumentError, match="has a folder 'dog', which is not in `classes`"):
        ImageFolder(animals, classes=["cat", "bird"])
    with pytest.raises(ArgumentTypeError, match="`classes` must be a list of names"):
        ImageFolder(animals, classes="cat")


def test_channels(tmp_path):
    write(tmp_path, "a.png", 0, (5, 4, 1))
    write(tmp_path, "b.png", 1, (5, 4, 3))
    write(tmp_path, "c.png", 2, (5, 4, 4))
    (batch,) = Dataset.from_source(ImageFolder(tmp_path, channels=3)).batch(3)
    assert batch["image"].shape == (3, 5, 4, 3)
    with pytest.raises(ArgumentError, match="`channels` must be None, 1, 3 or 4, got 2"):
        ImageFolder(tmp_path, channels=2)


def test_columns(animals):
    assert list(Dataset.open(animals, columns=["label", "image"])[0]) == ["label", "image"]
    with pytest.raises(ArgumentError, match="has no column 'x'; it has 'image', 'label'"):
        Dataset.open(animals, columns=["x"])


def test_images_beside_classes_are_left_out(animals):
    write(animals, "logo.png")
    with pytest.warns(LoaderxWarning, match="beside them 1 images that belong to no class"):
        assert len(ImageFolder(animals)) == 6


def test_names_that_are_not_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/cl\xff"
    os.mkdir(folder)
    for name in (b"\xe9.png", "ü.png".encode(), b"a b.png"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(png(picture(0)))
    source = ImageFolder(tmp_path)
    assert len(list(source)) == 3
    assert source.where(1) == os.fsdecode(folder + "/ü.png".encode())


def test_a_link_to_a_folder_above_is_refused(animals):
    (animals / "cat" / "again").symlink_to(animals)
    with pytest.raises(FileError, match=r"again is a link to .*animals, in which it lies itself"):
        ImageFolder(animals)


def test_links_elsewhere_are_followed(animals, tmp_path):
    write(tmp_path, "elsewhere/a.png")
    (animals / "eel").symlink_to(tmp_path / "elsewhere")
    assert len(ImageFolder(animals)) == 7


# Damage -----------------------------------------------------------------------------------------


def test_a_damaged_file_fails_alone_and_is_named(animals):
    path = animals / FILES[4]
    path.write_bytes(path.read_bytes()[:60])
    dataset = Dataset.open(animals)
    assert dataset[3]["image"].shape == (5, 4, 3)
    with pytest.raises(RecordError, match=r"dog/10\.png: the image is damaged or cut off") as error:
        dataset[4]
    assert error.value.index == 4
    with pytest.raises(RecordError, match=r"dog/10\.png: the image is damaged"):
        list(DataLoader(dataset.batch(3)))
    kept = list(dataset.on_error("skip"))
    assert len(kept) == 5


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_on_error_in_workers(animals, engine):
    (animals / FILES[1]).write_bytes(b"nothing")
    dataset = Dataset.open(animals).on_error("skip").batch(5)
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        (batch,) = loader
    assert batch["label"].tolist() == [1, 1, 2, 2, 2]


def test_files_that_are_gone_or_no_files(animals):
    source = ImageFolder(animals)
    (animals / FILES[0]).unlink()
    (animals / FILES[1]).unlink()
    os.mkfifo(animals / FILES[1])
    with pytest.raises(FileError, match=r"cat/a\.png: the file no longer exists"):
        source[0]
    with pytest.raises(FileError, match=r"cat/b\.PNG: it is not a regular file"):
        source[1]
    problems = [problem for problem in source.problems() if problem is not None]
    assert [problem.record for problem in problems] == [0, 1]
    assert problems[0].where == str(animals / FILES[0])


def test_folders_without_images(tmp_path):
    with pytest.raises(FileError, match="has no images: files that end with"):
        ImageFolder(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(FileError, match="has no images"):
        ImageFolder(tmp_path)
    with pytest.raises(FileError, match="nowhere cannot be read: No such file"):
        ImageFolder(tmp_path / "nowhere")


# Recognition ------------------------------------------------------------------------------------


def test_other_formats_keep_their_folders(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.arange(3))
    write(tmp_path, "figures/plot.png")
    assert list(Dataset.open(tmp_path)[0]) == ["x"]


def test_files_beside_classes_do_no_harm(animals):
    for name in ("README.md", "classes.txt", "Thumbs.db", "LICENSE"):
        (animals / name).write_text("text")
    assert len(Dataset.open(animals)) == 6


def test_an_image_with_a_text_of_its_own_is_another_format(tmp_path):
    write(tmp_path, "1.png")
    (tmp_path / "1.txt").write_text("a cat")
    with pytest.raises(FileError, match=r"1\.txt lies beside 1\.png and would be left out"):
        Dataset.open(tmp_path)
    assert len(Dataset.open(tmp_path / "*.png")) == 1


def test_metadata_of_class_folders_are_refused(animals):
    (animals / "cat" / "metadata.csv").write_text("file_name,age\na.png,3\n")
    with pytest.raises(FileError, match=r"metadata\.csv has columns for the files of its folder"):
        Dataset.open(animals)
    assert len(ImageFolder(animals)) == 6


class TestImageFiles(_Animals):
    def make_source(self):
        return Dataset.open([self.root / name for name in FILES])

    def expected_records(self):
        return [{"image": picture(number)} for number in range(len(FILES))]


def test_image_files_by_pattern(animals):
    dataset = Dataset.open(animals / "dog" / "*.png")
    np.testing.assert_array_equal(dataset[1]["image"], picture(5))  # 2.png before 10.png
    write(animals, "dog/10.png", 0).write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(RecordError, match=r"dog/10\.png: it is no image that Pillow knows"):
        dataset[2]
    with pytest.raises(ArgumentError, match="has no column 'label'; it has 'image'"):
        Dataset.open(animals / "dog" / "*.png", columns=["label"])


@pytest.mark.parametrize("filtered", [False, True])
def test_a_function_that_fails_on_an_image_names_its_file(animals, filtered):
    def decode(record):
        return {**record, "image": np.asarray(Image.open(io.BytesIO(bytes(record["image"]))))}

    path = animals / "dog/10.png"
    path.write_bytes(b"none")
    dataset = Dataset.open(animals, decode=False)
    if filtered:  # a stream
        dataset = dataset.filter(lambda record: True)
    with pytest.raises(RecordError) as caught:
        list(DataLoader(dataset.map(decode).batch(2), engine="inline"))
    assert f"map(decode) failed on record 4 ({path}): UnidentifiedImageError" in str(caught.value)
    assert caught.value.record == f"record 4 ({path})"
    assert caught.value.index == 4


# Memory -----------------------------------------------------------------------------------------


def test_a_function_gets_images_before_all_of_a_batch_are_decoded(tmp_path, monkeypatch):
    for number in range(11):
        write(tmp_path / "photos", f"cat/{number:02}.png", number)
    events = []

    def decoded(data, channels):
        events.append("decoded")
        return decode_image(data, channels=channels)

    def mean(record):
        events.append("mapped")
        return {"mean": record["image"].mean(dtype=np.float32)}

    decode_image = decoding.decode_image
    monkeypatch.setattr(decoding, "decode_image", decoded)
    ds = Dataset.open(tmp_path / "photos").shuffle(seed=0).map(mean).batch(11)
    found = ds[0]["mean"]
    assert events == [*["decoded"] * 4, *["mapped"] * 4] * 2 + ["decoded"] * 3 + ["mapped"] * 3
    expected = {np.float32(picture(number).mean(dtype=np.float32)) for number in range(11)}
    assert set(found) == expected


def test_a_bad_image_is_named_in_whatever_piece_it_is(tmp_path):
    for number in range(9):
        write(tmp_path / "photos", f"cat/{number:02}.png", number)
    (tmp_path / "photos/cat/06.png").write_bytes(b"no image")
    ds = Dataset.open(tmp_path / "photos").map(lambda record: {"y": record["label"]})
    with pytest.raises(RecordError, match="06.png.*no image that Pillow knows") as caught:
        ds.batch(9)[0]
    assert caught.value.index == 6
    assert len(ds.on_error("replace").batch(9)[0]["y"]) == 9


def test_folders_come_in_the_order_of_their_names(tmp_path):
    """As in torchvision, and not in that of paths that end with a slash."""
    names = ["a/0.png", "a/x/0.png", "a/x-y/0.png", "a/x/z/0.png", "a-b/0.png"]
    for number, name in enumerate(names):
        write(tmp_path, name, number)
    dataset = Dataset.open(tmp_path, decode=False)
    assert [record["image"] for record in dataset] == [png(picture(n)) for n in range(len(names))]
    assert [int(record["label"]) for record in dataset] == [0, 0, 0, 0, 1]
