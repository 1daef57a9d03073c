"""Whole numbers as records, without an array behind them."""

from __future__ import annotations

import numpy as np

from loaderx.errors import ArgumentError, check_int
from loaderx.memory import Layout, Lend
from loaderx.sources.base import Indices, OwnSource
from loaderx.tree import ArraySpec, Tree


class RangeSource(OwnSource):
    """The numbers of a `range`, as int64."""

    spec = ArraySpec((), np.dtype(np.int64))
    thread_safe = True
    only_gathers = True
    identifies_data = True

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        start = check_int("start", start)
        if stop is None:
            start, stop = 0, start
        step = check_int("step", step)
        if step == 0:
            raise ArgumentError("`step` must not be 0.")
        self._range = range(start, check_int("stop", stop), step)
        if not self._range:
            raise ArgumentError(f"the dataset is empty: {self.label()}.")

    def __len__(self) -> int:
        return len(self._range)

    def label(self) -> str:
        return repr(self._range)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        (out,) = lend(Layout.of((indices.shape, self.spec.dtype)))
        np.multiply(indices, self._range.step, out=out)
        out += self._range.start
        return out

    def records(self, indices: Indices) -> list[Tree]:
        return list(indices * self._range.step + self._range.start)
