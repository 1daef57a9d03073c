"""Does `engine="auto"` find the right engine soon?  Read `figures.py` first for what is printed.

    python benchmarks/auto.py [--quick] [--only NAME ...] [--json FILE]

A loop as JAX programs have it: the first step "compiles" for 5 or for 15 s, all others take 2 ms
(they sleep, since a device would compute them).  Batches take 40 or 300 ms, in which their function
sleeps or holds the GIL; in a stream they come out of windows of 1,000 records, ten batches each.
The figure is the rate after 2 s of steady steps, by the best rate of inline, two threads and two
processes in the same run, each of which had its 2 s as well.

gathers         the batches of `mnist128`, which must get no workers, whatever the steps do

All of it takes about a quarter of an hour.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from core import images
from figures import Bar, Figures, Row, main, row

from loaderx import DataLoader, Dataset

BATCH = 100
WINDOW = 1_000
STEP_S = 0.002
STEADY_S = 2.0
WORKERS = 2
BAR = Bar(">=", 0.9)


class Work:
    """A function of a record that sleeps, or computes in Python, for some time."""

    def __init__(self, kind: str, seconds: float) -> None:
        self.kind, self.seconds = kind, seconds

    def __call__(self, record: Any) -> Any:
        if self.kind == "sleep":
            time.sleep(self.seconds)
        else:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                sum(range(50))
        return record


def dataset_of(shape: str, kind: str, batch_s: float) -> Dataset[Any]:
    records = Dataset.range(1_000_000).map(Work(kind, batch_s / BATCH))
    if shape == "stream":
        records = records.filter(lambda record: True).shuffle(seed=0, window=WINDOW)
    return records.batch(BATCH)


def rate(loader: DataLoader[Any], compile_s: float, steady_s: float, measured_s: float) -> float:
    """Batches per second, from so many seconds of steady steps on.

    A stream hands out the batches of a window at once, so it is the slope over all of them.
    """
    times: list[float] = []
    with loader:
        for number, _ in enumerate(loader):
            if number == 0:
                time.sleep(compile_s)
                begun = time.perf_counter()
                continue
            time.sleep(STEP_S)
            now = time.perf_counter() - begun
            if now > steady_s:
                times.append(now)
            if now > steady_s + measured_s:
                break
    return float(np.polyfit(times, np.arange(len(times)), 1)[0]) if len(times) > 1 else 0.0


def measured_s(shape: str, batch_s: float, quick: bool) -> float:
    """Long enough for some windows, which workers hand out two at a time."""
    window_s = batch_s * (WINDOW // BATCH if shape == "stream" else 1)
    return (2 if quick else 8) * max(window_s, 0.1 if quick else 1.0)


@cache
def best(shape: str, kind: str, batch_s: float, quick: bool) -> tuple[float, str]:
    """The best rate that an engine has, and its name."""
    rates = {}
    for engine in ("inline", "threads", "processes"):
        workers = {} if engine == "inline" else {"num_workers": WORKERS}
        loader = DataLoader(dataset_of(shape, kind, batch_s), engine=engine, **workers)
        seconds = measured_s(shape, batch_s, quick)
        rates[engine] = rate(loader, 0.0, 0.2 if quick else STEADY_S, seconds)
    return max((found, engine) for engine, found in rates.items())


def figure(
    shape: str, kind: str, milliseconds: int, compile_s: float
) -> Callable[[bool], list[Row]]:
    name = name_of(shape, kind, milliseconds, compile_s)

    def rows(quick: bool) -> list[Row]:
        batch_s = milliseconds / (10_000 if quick else 1_000)
        loader = DataLoader(dataset_of(shape, kind, batch_s), num_workers=WORKERS)
        seconds = measured_s(shape, batch_s, quick)
        own = rate(loader, 0.1 if quick else compile_s, 0.2 if quick else STEADY_S, seconds)
        top, engine = best(shape, kind, batch_s, quick)
        ratio = own / top if top else 1.0
        note = f"{own:.2f} batches/s on {loader.stats().engine}; best {top:.2f} on {engine}"
        return [row(name, BAR, ratio, [ratio], note)]

    return rows


def name_of(shape: str, kind: str, milliseconds: int, compile_s: float) -> str:
    return f"{shape}_{kind}_{milliseconds}ms_after_{compile_s:g}s"


def gathers(quick: bool) -> list[Row]:
    """The workers that were ever seen beside the gathers of `mnist128`."""
    x, y = images(3_000 if quick else 60_000)
    dataset = Dataset.from_arrays(image=x, label=y).shuffle(seed=0).batch(128).repeat()
    most = 0
    for step_s in (0.0, 0.0005, STEP_S):
        until = time.perf_counter() + (0.3 if quick else 10.0)
        with DataLoader(dataset) as loader:
            for number, _ in enumerate(loader):
                if step_s:
                    time.sleep(step_s if number else 100 * step_s)
                if number % 16 == 0:
                    most = max(most, workers_seen(loader))
                    if time.perf_counter() > until:
                        break
    return [row("gathers", Bar("<=", 0, "workers"), most, [most], loader.stats().reason)]


def workers_seen(loader: DataLoader[Any]) -> int:
    threads = sum(one.name.startswith("loaderx") for one in threading.enumerate())
    return max(threads, int(loader.stats().engine.startswith("processes")))


def all_figures() -> Iterator[tuple[str, Callable[[bool], list[Row]]]]:
    for shape in ("chain", "stream"):
        for kind in ("sleep", "gil"):
            for milliseconds in (40, 300):
                for compile_s in (5.0, 15.0):
                    name = name_of(shape, kind, milliseconds, compile_s)
                    yield name, figure(shape, kind, milliseconds, compile_s)
    yield "gathers", gathers


FIGURES: Figures = dict(all_figures())


if __name__ == "__main__":
    main(FIGURES, "the choice of an engine")
