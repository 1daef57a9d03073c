"""Missing values, categories and types: the same records from every format of tables."""

from __future__ import annotations

import datetime as dt
import functools
import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, FileError, engines
from loaderx.sources import Csv, Jsonl
from loaderx.sources.native import copies as native_copies

DAY = "datetime64[D]"
TABLE = {
    "age": [31, None, 5, None],
    "height": [1.5, 2.5, None, float("inf")],
    "day": [dt.date(2024, 2, 29), None, dt.date(1999, 12, 31), None],
    "ok": [True, None, None, False],
    "city": ["Ulm", None, "Bern", "Ulm"],
    "id": [0, 1, 2, 3],
}
SCHEMA = pa.schema(
    {
        "age": pa.int64(),
        "height": pa.float64(),
        "day": pa.date32(),
        "ok": pa.bool_(),
        "city": pa.string(),
        "id": pa.int64(),
    }
)
FORMATS = ["csv", "parquet", "arrow", "lz4", "jsonl", "pandas", "polars", "pyarrow", "hub"]


def cell(value):
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def opened(format, table, folder, **options):
    """The table, written in a format, and opened with these options."""
    arrow = pa.table(table, SCHEMA.empty_table().select(list(table)).schema)
    path = folder / f"x.{format}"
    if format in ("csv", "jsonl"):
        rows = arrow.to_pylist()
        if format == "csv":
            lines = [",".join(table), *(",".join(map(cell, row.values())) for row in rows)]
        else:
            lines = [json.dumps(row, default=str) for row in rows]
        path.write_text("\n".join(lines) + "\n")
        given = {"age": "int64", "id": "int64", "height": "float64", "day": DAY}
        given = {name: one for name, one in given.items() if name in table}
        types = {**given, **options.pop("types", {})}
        return Dataset.open(path, types=types, **options)
    if format == "parquet":
        pq.write_table(arrow, path, row_group_size=2)
    elif format in ("arrow", "lz4"):
        path = folder / f"{format}.arrow"
        feather.write_feather(
            arrow, path, compression="uncompressed" if format == "arrow" else format
        )
    else:
        made = {
            "pandas": lambda: arrow.to_pandas(types_mapper=pd.ArrowDtype),
            "polars": lambda: pl.from_arrow(arrow),
            "pyarrow": lambda: arrow,
            "hub": lambda: datasets.Dataset(arrow),
        }
        return Dataset.from_source(made[format](), **options)
    return Dataset.open(path, **options)


def rows_of(dataset):
    """The records as plain values; NaN and NaT as None, which compare."""
    return [{name: plain(one) for name, one in record.items()} for record in dataset]


def plain(value):
    value = value.item() if isinstance(value, np.generic) else value
    return None if value != value else value


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADERX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def expected(table, words, fill):
    """What records must be, by the words of each column."""
    blanks = {"age": 0, "height": 0.0, "day": None, "ok": False, "city": ""}
    columns = {}
    for name, values in table.items():
        if name in fill:
            columns[name] = [fill[name] if one is None else one for one in values]
        elif words.get(name) == "valid":
            columns[name] = [blanks[name] if one is None else one for one in values]
            columns[f"{name}_valid"] = [one is not None for one in values]
        else:
            columns[name] = values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# The same records from all formats ----------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_valid_leaves(format, tmp_path):
    dataset = opened(format, TABLE, tmp_path, missing="valid")
    names = ("age", "height", "day", "ok", "city")
    assert rows_of(dataset) == expected(TABLE, dict.fromkeys(names, "valid"), {})
    batch = dataset.batch(4)[0]
    assert batch["age_valid"].tolist() == [True, False, True, False]
    assert batch["age"].tolist() == [31, 0, 5, 0]
    again = pickle.loads(pickle.dumps(dataset))
    assert rows_of(again) == rows_of(dataset)


@pytest.mark.parametrize("format", FORMATS)
def test_nan_and_nat(format, tmp_path):
    words = {"age": "nan", "height": "nan", "day": "nan", "ok": "valid"}
    dataset = opened(format, TABLE, tmp_path, missing=words, fill={"city": "?"})
    assert rows_of(dataset) == expected(TABLE, words, {"city": "?"})
    batch = dataset.batch(4)[0]
    assert np.isnan(batch["age"]).tolist() == [False, True, False, True]
    assert np.isnat(batch["day"]).tolist() == [False, True, False, True]
    assert batch["height"].dtype == np.float64
    assert batch["id"].dtype == np.int64


