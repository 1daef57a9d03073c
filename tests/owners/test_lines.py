"""JSON lines, CSV and text as Hugging Face and polars read them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]

TEXTS = ["plain", 'a "quoted", one', "two\nlines", "naïve \u2028 😀", "'", "tab\t"]


def test_json_lines_as_datasets_reads_them(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    path = tmp_path / "x.jsonl"
    rows = [
        {"id": n, "text": TEXTS[n % 6], "score": n / 3, "tokens": list(range(n % 5)), "ok": n > 3}
        for n in range(500)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    theirs = datasets.load_dataset(
        "json", data_files=str(path), cache_dir=str(tmp_path / "hf"), split="train"
    )
    ours = Dataset.open(path)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert {**one, "tokens": one["tokens"].tolist()} == other


def test_a_table_that_pandas_wrote_and_polars_reads(tmp_path):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "n": rng.integers(-(2**62), 2**62, 2000),
            "x": rng.normal(size=2000) * 10.0 ** rng.integers(-300, 300, 2000),
            "text": [TEXTS[n % 6] for n in range(2000)],
            "flag": rng.random(2000) < 0.5,
        }
    )
    frame.loc[5, "x"] = math.inf
    path = tmp_path / "x.csv"
    frame.to_csv(path, index=False)
    (batch,) = Dataset.open(path).batch(2000)
    other = pl.read_csv(path)
    for name, array in batch.items():
        assert array.dtype == object or array.dtype == frame[name].dtype
        assert array.tolist() == frame[name].tolist()
        if name != "flag":
            assert array.tolist() == other[name].to_list()


def test_text_as_datasets_reads_it(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    path = tmp_path / "x.txt"
    path.write_bytes("a\n\nnaïve\r\nlast".encode())
    theirs = datasets.load_dataset(
        "text", data_files=str(path), cache_dir=str(tmp_path / "hf"), split="train"
    )
    assert [record["text"] for record in Dataset.open(path)] == theirs["text"][:]
