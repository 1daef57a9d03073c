"""How far a batch travels through the code: calls, files, changes of package, and depth.

Counts the Python functions of loaderx that run in the caller's thread while one batch is made.  Run
``python benchmarks/walk.py``; it takes a second and measures no time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np

import loaderx
from loaderx import DataLoader, Dataset

ROOT = os.path.join(os.path.dirname(loaderx.__file__), "")


class Walk:
    """Counts what happens in loaderx between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.calls, self.switches, self.depth = 0, 0, 0
        self.files: set[str] = set()
        self._stack: list[str] = []

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(ROOT):
            return
        if event == "call":
            inside = path[len(ROOT) :]
            package = inside.partition("/")[0]
            self.calls += 1
            self.files.add(inside)
            if self._stack and self._stack[-1] != package:
                self.switches += 1
            self._stack.append(package)
            self.depth = max(self.depth, len(self._stack))
        elif event == "return" and self._stack:
            self._stack.pop()

    def __enter__(self) -> Walk:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def row(self) -> str:
        return f"{self.calls} | {len(self.files)} | {self.switches} | {self.depth}"


def steady(loader: DataLoader, before: int) -> Walk:
    with loader:
        batches = iter(loader)
        for _ in range(before):
            next(batches)
        with Walk() as walk:
            next(batches)
        batches.close()
    return walk


def arrays() -> Dataset:
    return Dataset.from_arrays(x=np.zeros((4096, 8)), y=np.arange(4096)).shuffle(0).repeat()


def documents() -> Dataset:
    rng = np.random.default_rng(0)
    rows = [{"tokens": np.arange(n)} for n in rng.integers(5, 50, 4096)]
    return Dataset.from_source(rows).shuffle(0).repeat()


def one(record: dict) -> dict:
    return record


def walks() -> Iterator[tuple[str, Callable[[], Walk]]]:
    whole = arrays().batch(64)
    each = arrays().map(one).batch(64)
    packed = documents().pack({"tokens": 64}, window=64).batch(16, lanes=2)
    yield "arrays, inline, steady", lambda: steady(DataLoader(whole, engine="inline"), 20)
    yield "per-record map, inline", lambda: steady(DataLoader(each, engine="inline"), 20)
    yield (
        "processes, consumer side",
        lambda: steady(DataLoader(each, engine="processes", num_workers=1), 20),
    )
    yield (
        "packed stream on 2 hosts, first batch",
        lambda: steady(DataLoader(packed, engine="inline", shard=(0, 2)), 0),
    )
    yield (
        "packed stream on 2 hosts, steady",
        lambda: steady(DataLoader(packed, engine="inline", shard=(0, 2)), 9),
    )


def main() -> None:
    print("| a walk of one batch | calls | files | package switches | depth |")
    print("|---|--:|--:|--:|--:|")
    for name, walk in walks():
        print(f"| {name} | {walk().row()} |")


if __name__ == "__main__":
    main()
