"""Work whose batches go to a device: 64-bit numbers become 32-bit where the batch is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from loaderx.engines.base import Measured, Run, Task
from loaderx.loader.work import PlanWork
from loaderx.memory import Lend, Pool
from loaderx.stages.narrowing import Narrow
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.engines.sharing import MadeRows


class NarrowedWork:
    """The elements of another work, with 32-bit numbers.  Workers need no jax for it."""

    def __init__(self, work: PlanWork, narrow: Narrow) -> None:
        self._work = work
        self.shared_rows, self.make_rows = work.shared_rows, work.make_rows
        self._narrow = narrow
        self.unsure, self.only_gathers = work.unsure, work.only_gathers
        self.describe = work.describe
        self.parts = work.parts

    @property
    def thread_safe(self) -> bool:
        return self._work.thread_safe

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured:
        return self.narrowed(self._work(task, lend), lend)

    def stream(self, steps: range, lend: Lend) -> Iterator[Tree | Measured]:
        for element in self._work.stream(steps, lend):
            yield self.narrowed(element, lend)
            del element  # or this frame would keep its memory while the next one is made

    def join_rows(self, task: Task, parts: Sequence[MadeRows], lend: Lend) -> Tree | Measured:
        return self.narrowed(self._work.join_rows(task, parts, lend), lend)

    def narrowed(self, element: Tree | Measured, lend: Lend) -> Tree | Measured:
        return _narrowed(element, self._narrow, lend)


class NarrowedRun:
    """The same for the batches of a stream, which are made in the consumer's process."""

    def __init__(self, run: Run, narrow: Narrow) -> None:
        self._run, self._narrow = run, narrow
        self._lend = Pool().lend
        self.start = run.start
        self.ready = run.ready
        self.close = run.close
        self.describe = run.describe
        self.interrupt = run.interrupt

    def next(self) -> Tree | Measured:
        return _narrowed(self._run.next(), self._narrow, self._lend)


def _narrowed(element: Tree | Measured, narrow: Narrow, lend: Lend) -> Tree | Measured:
    if type(element) is Measured:
        element.value = narrow(element.value, lend)
        return element
    return narrow(element, lend)
