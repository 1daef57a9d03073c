"""CSV: a table of 12 numbers, and text in quotes; loaderx beside datasets, pandas and polars."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

NEEDS = ["msgspec", "datasets", "pandas", "polars"]
BATCH = 256
TEXT = 'the quick, brown fox jumps over a "lazy" dog while naïve readers parse every line'


def write(folder: Path, quick: bool) -> None:
    rows = 5_000 if quick else 300_000
    rng = np.random.default_rng(0)
    with open(folder / "table.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow([f"x{number}" for number in range(12)])
        for _ in range(rows):
            whole = rng.integers(0, 1_000_000, 6).tolist()
            out.writerow([*whole, *rng.normal(size=6).round(6).tolist()])
    words = np.array(TEXT.split())
    with open(folder / "text.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["id", "text", "label"])
        for number in range(rows // 6):
            text = " ".join(words[rng.integers(0, len(words), 100)])
            out.writerow([number, text, number % 10])


def loaderx(
    name: str, *, shuffled: bool = True, msgspec: bool = True
) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        if not msgspec:
            sys.modules["msgspec"] = None  # type: ignore[assignment]  # as if it were not installed
        from loaderx import DataLoader, Dataset

        dataset = Dataset.open(folder / f"{name}.csv", cache=folder / "cache")
        dataset = (dataset.shuffle(0) if shuffled else dataset).repeat()
        with DataLoader(dataset.batch(BATCH), engine="inline") as loader:
            for batch in loader:
                yield len(next(iter(batch.values())))

    return batches


def hugging_face(name: str) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        os.environ["HF_DATASETS_OFFLINE"] = "1"
        from datasets import load_dataset

        dataset = load_dataset(
            "csv",
            data_files=str(folder / f"{name}.csv"),
            cache_dir=str(folder / "hf"),
            split="train",
        ).with_format("numpy")
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(dataset))
            for start, stop in pairwise(range(0, len(order), BATCH)):
                yield len(next(iter(dataset[order[start:stop]].values())))

    return batches


def pandas_in_memory(name: str) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        import pandas as pd

        frame = pd.read_csv(folder / f"{name}.csv")
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(frame))
            for start, stop in pairwise(range(0, len(order), BATCH)):
                rows = frame.iloc[order[start:stop]]
                yield len({column: rows[column].to_numpy() for column in frame.columns}) and len(
                    rows
                )

    return batches


def polars_in_memory(name: str) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        import polars as pl

        frame = pl.read_csv(folder / f"{name}.csv")
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(frame))
            for start, stop in pairwise(range(0, len(order), BATCH)):
                rows = frame[order[start:stop]]
                yield len({column: rows[column].to_numpy() for column in frame.columns}) and len(
                    rows
                )

    return batches


CONTENDERS = {
    "loaderx": loaderx("table"),
    "loaderx, without msgspec": loaderx("table", msgspec=False),
    "loaderx, in sequence": loaderx("table", shuffled=False),
    "datasets": hugging_face("table"),
    "pandas in memory": pandas_in_memory("table"),
    "polars in memory": polars_in_memory("table"),
    "loaderx, text": loaderx("text"),
    "datasets, text": hugging_face("text"),
    "polars in memory, text": polars_in_memory("text"),
}
BARS = [
    ("loaderx", "datasets", 3.0),
    ("loaderx, text", "datasets, text", 1.0),
    ("loaderx", "polars in memory", 1.0),
    ("loaderx, text", "polars in memory, text", 0.9),
]
