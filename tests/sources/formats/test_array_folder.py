"""Folders of arrays, each file a record."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset, FileError, RecordError
from loaderx.testing import SourceContract


def array(number):
    return np.arange(6.0).reshape(2, 3)[:, : 1 + number % 3] + number


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        path = tmp_path / ("walk" if number < 4 else "run")
        path.mkdir(exist_ok=True)
        np.save(path / f"{number}.npy", array(number))
    return tmp_path


class TestArrays(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.root = folder

    def make_source(self):
        return Dataset.open(self.root, format="arrays")

    def expected_records(self):
        numbers, labels = [4, 5, 0, 1, 2, 3], [0, 0, 1, 1, 1, 1]
        return [
            {"array": array(number), "label": np.int64(label)}
            for number, label in zip(numbers, labels, strict=True)
        ]


def test_several_arrays_in_a_file(tmp_path):
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=array(number), y=np.int64(number))
    record = Dataset.open(tmp_path, format="arrays")[1]["array"]
    np.testing.assert_array_equal(record["x"], array(1))
    assert record["y"] == 1
    assert Dataset.open(tmp_path, format="arrays").map(lambda record: record["array"])[0]["y"] == 0


def test_errors_of_other_readings_name_the_format(folder, tmp_path):
    with pytest.raises(FileError, match=r"a record, open its folder with format='arrays'"):
        Dataset.open(folder)
    with pytest.raises(
        FileError, match=r"'0' 2, '1' 2.*a record, open its folder with format='arr"
    ):
        np.save(folder / "walk/9.npy", np.zeros(9))
        Dataset.open(folder / "walk")
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.int64(3))
    with pytest.raises(FileError, match=r"a single number, .* its folder with format='arrays'"):
        Dataset.open(tmp_path / "a.npz")


def test_damage_and_pickles(tmp_path):
    np.save(tmp_path / "1.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "2.npz", x=np.zeros(3))
    path = tmp_path / "2.npz"
    path.write_bytes(path.read_bytes()[:90])
    dataset = Dataset.open(tmp_path, format="arrays")
    for index in range(2):
        with pytest.raises(RecordError, match=r"it is no file of arrays, or damaged: "):
            dataset[index]
    assert Dataset.open(tmp_path, format="arrays", decode=False)[1]["array"] == path.read_bytes()
