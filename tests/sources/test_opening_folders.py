"""`Dataset.open` of a list of folders."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import ArgumentError, ChainError, Dataset, FileError


def saved(folder, *functions, count=4, **options):
    """A folder for each function, which makes its records."""
    places = [folder / str(number) for number in range(len(functions))]
    for place, function in zip(places, functions, strict=True):
        Dataset.range(count).map(function).save(place, engine="inline", **options)
    return places


def test_one_after_the_other(tmp_path):
    places = saved(tmp_path, lambda i: {"x": int(i)}, lambda i: {"x": int(i) + 10})
    for given in (places, [str(one) for one in places]):
        found = Dataset.open(given)
        assert [int(one["x"]) for one in found] == [0, 1, 2, 3, 10, 11, 12, 13]
        assert found.batch(8)[0]["x"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert len(Dataset.open(places[::-1])[:4].batch(4)[0]["x"]) == 4
    assert int(Dataset.open(places[::-1])[0]["x"]) == 10
    assert len(Dataset.open(places[:1])) == 4
    assert list(Dataset.open(places, columns=["x"])[0]) == ["x"]


def test_types_that_one_column_can_hold(tmp_path):
    places = saved(
        tmp_path,
        lambda i: {"x": np.arange(2), "words": [], "age": int(i)},
        lambda i: {"x": np.arange(int(i)), "words": ["w"], "age": None},
    )
    found = Dataset.open(places)
    assert [len(one["x"]) for one in found] == [2, 2, 2, 2, 0, 1, 2, 3]
    assert found[5]["words"] == ["w"]
    assert found[5]["age"] is None
    assert found.map(lambda r: {"x": r["x"]}).batch(8, pad_to={"x": 3})[0]["x"].shape == (8, 3)


def test_types_that_differ(tmp_path):
    places = saved(tmp_path, lambda i: {"x": np.int64(i)}, lambda i: {"x": np.float32(i)})
    with pytest.raises(ChainError, match='leaf "x" is float32.* in dataset 1 and int64.* in data'):
        Dataset.open(places)
    other = saved(tmp_path / "other", lambda i: {"x": np.int64(i), "y": 1})
    with pytest.raises(ChainError, match="elements of dataset 1 look like .*'y'"):
        Dataset.open([places[0], *other])


def test_images_and_classes(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number, names in enumerate([("cat", "dog"), ("cat", "dog"), ("cat", "emu")]):
        for label, name in enumerate(names):
            (tmp_path / f"in{number}" / name).mkdir(parents=True)
            pixels = np.full((2, 3, 3), 10 * number + label, np.uint8)
            image.fromarray(pixels).save(tmp_path / f"in{number}" / name / "0.png")
        opened = Dataset.open(tmp_path / f"in{number}", decode=False)
        opened.save(tmp_path / str(number), images=["image"])
    found = Dataset.open([tmp_path / "0", tmp_path / "1"])
    assert found.classes == {"label": ("cat", "dog")}
    assert [int(one["image"][0, 0, 0]) for one in found] == [0, 1, 10, 11]
    message = r"2 has other classes of 'label' than .*1: the same number would mean two things"
    with pytest.raises(FileError, match=message):
        Dataset.open([tmp_path / "1", tmp_path / "2"])


def test_refusals(tmp_path):
    places = saved(tmp_path, lambda i: {"x": i}, lambda i: {"x": i})
    with pytest.raises(ArgumentError, match=r"would cut each of the 2 folders\. Open them whole"):
        Dataset.open(places, split="[:50%]")
    with pytest.raises(FileError, match="Several folders are given as a list that has nothing el"):
        Dataset.open([places[0], places[1] / "loaderx.json"])
    with pytest.raises(FileError, match="there is no file or folder"):
        Dataset.open([places[0], tmp_path / "none"])
    (places[1] / "loaderx.json").rename(places[1] / "saving-1-of-2.jsonl")
    with pytest.raises(FileError, match="1 is not complete: save again to resume"):
        Dataset.open(places)
