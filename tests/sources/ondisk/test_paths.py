"""What users write for files: patterns, braces, lists; and what is said of what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import LoaderxError
from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources.files.paths import expand_braces, find, natural_order


@pytest.fixture
def place(tmp_path):
    for name in ("part-2.npy", "part-10.npy", "part-1.npy", "odd[1].npy", "a{1}.npy"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "part-3.npy").write_bytes(b"")
    return tmp_path


def names(found):
    return [os.path.basename(file) for file in found.files]


def test_numbers_are_sorted_as_numbers(place):
    assert names(find(place / "part-*.npy")) == ["part-1.npy", "part-2.npy", "part-10.npy"]


@given(st.lists(st.text("ab019-", max_size=6)))
def test_the_natural_order_is_one_order_for_all_names(given_names):
    ordered = sorted(given_names, key=natural_order)
    backwards = list(reversed(given_names))
    assert sorted(backwards, key=natural_order) == ordered
    assert sorted(ordered) == sorted(given_names)


def test_a_list_keeps_its_order(place):
    files = [place / "part-10.npy", str(place / "part-1.npy")]
    assert names(find(files)) == ["part-10.npy", "part-1.npy"]


def test_braces(place):
    assert names(find(f"{place}/part-{{1..2}}.npy")) == ["part-1.npy", "part-2.npy"]
    assert expand_braces("{a,b}-{08..10}") == [f"{x}-{n}" for x in "ab" for n in ("08", "09", "10")]
    assert expand_braces("{x}{}") == ["{x}{}"]
    with pytest.raises(ArgumentError, match="stands for more than 1000000 files"):
        expand_braces("{0..9999999}")
    with pytest.raises(ArgumentError, match="stands for 1000000000 files"):
        expand_braces("{0..999}{0..999}{0..999}")


@pytest.mark.parametrize(
    ("asked", "meant"), [("prat-10.npy", "part-10.npy"), ("labels", "labels.gz")]
)
def test_a_missing_file_with_a_neighbour_that_looks_like_it(place, asked, meant):
    (place / "labels.gz").touch()
    with pytest.raises(FileError) as caught:
        find(place / asked)
    assert str(caught.value) == (
        f"there is no file or folder {place / asked}. Did you mean {place / meant}?"
    )


def test_a_name_that_exists_is_no_pattern(place):
    assert names(find(place / "odd[1].npy")) == ["odd[1].npy"]
    assert names(find(place / "a{1}.npy")) == ["a{1}.npy"]


def test_a_folder_and_files_below_it(place):
    assert find(place).folder == str(place)
    assert names(find(place / "**" / "part-3.npy")) == ["part-3.npy"]


def test_the_home_folder(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    assert names(find("~/part-1.npy")) == ["part-1.npy"]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("none.npy", FileError, "there is no file or folder .*none.npy"),
        ("none-*.npy", FileError, "no file matches .*none-"),
        ("none-{1..2}.npy", FileError, "there is no file or folder .*none-1.npy"),
        ([], ArgumentError, "is an empty list"),
        ("", ArgumentError, "`path` is empty"),
        (3, ArgumentTypeError, "must be a path or a list of paths, got int"),
        (b"x", ArgumentTypeError, "must be a path or a list of paths, got bytes"),
        ([3], TypeError, "int"),
        ("https://host/x", FileError, "there is no folder for it"),
    ],
)
def test_what_cannot_be_found(path, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        find(path)


def test_folders_among_files(place):
    with pytest.raises(LoaderxError, match="is a folder: give one folder, or files"):
        find([place / "sub", place / "part-1.npy"])


def test_a_pattern_prefers_files_to_folders(place):
    (place / "part-7").mkdir()
    assert "part-7" not in names(find(place / "part-*"))
    assert Path(find(place / "su*").folder).name == "sub"
