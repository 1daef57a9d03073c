"""CSV and TSV files."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError, RecordError
from loaderx.sources import Csv
from loaderx.sources.formats.csv import csv as csv_format
from loaderx.sources.formats.csv import rows as csv_rows
from loaderx.sources.formats.csv.columns import FEW, CsvColumn, parsed_columns
from loaderx.sources.native import copies as native_copies
from loaderx.testing import SourceContract
from oracle import assert_same

TEXTS = ["plain", "", 'a "quoted", one', "two\nlines", "naïve \u2028", "'", ",", "\r\n", '""', "NA"]
ROWS = [(n, n / 4, text, n % 2 == 0) for n, text in enumerate(TEXTS)]
NAMES = ["id", "x", "text", "flag"]


@pytest.fixture(params=["in memory", "copied"], autouse=True)
def kept(request, monkeypatch):
    """Every test runs with a copy and without."""
    if request.param == "copied":
        monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    return request.param


# For tests of columns, which know nothing of files and copies.
once = pytest.mark.parametrize("kept", ["in memory"], indirect=True)


def write(path, rows, names=NAMES, **options):
    with open(path, "w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        out = csv.writer(file, **options)
        if names:
            out.writerow(names)
        out.writerows(rows)
    return path


def records(rows):
    return [
        {"id": np.int64(n), "x": np.float64(x), "text": text, "flag": np.bool_(flag)}
        for n, x, text, flag in rows
    ]


def bad(message):
    return pytest.raises(RecordError, match=message)


class TestShards(SourceContract):
    """Several files, of which one has its columns in another order, and one has no rows."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.folder = tmp_path
        write(tmp_path / "x-2.csv", ROWS[:4])
        write(tmp_path / "x-9.csv", [])
        write(tmp_path / "x-10.csv", [row[::-1] for row in ROWS[4:]], NAMES[::-1])
        (tmp_path / "x-11.csv").write_bytes(b"")

    def make_source(self):
        return Dataset.open(self.folder)

    def expected_records(self):
        return records(ROWS)


