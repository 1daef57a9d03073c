"""Parquet: files of `datasets`, pandas and polars give the values that these libraries give."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]
NOON = dt.datetime(2024, 5, 6, 12, 30, 1)


def plain(value):
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [plain(one) for one in value]
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value.astype(value.dtype.str.replace("ns", "us")).item()
    return value.item() if isinstance(value, np.generic) else value


def check(path, expected):
    for cache in (None, False):
        found = [plain(record) for record in Dataset.open(path, decode=False, cache=cache)]
        assert found == [plain(record) for record in expected]


@pytest.fixture
def written(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "fixed": datasets.Sequence(datasets.Value("float32"), length=3),
            "grid": datasets.Array2D((2, 3), "uint8"),
            "rows": datasets.Array2D((None, 2), "int64"),
            "answers": {
                "text": datasets.Sequence(datasets.Value("string")),
                "start": datasets.Sequence(datasets.Value("int32")),
            },
            "messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
            "when": datasets.Value("timestamp[us]"),
            "flag": datasets.Value("bool"),
            "raw": datasets.Value("binary"),
        }
    )
    rows = [
        {
            "text": "é" * n,
            "label": n % 2,
            "tokens": list(range(n)),
            "fixed": [n, n / 2, 0.25],
            "grid": [[n, 1, 2], [3, 4, 5]],
            "rows": [[n, k] for k in range(n % 3 + 1)],
            "answers": {"text": ["a"] * (n % 2), "start": [n] * (n % 2)},
            "messages": [{"role": "user", "content": "x" * k} for k in range(n % 4)],
            "when": NOON,
            "flag": n > 5,
            "raw": bytes(n),
        }
        for n in range(23)
    ]
    made = datasets.Dataset.from_list(rows, features)
    made.to_parquet(str(tmp_path / "x.parquet"), batch_size=7)
    return datasets, tmp_path / "x.parquet", tmp_path / "hf"


def test_datasets(written):
    datasets, path, cache = written
    files = {"train": str(path)}
    theirs = datasets.load_dataset("parquet", data_files=files, cache_dir=str(cache))["train"]
    check(path, list(theirs))
    assert Dataset.open(path).classes == {"label": ("cat", "dog")}
    assert Dataset.open(path)[3]["grid"].shape == (2, 3)


def test_polars(tmp_path):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(
        {
            "n": [1, 2, 3],
            "text": ["a", "é", ""],
            "kind": polars.Series(["a", "b", "a"], dtype=polars.Categorical),
            "lists": [[1.5], [], [2.5, 3.5]],
            "array": polars.Series([[1, 2], [3, 4], [5, 6]], dtype=polars.Array(polars.Int8, 2)),
            "when": [NOON] * 3,
            "day": [NOON.date()] * 3,
            "span": [dt.timedelta(seconds=3)] * 3,
            "struct": [{"a": 1, "b": "x"}] * 3,
        }
    )
    frame.write_parquet(tmp_path / "x.parquet")
    check(tmp_path / "x.parquet", frame.to_dicts())


def test_pandas(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {
            "n": np.arange(4, dtype=np.uint16),
            "text": ["a", "é", "", "b"],
            "kind": pandas.Categorical(["x", "y", "x", "x"]),
            "flag": [True, False, True, False],
            "lists": [[1], [], [2, 3], [4]],
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    check(tmp_path / "x.parquet", frame.to_dict("records"))
