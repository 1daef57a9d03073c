"""The caller's own thread: the reference for all engines, the fastest for small batches."""

from __future__ import annotations

from typing import Any

from loaderx.engines.base import Session, Task, Work
from loaderx.frozen import Frozen
from loaderx.memory import PoolPerThread


class Inline(Frozen):
    """Makes each element when it is asked for."""

    def session(self, work: Work) -> InlineSession:
        return InlineSession(work)


class InlineSession(Session):
    here = 1 << 62  # the caller makes all steps in one loop

    def __init__(self, work: Work) -> None:
        self._work = work
        self._pools = PoolPerThread()

    def submit(self, task: Task) -> InlinePending:
        return InlinePending(self._work, task, self._pools)

    def describe(self) -> tuple[str, str]:
        return "inline", "it was asked for"


class InlinePending:
    """A task that runs when its result is asked for."""

    __slots__ = ("_pools", "_task", "_work")

    def __init__(self, work: Work, task: Task, pools: PoolPerThread) -> None:
        self._work, self._task, self._pools = work, task, pools

    def result(self) -> Any:
        return self._work(self._task, self._pools.lend)

    def done(self) -> bool:
        return True  # no worker to wait for

    def cancel(self) -> None:
        """There is nothing to stop."""