class TestOptions(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.path = tmp_path / "x.data"
        rows = [(n, x, text.replace("\u2028", "!"), flag) for n, x, text, flag in ROWS]
        write(self.path, rows, None, delimiter=";", quotechar="'", encoding="latin-1")
        self.expected = rows

    def make_source(self):
        return Csv(
            self.path, ["text", "x"], header=NAMES, delimiter=";", quote="'", encoding="latin-1",
            types={"x": "float32"},
        )  # fmt: skip

    def expected_records(self):
        return [{"text": text, "x": np.float32(x)} for _, x, text, _ in self.expected]


def test_a_batch(tmp_path):
    dataset = Dataset.open(write(tmp_path / "x.csv", ROWS))
    assert repr(dataset.element_spec) == (
        "{'id': int64[], 'x': float64[], 'text': object[], 'flag': bool[]}"
    )
    (batch,) = dataset.batch(10)
    assert_same(batch["id"], np.arange(10))
    assert_same(batch["x"], np.arange(10) / 4)
    assert batch["text"].tolist() == TEXTS
    assert_same(batch["flag"], np.arange(10) % 2 == 0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n\r\n\n"])
@pytest.mark.parametrize("last", ["", "\n", "\r\n"])
def test_ends_of_lines_and_blank_lines(end, last, tmp_path):
    lines = ["a,b", "1,x", '2,"y\r\n\n,"', "3,z"]
    (tmp_path / "x.csv").write_bytes(("\ufeff" + end.join(lines) + last).encode())
    dataset = Dataset.open(tmp_path / "x.csv")
    assert [record["b"] for record in dataset] == ["x", "y\r\n\n,", "z"]
    (batch,) = dataset.shuffle(0).batch(3)
    assert sorted(batch["a"].tolist()) == [1, 2, 3]


def test_tsv_and_compressed(tmp_path):
    write(tmp_path / "x.tsv", [(1, "a,b")], ["n", "t"], delimiter="\t")
    assert Dataset.open(tmp_path / "x.tsv")[0]["t"] == "a,b"
    (tmp_path / "y.tsv.gz").write_bytes(gzip.compress((tmp_path / "x.tsv").read_bytes()))
    assert Dataset.open(tmp_path / "y.tsv.gz")[0]["t"] == "a,b"


def test_quotes_as_plain_characters(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b'n\tt\n1\t5" disk\n2\t"b\n')
    with pytest.raises(FileError, match=r'line 3: a quote \("\) is not .*Csv\(path, quote=None\)'):
        Dataset.open(tmp_path / "x.tsv")
    dataset = Dataset.from_source(Csv(tmp_path / "x.tsv", quote=None))
    assert [record["t"] for record in dataset] == ['5" disk', '"b']


@pytest.mark.parametrize(
    "content",
    [
        'a,b\n1,"2\n3,4\n', 'a,b\n1,2\n"3,4\n', '"a,b\n1,2\n', 'a,b\n1,2\n3,"', 'a,b\n1,2\n3,"x""',
        'a,b\n1,"2\n' + "3,4\n" * 1_000_000, 'a,b\n"1,2\n' + "3,4\n" * 50_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("columns", [None, ["a"], ["b"]])
def test_a_quote_that_is_not_closed(content, columns, tmp_path):
    """It would make one cell of the rest of the file."""
    (tmp_path / "x.csv").write_text(content)
    line = 1 + content[: content.rindex('"')].count("\n")
    with pytest.raises(FileError, match=rf"x\.csv, line {line}: a quote .* is not closed"):
        Csv(tmp_path / "x.csv", columns if content[0] != '"' else None)


def test_files_are_parsed_once(tmp_path, monkeypatch):
    """The types of columns are found from rows that are kept."""
    import pyarrow.csv as pa_csv

    opened = []
    real = pa_csv.open_csv
    monkeypatch.setattr(pa_csv, "open_csv", lambda *args: opened.append(args) or real(*args))
    for name in "abc":
        write(tmp_path / f"{name}.csv", ROWS * 60)
    source = Csv(tmp_path / "*.csv")
    assert len(opened) == 3
    assert_same([source[n] for n in range(len(source))], records(ROWS * 180))


def test_a_row_that_cannot_be_decoded_among_the_first(tmp_path):
    lines = [b"n,t", b"1,a", b"x,\xff", b"2,b", b"3,\xc3\xa4"]
    (tmp_path / "x.csv").write_bytes(b"\n".join(lines))
    source = Csv(tmp_path / "x.csv")
    assert [source[n] for n in (0, 2, 3)] == [
        {"n": 1, "t": "a"},
        {"n": 2, "t": "b"},
        {"n": 3, "t": "ä"},
    ]
    with bad(r"x\.csv, line 3: column 'n': 'x' is not an integer"):
        Dataset.from_source(source)[1]


def test_bytes_that_are_not_ascii_in_later_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "BLOCK", 4096)
    texts = ["a" * 50 if n < 500 else "ä" * 50 for n in range(1000)]
    write(tmp_path / "x.csv", list(enumerate(texts)), ["n", "t"])
    source = Csv(tmp_path / "x.csv")
    assert [source[n]["t"] for n in range(1000)] == texts


def test_rows_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "BLOCK", 8192)
    texts = ["a" * (5 * n if n % 97 else 4000) + "\n" * (n % 3) for n in range(300)]
    lines = [f'{n},"{text}"' for n, text in enumerate(texts)]
    lines[50], lines[200] = "x,1,2", "1"
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["n,t", *lines]))
    source = Csv(path)
    assert len(source) == 300
    for n in (0, 49, 51, 97, 199, 201, 299):
        assert source[n] == {"n": n, "t": texts[n]}
    before = sum(text.count("\n") for text in texts[:200]) - texts[50].count("\n")
    found = [problem for problem in source.problems() if problem]
    assert [problem.record for problem in found] == [50, 200]
    assert found[1].where == f"{path}, line {202 + before}"
    assert found[1].reason == "it has 1 cells, and the header has 2"


