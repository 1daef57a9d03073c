"""Text files: lines are records."""

from __future__ import annotations

import gzip

import pytest

from loaderx import ArgumentError, Dataset, FileError, RecordError
from loaderx.testing import SourceContract

LINES = [
    "first",
    "",
    "naïve \u2028 \x85 \x0b \x0c one line",
    "tab\t",
    " spaces ",
    "\r in it",
    "last",
]


class TestLines(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder = tmp_path
        (tmp_path / "a.txt").write_bytes("\n".join(LINES[:4]).encode() + b"\n")
        (tmp_path / "b.txt").write_bytes(b"")
        (tmp_path / "c.txt").write_bytes("\r\n".join(LINES[4:]).encode())

    def make_source(self):
        return Dataset.open(self.folder)

    def expected_records(self):
        return [{"text": line} for line in LINES]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("has_last_end", [True, False])
def test_ends_of_lines(end, has_last_end, tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbf" + (end.join(LINES) + end * has_last_end).encode())
    assert [record["text"] for record in Dataset.open(path)] == LINES
    (batch,) = Dataset.open(path).shuffle(1).batch(7)
    assert sorted(batch["text"].tolist()) == sorted(LINES)


def test_blank_lines_are_records(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\n\na\n\n")
    assert [record["text"] for record in Dataset.open(tmp_path / "x.txt")] == ["", "", "a", ""]


def test_compressed(tmp_path):
    with gzip.open(tmp_path / "x.txt.gz", "wb") as file:
        file.write(b"a\n")
    with open(tmp_path / "x.txt.gz", "ab") as file:
        file.write(gzip.compress(b"b\n"))  # a second member
    assert [record["text"] for record in Dataset.open(tmp_path / "x.txt.gz")] == ["a", "b"]


def test_what_is_not_utf8_is_named_by_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\n\nb\xff\nc\n")
    dataset = Dataset.open(path)
    message = r"on record 2: .*x\.txt, line 3: it is not UTF-8 \(byte 0xff at 1: invalid start byte"
    for reading in (dataset.batch(4), dataset.map(lambda record: record)):
        with pytest.raises(RecordError, match=message):
            list(reading)
    assert len(list(dataset.on_error("replace"))) == 4


def test_refused(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(FileError, match=r"empty\.txt: there are no records in it\."):
        Dataset.open(tmp_path / "empty.txt")
    with pytest.raises(ArgumentError, match=r"has no column 'y'; it has 'text'\."):
        Dataset.open(tmp_path / "x.txt", columns=["y"])
    with pytest.raises(ArgumentError, match="lines of text have no missing values to fill"):
        Dataset.open(tmp_path / "x.txt", fill={"text": ""})
