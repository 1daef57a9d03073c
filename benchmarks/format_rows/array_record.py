"""ArrayRecord: the bytes of records, shuffled exactly, one record a chunk (zstd), four shards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent))  # behind the packages that rows are named after
from _tf_data import SHARDS, counts, payloads

NEEDS = ["array_record", "grain", "zstandard"]
KINDS = ("cifar", "jpeg", "text")
BATCH = 256


def write(folder: Path, quick: bool) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for kind, count in counts(quick).items():
        writers = [
            ArrayRecordWriter(str(folder / f"{kind}-{k:05d}.arrayrecord"), "group_size:1")
            for k in range(SHARDS)
        ]
        for number, payload in enumerate(payloads(kind, count)):
            writers[number * SHARDS // count].write(payload)
        for writer in writers:
            writer.close()


def _files(folder: Path, kind: str) -> list[str]:
    return sorted(map(str, folder.glob(f"{kind}-*.arrayrecord")))


def _loaderx(kind: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        from loaderx import DataLoader, Dataset

        dataset = Dataset.open(_files(folder, kind), cache=folder / "cache").shuffle(seed=0)
        with DataLoader(dataset.batch(BATCH).repeat(), engine="inline") as loader:
            for batch in loader:
                yield len(batch["data"])

    return run


def _array_record(kind: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(_files(folder, kind))
        drawn = np.random.default_rng(0)
        while True:
            order = drawn.permutation(len(source))
            for start in range(0, len(order), BATCH):
                yield len(source.__getitems__(order[start : start + BATCH].tolist()))

    return run


def _grain(kind: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import grain
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(_files(folder, kind))
        dataset = grain.MapDataset.source(source).shuffle(seed=0).repeat()
        iterator = dataset.to_iter_dataset().batch(BATCH, batch_fn=list)
        for batch in iterator:
            yield len(batch)

    return run


CONTENDERS = {
    f"{name} {kind}": make(kind)
    for kind in KINDS
    for name, make in (("loaderx", _loaderx), ("array_record", _array_record), ("grain", _grain))
}
BARS = [
    (f"loaderx {kind}", f"{other} {kind}", 4.0)
    for kind in KINDS
    for other in ("array_record", "grain")
]