@pytest.mark.parametrize("format", FORMATS)
def test_a_named_column_gets_its_word_in_any_case(format, tmp_path):
    table = {"age": [1, 2], "id": [3, 4], "city": ["a", "b"]}
    dataset = opened(format, table, tmp_path, missing={"age": "nan", "city": "valid"})
    first = dataset[0]
    assert list(first) == ["age", "id", "city", "city_valid"]
    assert first["city_valid"]
    assert isinstance(plain(first["age"]), float)
    for word in ("valid", "nan"):  # there is nothing to say of columns without missing values
        assert list(opened(format, table, tmp_path, missing=word)[0]) == ["age", "id", "city"]


@pytest.mark.parametrize("format", FORMATS)
def test_all_columns_that_cannot_have_nan_are_in_one_error(format, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        opened(format, TABLE, tmp_path, missing="nan")
    told = str(caught.value)
    assert "missing='nan' is for numbers and times, and" in told
    assert "'ok' (bool)" in told
    assert ("'city' (text)" in told) == (format != "csv")  # an empty cell is text
    assert "fill={'ok': ...}" in told or "fill={'ok': ..., 'city': ...}" in told
    assert "missing={'age': 'nan', 'height': 'nan', 'day': 'nan', 'ok': 'valid'" in told


@pytest.mark.parametrize("format", ["parquet", "arrow", "lz4", "csv", "polars", "pyarrow"])
def test_all_columns_with_missing_values_are_in_one_error(format, tmp_path):
    options = {"fill": {"id": 0}} if format in ("polars", "pyarrow") else {}
    with pytest.raises(FileError) as caught:
        opened(format, TABLE, tmp_path, **options)
    told = str(caught.value)
    for name in ("age", "height", "ok"):
        assert f"column '{name}' has " in told
    assert "fill={'age': ..., 'height': ..., " in told
    assert "missing='valid' or 'nan'" in told
    assert "leave the columns out with columns=[...]" in told


def test_all_columns_of_a_frame_with_missing_values_are_in_one_error():
    message = r'cannot hold: "a" \(1\), "b" \(2\)\. .* fill={\'a\': \.\.\., \'b\': \.\.\.}\), keep'
    with pytest.raises(ArgumentError, match=message):
        Dataset.from_source(pl.DataFrame({"a": [1, None], "b": [None, None], "c": [1, 2]}))


def test_all_keys_that_a_line_lacks_are_in_one_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1, "b": 2, "c": 3}\n' * 3 + '{"c": 1}\n{"a": null, "b": null, "c": 1}\n')
    dataset = Dataset.open(path)
    with pytest.raises(
        Exception, match=r"line 4: it has no 'a', 'b'\. Fill .* fill={'a': \.\.\., 'b"
    ):
        dataset[3]
    with pytest.raises(
        Exception, match=r"line 5: 'a', 'b' are null\. .*, keep them, missing='valid'"
    ):
        dataset[4]


_gaps = functools.partial(st.one_of, st.none())
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "age": _gaps(st.integers(-(2**31), 2**31 - 1)),
            "height": _gaps(st.floats(width=32, allow_nan=False)),
            "day": _gaps(st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
            "ok": _gaps(st.booleans()),
            "city": _gaps(st.sampled_from(["Ulm", "Bern", "Köln"])),
        }
    ),
    min_size=1,
    max_size=30,
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, words=st.lists(st.sampled_from(["nan", "valid", "fill"]), min_size=5, max_size=5))
def test_tables_with_gaps_are_alike_in_all_formats(rows, words, tmp_path):
    first = {"age": 1, "height": 0.5, "day": dt.date(2000, 1, 1), "ok": True, "city": "Ulm"}
    rows = [first, *rows]  # types are found from values
    table = {name: [row[name] for row in rows] for name in first}
    asked = dict(zip(table, words, strict=True))
    for name in ("ok", "city"):
        asked[name] = "valid" if asked[name] == "nan" else asked[name]
    fill = {name: first[name] for name, word in asked.items() if word == "fill"}
    words = {name: word for name, word in asked.items() if word != "fill"}
    want = expected(table, words, fill)
    for format in FORMATS:
        one = {**fill, "day": "2000-01-01"} if "day" in fill and format == "jsonl" else fill
        found = rows_of(opened(format, table, tmp_path, missing=words, fill=one))
        assert found == want, format


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_copies_of_text_files_are_alike(format, tmp_path, monkeypatch):
    options = {"missing": {"age": "nan", "ok": "valid", "height": "valid", "day": "nan"}}
    options |= {"types": {"city": "category"}, "fill": {"city": "?"}}
    parsed = opened(format, TABLE, tmp_path, **options)
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    for _ in range(2):
        copied = opened(format, TABLE, tmp_path, **options)
        assert rows_of(copied) == rows_of(parsed)
        assert copied.classes == parsed.classes == {"city": ("?", "Bern", "Ulm")}
    words = {"age": "valid", "ok": "valid", "height": "nan", "day": "valid", "city": "valid"}
    assert rows_of(opened(format, TABLE, tmp_path, missing=words)) == expected(TABLE, words, {})
    filled = opened(
        format,
        TABLE,
        tmp_path,
        fill={"age": 0, "ok": True, "height": 1, "day": "2000-01-01", "city": ""},
    )
    assert [plain(one["age"]) for one in filled] == [31, 0, 5, 0]


