"""Work whose batches go to a device: wide numbers are made narrow where the batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Measured, Run, Task, Work
from loaderx.memory import Lend, Pool
from loaderx.stages.narrowing import Narrow


class NarrowedWork:
    """Another work's elements, made narrow.  Runs in workers, which need no jax for it."""

    def __init__(self, work: Work, narrow: Narrow) -> None:
        self._work = work
        self._narrow = narrow
        self.unsure, self.only_gathers = work.unsure, work.only_gathers
        self.describe = work.describe
        self.parts = work.parts

    @property
    def thread_safe(self) -> bool:
        return self._work.thread_safe

    def __call__(self, task: Task, lend: Lend) -> Any:
        return self._narrowed(self._work(task, lend), lend)

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        for element in self._work.stream(steps, lend):
            yield self._narrowed(element, lend)
            del element

    def _narrowed(self, element: Any, lend: Lend) -> Any:
        return _narrowed(element, self._narrow, lend)


class NarrowedRun:
    """The same for the batches of a stream, which are cut in the consumer's process."""

    def __init__(self, run: Run, narrow: Narrow) -> None:
        self._run, self._narrow = run, narrow
        self._lend = Pool().lend
        self.ready = run.ready
        self.close = run.close
        self.describe = run.describe
        self.interrupt = run.interrupt

    def next(self) -> Any:
        return _narrowed(self._run.next(), self._narrow, self._lend)


def _narrowed(element: Any, narrow: Narrow, lend: Lend) -> Any:
    if type(element) is Measured:
        element.value = narrow(element.value, lend)
        return element
    return narrow(element, lend)
