"""Programs written for Grain, run by Grain and by `loaderx.compat.grain`: records/s, as a ratio.

    .venv-grain/bin/python benchmarks/grain_compat.py [--quick] [--cpu] [--only NAME ...]

The environment has Grain (`make test-grain` makes it).  Every program is one function of the
module it is given, so both run the same lines.  Grain runs with each of a few settings, and its
best counts; ours runs with Grain's defaults.  Rounds take turns, so that a machine that gets
slower slows both.  With ``--cpu`` the time is that of the processor, all threads together: for a
machine that does other work as well; a worker process is not in it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

Grain = Any  # a module: Grain's, or ours
Settings = dict[str, int]
Clock = Callable[[], float]
Program = Callable[[Grain, int, Settings], Iterator[Any]]

DEFAULTS: Settings = {}
ONLY_DEFAULTS = (DEFAULTS,)
# Threads cost Grain more than they bring where records are small; both ways are tried.
READ = ({}, {"num_threads": 0, "prefetch_buffer_size": 0}, {"num_threads": 2}, {"num_threads": 1})


class Digits:
    """The source of the MNIST tutorials: one record at a time, as a tuple."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self._images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        self._labels = rng.integers(0, 10, count, np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._images[index], self._labels[index]


def mnist_tutorial(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    source = Digits(min(count, 60_000))
    sampler = grain.IndexSampler(
        num_records=len(source),
        shuffle=True,
        seed=0,
        num_epochs=-(-count // len(source)),
        shard_options=grain.NoSharding(),
    )
    loader = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.Batch(batch_size=128, drop_remainder=True)],
        worker_count=0,
        read_options=grain.ReadOptions(**settings),
    )
    return iter(loader)


