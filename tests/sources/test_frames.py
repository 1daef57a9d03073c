"""Tables of pandas, polars and pyarrow."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset
from oracle import assert_same
from processes import environment
from tests.sources.test_sources import RowsContract, X, Y

pytestmark = pytest.mark.foreign

COLUMNS = {
    "id": np.arange(7, dtype=np.int64),
    "x": np.linspace(0, 1, 7, dtype=np.float32),
    "flag": np.arange(7) % 2 == 0,
    "text": ["a", "bcd", "", "e", "naïve", "f", "g" * 50],
}


def shuffled_pandas():
    """A frame whose labels are not its positions."""
    frame = pd.DataFrame(COLUMNS).sample(frac=1, random_state=0)
    return frame.sort_values("id", ascending=True).set_index(pd.Index([9, 1, 0, 4, 3, 2, 8]))


FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas, other labels": shuffled_pandas,
    "pandas, nullable": lambda: pd.DataFrame(COLUMNS).astype(
        {"id": "Int64", "x": "Float32", "flag": "boolean", "text": "string"}
    ),
    "pandas, arrow": lambda: pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars, chunks": lambda: pl.concat(
        [pl.DataFrame(COLUMNS)[:3], pl.DataFrame(COLUMNS)[3:]], rechunk=False
    ),
    "pyarrow": lambda: pa.table(COLUMNS),
    "pyarrow, chunks": lambda: pa.concat_tables([pa.table(COLUMNS)[:3], pa.table(COLUMNS)[3:]]),
    "pyarrow, batch": lambda: pa.record_batch(COLUMNS),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("begin", [Dataset.from_arrays, Dataset.from_source])
def test_a_frame_is_a_dict_of_columns(make, begin):
    dataset = begin(make())
    assert repr(dataset.element_spec) == (
        "{'id': int64[], 'x': float32[], 'flag': bool[], 'text': object[]}"
    )
    (batch,) = dataset.batch(7)
    for name in ("id", "x", "flag"):
        assert_same(batch[name], COLUMNS[name])
    assert batch["text"].tolist() == COLUMNS["text"]
    record = dataset[4]
    assert list(record) == ["id", "x", "flag", "text"]
    assert record["text"] == "naïve"
    assert type(record["text"]) is str


class TestPandas(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_arrays(pd.DataFrame({"x": list(X), "y": Y}))


class TestPolars(RowsContract):
    @pytest.fixture
    def dataset(self):
        return Dataset.from_source(pl.DataFrame({"x": pl.Series(X), "y": pl.Series(Y)}))


class TestNestedTable(RowsContract):
    @pytest.fixture
    def dataset(self):
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(X.reshape(-1), 6), "y": Y})
        return Dataset.from_arrays(table)

    def expected(self, i):
        return {"x": X[i].reshape(6), "y": Y[i]}

    test_specs_of_chains = None


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame(COLUMNS), pl.DataFrame(COLUMNS), pa.table(COLUMNS)],
    ids=["pd", "pl", "pa"],
)
def test_numbers_are_not_copied_where_the_frame_can_lend_them(frame):
    seen = []

    def look(run):
        seen.append(run["id"])
        return run["flag"]

    list(Dataset.from_arrays(frame).filter(look, batched=True).batch(2))
    assert np.shares_memory(seen[0], frame["id"].to_numpy())


def test_columns_in_a_tree():
    frame = pd.DataFrame(COLUMNS, index=[6, 5, 4, 3, 2, 1, 0])
    dataset = Dataset.from_arrays(inputs=frame[["id", "x"]], label=frame["flag"])
    assert dataset[1] == {"inputs": {"id": 1, "x": COLUMNS["x"][1]}, "label": False}
    pairs = Dataset.from_arrays(pl.DataFrame(COLUMNS)["id"], pa.array([1, 2, 3, 4, 5, 6, 7]))
    assert pairs[2] == (2, 3)
    # Not by label, which would be record 4.
    assert int(Dataset.from_source(frame["id"])[2]) == 2


def test_the_short_form():
    loader = DataLoader(pd.DataFrame(COLUMNS), batch_size=7, shuffle=False)
    assert next(iter(loader))["id"].tolist() == list(range(7))


def test_worker_processes():
    dataset = Dataset.from_arrays(pl.DataFrame(COLUMNS)).batch(3)
    with DataLoader(dataset, engine="processes", num_workers=1) as loader:
        for found, expected in zip(loader, dataset, strict=True):
            assert_same(found, expected)


TIMES = [dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 6, 1)]
UTC = [time.replace(tzinfo=dt.UTC) for time in TIMES]
DAYS = [time.date() for time in TIMES]
SPECIAL = {
    "category": (pd.Series(["a", "b"], dtype="category"), ["a", "b"], "object"),
    "category of numbers": (pd.Series([5, 7], dtype="category"), [5, 7], "int64"),
    "times": (pd.Series(TIMES).astype("datetime64[ns]"), TIMES, "datetime64[ns]"),
    "zones": (pd.Series(UTC).astype("datetime64[us, UTC]"), TIMES, "datetime64[us]"),
    "sparse": (pd.Series(pd.arrays.SparseArray([0, 1])), [0, 1], "int64"),
    "bytes": (pd.Series([b"a", b"bc"]), [b"a", b"bc"], "object"),
    "NaN": (pd.Series([1.0, np.inf]), [1.0, np.inf], "float64"),
    "vectors": (pd.Series([np.zeros(2), np.ones(2)]), [[0, 0], [1, 1]], "float64"),
    "lists": (pd.Series([[1, 2], [3, 4]]), [[1, 2], [3, 4]], "int32"),
    "polars category": (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"], "object"),
    "polars times": (pl.Series(TIMES), TIMES, "datetime64[us]"),
    "polars days": (pl.Series(DAYS), DAYS, "datetime64[D]"),
    "polars vectors": (pl.Series([[1, 2], [3, 4]]), [[1, 2], [3, 4]], "int64"),
    "polars fixed": (
        pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
        [[1, 2], [3, 4]],
        "int8",
    ),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"], "object"),
    "arrow zones": (pa.array(UTC, pa.timestamp("us", "UTC")), TIMES, "datetime64[us]"),
    "arrow fixed": (
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        [[1, 2], [3, 4]],
        "int16",
    ),
}


@pytest.mark.parametrize(("column", "expected", "dtype"), SPECIAL.values(), ids=SPECIAL)
def test_columns_of_all_kinds(column, expected, dtype):
    (batch,) = Dataset.from_arrays(c=column).batch(2)
    assert batch["c"].tolist() == (
        np.array(expected, dtype).tolist() if "datetime" in dtype else expected
    )
    assert batch["c"].dtype == dtype


MISSING = r'columns with missing values, which arrays cannot hold: "c" \(1\)'
OBJECTS = r'column "c" holds objects \({}\) that are neither numbers'
REFUSED = {
    "text": (pd.DataFrame({"c": ["a", None]}), ArgumentError, MISSING),
    "objects": (pd.DataFrame({"c": pd.Series(["a", None], dtype=object)}), ArgumentError, MISSING),
    "nullable": (pd.DataFrame({"c": pd.array([1, None], dtype="Int64")}), ArgumentError, MISSING),
    "category": (
        pd.DataFrame({"c": pd.Series(["a", None], dtype="category")}),
        ArgumentError,
        MISSING,
    ),
    "polars": (pl.DataFrame({"c": [1, None]}), ArgumentError, MISSING),
    "pyarrow": (pa.table({"c": [1.5, None]}), ArgumentError, MISSING),
    "mixed": (
        pd.DataFrame({"c": pd.Series(["a", 1], dtype=object)}),
        ArgumentTypeError,
        OBJECTS.format("int, str"),
    ),
    "period": (
        pd.DataFrame({"c": pd.period_range("2024", periods=2, freq="M")}),
        ArgumentTypeError,
        OBJECTS.format("Period"),
    ),
    "decimal": (
        pa.table({"c": [decimal.Decimal("1.5"), decimal.Decimal("2")]}),
        ArgumentTypeError,
        OBJECTS.format("Decimal"),
    ),
    "fields": (pl.DataFrame({"c": [{"a": 1}]}), ArgumentTypeError, 'column "c" holds records of'),
    "dicts": (pa.table({"c": [{"a": 1}]}), ArgumentTypeError, OBJECTS.format("dict")),
    "lists of lists": (pa.table({"c": [[[1], [2]], []]}), ArgumentTypeError, 'column "c" holds lists'),
    "twice": (pd.DataFrame([[1, 2]], columns=["c", "c"]), ArgumentError, "two columns have the name 'c'"),
    "levels": (
        pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])),
        ArgumentTypeError,
        r"the name of column 0 is \('a', 'b'\)",
    ),
    "lazy": (pl.LazyFrame({"c": [1]}), ArgumentTypeError, r"is a query, .*\.collect\(\) first"),
    "empty": (pd.DataFrame({"c": []}), ArgumentError, "the dataset is empty"),
    "nothing": (pd.DataFrame(), ArgumentError, "needs at least one array"),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(frame, error, message):
    for begin in (Dataset.from_arrays, Dataset.from_source):
        with pytest.raises(error, match=message):
            begin(frame)


def test_another_table_is_refused_with_words():
    class Other:
        def __dataframe__(self):
            raise AssertionError

        def __len__(self):
            return 1

        def __getitem__(self, i):
            raise KeyError(i)

    with pytest.raises(
        ArgumentTypeError, match=r"tables of pandas, polars and pyarrow, not .*Other"
    ):
        Dataset.from_source(Other())


ROWS = [[1, 2, 3], [4], [], [5, 6]]


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame({"t": ROWS}), pl.DataFrame({"t": ROWS}), pa.table({"t": ROWS})],
    ids=["pandas", "polars", "pyarrow"],
)
def test_lists_of_other_lengths_are_records(frame):
    dataset = Dataset.from_arrays(frame)
    assert "from_arrays(t)" in repr(dataset)
    assert [record["t"].tolist() for record in dataset] == ROWS
    (batch,) = dataset.batch(4, pad_to={"t": 3})
    assert batch["t"].tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0], [5, 6, 0]]
    (rows,) = dataset.pack({"t": 6}).batch(1)
    assert sorted(rows["t"][0].tolist()) == [1, 2, 3, 4, 5, 6]
    kept = dataset.filter(lambda r: len(r["t"]) > 1).map(lambda r: r["t"].sum())
    assert [int(total) for total in kept] == [6, 11]
    with pytest.raises(ValueError, match='leaf "t"'):
        list(dataset.batch(4))


def test_a_record_does_not_change_the_frame():
    frame = pl.DataFrame({"t": ROWS, "x": [1, 2, 3, 4]})

    def change(record):
        record["t"][:] = 1
        return record

    with pytest.raises(RuntimeError, match="read-only"):
        list(Dataset.from_arrays(frame).map(change))
    assert frame["t"].to_list() == ROWS
    batch = next(iter(Dataset.from_arrays(frame.select("x")).batch(4)))
    batch["x"] += 1
    assert frame["x"].to_list() == [1, 2, 3, 4]


def test_no_table_library_is_imported():
    script = (
        "import sys, numpy as np, loaderx as lx; lx.Dataset.from_arrays(x=np.arange(3))[0]; "
        "print([m for m in ('pandas', 'polars', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
