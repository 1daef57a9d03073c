"""Files of tokens."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError
from loaderx.sources import Tokens
from oracle import assert_same
from tests.sources.test_sources import N, RowsContract


@pytest.fixture
def text(tmp_path):
    """23 rows of 4 tokens, and two tokens too many."""
    path = tmp_path / "text.bin"
    np.arange(N * 4 + 2, dtype=np.uint16).tofile(path)
    return path


class TokensContract(RowsContract):
    def test_specs_of_chains(self, dataset):
        assert repr(dataset.element_spec) == "{'tokens': uint16[4]}"
        assert repr(dataset.batch(5).element_spec) == "{'tokens': uint16[?,4]}"

    def test_pickling_ships_the_path(self, dataset):
        shipped = pickle.dumps(dataset)
        assert len(shipped) < 1500
        assert_same(pickle.loads(shipped).batch(4), dataset.batch(4))


class TestTokens(TokensContract):
    @pytest.fixture
    def dataset(self, text):
        return Dataset.from_source(Tokens(text, 4))

    def expected(self, i):
        start = i % N * 4
        return {"tokens": np.arange(start, start + 4, dtype=np.uint16)}


class TestOverlapping(TokensContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        np.arange(N * 3 + 2, dtype=np.uint16).tofile(tmp_path / "t")
        return Dataset.from_source(Tokens(tmp_path / "t", 4, stride=3))

    def expected(self, i):
        start = i % N * 3
        return {"tokens": np.arange(start, start + 4, dtype=np.uint16)}


class TestSeveralFiles(TokensContract):
    @pytest.fixture
    def dataset(self, tmp_path):
        np.arange(41, dtype=np.uint16).tofile(tmp_path / "a.bin")  # 10 rows, and one token
        np.save(tmp_path / "b.npy", np.arange(100, 112, dtype=np.uint16))  # 3 rows
        np.arange(200, 240, dtype=np.uint16).tofile(tmp_path / "c.bin")  # 10 rows
        paths = [tmp_path / name for name in ("a.bin", "b.npy", "c.bin")]
        return Dataset.from_source(Tokens(paths, 4, np.uint16))

    def expected(self, i):
        i %= N
        start = i * 4 if i < 10 else 100 + (i - 10) * 4 if i < 13 else 200 + (i - 13) * 4
        return {"tokens": np.arange(start, start + 4, dtype=np.uint16)}


class TestTargets(RowsContract):
    @pytest.fixture
    def dataset(self, text):
        return Dataset.from_source(Tokens(text, 4, targets=True))

    def expected(self, i):
        row = np.arange(i % N * 4, i % N * 4 + 5, dtype=np.uint16)
        return {"inputs": row[:-1], "targets": row[1:]}

    def test_specs_of_chains(self, dataset):
        assert repr(dataset.element_spec) == "{'inputs': uint16[4], 'targets': uint16[4]}"

    def test_inputs_and_targets_do_not_share_memory(self, dataset):
        batch = dataset.batch(5)[0]
        assert not np.shares_memory(batch["inputs"], batch["targets"])
        assert all(leaf.ctypes.data % 64 == 0 for leaf in batch.values())


class Documents:
    """The segment ids and positions of a row, token by token."""

    end = 21  # of the rows 0 to N, one document ends in row 5, at its second token

    def marked(self, row, path):
        ids, positions, segment, position = [], [], 1, 0
        for token in row[path].tolist():
            ids.append(segment)
            positions.append(position)
            position += 1
            if token % 100 in (self.end, self.end + 1, self.end + 6):
                segment, position = segment + 1, 0
        marks = {"segment_ids": ids, "positions": positions}
        return {**row, **{f"{path}_{name}": np.array(m, np.int32) for name, m in marks.items()}}


class TestDocuments(RowsContract, Documents):
    @pytest.fixture
    def dataset(self, text):
        tokens = np.fromfile(text, np.uint16)
        tokens[[self.end + 1, self.end + 6]] = self.end  # an empty document, and another row
        tokens.tofile(text)
        return Dataset.from_source(Tokens(text, 4, end=self.end))

    def expected(self, i):
        start = i % N * 4
        row = np.arange(start, start + 4, dtype=np.uint16)
        found = self.marked({"tokens": row}, "tokens")
        row[np.isin(row, (self.end + 1, self.end + 6))] = self.end
        return found

    def test_specs_of_chains(self, dataset):
        assert repr(dataset.element_spec) == (
            "{'tokens': uint16[4], 'tokens_segment_ids': int32[4], 'tokens_positions': int32[4]}"
        )


class TestDocumentsOfSeveralFiles(RowsContract, Documents):
    @pytest.fixture
    def dataset(self, tmp_path):
        for number, name in enumerate("ab"):
            tokens = np.arange(100 * number, 100 * number + 48 + 2 * number, dtype=np.uint16)
            tokens[(tokens % 100 == 22) | (tokens % 100 == 27)] = 21
            tokens[tokens % 100 == 21] = 21
            tokens.tofile(tmp_path / name)
        paths = [tmp_path / name for name in "ab"]
        return Dataset.from_source(Tokens(paths, 4, end=21, targets=True, stride=4))

    def expected(self, i):
        start = i % N * 4 if i % N < 11 else 100 + (i % N - 11) * 4
        row = np.arange(start, start + 5, dtype=np.uint16)
        found = self.marked({"inputs": row[:-1], "targets": row[1:]}, "inputs")
        row[np.isin(row % 100, (21, 22, 27))] = 21
        return found

    def test_specs_of_chains(self, dataset):
        leaves = ["inputs", "targets", "inputs_segment_ids", "inputs_positions"]
        assert list(dataset.element_spec) == leaves


def test_a_row_without_an_end_is_one_document(text):
    row = Tokens(text, 4, end=65535)[3]
    assert row["tokens_segment_ids"].tolist() == [1] * 4
    assert row["tokens_positions"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ArgumentError, match="`end` is 65536, and tokens of uint16 are never that"):
        Tokens(text, 4, end=65536)


def test_single_rows_are_views_of_the_file(text):
    rows = Tokens(text, 4, targets=True)
    row = rows[2]
    assert np.shares_memory(row["inputs"], row["targets"])
    assert not row["inputs"].flags.writeable
    assert rows[-1]["inputs"].tolist() == rows[N - 1]["inputs"].tolist()
    with pytest.raises(IndexError, match="record 23 is out of range for 23 records"):
        rows[N]


def test_the_last_row_has_its_last_target(tmp_path):
    np.arange(9, dtype=np.uint32).tofile(tmp_path / "t")
    assert len(Tokens(tmp_path / "t", 4, np.uint32)) == 2
    rows = Tokens(tmp_path / "t", 4, np.uint32, targets=True)
    assert (len(rows), rows[1]["targets"].tolist()) == (2, [5, 6, 7, 8])
    np.arange(8, dtype=np.uint32).tofile(tmp_path / "t")
    assert len(Tokens(tmp_path / "t", 4, np.uint32, targets=True)) == 1


def test_opening_reads_nothing(tmp_path):
    """A file of holes: 64 GB that nobody could read."""
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    dataset = Dataset.from_source(Tokens(path, 1024, np.uint16)).shuffle(0).batch(8)
    with DataLoader(dataset.take(3), engine="inline") as loader:
        assert [batch["tokens"].shape for batch in loader] == [(8, 1024)] * 3


def test_repr(text):
    assert repr(Dataset.from_source(Tokens(text, 4, stride=2))).splitlines()[0] == (
        "Dataset.from_source(Tokens(text.bin, 4, uint16, stride=2))"
    )


def test_bad_files(tmp_path):
    path = tmp_path / "t.bin"
    path.write_bytes(b"12345")
    with pytest.raises(FileError, match="has 5 bytes, not a multiple of the 2 bytes of a uint16"):
        Tokens(path, 1)
    path.write_bytes(b"")
    with pytest.raises(FileError, match=r"t\.bin is empty"):
        Tokens(path, 1)
    path.write_bytes(b"1234")
    with pytest.raises(FileError, match="has 2 tokens, and a row needs 3"):
        Tokens(path, 2, targets=True)
    with pytest.raises(FileError, match="there is no file"):
        Tokens(tmp_path / "nothing", 2)
    np.save(tmp_path / "two.npy", np.zeros((2, 2), np.int32))
    with pytest.raises(
        FileError, match=r"holds int32\[2, 2\]; tokens are whole numbers in one row"
    ):
        Tokens(tmp_path / "two.npy", 2)
    np.save(tmp_path / "one.npy", np.zeros(4, np.int32))
    with pytest.raises(FileError, match="holds int32, and `dtype` is uint16. Leave `dtype` out"):
        Tokens(tmp_path / "one.npy", 2, np.uint16)
    with pytest.raises(FileError, match="different dtypes"):
        Tokens([tmp_path / "one.npy", path], 2)


def test_bad_arguments(text):
    with pytest.raises(ArgumentError, match="`length` must be at least 1, got 0"):
        Tokens(text, 0)
    with pytest.raises(ArgumentError, match="`stride` must be at least 1, got 0"):
        Tokens(text, 4, stride=0)
    with pytest.raises(ArgumentError, match="whole numbers; `dtype` is float32"):
        Tokens(text, 4, np.float32)
    with pytest.raises(ArgumentTypeError, match="`dtype` must be a NumPy dtype, got 'words'"):
        Tokens(text, 4, "words")
    with pytest.raises(ArgumentError, match="empty list"):
        Tokens([], 4)
    for wrong in (3, None, b"t.bin", ["t.bin", 3]):
        with pytest.raises(
            ArgumentTypeError, match=r"`path` must be the path of a file, or a list of"
        ):
            Tokens(wrong, 4)
