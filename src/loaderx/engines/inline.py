"""The caller's own thread: the reference for all engines, the fastest for small batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Work
from loaderx.frozen import Frozen
from loaderx.memory import Lend, Pool


class Inline(Frozen):
    """Makes each element when it is asked for."""

    def open(self, work: Work, steps: range) -> InlineRun:
        return InlineRun(work, steps)


class InlineRun:
    def __init__(self, work: Work, steps: range) -> None:
        self._elements = make(work, steps, Pool().lend)
        self.next = self._elements.__next__

    def close(self) -> None:
        self._elements.close()

    def describe(self) -> tuple[str, str]:
        return "inline", "it was asked for"


def make(work: Work, steps: range, lend: Lend) -> Any:
    """The elements of these steps.  A generator: nothing in Python is cheaper to resume."""

    def generate() -> Iterator[Any]:
        for step in steps:
            yield work(step, lend)

    return generate()