# Types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "dtype", "values"),
    [
        (["1", "-2", "+3", " 4 ", "007"], np.int64, [1, -2, 3, 4, 7]),
        ([str(2**63 - 1), str(-(2**63))], np.int64, [2**63 - 1, -(2**63)]),
        (["1", "2.5", "1e3", ".5", "5.", "-0"], np.float64, [1, 2.5, 1000, 0.5, 5, -0.0]),
        (["1", "nan", "-inf", "1e400", "Infinity"], np.float64,
         [1, math.nan, -math.inf, math.inf, math.inf]),
        (["0.1", "179769313486231570000000000000000000000", "4.9e-324"], np.float64,
         [0.1, 1.7976931348623157e38, 5e-324]),
        (["true", "False", "TRUE"], np.bool_, [True, False, True]),
        (["1_000", "2"], object, ["1_000", "2"]),
        (["1", str(2**63)], object, ["1", str(2**63)]),
        (["1", "x"], object, ["1", "x"]),
        (["٣", "1"], object, ["٣", "1"]),
        (["0x10", "1"], object, ["0x10", "1"]),
        (["NA", "Namibia"], object, ["NA", "Namibia"]),
    ],
)  # fmt: skip
def test_types_are_found(cells, dtype, values, tmp_path):
    (batch,) = Dataset.open(
        write(tmp_path / "x.csv", [(cell, 0) for cell in cells], ["c", "d"])
    ).batch(len(cells))
    expected = np.empty(len(values), dtype)
    expected[:] = values
    assert batch["c"].dtype == dtype
    if dtype is object:
        assert batch["c"].tolist() == values
    else:
        np.testing.assert_array_equal(batch["c"], expected)
        assert np.signbit(batch["c"]).tolist() == np.signbit(expected).tolist() or dtype is np.bool_


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("x", r"column 'id': 'x' is not an integer\. Say what the column is with types={'id': "),
        ("1.5", "column 'id': '1.5' is not an integer"),
        ("1_0", "column 'id': '1_0' is not an integer"),
        ("", r"column 'id': an empty cell is a missing value\. Fill them, fill=\{'id': \.\.\.\}"),
        ("NA", "column 'id': 'NA' is a missing value"),
        (str(2**63), "column 'id': 9223372036854775808 does not fit into int64"),
        ("[1]", r"column 'id': '\[1\]' is not an integer"),
        ("1,2", "it has 3 cells, and the header has 2"),
        ('a"b,c"d', "it has 3 cells, and the header has 2"),
        ("\xff", None),
    ],
)
def test_a_bad_cell_fails_alone(cell, message, tmp_path):
    rows = [f"t{n},{n}" for n in range(1002)]
    rows.insert(1001, f"t,{cell}")
    path = tmp_path / "x.csv"
    path.write_bytes("\n".join(["t,id", *rows]).encode("latin-1"))
    message = (
        message or r"column 'id': it is not UTF-8 \(byte 0xff at 0.*encoding=\"latin-1\"\), say"
    )
    dataset = Dataset.open(path)
    where = rf"on record 1001: BadRecordError: .*x\.csv, line 1003: ({message})"
    with bad(where):
        list(dataset.batch(7))
    with bad(where):
        list(dataset.shuffle(0).batch(17))
    with bad(where):
        _ = dataset[1001]
    ids = np.concatenate([batch["id"] for batch in dataset.on_error("replace").batch(17)])
    assert np.delete(ids, 1001).tolist() == list(range(1002))


