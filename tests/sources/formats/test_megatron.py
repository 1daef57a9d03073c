"""Megatron's token files."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from loaderx import Dataset, RecordError
from loaderx.errors import FileError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

HEADER = struct.Struct("<9sQBQQ")


def write(prefix, documents, code=8, dtype="<u2", version=1, magic=b"MMIDIDX\0\0"):
    lengths = np.array([len(one) for one in documents], "<i4")
    size = np.dtype(dtype).itemsize
    starts = np.concatenate([[0], np.cumsum(lengths[:-1].astype(np.int64) * size)]).astype("<i8")
    order = np.arange(len(documents) + 1, dtype="<i8")
    head = HEADER.pack(magic, version, code, len(documents), len(order))
    prefix.with_suffix(".idx").write_bytes(
        head + lengths.tobytes() + starts.tobytes() + order.tobytes()
    )
    tokens = np.concatenate([np.asarray(one, dtype) for one in documents])
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())


DOCUMENTS = [[5, 6, 7], [1], [], [65535] * 9, [2, 3]]


class TestMegatron(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        write(tmp_path / "a", DOCUMENTS)
        write(tmp_path / "b", [[9]])
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path([self.place / "a.idx", self.place / "b.bin"])
        return found

    def expected_records(self):
        return [{"tokens": np.array(one, "<u2")} for one in [*DOCUMENTS, [9]]]


@pytest.mark.parametrize(("code", "dtype"), [(1, "u1"), (3, "<i2"), (4, "<i4"), (5, "<i8")])
def test_types(tmp_path, code, dtype):
    write(tmp_path / "x", [[1, 2], [3]], code, dtype)
    for name in ("x.idx", "x.bin", "x.*"):
        records = list(Dataset.open(tmp_path / name))
        assert [record["tokens"].tolist() for record in records] == [[1, 2], [3]]
        assert records[0]["tokens"].dtype == dtype


def test_packing(tmp_path):
    write(tmp_path / "x", [[1, 2, 3], [4], [5, 6]])
    (batch,) = Dataset.open(tmp_path / "x.idx").pack({"tokens": 6}, window=4).batch(1)
    assert sorted(batch["tokens"][0].tolist()) == [1, 2, 3, 4, 5, 6]


def test_what_is_wrong(tmp_path):
    write(tmp_path / "x", DOCUMENTS)
    index, data = tmp_path / "x.idx", tmp_path / "x.bin"
    whole = index.read_bytes()
    data.write_bytes(data.read_bytes()[:-2])
    found = Dataset.open(index)
    assert found[3]["tokens"].tolist() == [65535] * 9
    with pytest.raises(RecordError, match=r"x.idx is damaged: sequence 4 lies outside x.bin"):
        found[4]
    index.write_bytes(whole[:60])
    with pytest.raises(FileError, match="x.idx is cut off: 5 sequences need 142 bytes"):
        Dataset.open(index)
    write(tmp_path / "y", DOCUMENTS, code=77)
    with pytest.raises(FileError, match=r"not an index of Megatron that loaderx reads .*type 77"):
        Dataset.open(tmp_path / "y.idx")
    (tmp_path / "z.bin").write_bytes(b"\1\0")
    with pytest.raises(FileError, match=r"has no z.idx beside it. For a flat file of tokens"):
        Dataset.open(tmp_path / "z.bin")
    write(tmp_path / "x", DOCUMENTS)
    write(tmp_path / "w", [[1]], 1, "u1")
    with pytest.raises(FileError, match="tokens of different types"):
        Dataset.open([tmp_path / "x.bin", tmp_path / "w.bin"])