def test_a_copy_for_one_word_is_not_read_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(native_copies, "LEAST_BYTES", 0)
    table = {"age": [1, None], "city": ["Ulm", None]}
    for word in ("nan", "valid", "nan"):
        found = opened("csv", table, tmp_path, missing=word)
        assert list(found[0]) == (
            ["age", "city"] if word == "nan" else ["age", "age_valid", "city", "city_valid"]
        )


# What words mean ----------------------------------------------------------------------------------


def test_dtypes_of_numbers_with_nan(tmp_path):
    kinds = [pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64()]
    table = pa.table({str(kind): pa.array([1, None], kind) for kind in kinds})
    pq.write_table(table, tmp_path / "x.parquet")
    (batch,) = Dataset.open(tmp_path / "x.parquet", missing="nan").batch(2)
    found = {name: str(one.dtype) for name, one in batch.items()}
    assert found == {
        "int8": "float32", "uint16": "float32", "int32": "float64", "uint64": "float64",
        "float": "float32", "double": "float64",
    }  # fmt: skip
    assert all(one[0] == 1 and np.isnan(one[1]) for one in batch.values())


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_lists_and_fields_of_structs(tmp_path, compression):
    rows = [
        {"tags": [1, 2], "words": ["a"], "box": {"x": 1, "y": 2.0}, "v": [1.0, 2.0]},
        {"tags": None, "words": None, "box": {"x": None, "y": 3.0}, "v": None},
        {"tags": [], "words": [], "box": None, "v": [3.0, 4.0]},
    ]
    schema = pa.schema(
        {
            "tags": pa.list_(pa.int16()),
            "words": pa.list_(pa.string()),
            "box": pa.struct({"x": pa.int32(), "y": pa.float64()}),
            "v": pa.list_(pa.float32(), 2),
        }
    )
    table = pa.Table.from_pylist(rows, schema)
    feather.write_feather(table, tmp_path / "x.arrow", compression=compression)
    pq.write_table(table, tmp_path / "x.parquet")
    for name in ("x.arrow", "x.parquet"):
        found = list(Dataset.open(tmp_path / name, missing="valid"))
        assert [one["tags"].tolist() for one in found] == [[1, 2], [], []]
        assert [one["words"] for one in found] == [["a"], [], []]
        assert [plain(one["tags_valid"]) for one in found] == [True, False, True]
        assert [plain(one["box"]["x"]) for one in found] == [1, 0, 0]
        assert [plain(one["box"]["x_valid"]) for one in found] == [True, False, False]
        assert [plain(one["box"]["y_valid"]) for one in found] == [True, True, False]
        assert [one["v"].tolist() for one in found] == [[1, 2], [0, 0], [3, 4]]
        words = {"tags": "valid", "words": "valid", "box": "nan", "v": "nan"}
        found = list(Dataset.open(tmp_path / name, missing=words))
        assert [str(one["box"]["x"]) for one in found] == ["1.0", "nan", "nan"]
        assert np.isnan(found[1]["v"]).all()