def test_missing_values(tmp_path):
    rows = [(1, 0.5, "a"), ("", "NA", ""), (3, "", "NA")]
    path = write(tmp_path / "x.csv", rows, ["i", "f", "t"])
    with pytest.raises(FileError, match=r"x\.csv, line 3 and others: column 'i' has "):
        Dataset.open(path)
    (batch,) = Dataset.open(path, fill={"i": -1, "f": math.nan, "t": "none"}).batch(3)
    assert batch["i"].tolist() == [1, -1, 3]
    assert np.isnan(batch["f"]).tolist() == [False, True, True]
    assert batch["t"].tolist() == ["a", "none", "NA"]
    (batch,) = Dataset.open(path, columns=["t"]).batch(3)  # text has no missing values
    assert batch["t"].tolist() == ["a", "", "NA"]
    for fill, message in (
        ({"i": 1.5}, "`fill` for the column 'i': 1.5 is not an integer"),
        ({"i": "x"}, "`fill` for the column 'i': 'x' is not an integer"),
        ({"t": 1}, "`fill` must be text for the column 't'"),
        ({"z": 1}, "`fill` names 'z', and .* has 'i', 'f', 't'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Dataset.open(path, fill={"i": 0, "f": 0, **fill})


def test_types_of_the_user(tmp_path):
    path = write(tmp_path / "x.csv", [("01", 300, 1, 2.5), ("02", 4, 0, 1)], ["zip", "n", "b", "f"])
    source = Csv(path, types={"zip": str, "n": np.uint16, "b": bool, "f": "float16"})
    assert source[0] == {"zip": "01", "n": np.uint16(300), "b": np.True_, "f": np.float16(2.5)}
    with bad("column 'n': 300 does not fit into int8"):
        list(Dataset.from_source(Csv(path, types={"n": "int8"})))
    with pytest.raises(ArgumentError, match=r"must be a dtype of integers, floats or bools, 'dat"):
        Csv(path, types={"n": "M8[Y]"})


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_bytes_of_another_encoding_in_rows_that_do_not_fit(encoding, tmp_path, capfd):
    rows = [b"\xc3\xa9,%d" % n for n in range(1002)]
    rows[1000] = b"\xff,2,3"
    rows[1001] = b"a\xfe,1001"
    path = tmp_path / "x.csv"
    path.write_bytes(b"\n".join([b"t,n", *rows[900:], b"z,7\n"]))
    source = Csv(path, encoding=encoding, types={"n": "int64"})
    problems = [problem and problem.reason for problem in source.problems()]
    assert problems[100] == "it has 3 cells, and the header has 2"
    assert source[102] == {"t": "z", "n": 7}
    if encoding == "latin-1":
        assert source[101] == {"t": "a\xfe", "n": 1001}
        assert source[0]["t"] == "\xc3\xa9"
    else:
        assert problems[101].startswith("column 't': it is not ")
    if encoding == "utf-8":
        assert source[0]["t"] == "é"
    assert capfd.readouterr().err == ""


# Headers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: it has no row with the names"),
        ("a,b\n", "there are no records in it"),
        ("a;b\n1;2\n", r"has one column, 'a;b'\. If its delimiter is \";\", open it with"),
        ("1,2\n3,4\n", r"the names of the columns would be numbers \(1, 2\).*header=False"),
        ("a,a\n1,2\n", "two columns have the name 'a'"),
        ("a,b\n1\n2\n", "line 2: it has 1 cells, and the header has 2"),
        ("a,\xff\n1,2\n", r"first row: it is not UTF-8"),
    ],
)
def test_files_that_are_refused(content, message, tmp_path):
    (tmp_path / "x.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(FileError, match=rf"x\.csv.*{message}"):
        Dataset.open(tmp_path / "x.csv")


def test_no_header(tmp_path):
    path = write(tmp_path / "x.csv", [(5, 0.5), (6, 1.5)], None)
    assert [*Csv(path, header=False)[0]] == ["column_0", "column_1"]
    assert Csv(path, header=["n", "x"])[1]["n"] == 6
    with pytest.raises(ArgumentError, match="`header` has 1 names, and .* has 2 columns"):
        Csv(path, header=["n"])


def test_shards_without_a_column(tmp_path):
    write(tmp_path / "a.csv", [(1, 2)], ["x", "y"])
    write(tmp_path / "b.csv", [(3, 4)], ["z", "x"])
    with pytest.raises(FileError, match=r"b\.csv has no column 'y', which .*a\.csv has\. Choose"):
        Dataset.open(tmp_path)
    assert [int(record["x"]) for record in Dataset.open(tmp_path, columns=["x"])] == [1, 4]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"delimiter": ""}, ArgumentError, "`delimiter` must be one ASCII character, got ''"),
        ({"delimiter": "\n"}, ArgumentError, "`delimiter` must be one ASCII character"),
        ({"quote": "''"}, ArgumentError, "`quote` must be one ASCII character"),
        ({"quote": ","}, ArgumentError, "`delimiter` and `quote` are both ','"),
        ({"encoding": "utf-16"}, ArgumentError, "`encoding` must contain ASCII"),
        ({"encoding": "klingon"}, ArgumentError, "'klingon', which Python does not know"),
        ({"columns": "a"}, ArgumentTypeError, "`columns` must be a list of names"),
        ({"columns": ["z"]}, ArgumentError, "`columns` names 'z', and .* has 'a', 'b'"),
    ],
)
def test_arguments(options, error, message, tmp_path):
    write(tmp_path / "x.csv", [(1, 2)], ["a", "b"])
    with pytest.raises(error, match=message):
        Csv(tmp_path / "x.csv", **options)
    with pytest.raises(FileError, match=r"is a folder: give its files, such as folder/\*\.csv"):
        Csv(tmp_path)


