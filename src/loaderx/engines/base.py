"""What an engine is.

An engine *opens* a run: it is given `Work` and a range of steps, and the run gives one element per
step, in order.  A failure keeps its place: it is raised when its step is asked for.  A run that is
closed leaves nothing behind; closing twice is fine, and dropping a run closes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from loaderx.memory import Lend


class Noted:
    """An element with something to tell about its making, for the statistics."""

    __slots__ = ("replaced", "times", "value")

    def __init__(self, value: Any, replaced: int, times: dict[str, float] | None) -> None:
        self.value = value
        self.replaced = replaced
        self.times = times


class Work(Protocol):
    """What is to be done for a step.  Threads may call it at once, each with its own ``lend``."""

    @property
    def thread_safe(self) -> bool: ...

    def __call__(self, step: int, lend: Lend) -> Any:
        """The element of a step, or `Noted`."""

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        """The same for consecutive steps, for an engine that makes one after the other."""


class Run(Protocol):
    """Elements in the order of their steps."""

    @property
    def next(self) -> Callable[[], Any]:
        """Gives the next element; StopIteration after the last."""

    def close(self) -> None: ...

    def describe(self) -> tuple[str, str]:
        """The engine that runs, and why."""


class Engine(Protocol):
    """Opens runs.  An engine is a value: it holds no threads and no position."""

    def open(self, work: Work, steps: range) -> Run:
        """A run over these steps.  Nothing starts before its first element is asked for."""


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