def array_rows(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    rows = np.random.default_rng(0).random((min(count, 100_000), 64), np.float32)
    ds = grain.MapDataset.source(rows).shuffle(seed=0).repeat().batch(256)
    return iter(ds.to_iter_dataset(grain.ReadOptions(**settings)))


def documents(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 512, count)
    return [{"tokens": np.arange(n, dtype=np.int32)} for n in lengths]


def packing(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    ds = grain.MapDataset.source(documents(min(count, 4_000))).shuffle(seed=0).repeat()
    ds = grain.experimental.FirstFitPackIterDataset(
        ds.to_iter_dataset(grain.ReadOptions(**settings)),
        length_struct={"tokens": 1024},
        num_packing_bins=64,
    )
    return iter(ds.batch(8))


def augment(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"image": record["image"] * rng.random(dtype=np.float32), "label": record["label"]}


def dict_records(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    records = [
        {"image": rng.random((16, 16), np.float32), "label": k % 10}
        for k in range(min(count, 10_000))
    ]
    ds = grain.MapDataset.source(records).seed(0).shuffle().repeat().random_map(augment)
    return iter(ds.batch(64).to_iter_dataset(grain.ReadOptions(**settings)))


def is_kept(record: dict[str, Any]) -> bool:
    return bool(record["image"][0, 0] > 0.3)


def worker_and_filter(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    images = [{"image": rng.random((64, 64), np.float32)} for _ in range(2_000)]
    read = {k: v for k, v in settings.items() if k != "per_worker_buffer_size"}
    buffer = settings.get("per_worker_buffer_size", 1)
    ds = grain.MapDataset.source(images).shuffle(seed=0).repeat().filter(is_kept)
    ds = ds.to_iter_dataset(grain.ReadOptions(**read)).batch(32)
    options = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=buffer)
    return iter(ds.mp_prefetch(options))


def count_words(record: dict[str, Any]) -> dict[str, Any]:
    """Python that holds the GIL: a fifth of a millisecond."""
    total = 0
    for value in range(3_000):
        total += value * record["label"] & 7
    return {**record, "words": total}


def python_map(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    records = [{"label": k % 10} for k in range(10_000)]
    ds = grain.MapDataset.source(records).shuffle(seed=0).repeat().map(count_words)
    return iter(ds.batch(64).to_iter_dataset(grain.ReadOptions(**settings)))


def python_map_single(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    records = [{"label": k % 10} for k in range(10_000)]
    ds = grain.MapDataset.source(records).shuffle(seed=0).repeat().map(count_words)
    return iter(ds.to_iter_dataset(grain.ReadOptions(**settings)))


def loader_with_operations(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    """Operations of a loader, which run in the caller's thread."""

    class Scale(grain.MapTransform):  # type: ignore[misc, name-defined]
        def map(self, element: tuple[Any, Any]) -> dict[str, Any]:
            return {"image": element[0].astype(np.float32) / 255, "label": element[1]}

    class Noise(grain.RandomMapTransform):  # type: ignore[misc, name-defined]
        def random_map(self, element: dict[str, Any], rng: Any) -> dict[str, Any]:
            return {**element, "image": element["image"] + rng.random(dtype=np.float32)}

    source = Digits(60_000)
    loader = grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(
            len(source), grain.NoSharding(), shuffle=True, num_epochs=None, seed=0
        ),
        operations=[Scale(), Noise(), grain.Batch(128, drop_remainder=True)],
        worker_count=0,
        read_options=grain.ReadOptions(**settings),
    )
    return iter(loader)


class Waiting:
    """A source that waits for each record, as one behind a network does."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        sleep(0.004)
        return {"image": np.full((16, 16), index % 7, np.float32)}


def waiting_loader(grain: Grain, count: int, settings: Settings, workers: int = 0) -> Iterator[Any]:
    sampler = grain.IndexSampler(100_000, grain.NoSharding(), shuffle=True, num_epochs=None, seed=0)
    loader = grain.DataLoader(
        data_source=Waiting(), sampler=sampler, operations=[grain.Batch(32)], worker_count=workers
    )
    return iter(loader)


def waiting_batches(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    """Batches are made in the workers, of records that each worker reads."""
    ds = grain.MapDataset.source(Waiting()).shuffle(seed=0).repeat().batch(32)
    return iter(ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))


def waiting_filter(grain: Grain, count: int, settings: Settings) -> Iterator[Any]:
    ds = grain.MapDataset.source(Waiting()).shuffle(seed=0).repeat().filter(is_not_six)
    ds = ds.to_iter_dataset().batch(32)
    return iter(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))


def is_not_six(record: dict[str, Any]) -> bool:
    return bool(record["image"][0, 0] != 6)


@dataclass(frozen=True)
class Row:
    """A program, the records in a step, and the ratio that is asked for."""

    name: str
    program: Program
    records: int
    bar: float
    settings: tuple[Settings, ...] = READ
    warm_s: float = 0.0  # before the clock starts, at least


ROWS = [
    Row("MNIST tutorial", mnist_tutorial, 128, 30),
    Row("shuffled array rows", array_rows, 256, 30),
    Row("a loader with operations", loader_with_operations, 128, 2),
    Row("a map in Python", python_map, 64, 1),
    Row("a map in Python, no batch", python_map_single, 1, 1),
    Row("packing", packing, 8, 8),
    Row("dicts with random_map", dict_records, 64, 5),
    Row(
        "a worker and a filter", worker_and_filter, 32, 2,
        ({}, {"num_threads": 0, "prefetch_buffer_size": 0}, {"per_worker_buffer_size": 16}),
    ),
    Row("a source that waits", waiting_loader, 32, 1, ONLY_DEFAULTS, 1.5),
    Row("it waits, 2 workers", partial(waiting_loader, workers=2), 32, 1, ONLY_DEFAULTS, 1.5),
    Row("it waits, batches, 2", waiting_batches, 32, 1, ONLY_DEFAULTS, 1.5),
    Row("it waits, a filter, 2", waiting_filter, 32, 1, ONLY_DEFAULTS, 1.5),
]  # fmt: skip


def steps_per_second(run: Iterator[Any], budget_s: float, warm_s: float, clock: Clock) -> float:
    """After a warm-up of a tenth of the time, or longer."""
    end = clock() + max(warm_s, budget_s / 10)
    while clock() < end:
        next(run)
    start = clock()
    for step in itertools.count(1):
        next(run)
        if (spent := clock() - start) > budget_s:
            return step / spent
    raise AssertionError


def rate(row: Row, grain: Grain, settings: Settings, budget_s: float, clock: Clock) -> float:
    run = row.program(grain, 100_000_000, settings)
    try:
        return steps_per_second(run, budget_s, row.warm_s, clock) * row.records
    finally:
        getattr(run, "close", lambda: None)()


def measure(row: Row, theirs: Grain, ours: Grain, budget_s: float, rounds: int, cpu: bool) -> None:
    waits_elsewhere = row.program is worker_and_filter or row.settings is ONLY_DEFAULTS
    clock = process_time if cpu and not waits_elsewhere else perf_counter
    trial = partial(rate, row, budget_s=budget_s, clock=clock)
    best = max(row.settings, key=lambda settings: trial(theirs, settings))
    pairs = [(trial(theirs, best), trial(ours, DEFAULTS)) for _ in range(rounds)]
    ratio = median(b / a for a, b in pairs)
    verdict = "ok" if ratio >= row.bar else "SHORT"
    print(
        f"{row.name:24} Grain {median(a for a, _ in pairs):12,.0f}/s {best or 'defaults'!s:52} "
        f"loaderx {median(b for _, b in pairs):12,.0f}/s  {ratio:6.2f}x of {row.bar}x {verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    theirs = importlib.import_module("grain.python")
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # its workers ask for flags
    ours = importlib.import_module("loaderx.compat.grain")
    budget_s, rounds = (0.3, 1) if options.quick else (2.0, 3)
    for row in ROWS:
        if not options.only or any(word in row.name for word in options.only):
            measure(row, theirs, ours, budget_s, rounds, options.cpu)


if __name__ == "__main__":
    main()