def test_states_and_workers(tmp_path):
    path = write(tmp_path / "x.csv", [(n, f"t{n}, x") for n in range(100)], ["id", "t"])
    dataset = Dataset.open(path).shuffle(3).batch(7)
    expected = [batch["id"].tolist() for batch in dataset]
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        iterator = iter(loader)
        begun = [next(iterator)["id"].tolist() for _ in range(4)]
        state = iterator.get_state()
    iterator = iter(DataLoader(dataset, engine="threads"))
    iterator.set_state(state)
    assert begun + [batch["id"].tolist() for batch in iterator] == expected


@pytest.mark.parametrize("rows", [["1", "9" * 5000], ["9" * 5000, "1"]])
def test_numbers_of_thousands_of_digits_are_text(tmp_path, rows):
    """Python itself refuses to parse them."""
    (tmp_path / "x.csv").write_text("x\n" + "\n".join(rows) + "\n")
    assert [record["x"] for record in Dataset.open(tmp_path / "x.csv")] == rows


def test_the_types_of_large_files_are_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    path = write(tmp_path / "a.csv", [("1", "2.5"), ("3", "")], ["n", "x"])

    def opened(**options):
        source = Csv(path, cache=tmp_path / "cache", **options)
        return [str(leaf.dtype) for leaf in source.spec.values()], source[0]

    ways = [
        {"fill": {"x": 0}},
        {"fill": {"x": 0}, "types": {"n": "int8"}},
        {"columns": ["n"]},
        {"header": ["n", "x"], "types": {"n": str, "x": str}},
        {"header": False, "columns": ["column_0"]},
    ]
    first = [opened(**way) for way in ways]
    assert [types for types, _ in first] == [
        ["int64", "float64"], ["int8", "float64"], ["int64"], ["object", "object"], ["object"],
    ]  # fmt: skip
    with pytest.raises(FileError, match="column 'x': an empty cell is a missing value"):
        opened()
    monkeypatch.setattr(csv_format, "CsvFiles", None)  # nothing is parsed again
    assert [opened(**way) for way in ways] == first


# Against Python ---------------------------------------------------------------------------------


