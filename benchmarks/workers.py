"""The figures of workers that Ray runs, each against its bar.

    python benchmarks/workers.py [--quick] [--only NAME ...] [--json FILE]

Batches are gathered from 32 MB of rows, and their bytes are summed up by the consumer.  There are
five ways to get them: `engines.Ray` without Ray's store (*direct*: workers on the consumer's raylet
have their memory read, those on the other one use a connection), `engines.Ray` through
Ray's store (*store*), `engines.Processes`, `ray.get` of what actors have made, as many calls under
way as the engines have tasks (*by hand*), and Ray Data: `map_batches` with a pool of actors, whole
blocks at a time, and `iter_batches` with `prefetch_batches` (*Ray Data*).

Two raylets run here, which is what two machines of a cluster have: a store each.  Workers are on
the consumer's raylet, or all on the other one.  Nothing goes over a real network.

A round runs every way for some batches; its ratios are those of rates, after the first batches,
so no way pays for its start.  Notes have MB/s and the CPU time of the consumer's process for a MB,
all of its threads, and the summing, included.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from figures import Bar, Figures, Row, Side, compare, main, row, skipped

import loaderx as lx
from loaderx import DataLoader, Dataset
from loaderx.engines import Processes, Ray
from loaderx.engines.elsewhere import worker_memory

ROW_BYTES, ROWS = 1000, 32_000
BATCHES = {10: 1000, 1000: 400, 8000: 50}  # rows of a batch: batches of a round
SIZES = {10: "10kB", 1000: "1MB", 8000: "8MB"}
PLACES = {"here": "head", "elsewhere": "other"}
FIRST = 8  # batches that no clock sees: at most what was made ahead
ROUNDS = 3
CPUS = 32  # of each raylet; Ray counts them, the machine need not have them
STORE_BYTES = 1 << 30
BLOCK_ROWS = 16_000  # of Ray Data, at most: 16 MB

BARS = {
    ("1MB", "here", "processes"): Bar(">=", 0.5),
    ("1MB", "here", "ray_data"): Bar(">=", 3),
    ("1MB", "elsewhere", "ray_data"): Bar(">=", 3),
    ("1MB", "elsewhere", "store"): Bar(">=", 2),
}
JPEG_BAR = Bar(">=", 0.9)


def clustered() -> Any:
    """The package `ray`, connected to two raylets of this machine."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # `Cluster` gives other drivers no token
    import ray

    if not ray.is_initialized():
        from ray.cluster_utils import Cluster

        node = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "resources": {"head": 99}})
        cluster.add_node(**node, resources={"other": 99})
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    return ray


# The ways -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Way:
    """Batches without end, or so many of them; and what was measured."""

    stream: Callable[[int], Iterator[Any]]
    rates: list[float] = field(default_factory=list)  # MB/s
    cpu: list[float] = field(default_factory=list)  # ms/MB

    def measure(self, count: int) -> None:
        stream = self.stream(FIRST + count)
        for batch in islice(stream, FIRST):
            checksum(batch)
        nbytes, begun, cpu = 0, perf_counter(), process_time()
        for batch in islice(stream, count):
            nbytes += checksum(batch)
        took, worked = perf_counter() - begun, process_time() - cpu
        self.rates.append(nbytes / took / 1e6)
        self.cpu.append(worked * 1e3 / (nbytes / 1e6))

    def say(self) -> str:
        return f"{median(self.rates):,.0f} MB/s, CPU {median(self.cpu):.2f} ms/MB"


def checksum(batch: Any) -> int:
    """Reads a batch, and gives its size."""
    x = batch["x"]
    x.reshape(-1).view(np.uint64).sum()
    return int(x.nbytes)


def endless(stream: Iterator[Any]) -> Way:
    return Way(lambda count: stream)


def ours(dataset: Dataset[Any], engine: Any, closing: ExitStack) -> Way:
    return endless(iter(closing.enter_context(DataLoader[Any](dataset, engine=engine))))


def without_store(dataset: Dataset[Any], engine: Ray, place: str, closing: ExitStack) -> Way:
    """The other raylet stands for another machine, where the memory of workers cannot be read."""
    readv = worker_memory.readv
    worker_memory.readv = readv if place == "here" else None
    try:
        loader = closing.enter_context(DataLoader[Any](dataset, engine=engine))
        batches = iter(loader)
        checksum(next(batches))
        while not all(worker.way for worker in loader.stats().workers):
            checksum(next(batches))
        ways = {worker.way for worker in loader.stats().workers}
        assert ways == {"memory" if place == "here" else "direct"}, ways
        return endless(batches)
    finally:
        worker_memory.readv = readv


class Gather:
    """Gathers rows, in an actor."""

    def __init__(self, x: Any, batch_rows: int = 0) -> None:
        self._x, self._batch_rows = x, batch_rows
        self._order = np.random.default_rng(1).permutation(len(x))

    def make(self, number: int) -> dict[str, Any]:
        starts = number * self._batch_rows % len(self._x)
        return {"x": self._x[self._order[starts : starts + self._batch_rows]]}

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        return {"x": self._x[self._order[block["id"] % len(self._x)]]}


