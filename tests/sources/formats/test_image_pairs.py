"""Folders of images and masks that belong together by name."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from loaderx import ArgumentError, DataLoader, Dataset, FileError, RecordError, StateError
from loaderx.testing import SourceContract

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")


def picture(number, shape=(5, 4, 3)):
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def classes(number, shape=(5, 4)):
    return np.random.default_rng(number).integers(0, 3, shape, np.uint8)


def write(path, array, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array, mode) if mode else Image.fromarray(array)
    if mode == "P":
        image.putpalette([200, 0, 0, 0, 99, 0, 0, 0, 255])
    image.save(path)


def write_pairs(root, numbers, images="images", masks="masks"):
    for number in numbers:
        write(root / images / f"{number}.bmp", picture(number))
        write(root / masks / f"{number}.png", classes(number), "P")


def expected(numbers):
    return [{"image": picture(n), "mask": classes(n)[..., None]} for n in numbers]


def assert_records(dataset, wanted):
    assert len(dataset) == len(wanted)
    for record, one in zip(dataset, wanted, strict=True):
        assert list(record) == list(one)
        for name, value in one.items():
            assert record[name].dtype == value.dtype
            np.testing.assert_array_equal(record[name], value)


class TestPairs(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.root = tmp_path
        write_pairs(tmp_path, range(6))

    def make_source(self):
        return Dataset.open(self.root)

    def expected_records(self):
        return expected(range(6))


class TestBytes(TestPairs):
    def make_source(self):
        return Dataset.open(self.root, decode=False)

    def expected_records(self):
        def read(folder, name):
            return (self.root / folder / name).read_bytes()

        return [
            {"image": read("images", f"{n}.bmp"), "mask": read("masks", f"{n}.png")}
            for n in range(6)
        ]


@pytest.mark.parametrize(
    ("images", "masks"),
    [("img", "mask"), ("image", "labels"), ("Images", "Annotations"), ("imgs", "segmentation")],
)
def test_names_of_folders(tmp_path, images, masks):
    write_pairs(tmp_path, range(2), images, masks)
    dataset = Dataset.open(tmp_path)
    assert_records(dataset, expected(range(2)))
    assert repr(dataset).startswith(f"Dataset.open(image_pairs of {images}+{masks}: image, mask)")


def test_what_is_paired_is_logged(tmp_path, caplog):
    write_pairs(tmp_path, range(2))
    with caplog.at_level(logging.INFO, logger="loaderx"):
        Dataset.open(tmp_path)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}: 2 records of images (image), masks (mask), paired by name"
    )


def test_further_folders_are_leaves(tmp_path):
    write_pairs(tmp_path, range(2))
    deep = np.arange(20, dtype=np.uint16).reshape(5, 4) * 3000
    for number in range(2):
        write(tmp_path / "depth" / f"{number}.png", deep)
        write(tmp_path / "edges" / f"{number}.png", classes(number + 9))
    record = Dataset.open(tmp_path)[1]
    assert list(record) == ["image", "depth", "edges", "mask"]
    np.testing.assert_array_equal(record["depth"], deep[..., None])
    assert Dataset.open(tmp_path, decode={"depth": True})[1]["depth"].dtype == np.uint8


def test_two_kinds_of_masks_keep_their_names(tmp_path):
    write_pairs(tmp_path, range(2))
    for number in range(2):
        write(tmp_path / "labels" / f"{number}.png", classes(number + 9), "P")
    record = Dataset.open(tmp_path)[0]
    assert list(record) == ["image", "labels", "masks"]
    np.testing.assert_array_equal(record["labels"], classes(9)[..., None])


@pytest.mark.parametrize("inside", [False, True])
def test_splits(tmp_path, inside):
    """``train/images`` or ``images/train``."""
    for split, numbers in {"train": range(3), "val": range(3, 5)}.items():
        names = ("images", "masks")
        folders = [f"{name}/{split}" if inside else f"{split}/{name}" for name in names]
        write_pairs(tmp_path, numbers, *folders)
    write(tmp_path / ("images/test" if inside else "test/images") / "9.bmp", picture(9))
    assert_records(Dataset.open(tmp_path, split="train"), expected(range(3)))
    assert_records(Dataset.open(tmp_path, split="validation"), expected(range(3, 5)))
    assert_records(Dataset.open(tmp_path, split="test"), [{"image": picture(9)}])
    with pytest.raises(ArgumentError, match="has the splits 'train', 'validation', 'test'"):
        Dataset.open(tmp_path)


def test_further_folders_inside_are_part_of_the_name(tmp_path):
    for city in ("bonn", "ulm"):
        write_pairs(tmp_path, [1, 2], f"images/{city}", f"masks/{city}")
    assert_records(Dataset.open(tmp_path), expected([1, 2, 1, 2]))


def test_unpaired_files_are_counted_and_named(tmp_path):
    write_pairs(tmp_path, range(3))
    for number in range(7, 12):
        write(tmp_path / f"images/{number}.png", picture(number))
    write(tmp_path / "masks/x.png", classes(0))
    with pytest.raises(FileError) as caught:
        Dataset.open(tmp_path)
    assert str(caught.value) == (
        f"5 of {tmp_path}/images have no partner (10.png, 11.png, 7.png and 2 more) and 1 of "
        f"{tmp_path}/masks have no partner (x.png): images of images and masks are pairs if their "
        "names are equal but for the ending. Rename or remove these, open one folder alone, or "
        "write format='images' if the folders are classes."
    )
    assert Dataset.open(tmp_path, format="images").classes == {"label": ("images", "masks")}


def test_two_files_of_one_name(tmp_path):
    write_pairs(tmp_path, range(2))
    write(tmp_path / "masks/1.bmp", classes(1))
    with pytest.raises(FileError, match=r"masks has 1\.bmp and 1\.png: which one is paired"):
        Dataset.open(tmp_path)


def test_other_formats_keep_their_folders(tmp_path):
    write_pairs(tmp_path, range(2))
    (tmp_path / "train.csv").write_text("name,age\na,3\n")
    assert list(Dataset.open(tmp_path)[0]) == ["name", "age"]
    assert list(Dataset.open(tmp_path, format="image_pairs")[0]) == ["image", "mask"]


def test_labels_that_are_no_images(tmp_path):
    write(tmp_path / "images/1.png", picture(1))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 1 1")
    with pytest.raises(FileError, match=r"1 of .*/images have no partner \(1\.png\): images of"):
        Dataset.open(tmp_path)
    assert len(Dataset.open(tmp_path / "images")) == 1


def test_folders_without_images(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for folder in (tmp_path, tmp_path / "images"):
        with pytest.raises(FileError, match="no images in folders such as 'images' and"):
            Dataset.open(folder, format="image_pairs")


@pytest.mark.parametrize("way", [True, "upright"])
def test_masks_are_no_colours_unless_that_is_asked_for(tmp_path, way):
    write_pairs(tmp_path, [1])
    np.testing.assert_array_equal(Dataset.open(tmp_path, decode=way)[0]["mask"][..., 0], classes(1))
    found = Dataset.open(tmp_path, decode={"mask": way})[0]["mask"]
    assert found.shape == (5, 4, 3)


def test_columns(tmp_path):
    write_pairs(tmp_path, range(2))
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"")
    dataset = Dataset.open(tmp_path, columns=["mask"])
    np.testing.assert_array_equal(dataset[1]["mask"][..., 0], classes(1))
    with pytest.raises(ArgumentError, match="has no column 'label'; it has 'image', 'mask'"):
        Dataset.open(tmp_path, columns=["label"])


def test_a_damaged_mask_is_named(tmp_path):
    write_pairs(tmp_path, range(4))
    path = tmp_path / "masks/2.png"
    path.write_bytes(b"none")
    dataset = Dataset.open(tmp_path)
    with pytest.raises(RecordError, match=r"images/2\.bmp: .*masks/2\.png: it is no image"):
        list(DataLoader(dataset.batch(4)))
    path.unlink()
    with pytest.raises(RecordError, match=r"masks/2\.png: the file no longer exists"):
        dataset[2]
    assert len(list(dataset.on_error("skip"))) == 3


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_pairs_stay_together(tmp_path, engine):
    for number in range(12):
        write(tmp_path / f"images/{number}.png", np.full((3, 3), number, np.uint8))
        write(tmp_path / f"masks/{number}.png", np.full((3, 3), number, np.uint8))
    dataset = Dataset.open(tmp_path).shuffle(seed=3).batch(4)
    workers = {} if engine == "inline" else {"num_workers": 2}
    with DataLoader(dataset, engine=engine, **workers) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["image"], batch["mask"])


def test_two_folders_of_images(tmp_path):
    write_pairs(tmp_path, range(2))
    write(tmp_path / "img" / "0.bmp", picture(5))
    with pytest.raises(FileError, match="has images and img: rename one"):
        Dataset.open(tmp_path, format="image_pairs")


def test_one_of_the_folders_has_no_splits(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / "images" / split / "0.bmp", picture(0))
    write(tmp_path / "masks" / "0.png", classes(0), "P")
    with pytest.raises(FileError, match="has folders for splits, and masks has none"):
        Dataset.open(tmp_path, split="train")


def test_a_state_knows_how_masks_are_decoded(tmp_path):
    write_pairs(tmp_path, range(4))
    state = iter(DataLoader(Dataset.open(tmp_path).batch(2))).get_state()
    colours = iter(DataLoader(Dataset.open(tmp_path, decode={"mask": True}).batch(2)))
    with pytest.raises(StateError, match="decode was not set and is 'mask=True' now"):
        colours.set_state(state)