CELLS = st.text(st.sampled_from(list('ab",\n\r é1')), max_size=6)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_cells_that_csv_writes(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = write(os.path.join(folder, "x.csv"), rows, ["a", "b", "c"])
        source = Csv(path, ["c", "a"], types={"a": str, "c": str}, cache=False)
        assert [source[n] for n in range(len(source))] == [{"c": c, "a": a} for a, _, c in rows]


@given(st.text(st.sampled_from(list('ab",\n')), max_size=30))
@example('a,b\n"a')
@example('a,b\n"a,b"a\n"a')
def test_any_text(text):
    """Rows and lines are those of Python's csv; or the quote that is open in its last row is."""
    text = f"x,y\n{text}"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.csv")
        with open(path, "w", newline="") as file:
            file.write(text)
        reader = csv.reader(io.StringIO(text, newline=""))
        rows, lines, before = [], [], 0
        for row in reader:
            if row:
                rows.append(row)
                lines.append(before + 1)
            before = reader.line_num
        last = "".join(text.splitlines(keepends=True)[lines[-1] - 1 :])
        is_open = "behind" in next(csv.reader(io.StringIO(f"{last}\nbehind", newline="")))[-1]
        if is_open or all(len(row) != 2 for row in rows[1:]):
            with pytest.raises(FileError, match="not closed" if is_open else "cells|no records"):
                Csv(path, types={"x": str, "y": str}, cache=False)
            return
        source = Csv(path, types={"x": str, "y": str}, cache=False)
        problems = list(source.problems())
        for number, (row, line) in enumerate(zip(rows[1:], lines[1:], strict=True)):
            if len(row) == 2:
                assert source[number] == {"x": row[0], "y": row[1]}
            else:
                assert problems[number].where == f"{path}, line {line}"


TEXTS_OF_NUMBERS = st.text(st.sampled_from(list("0123456789+-.eEnaifx( _,[]")), max_size=7)
NUMBERS = st.one_of(
    TEXTS_OF_NUMBERS,
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(0, 300).map(str),
    st.sampled_from(["-0", " -0 ", "-0.0", "1e400", "", "NA", "true", "null", "1,2", "0x10", "+3"]),
)


@once
@pytest.mark.parametrize("dtype", ["int64", "float64", "uint8", "float32", "uint64", "bool"])
@pytest.mark.parametrize("fill", [None, 1])
@given(st.lists(NUMBERS, min_size=1, max_size=5).map(lambda cells: cells * FEW))
@example(["-0", "1"] * FEW)
@example(["0x10", "1"] * FEW)
@example(["nan(1)", "1"] * FEW)
def test_numbers_are_those_of_one_by_one(dtype, fill, cells):
    """What pyarrow parses at once, and what is parsed cell by cell."""
    column = CsvColumn("x", np.dtype(dtype), None if fill is None else np.dtype(dtype).type(fill))
    cells = [cell for cell in cells if cell.isprintable()]
    data, wrong = column.data(pa.array([cell.encode() for cell in cells], pa.binary()), "utf-8")
    slow, wrong_slow = column.parsed_one_by_one(cells)
    assert wrong == wrong_slow
    assert data.values.dtype == slow.dtype == dtype
    np.testing.assert_array_equal(data.values, slow)
    assert dtype == "bool" or np.signbit(data.values).tolist() == np.signbit(slow).tolist()


COLUMNS = [
    CsvColumn("a", np.dtype(np.int64)),
    CsvColumn("b", np.dtype(object)),
    CsvColumn("c", np.dtype(np.int64)),
    CsvColumn("d", np.dtype(np.float32)),
    CsvColumn("e", np.dtype(np.int64), 7),
    CsvColumn("f", np.dtype(np.float32), 2.5),
    CsvColumn("g", np.dtype(np.float32), 2.5),
]


@once
@given(st.lists(st.tuples(*[NUMBERS] * len(COLUMNS)), max_size=9), st.integers(1, FEW))
@example([("1", "x", "2", "3.5", "", "4", "NA")], 1)
def test_columns_that_are_parsed_together(rows, times):
    cells = [[row[place].encode() for row in rows] * times for place in range(len(COLUMNS))]
    arrays = [pa.array(one, pa.binary()) for one in cells]
    table = pa.record_batch(arrays, [column.name for column in COLUMNS])
    found = parsed_columns(COLUMNS, table, "utf-8")
    for column, array, (data, wrong) in zip(COLUMNS, arrays, found, strict=True):
        alone, wrong_alone = column.data(array, "utf-8")
        assert wrong == wrong_alone
        np.testing.assert_array_equal(data.values, alone.values)
        assert data.values.dtype == alone.values.dtype


@once
@given(st.lists(st.floats().map(repr), min_size=FEW))
def test_floats_are_those_of_python(cells):
    column = CsvColumn("x", np.dtype(np.float64))
    data, wrong = column.data(pa.array([cell.encode() for cell in cells], pa.binary()), "utf-8")
    assert not wrong
    np.testing.assert_array_equal(data.values, np.array([float(cell) for cell in cells]))
