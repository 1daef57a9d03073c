"""The caller's own thread: the reference for all engines, the fastest for small batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Run, Session, Task, Work, close_generator
from loaderx.frozen import Frozen
from loaderx.memory import Pool, PoolPerThread


class Inline(Frozen):
    """Makes each element when it is asked for."""

    def session(self, work: Work) -> InlineSession:
        return InlineSession(work)


class InlineSession(Session):
    def __init__(self, work: Work) -> None:
        self._work = work
        self._pools = PoolPerThread()

    def submit(self, task: Task) -> InlinePending:
        return InlinePending(self._work, task, self._pools)

    def run(self, steps: range) -> Run:
        return InlineRun(self._work.stream(steps, Pool().lend))


class InlinePending:
    """A task that is done when its result is asked for."""

    __slots__ = ("_pools", "_task", "_work")

    def __init__(self, work: Work, task: Task, pools: PoolPerThread) -> None:
        self._work, self._task, self._pools = work, task, pools

    def result(self) -> Any:
        return self._work(self._task, self._pools.lend)

    def done(self) -> bool:
        return True  # nobody else will make it

    def cancel(self) -> None:
        """There is nothing to stop."""


class InlineRun:
    """Consecutive steps, without a call of ours in between."""

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements
        self.next = elements.__next__

    def start(self) -> None:
        """Nobody would make an element ahead."""

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        close_generator(self._elements)

    def interrupt(self) -> bool:
        return False

    def describe(self) -> tuple[str, str]:
        return "inline", "it was asked for"
