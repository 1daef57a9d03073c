"""Many columns: names are looked up, and not searched for one by one."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import ArgumentError
from loaderx.sources.format import check_columns, check_named, first_twice
from loaderx.sources.formats.csv.header import layout
from loaderx.sources.remote.hub_store import Entry, by_folder
from loaderx.sources.remote.store import Listed

COUNT = 300


class Name(str):
    """Counts how often names are compared."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other):
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "look",
    [
        lambda one, two: first_twice(one),
        lambda one, two: check_columns(one, two, "a"),
        lambda one, two: check_named("fill", one, two, "a"),
        lambda one, two: check_named("columns", one, two, "a", ""),
        lambda one, two: layout(one, two, "a", "b"),
    ],
)
def test_names_are_not_searched(look):
    one, two = ([Name(f"c{number}") for number in range(COUNT)] for _ in range(2))
    Name.compared = 0
    look(one, two)
    assert Name.compared <= 4 * COUNT


def test_names_that_are_there_twice():
    assert first_twice(["a", "b", "a", "b"]) == "a"
    assert first_twice(["a", "b"]) is None
    with pytest.raises(ArgumentError, match="a has no column 'c'; it has 'a', 'b'"):
        check_columns(["a", "c"], ["a", "b"], "a")


def test_the_directory_of_a_compressed_archive_is_read_once(tmp_path, monkeypatch):
    columns = {f"c{number}": np.arange(5) + number for number in range(20)}
    np.savez_compressed(tmp_path / "a.npz", **columns)
    dataset = Dataset.open(tmp_path / "a.npz")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    (batch,) = dataset.batch(5)
    assert {name: column.tolist() for name, column in batch.items()} == {
        name: column.tolist() for name, column in columns.items()
    }


def test_a_tree_of_files_is_listed_by_folder():
    entry = Entry(3, "v", "")
    found = by_folder(dict.fromkeys(["README.md", "a/b/1.txt", "a/2.txt", "a/b/3.txt"], entry))
    file = {name: Listed(name, 3, "v") for name in ("README.md", "1.txt", "2.txt", "3.txt")}
    assert found == {
        "": {"README.md": file["README.md"], "a": Listed("a/")},
        "a": {"b": Listed("b/"), "2.txt": file["2.txt"]},
        "a/b": {"1.txt": file["1.txt"], "3.txt": file["3.txt"]},
    }