@pytest.mark.parametrize("name", ["x.parquet", "saved"])
def test_images(name, tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(file, "png")
    features = datasets.Features({"image": datasets.Image()})
    images = [{"bytes": file.getvalue(), "path": None}, None]
    made = datasets.Dataset.from_dict({"image": images}, features=features)
    write = made.to_parquet if name == "x.parquet" else made.save_to_disk
    write(tmp_path / name)
    found = list(Dataset.open(tmp_path / name, missing="valid"))
    assert [one["image"].shape for one in found] == [(4, 5, 3), (1, 1, 3)]
    assert [bool(one["image_valid"]) for one in found] == [True, False]
    found = list(Dataset.open(tmp_path / name, missing="valid", decode=False))
    assert [one["image"] for one in found] == [file.getvalue(), b""]


def test_a_leaf_of_the_same_name_is_refused(tmp_path):
    table = pa.table({"age": [1, None], "age_valid": [1, 2]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match="adds a leaf 'age_valid', and the table has a column"):
        Dataset.open(tmp_path / "x.parquet", missing="valid")
    assert Dataset.open(tmp_path / "x.parquet", missing="nan")[0]["age"] == 1.0


def test_nulls_of_partitions(tmp_path):
    for lang in ("de", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"lang={lang}"
        folder.mkdir()
        pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    dataset = Dataset.open(tmp_path, missing={"lang": "valid"}, cache=False)
    assert {(one["lang"], plain(one["lang_valid"])) for one in dataset} == {
        ("de", True),
        ("", False),
    }


def test_categories_of_filled_partitions(tmp_path):
    for lang in ("de", "aa", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"lang={lang}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"lang={lang}" / "a.parquet")
    dataset = Dataset.open(tmp_path, fill={"lang": "?"}, types={"lang": "category"})
    assert dataset.classes == {"lang": ("?", "aa", "de")}
    assert sorted(int(one["lang"]) for one in dataset) == [0, 1, 2]


@pytest.mark.parametrize("given", [None, np.float32, "category"])
def test_keys_of_json_without_a_value(given, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": null, "b": 1}\n' * 2)
    types = {} if given is None else {"a": given}
    dataset = Dataset.open(tmp_path / "x.jsonl", missing="valid", types=types)
    blank = None if given is None else 0
    assert [(one["a"], one["a_valid"]) for one in dataset] == [(blank, False)] * 2


@pytest.mark.parametrize("options", [{"missing": "valid"}, {"fill": {"l": [0.0, 0.0]}}])
def test_lists_of_hugging_face_with_nulls_are_read_from_files(options):
    features = datasets.Features({"l": datasets.List(datasets.Value("float32"), 2)})
    made = datasets.Dataset.from_dict({"l": [[1.0, 2.0], None]}, features=features)
    with pytest.raises(ArgumentError, match=r"lists in 'l' have nulls.*save_to_disk, and open"):
        Dataset.from_source(made, **options)


def test_columns_of_lists_are_in_the_one_error(tmp_path):
    table = {"n": [1, None], "l": pa.array([[1.0], None], pa.list_(pa.float32(), 1))}
    feather.write_feather(pa.table(table), tmp_path / "x.arrow", compression="uncompressed")
    with pytest.raises(FileError, match=r"column 'n' has 1 null, column 'l' has nulls, and"):
        Dataset.open(tmp_path / "x.arrow")


def test_without_a_copy_columns_must_be_named(tmp_path):
    pq.write_table(pa.table({"a": [1, None], "b": [None, "x"]}), tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r"cache=False makes none\. Name the columns"):
        Dataset.open(tmp_path / "x.parquet", missing="valid", cache=False)
    with pytest.raises(ArgumentError, match=r"categories, and which columns .* without a copy"):
        Dataset.open(tmp_path / "x.parquet", types={"b": "category"}, cache=False)
    words = {"a": "nan", "b": "valid"}
    dataset = Dataset.open(tmp_path / "x.parquet", missing=words, cache=False)
    assert rows_of(dataset) == rows_of(Dataset.open(tmp_path / "x.parquet", missing=words))
    with pytest.raises(FileError, match=r"column 'b' has 1 null, .* missing='valid' or 'nan'"):
        Dataset.open(tmp_path / "x.parquet", missing={"a": "nan"}, cache=False)


def test_none_that_was_saved(tmp_path):
    records = [{"age": 3, "name": "a"}, {"age": None, "name": None}]
    Dataset.from_source(records).save(tmp_path / "d")
    assert Dataset.open(tmp_path / "d")[1] == {"age": None, "name": None}
    dataset = Dataset.open(tmp_path / "d", missing={"age": "nan"})
    assert np.isnan(dataset[1]["age"])
    assert dataset[1]["name"] is None
    with pytest.raises(ArgumentError, match="was saved with its types, so that `types` has no"):
        Dataset.open(tmp_path / "d", types={"name": "category"})
    assert rows_of(Dataset.open(tmp_path / "d", missing="valid"))[1] == {
        "age": 0, "age_valid": False, "name": "", "name_valid": False,
    }  # fmt: skip


def test_nan_of_pandas_is_a_value_unless_something_is_asked():
    frame = pd.DataFrame({"x": [1.0, np.nan], "y": [np.nan, 2.0], "z": ["a", None]})
    frame["day"] = pd.to_datetime(["2024-01-01", None])
    found = Dataset.from_source(frame, fill={"z": "", "x": 0.0})
    assert rows_of(found)[1] == {"x": 0.0, "y": 2.0, "z": "", "day": None}
    assert np.isnan(found[0]["y"])
    leaves = Dataset.from_source(frame, missing="valid")[0]
    assert not leaves["y_valid"]
    assert leaves["day_valid"]
    with pytest.raises(FileError, match="the table: column 'x' has 1 null"):
        Dataset.from_source(pd.DataFrame({"x": [1.0, np.nan]}), missing={"x": "error"})


def test_the_words_are_part_of_the_description(tmp_path):
    pq.write_table(pa.table({"a": [1.0, None]}), tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    ways = [
        {"fill": {"a": 0.0}},
        {"missing": "nan"},
        {"missing": "valid"},
        {"missing": {"a": "nan"}},
    ]
    assert len({str(Dataset.open(path, **one)) for one in ways}) == 4
    assert "missing" not in str(Dataset.open(path, fill={"a": 0.0}, missing="error"))


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow", "jsonl", "polars"])
@pytest.mark.parametrize(
    "engine", [engines.Inline(), engines.Threads(2), engines.Processes(2)], ids=str
)
def test_engines_and_restored_steps(format, engine, tmp_path):
    table = {name: [*values] * 6 for name, values in TABLE.items() if name != "day"}
    dataset = opened(format, table, tmp_path, missing="valid", types={"city": "category"})
    chain = dataset.shuffle(seed=3).batch(5)
    want = [(one["id"].tolist(), one["age_valid"].tolist(), one["city"].tolist()) for one in chain]
    with DataLoader(chain, engine=engine) as loader:
        iterator, states, found = iter(loader), [], []
        for one in iterator:
            found.append((one["id"].tolist(), one["age_valid"].tolist(), one["city"].tolist()))
            states.append(iterator.get_state())
        assert found == want
        for step, state in enumerate(states):
            iterator = iter(loader)
            iterator.set_state(state)
            assert [one["id"].tolist() for one in iterator] == [ids for ids, *_ in want[step + 1 :]]


def test_hosts_read_their_rows_of_the_same_batches(tmp_path):
    dataset = opened("csv", {**TABLE, "id": [4, 5, 6, 7]}, tmp_path, missing="valid").batch(4)
    (whole,) = dataset
    for index in range(2):
        with DataLoader(dataset, shard=(index, 2)) as loader:
            (rows,) = loader
        for name in ("id", "age", "age_valid", "city_valid"):
            assert rows[name].tolist() == whole[name][2 * index : 2 * index + 2].tolist()


def test_records_are_read_by_several_threads(tmp_path):
    dataset = opened("arrow", TABLE, tmp_path, missing="valid")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: plain(dataset[n % 4]["age"]), range(64)))
    assert found == [31, 0, 5, 0] * 16


# Categories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_categories(format, tmp_path):
    table = {"city": ["Ulm", None, "Bern", "Ulm", "Aue"], "id": list(range(5))}
    dataset = opened(format, table, tmp_path, missing="valid", types={"city": "category"})
    assert dataset.classes == {"city": ("Aue", "Bern", "Ulm")}
    (batch,) = dataset.batch(5)
    assert batch["city"].dtype == np.int32
    assert batch["city"].tolist() == [2, 0, 1, 2, 0]
    assert batch["city_valid"].tolist() == [True, False, True, True, True]
    reference = pd.Categorical(table["city"])
    assert tuple(reference.categories) == dataset.classes["city"]
    assert np.where(batch["city_valid"], batch["city"], -1).tolist() == reference.codes.tolist()
    filled = opened(format, table, tmp_path, types={"city": "category"}, fill={"city": "?"})
    assert filled.classes == {"city": ("?", "Aue", "Bern", "Ulm")}
    assert [int(one["city"]) for one in filled] == [3, 0, 2, 3, 1]


@pytest.mark.parametrize("format", FORMATS)
def test_a_category_has_no_nan(format, tmp_path):
    if format == "csv":
        return  # an empty cell is text
    table = {"city": ["Ulm", None], "id": [1, 2]}
    with pytest.raises(ArgumentError, match=r"has missing values in 'city' \(text\)"):
        opened(format, table, tmp_path, missing="nan", types={"city": "category"})


def test_shards_have_the_same_classes(tmp_path):
    for number, rows in enumerate((["b", "c"], ["a", "c"])):
        pq.write_table(pa.table({"x": rows}), tmp_path / f"{number}.parquet")
        (tmp_path / f"{number}.csv").write_text("x\n" + "\n".join(rows))
        lines = [json.dumps({"x": one}) for one in rows]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    for suffix in ("parquet", "csv", "jsonl"):
        dataset = Dataset.open(tmp_path / f"*.{suffix}", types={"x": "category"})
        assert [int(one["x"]) for one in dataset] == [1, 2, 0, 2]
        assert dataset.classes == {"x": ("a", "b", "c")}


def test_splits_with_other_classes_are_refused(tmp_path):
    for split, rows in (("train", ["b", "c"]), ("test", ["a", "c"])):
        pq.write_table(pa.table({"x": rows}), tmp_path / f"{split}.parquet")
    with pytest.raises(FileError, match="has other classes of 'x' than"):
        Dataset.open(tmp_path, split="train+test", types={"x": "category"})


def test_dictionaries_of_arrow_are_categories(tmp_path):
    column = pa.array(["z", None, "y", "z"]).dictionary_encode()
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    frame = pl.DataFrame({"x": pl.Series(["z", None, "y", "z"], dtype=pl.Categorical)})
    options = {"missing": "valid", "types": {"x": "category"}}
    for dataset in (
        Dataset.open(tmp_path / "x.parquet", **options),
        Dataset.from_source(frame, **options),
        Dataset.from_source(pd.DataFrame({"x": pd.Categorical(["z", None, "y", "z"])}), **options),
    ):
        assert dataset.classes == {"x": ("y", "z")}
        assert [int(one["x"]) for one in dataset] == [1, 0, 0, 1]


def test_class_labels_stay(tmp_path):
    features = datasets.Features(
        {"l": datasets.ClassLabel(names=["n", "y"]), "t": datasets.Value("string")}
    )
    made = datasets.Dataset.from_dict({"l": [0, 1], "t": ["b", "a"]}, features=features)
    dataset = Dataset.from_source(made.select([1, 0]), types={"t": "category"})
    assert dataset.classes == {"l": ("n", "y"), "t": ("a", "b")}
    assert [(int(one["l"]), int(one["t"])) for one in dataset] == [(1, 0), (0, 1)]


def test_class_labels_are_no_categories():
    features = datasets.Features({"l": datasets.ClassLabel(names=["y", "n"])})
    made = datasets.Dataset.from_dict({"l": [0, -1]}, features=features)
    with pytest.raises(ArgumentError, match="'l', which is int64: codes are made of text alone"):
        Dataset.from_source(made, types={"l": "category"})


def test_names_of_fields_have_a_dot_and_are_no_categories(tmp_path):
    table = pa.table({"box": [{"color": "r"}, {"color": None}]})
    pq.write_table(table, tmp_path / "x.parquet")
    for options in ({"types": {"box.color": "category"}}, {"missing": {"box/color": "valid"}}):
        (name,) = options
        with pytest.raises(ArgumentError, match=rf"`{name}` names 'box[./]color', and .* 'box'"):
            Dataset.open(tmp_path / "x.parquet", **options)
        with pytest.raises(ArgumentError, match=rf"`{name}` names 'box[./]color', and the table"):
            Dataset.from_source(table, **options)


def test_categories_do_not_decide_about_other_keys(tmp_path):
    """One damaged line must not: it is a bad record, as without them."""
    lines = [*['{"t": "x", "n": 1}'] * 150, '{"t": 5, "n": 1}', '{"t": "y", "n": 1, "m": 2}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    dataset = Dataset.open(tmp_path / "x.jsonl", types={"t": "category"})
    assert dataset.classes == {"t": ("x", "y")}
    assert dataset[0] == {"t": 0, "n": 1}
    with pytest.raises(Exception, match=r"line 151: 't' is 5, and text"):
        dataset[150]
    with pytest.raises(Exception, match=r"line 152: it has 'm', which most of the first records"):
        dataset[151]


def test_rows_that_do_not_fit_add_no_class(tmp_path):
    lines = ["x,n", "b,1", "a,2,3", "a,4"]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    dataset = Dataset.open(tmp_path / "x.csv", types={"x": "category"})
    assert dataset.classes == {"x": ("a", "b")}
    assert [int(dataset[n]["x"]) for n in (0, 2)] == [1, 0]


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_are_no_categories(format, tmp_path):
    if format == "csv":
        found = opened(format, {"id": [30, 4]}, tmp_path, types={"id": "category"})
        assert found.classes == {"id": ("30", "4")}
        return
    with pytest.raises(ArgumentError, match=r'says "category" for \'id\', which is .*: codes are'):
        opened(format, {"id": [30, 4]}, tmp_path, types={"id": "category"})


# Types --------------------------------------------------------------------------------------------


def test_types_of_csv(tmp_path):
    rows = ["zip,price,day,at", *["01067,2.5,2024-02-29,2024-02-29 23:59:01.25"] * 40]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    types = {"zip": str, "price": np.float32, "day": DAY, "at": "datetime64[ms]"}
    (batch,) = Dataset.open(tmp_path / "x.csv", types=types).batch(40)
    reference = pd.read_csv(tmp_path / "x.csv", dtype={"zip": str}, parse_dates=["day", "at"])
    assert batch["zip"].tolist() == reference["zip"].tolist()
    assert batch["price"].dtype == np.float32
    assert (batch["day"] == reference["day"].to_numpy()).all()
    assert batch["at"].dtype == "M8[ms]"
    assert (batch["at"] == reference["at"].to_numpy()).all()
    few = Dataset.open(tmp_path / "x.csv", types=types)[:3]  # parsed one by one, with same results
    assert plain(few[0]["at"]) == plain(batch["at"][0])


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("2024-13-01", "D", "Month out of range"),
        ("01/02/2024", "D", "'01/02/2024' is not a date or a time such as 2024-12-31"),
        ("2024-01-02 10:00", "D", r"'2024-01-02 10:00' does not fit into datetime64\[D\]"),
        ("2024-01-02T10:00:00.5", "s", r"does not fit into datetime64\[s\]"),
        ("2024-01-02T10:00:00.1234567", "us", r"does not fit into datetime64\[us\]"),
        ("9999-01-01", "ns", r"'9999-01-01' does not fit into datetime64\[ns\]"),
        ("2024-01-02T10:00Z", "s", "is not a date or a time"),
        ("now", "s", "'now' is not a date or a time"),
    ],
)
def test_a_wrong_time_is_named_with_file_line_and_column(text, unit, message, count, tmp_path):
    rows = ["day,n", *["2024-01-02,1"] * count, f"{text},2"]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    dataset = Dataset.open(tmp_path / "x.csv", types={"day": f"datetime64[{unit}]"})
    assert str(dataset[0]["day"]).startswith("2024-01-02")
    with pytest.raises(Exception, match=rf"x\.csv, line {count + 2}: column 'day': .*{message}"):
        dataset[count]
    lines = [json.dumps({"day": row.split(",")[0]}) for row in rows[1:]]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    dataset = Dataset.open(tmp_path / "x.jsonl", types={"day": f"datetime64[{unit}]"})
    with pytest.raises(Exception, match=rf"x\.jsonl, line {count + 1}: 'day': .*{message}"):
        dataset[count]


@pytest.mark.parametrize("count", [1, 20])
def test_the_same_times_as_pandas(count, tmp_path):
    texts = ["2024-01-02", "1969-12-31 23:59", "2024-01-02T03:04:05.123456789", "0999-01-01"]
    for unit, some in (("ns", texts[:3]), ("us", [*texts[:2], texts[3]]), ("s", texts[:2])):
        some = [*some, "2024-01-02 23"] * count
        (tmp_path / "x.csv").write_text("t,n\n" + "\n".join(f"{one},1" for one in some))
        (tmp_path / "y.csv").write_text("t,n\n")
        types = {"t": f"datetime64[{unit}]"}
        found = [one["t"] for one in Csv([tmp_path / "x.csv", tmp_path / "y.csv"], types=types)]
        assert found == [np.datetime64(one, unit) for one in some]
        if unit == "ns":
            assert found == list(pd.to_datetime(some, format="ISO8601").to_numpy())


def test_times_can_be_filled(tmp_path):
    (tmp_path / "x.csv").write_text("t,n\n2024-01-02,1\n,2\n")
    for value in ("2000-01-01", np.datetime64("2000-01-01"), dt.date(2000, 1, 1)):
        dataset = Dataset.open(tmp_path / "x.csv", types={"t": DAY}, fill={"t": value})
        assert dataset[1]["t"] == np.datetime64("2000-01-01")
    with pytest.raises(ArgumentError, match="`fill` for the column 't': 'soon' is not a date"):
        Dataset.open(tmp_path / "x.csv", types={"t": DAY}, fill={"t": "soon"})


def test_types_of_json(tmp_path):
    rows = [{"id": 5, "day": "2024-02-29", "x": [1, 2]}, {"id": 6, "day": "1999-01-01", "x": [3]}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    types = {"id": np.int64, "day": DAY, "x": "float64"}
    dataset = Dataset.open(tmp_path / "x.jsonl", types=types)
    assert dataset[0]["id"].dtype == np.int64
    assert dataset[1]["day"] == np.datetime64("1999-01-01")
    assert dataset[0]["x"].dtype == np.float64


def test_empty_lists_and_null_do_not_decide_a_type(tmp_path):
    rows = [{"tags": [], "v": None, "w": []} for _ in range(250)]
    rows += [{"tags": ["a", "b"], "v": 0.5, "w": [1.5]}, {"tags": [], "v": 2, "w": [1]}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = Dataset.open(tmp_path / "x.jsonl", missing={"v": "valid"})
    assert dataset[250]["tags"] == ["a", "b"]
    assert dataset[0]["tags"] == []
    assert dataset[250]["w"].dtype == np.float32
    assert dataset[250]["w"].tolist() == [1.5]
    assert dataset[0]["w"].dtype == np.float32
    assert [(one["v"], one["v_valid"]) for one in dataset[249:]] == [
        (0, False),
        (0.5, True),
        (2, True),
    ]


def test_large_json_files_are_read_through_once(tmp_path):
    rows = [{"t": "ab"[n % 2], "n": n if n % 7 else None, "x": n / 2} for n in range(40_000)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"missing": "valid", "types": {"t": "category"}}
    for _ in range(2):
        dataset = Dataset.open(tmp_path / "x.jsonl", **options)
        assert dataset.classes == {"t": ("a", "b")}
        (batch,) = dataset.batch(40_000)
        assert batch["n_valid"].tolist() == [bool(n % 7) for n in range(40_000)]
        assert batch["t"].tolist() == [n % 2 for n in range(40_000)]
    plain_one = Dataset.open(tmp_path / "x.jsonl", fill={"n": -1})
    assert plain_one[7]["n"] == -1
    assert plain_one[7]["t"] == "b"


def test_a_damaged_line_does_not_count(tmp_path):
    lines = ['{"a": 1, "t": "x"}'] * 5 + ['{"a": '] + ['{"a": null, "t": "y"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    dataset = Dataset.open(tmp_path / "x.jsonl", missing="nan", types={"t": "category"})
    assert np.isnan(dataset[6]["a"])
    assert dataset.classes == {"t": ("x", "y")}
    with pytest.raises(Exception, match=r"x\.jsonl, line 6: it is not JSON"):
        dataset[5]


# Wrong arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_wrong_names(format, tmp_path):
    for options, message in (
        ({"missing": {"ages": "nan"}}, r"`missing` names 'ages', and .* Did you mean 'age'\?"),
        ({"types": {"cty": "category"}}, r"`types` names 'cty', and .* Did you mean 'city'\?"),
        (
            {"missing": {"age": "NaN"}},
            r"`missing` must be one of 'error', 'nan', 'valid', or a dict",
        ),
        ({"missing": "drop"}, r"such as {'age': 'nan'}, got 'drop'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            opened(format, {"age": [1], "city": ["a"]}, tmp_path, **options)
    with pytest.raises(ArgumentTypeError, match="`types` must be a dict of dtypes by column"):
        if format in ("csv", "jsonl"):
            Dataset.open(tmp_path / f"x.{format}", types=["age"])
        else:
            opened(format, {"age": [1]}, tmp_path, types=["age"])


def test_files_with_types_refuse_others(tmp_path):
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r'have types: only "category" can be asked for'):
        Dataset.open(tmp_path / "x.parquet", types={"a": np.float32})
    with pytest.raises(
        ArgumentError, match=r"`types` says 'i4' for 'a', and the columns of the ta"
    ):
        Dataset.from_source(pa.table({"a": [1.0]}), types={"a": "i4"})


def test_data_that_is_no_table_refuses_them(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ArgumentError, match=r"`missing` is for tables \('csv', .* is 'npy'\."):
        Dataset.open(tmp_path / "x.npy", missing="nan")
    with pytest.raises(ArgumentError, match=r"`types` is for tables"):
        Dataset.open(tmp_path / "x.npy", types={"a": "category"})
    with pytest.raises(ArgumentTypeError, match=r"are for tables of pandas, .* and this is list"):
        Dataset.from_source([{"a": None}], missing="nan")
    with pytest.raises(ArgumentError, match="the table is empty"):
        Dataset.from_source(pa.table({"a": pa.array([], pa.int64())}), missing="nan")
    with pytest.raises(ArgumentTypeError, match="has no types of Arrow"):
        Dataset.from_source(pd.DataFrame({"a": [1, "x", None]}), missing="nan")


def test_sources_have_the_same_arguments(tmp_path):
    (tmp_path / "x.csv").write_text("a;b\n1;x\n;y\n")
    source = Csv(tmp_path / "x.csv", delimiter=";", missing="nan", types={"b": "category"})
    assert rows_of(Dataset.from_source(source))[1] == {"a": None, "b": 1}
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": null}\n')
    assert rows_of(Dataset.from_source(Jsonl(tmp_path / "x.jsonl", missing="valid")))[1] == {
        "a": 0, "a_valid": False,
    }  # fmt: skip


def test_names_that_cannot_be_told_apart(tmp_path):
    table = pa.table({"a.b": [1, None], "a": [{"b": "t"}, {"b": "u"}]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r"x\.parquet.* cannot tell them apart"):
        Dataset.open(tmp_path / "x.parquet", missing="valid")
    found = Dataset.open(tmp_path / "x.parquet", missing="valid", columns=["a.b"])
    assert [bool(one["a.b_valid"]) for one in found] == [True, False]
