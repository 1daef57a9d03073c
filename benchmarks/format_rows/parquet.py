"""Parquet after the copy against Hugging Face's `ds[indices]`; the copy against one decode.

Without a copy, blocks are shuffled: against Hugging Face's streaming, and Grain's window shuffle.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NEEDS = ["pyarrow", "datasets", "grain", "numpy"]
BATCH = 256
WINDOW = 16_000
COLUMNS = {"text": "text", "images": "image", "tokens": "tokens", "jpeg": "data"}


def write(folder: Path, quick: bool) -> None:
    import pyarrow as pa

    rng = np.random.default_rng(0)
    scale = 20 if quick else 1
    words = [rng.bytes(int(n)).hex()[: int(n)] for n in rng.integers(2, 10, 5000)]
    texts = [
        " ".join(words[i] for i in rng.integers(0, 5000, 250)) for _ in range(200_000 // scale)
    ]
    write_parts(folder, "text", pa.table({"text": texts}), 1000)
    images = rng.integers(0, 256, (100_000 // scale, 3072), np.uint8)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 3072)
    write_parts(
        folder, "images", pa.table({"image": fixed, "label": np.arange(len(images)) % 10}), 1000
    )
    lengths = rng.integers(30, 1150, 150_000 // scale)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pa.array(rng.integers(0, 50_000, ends[-1], np.int32))
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), tokens)
    write_parts(folder, "tokens", pa.table({"tokens": lists}), 1000)
    jpegs = [rng.bytes(int(n)) for n in rng.normal(62_000, 9_000, 8_192 // scale).clip(1000)]
    write_parts(folder, "jpeg", pa.table({"data": pa.array(jpegs, pa.binary())}), 100)


def write_parts(folder: Path, name: str, table: object, rows: int) -> None:
    """A table in two files, in row groups of so many rows."""
    import pyarrow.parquet as pq

    (folder / name).mkdir(exist_ok=True)
    half = len(table) // 2  # type: ignore[arg-type]
    for number, part in enumerate((table[:half], table[half:])):  # type: ignore[index]
        pq.write_table(part, folder / name / f"train-{number}.parquet", row_group_size=rows)


def loaderx(name: str, folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / name, split="train").shuffle(0).repeat()
    with DataLoader(_batches(dataset, name), engine="inline") as loader:
        for batch in loader:
            yield len(batch[COLUMNS[name]])


def _batches(dataset, name):
    if name == "tokens":  # as `datasets` has them: a list of lists
        return dataset.batch(BATCH, collate_fn=_lists)
    return dataset.batch(BATCH)


def _lists(records):
    return {"tokens": [record["tokens"] for record in records]}


def padded(folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / "tokens", split="train").shuffle(0).repeat()
    with DataLoader(dataset.batch(BATCH, pad_to={"tokens": 1152}), engine="inline") as loader:
        for batch in loader:
            yield len(batch["tokens"])


def in_order(name: str, folder: Path) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    dataset = Dataset.open(folder / name, split="train").repeat()
    with DataLoader(_batches(dataset, name), engine="inline") as loader:
        for batch in loader:
            yield len(batch[COLUMNS[name]])


def without_copy(name: str, folder: Path, shuffle: dict[str, Any] | None) -> Iterator[int]:
    from loaderx import DataLoader, Dataset

    # By default all decoded chunks would be kept, and nothing decoded after the first epoch.
    os.environ["LOADERX_CHUNK_BYTES"] = str(1 << 27)
    dataset = Dataset.open(folder / name, split="train", cache=False)
    dataset = dataset if shuffle is None else dataset.shuffle(0, **shuffle)
    with DataLoader(_batches(dataset.repeat(), name), engine="inline") as loader:
        for batch in loader:
            yield len(batch[COLUMNS[name]])


def huggingface(name: str, folder: Path) -> Iterator[int]:
    import datasets

    datasets.disable_progress_bars()
    files = str(folder / name / "*.parquet")
    loaded = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(folder / "hf")
    )
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(loaded))
        for start in range(0, len(loaded) - BATCH, BATCH):
            batch = loaded[order[start : start + BATCH]]
            yield len(batch[COLUMNS[name]])


def streaming(name: str, folder: Path) -> Iterator[int]:
    import datasets

    files = str(folder / name / "*.parquet")
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = loaded.shuffle(seed=0, buffer_size=WINDOW)
    while True:
        for batch in shuffled.iter(BATCH):
            yield len(batch[COLUMNS[name]])


def grain_rows(files: list[str]) -> Any:
    """Rows as Grain reads and shuffles them."""
    from grain.experimental import InterleaveIterDataset, ParquetIterDataset
    from grain.experimental import WindowShuffleIterDataset as Windows

    parts = [ParquetIterDataset(file) for file in files]
    dataset = InterleaveIterDataset(parts, cycle_length=len(parts))
    return Windows(dataset, window_size=WINDOW, seed=0)


def grain(name: str, folder: Path) -> Iterator[int]:
    files = [str(file) for file in sorted((folder / name).glob("*.parquet"))]
    dataset = grain_rows(files).batch(BATCH, batch_fn=list)
    while True:
        for batch in dataset:
            yield len(batch)


def copy(name: str, folder: Path) -> Iterator[int]:
    from loaderx import Dataset

    cache = folder / f"copied-{name}"
    while True:
        shutil.rmtree(cache, ignore_errors=True)
        yield len(Dataset.open(folder / name, split="train", cache=cache))


def save(name: str, folder: Path) -> Iterator[int]:
    from loaderx import Dataset

    target = folder / f"saved-{name}"
    while True:
        shutil.rmtree(target, ignore_errors=True)
        dataset = Dataset.open(folder / name, split="train", cache=False)
        dataset.save(target, engine="inline")
        yield len(dataset)


def decode(name: str, folder: Path) -> Iterator[int]:
    import pyarrow.parquet as pq

    while True:
        rows = 0
        for file in sorted((folder / name).glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches():
                rows += len(batch)
        yield rows


def arrays(folder: Path) -> Iterator[int]:
    """The same ``.npy`` files as arrays."""
    from loaderx import DataLoader, Dataset

    Dataset.open(folder / "images", split="train")
    (part,) = (folder / "cache" / "files").glob("*/part-00000/image.npy")
    image = np.load(part, mmap_mode="r")
    label = np.load(part.with_name("label.npy"), mmap_mode="r")
    dataset = Dataset.from_arrays(image=image, label=label).shuffle(0).repeat().batch(BATCH)
    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


CONTENDERS: dict[str, Callable[[Path], Iterator[int]]] = {
    "from_arrays images": arrays,
    "loaderx tokens, padded": padded,
}
for _name in COLUMNS:
    CONTENDERS[f"loaderx {_name}"] = partial(loaderx, _name)
    CONTENDERS[f"datasets {_name}"] = partial(huggingface, _name)
    CONTENDERS[f"copy {_name}"] = partial(copy, _name)
    CONTENDERS[f"save {_name}"] = partial(save, _name)
    CONTENDERS[f"pyarrow decode {_name}"] = partial(decode, _name)
for _name in ("text", "images"):
    CONTENDERS[f"loaderx {_name}, in order"] = partial(in_order, _name)
    CONTENDERS[f"loaderx {_name}, no copy, in order"] = partial(without_copy, _name, shuffle=None)
    _window = {"window": WINDOW}
    CONTENDERS[f"loaderx {_name}, no copy, window"] = partial(without_copy, _name, shuffle=_window)
    _blocks = {"block": "source", **_window}
    CONTENDERS[f"loaderx {_name}, no copy, blocks"] = partial(without_copy, _name, shuffle=_blocks)
    CONTENDERS[f"datasets {_name}, streaming"] = partial(streaming, _name)
    CONTENDERS[f"grain {_name}"] = partial(grain, _name)

BARS = [
    ("loaderx text", "datasets text", 3),
    ("loaderx images", "datasets images", 10),
    ("loaderx tokens", "datasets tokens", 10),
    ("loaderx jpeg", "datasets jpeg", 1.5),
    ("loaderx images", "from_arrays images", 0.95),
    *((f"copy {name}", f"pyarrow decode {name}", 1 / 1.5) for name in COLUMNS),
    *((f"save {name}", f"pyarrow decode {name}", 1 / 1.5) for name in COLUMNS),
    *((f"loaderx {name}, no copy, {kind}", f"loaderx {name}, no copy, in order", 0.8)
      for name in ("text", "images") for kind in ("window", "blocks")),
    *((f"loaderx {name}, no copy, blocks", f"datasets {name}, streaming", 1.3)
      for name in ("text", "images")),
    *((f"loaderx {name}, no copy, blocks", f"grain {name}", 8) for name in ("text", "images")),
]  # fmt: skip
