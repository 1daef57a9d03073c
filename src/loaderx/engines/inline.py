"""The caller's own thread: the reference for all engines, the fastest for small batches."""

from __future__ import annotations

from typing import Any

from loaderx.engines.base import BareWorkshop, Work, close_generator
from loaderx.frozen import Frozen
from loaderx.memory import Pool


class Inline(Frozen):
    """Makes each element when it is asked for."""

    def workshop(self, work: Work) -> BareWorkshop:
        return BareWorkshop(lambda steps: InlineRun(work, steps))


class InlineRun:
    def __init__(self, work: Work, steps: range) -> None:
        self._elements: Any = work.stream(steps, Pool().lend)
        self.next = self._elements.__next__

    def ready(self) -> bool:
        return True  # nobody else will make it

    def close(self) -> None:
        close_generator(self._elements)

    def describe(self) -> tuple[str, str]:
        return "inline", "it was asked for"
