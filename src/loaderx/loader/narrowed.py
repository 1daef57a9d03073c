"""Work whose batches go to a device: wide numbers are made narrow where the batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Noted, Work
from loaderx.memory import Lend
from loaderx.stages.narrowing import Narrow


class NarrowedWork:
    """Another work's elements, made narrow.  Runs in workers, which need no jax for it."""

    def __init__(self, work: Work, narrow: Narrow) -> None:
        self._work = work
        self._narrow = narrow
        self.describe = work.describe
        self.parts = work.parts

    @property
    def thread_safe(self) -> bool:
        return self._work.thread_safe

    def __call__(self, step: int, lend: Lend) -> Any:
        return self._narrowed(self._work(step, lend), lend)

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        for element in self._work.stream(steps, lend):
            yield self._narrowed(element, lend)
            del element

    def _narrowed(self, element: Any, lend: Lend) -> Any:
        if type(element) is Noted:
            element.value = self._narrow(element.value, lend)
            return element
        return self._narrow(element, lend)
