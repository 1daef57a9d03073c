"""JSON lines: documents of 1.5 KB, and rows of tokens; loaderx beside Hugging Face's `datasets`."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

NEEDS = ["msgspec", "datasets"]
BATCH = 256
WINDOW = 16_000
TEXT = "the quick brown fox jumps over a lazy dog while readers parse every line"


def write(folder: Path, quick: bool) -> None:
    rows = 5_000 if quick else 200_000
    rng = np.random.default_rng(0)
    words = np.array(TEXT.split())
    with open(folder / "text.jsonl", "w", encoding="utf-8") as file:
        for number in range(rows):
            text = " ".join(words[rng.integers(0, len(words), 270)])
            text = f"{text} naïve" if number % 10 == 0 else text
            file.write(json.dumps({"id": number, "text": text}, ensure_ascii=False) + "\n")
    lines = (folder / "text.jsonl").read_bytes().splitlines(keepends=True)
    for part in range(8):
        with gzip.open(folder / f"packed-{part}.jsonl.gz", "wb", 6) as packed:
            packed.write(b"".join(lines[part * rows // 8 : (part + 1) * rows // 8]))
    with open(folder / "tokens.jsonl", "w") as file:
        for number in range(rows // 10):
            tokens = rng.integers(0, 50_000, rng.integers(100, 300)).tolist()
            file.write(json.dumps({"id": number, "tokens": tokens}) + "\n")


def loaderx(
    name: str, *, shuffled: bool = True, msgspec: bool = True, copied: bool = True
) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        if not msgspec:
            sys.modules["msgspec"] = None  # type: ignore[assignment]  # as if it were not installed
        from loaderx import DataLoader, Dataset

        cache = folder / "cache" if copied else False
        dataset = Dataset.open(folder / f"{name}.jsonl", cache=cache)
        dataset = (dataset.shuffle(0) if shuffled else dataset).repeat()
        padded = {"tokens": 300} if name == "tokens" else None
        with DataLoader(dataset.batch(BATCH, pad_to=padded), engine="inline") as loader:
            for batch in loader:
                yield len(batch["id"])

    return batches


def packed(folder: Path) -> Iterator[int]:
    """Compressed files without a copy; half of them may be kept unpacked."""
    os.environ["LOADERX_CHUNK_BYTES"] = str((folder / "text.jsonl").stat().st_size // 2)
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "packed-*.jsonl.gz", cache=False)
    dataset = dataset.shuffle(0, block="source", window=WINDOW).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["id"])


def streaming(folder: Path) -> Iterator[int]:
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    from datasets import load_dataset

    files = str(folder / "packed-*.jsonl.gz")
    dataset = load_dataset("json", data_files=files, split="train", streaming=True)
    dataset = dataset.shuffle(seed=0, buffer_size=WINDOW)
    while True:
        for batch in dataset.iter(BATCH):
            yield len(batch["id"])


def copy(folder: Path) -> Iterator[int]:
    """Opens the file with an empty cache: each time it is parsed and copied."""
    from loaderx import Dataset

    cache = folder / "copied"
    while True:
        shutil.rmtree(cache, ignore_errors=True)
        yield len(Dataset.open(folder / "text.jsonl", cache=cache))


def hugging_face(name: str, *, shuffled: bool = True) -> Callable[[Path], Iterator[int]]:
    def batches(folder: Path) -> Iterator[int]:
        os.environ["HF_DATASETS_OFFLINE"] = "1"
        from datasets import load_dataset

        dataset = load_dataset(
            "json",
            data_files=str(folder / f"{name}.jsonl"),
            cache_dir=str(folder / "hf"),
            split="train",
        )
        rng = np.random.default_rng(0)
        while True:
            if not shuffled:
                for batch in dataset.iter(BATCH):
                    yield len(batch["id"])
                continue
            order = rng.permutation(len(dataset))
            for start, stop in pairwise(range(0, len(order), BATCH)):
                yield len(dataset[order[start:stop]]["id"])

    return batches


def by_hand(folder: Path) -> Iterator[int]:
    while True:
        with open(folder / "text.jsonl", "rb") as file:
            records = []
            for line in file:
                records.append(json.loads(line))
                if len(records) == BATCH:
                    yield len(records)
                    records = []


CONTENDERS = {
    "loaderx": loaderx("text"),
    "loaderx, parsed": loaderx("text", copied=False),
    "loaderx, parsed without msgspec": loaderx("text", msgspec=False, copied=False),
    "datasets": hugging_face("text"),
    "loaderx, in sequence": loaderx("text", shuffled=False),
    "loaderx, in sequence, parsed without msgspec": loaderx(
        "text", shuffled=False, msgspec=False, copied=False
    ),
    "datasets, in sequence": hugging_face("text", shuffled=False),
    "json.loads, in sequence": by_hand,
    "loaderx, tokens": loaderx("tokens"),
    "datasets, tokens": hugging_face("tokens"),
    "copy": copy,
    "loaderx, gzip, no copy, blocks": packed,
    "datasets, gzip, streaming": streaming,
}
BARS = [
    ("loaderx", "datasets", 3.0),
    ("loaderx, parsed without msgspec", "datasets", 1.2),
    ("loaderx, in sequence, parsed without msgspec", "json.loads, in sequence", 1.0),
    ("loaderx, tokens", "datasets, tokens", 1.0),
    ("copy", "json.loads, in sequence", 1.0),
    ("loaderx, gzip, no copy, blocks", "datasets, gzip, streaming", 1.5),
]
