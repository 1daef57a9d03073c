"""A folder of rows that several writers fill."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from loaderx import FileError
from loaderx.sources.columns.record_columns import encode
from loaderx.sources.native import row_folder
from loaderx.sources.native.row_files import RowFileWriter
from loaderx.sources.native.row_folder import Begun, begin

BEGUN = Begun({"stages": ["a"]}, 20, 5, {})


def rows(numbers):
    return np.array(numbers), encode([{"x": np.int64(n), "text": "t" * n} for n in numbers])


def texts(folder, numbers):
    found = folder.read(np.array(numbers))
    text = found.data.fields["text"]
    return [bytes(text.values[a:b]) for a, b in zip(text.offsets, text.offsets[1:], strict=False)]


def test_writers_see_each_others_rows(tmp_path):
    one, two = (begin(str(tmp_path), BEGUN) for _ in range(2))
    one.put(*rows([3, 7]))
    assert two.find(np.array([3, 4, -1])).tolist() == [False, True, True]
    two.put(*rows([7, 4, 4]))  # the first is there already
    assert two.present == 3
    one.look()
    assert texts(one, [7, 4, 3, 4]) == [b"t" * 7, b"t" * 4, b"t" * 3, b"t" * 4]
    assert not one.is_complete


def mapped_paths(folder):
    """The files of a folder that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in maps if line.split()[-1].startswith(str(folder))}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is mapped is in /proc")
def test_few_files_are_mapped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(row_folder, "MOST_MAPPED", 2)
    for number in range(20):
        begin(str(tmp_path), BEGUN).put(*rows([number]))
    folder = begin(str(tmp_path), BEGUN)
    assert folder.is_complete
    for _ in range(2):
        assert texts(folder, range(20)) == [b"t" * number for number in range(20)]
    assert len(mapped_paths(tmp_path)) == 2


def test_rows_of_another_dataset_are_refused(tmp_path):
    begin(str(tmp_path), BEGUN)
    RowFileWriter(str(tmp_path / ".filling" / "1-a.rows")).append(*rows([20]))
    with pytest.raises(FileError, match=r"1-a\.rows has records that the dataset does not have"):
        begin(str(tmp_path), BEGUN)
    other = BEGUN.replace(made_by={"stages": ["b"]})
    with pytest.raises(FileError, match="was begun with another dataset, which has other stages"):
        begin(str(tmp_path), other)
