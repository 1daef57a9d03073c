"""Hugging Face folders and objects: `Dataset.open` and `from_source` against `datasets` itself.

Shuffled batches of 256 of four kinds of records, and text in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NEEDS = ["datasets", "pyarrow"]
BATCH = 256
KINDS = ("text", "cifar", "tokens", "jpeg")


def write(folder: Path, quick: bool) -> None:
    import datasets

    datasets.disable_progress_bars()
    rng = np.random.default_rng(0)
    scale = 20 if quick else 1
    letters = rng.integers(97, 123, 1 << 20, np.uint8).tobytes().decode()
    value = datasets.Value

    def text(number: int) -> str:
        start = number * 7919 % (len(letters) - 4000)
        return letters[start : start + 500 + number * 31 % 2000]

    def save(name: str, rows: int, features: dict[str, Any], column: Callable[[int], Any]) -> None:
        def rows_of() -> Iterator[dict[str, Any]]:
            for number in range(rows // scale):
                yield {name: column(number), "label": number % 10}

        told = datasets.Features({**features, "label": datasets.ClassLabel(num_classes=10)})
        made = datasets.Dataset.from_generator(
            rows_of, features=told, cache_dir=str(folder / "cache" / name)
        )
        made.save_to_disk(folder / name)

    pixels = rng.integers(0, 256, (1000, 3072), np.uint8)
    ids = rng.integers(0, 50_000, 1 << 20).astype(np.int32)
    file = rng.integers(0, 256, 1 << 20, np.uint8).tobytes()
    save("text", 200_000, {"text": value("string")}, text)
    save("cifar", 60_000, {"cifar": datasets.Sequence(value("uint8"), length=3072)},
         lambda number: pixels[number % 1000])  # fmt: skip
    save("tokens", 100_000, {"tokens": datasets.Sequence(value("int32"))},
         lambda number: ids[number * 97 % 900_000 :][: 300 + number * 13 % 600])  # fmt: skip
    save("jpeg", 8_192, {"jpeg": datasets.Image(decode=False)},
         lambda number: {"bytes": file[number * 61 :][: 50_000 + number * 7 % 20_000],
                         "path": None})  # fmt: skip


def _counts(dataset: Any) -> Iterator[int]:
    from loaderx import DataLoader

    with DataLoader(dataset, engine="inline") as loader:
        for batch in loader:
            yield len(batch["label"])


def _lists(dataset: Any, name: str) -> Any:
    """Batches in which the arrays of various lengths stay as they are."""
    return dataset if name != "tokens" else dataset.map(_boxed)


def _boxed(record: dict[str, Any]) -> dict[str, Any]:
    box = np.empty((), object)
    box[()] = record["tokens"]
    return {"tokens": box, "label": record["label"]}


def opened(name: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        from loaderx import Dataset

        dataset = Dataset.open(folder / name, decode=False, cache=folder / "loaderx")
        return _counts(_lists(dataset.shuffle(0).repeat(), name).batch(BATCH))

    return run


def recognised(name: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import datasets

        from loaderx import Dataset

        dataset = Dataset.from_source(datasets.load_from_disk(folder / name))
        return _counts(_lists(dataset.shuffle(0).repeat(), name).batch(BATCH))

    return run


def as_arrays(name: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import datasets

        from loaderx import Dataset
        from loaderx.sources import HuggingFace

        source = HuggingFace(datasets.load_from_disk(folder / name), decode=False)
        return _counts(_lists(Dataset.from_source(source).shuffle(0).repeat(), name).batch(BATCH))

    return run


def indexed(name: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import datasets

        made = datasets.load_from_disk(folder / name)
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(made))
            for start in range(0, len(made) - BATCH, BATCH):
                yield len(made[order[start : start + BATCH]]["label"])

    return run


def iterated(name: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import datasets

        datasets.disable_progress_bars()
        made = datasets.load_from_disk(folder / name)
        while True:
            for batch in made.shuffle(seed=0).iter(BATCH, drop_last_batch=True):
                yield len(batch["label"])

    return run


def opened_in_order(folder: Path) -> Iterator[int]:
    from loaderx import Dataset

    return _counts(Dataset.open(folder / "text", cache=folder / "loaderx").repeat().batch(BATCH))


def iterated_in_order(folder: Path) -> Iterator[int]:
    import datasets

    made = datasets.load_from_disk(folder / "text")
    while True:
        for batch in made.iter(BATCH, drop_last_batch=True):
            yield len(batch["label"])


CONTENDERS: dict[str, Callable[[Path], Iterator[int]]] = {}
for kind in KINDS:
    CONTENDERS[f"loaderx {kind}"] = opened(kind)
    CONTENDERS[f"loaderx object {kind}"] = recognised(kind)
    CONTENDERS[f"loaderx HuggingFace {kind}"] = as_arrays(kind)
    CONTENDERS[f"datasets[] {kind}"] = indexed(kind)
    CONTENDERS[f"datasets.iter {kind}"] = iterated(kind)
CONTENDERS["loaderx text in order"] = opened_in_order
CONTENDERS["datasets.iter text in order"] = iterated_in_order

LEAST = {"text": 3.0, "cifar": 10.0, "tokens": 10.0, "jpeg": 1.2}
BARS = [
    (f"loaderx {kind}", f"{peer} {kind}", LEAST[kind])
    for kind in KINDS
    for peer in ("datasets[]", "datasets.iter")
]
BARS += [
    (f"loaderx object {kind}", f"{peer} {kind}", LEAST[kind])
    for kind in ("text", "cifar", "jpeg")  # lists of Python numbers cost what they cost
    for peer in ("datasets[]", "datasets.iter")
]
BARS += [("loaderx text in order", "datasets.iter text in order", 1.0)]