def by_hand(ray: Any, x: Any, batch_rows: int, workers: int, place: str) -> Iterator[Any]:
    """Calls of actors, always as many under way as the engines have tasks."""
    actor = ray.remote(num_cpus=1, resources={place: 1})(Gather)
    actors = [actor.remote(x, batch_rows) for _ in range(workers)]
    try:
        under_way: deque[Any] = deque()
        for number in itertools.count():
            under_way.append(actors[number % workers].make.remote(number))
            if number >= workers + max(2, workers):
                yield ray.get(under_way.popleft())
    finally:
        for one in actors:
            ray.kill(one)


def ray_data(ray: Any, x: Any, batch_rows: int, workers: int, place: str) -> Way:
    """Ray Data, whose executions have an end, and start their actors anew."""
    import logging

    import ray.data as data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.DataContext.get_current().enable_progress_bars = False
    rows = ray.put(x)

    class Taken(Gather):
        def __init__(self) -> None:
            super().__init__(ray.get(rows))

    def stream(count: int) -> Iterator[Any]:
        total = count * batch_rows
        blocks = max(4 * workers, total // BLOCK_ROWS)
        made = data.range(total, override_num_blocks=min(blocks, count)).map_batches(
            Taken,
            batch_size=None,
            concurrency=workers,
            num_cpus=1,
            resources={place: 1},
            zero_copy_batch=True,
        )
        return iter(made.iter_batches(batch_size=batch_rows, prefetch_batches=4))

    return Way(stream)


# What is measured ---------------------------------------------------------------------------------


def transport(size: int) -> Callable[[bool], list[Row]]:
    """Direct against all others: both places, one and two workers."""

    def rows(quick: bool) -> list[Row]:
        try:
            ray = clustered()
        except ImportError as missing:
            return [skipped(f"ray_{SIZES[size]}", Bar(">=", 0.5), missing)]
        found = []
        for place, workers in itertools.product(PLACES, (1, 2)):
            found += one_setting(ray, size, place, workers, quick)
        return found

    return rows


def one_setting(ray: Any, size: int, place: str, workers: int, quick: bool) -> list[Row]:
    x = np.random.default_rng(0).integers(0, 255, (ROWS, ROW_BYTES), dtype=np.uint8)
    dataset = Dataset.from_arrays(x=x).shuffle(seed=0).batch(size).repeat()
    resource = PLACES[place]
    with ExitStack() as closing:
        hand = by_hand(ray, x, size, workers, resource)
        closing.callback(hand.close)
        takes = {"CPU": 1, resource: 1}
        ways = {
            "direct": without_store(dataset, Ray(workers, takes), place, closing),
            "store": ours(dataset, Ray(workers, takes, direct=False), closing),
            "processes": ours(dataset, Processes(workers), closing),
            "by_hand": endless(hand),
            "ray_data": ray_data(ray, x, size, workers, resource),
        }
        for number in range(1 if quick else ROUNDS):
            order = list(ways.values())
            for way in order if number % 2 == 0 else reversed(order):
                way.measure(4 if quick else BATCHES[size])
    direct = ways.pop("direct")
    found = []
    for name, way in ways.items():
        ratios = [own / other for own, other in zip(direct.rates, way.rates, strict=True)]
        note = f"direct {direct.say()}; {name.replace('_', ' ')} {way.say()}"
        bar = BARS.get((SIZES[size], place, name))
        label = f"{SIZES[size]}_{place}_{workers}_{name}"
        if bar is not None:
            found.append(row(label, bar, median(ratios), ratios, note))
        else:
            plain = row(label, Bar(">=", 0), median(ratios), ratios, note)
            found.append(without_bar(plain))
    return found


def without_bar(one: Row) -> Row:
    return Row(
        one.name, "-", "-", one.note, one.value, one.low, one.high, one.unit,
        one.measured, one.spread,
    )  # fmt: skip


def jpeg(quick: bool) -> list[Row]:
    """JPEG files, decoded and resized by two workers: Ray against processes."""
    try:
        clustered()
        from PIL import Image
    except ImportError as missing:
        return [skipped("jpeg", JPEG_BAR, missing)]
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name, ExitStack() as closing:
        for number in range(64 if quick else 600):  # smooth random colour images
            coarse = Image.fromarray(rng.integers(0, 256, (15, 17, 3), dtype=np.uint8))
            coarse.resize((500, 450)).save(Path(name, f"{number:04}.jpg"), quality=90)
        files = Dataset.open(name, decode=False)
        # Several epochs a round: one takes half a second, of which its first batch is much.
        decoded = files.map(lx.image.resize(224)).shuffle(seed=0).repeat(1 if quick else 5)
        dataset = decoded.batch(32, drop_remainder=True)
        sides = [
            epochs_of(closing.enter_context(DataLoader[Any](dataset, engine=engine)))
            for engine in (Ray(2), Processes(2))
        ]
        result = compare(*sides, 1 if quick else 7)
        records = len(dataset) * 32
    return [result.row("jpeg", JPEG_BAR, records, "two workers each")]


def epochs_of(loader: DataLoader[Any]) -> Side:
    numbers = itertools.count()
    return lambda: loader.epoch(next(numbers))


FIGURES: Figures = {**{SIZES[size]: transport(size) for size in SIZES}, "jpeg": jpeg}


if __name__ == "__main__":
    main(FIGURES, "what workers of Ray do")
