"""Batches placed ahead of their use.

A placed run stands between an engine's run and the iterator.  Whenever a batch is asked for it also
asks for the next ones, until ``depth`` of them are on their way to the devices; a transfer takes
its time while the user's step runs.  It grows by one batch per step: so the first batch comes as
soon as it can, and an engine that measures sees its usual rhythm.

There is no thread here.  Making batches in the background is the engine's business, and handing a
ready batch to the device costs less than waking a thread would.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from loaderx.engines.base import Noted, Run, Workshop


class PlacedWorkshop:
    """A workshop whose runs give placed elements."""

    def __init__(self, workshop: Workshop, place: Callable[[Any], Any], depth: int) -> None:
        self._workshop, self._place, self._depth = workshop, place, depth

    def open(self, steps: range) -> PlacedRun:
        return PlacedRun(self._workshop.open(steps), self._place, self._depth)

    def close(self) -> None:
        self._workshop.close()


class _Failed:
    """An error that waits for its step."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class PlacedRun:
    """The elements of a run, placed; up to ``depth`` ahead."""

    def __init__(self, run: Run, place: Callable[[Any], Any], depth: int) -> None:
        self._run = run
        self._place = place
        self._depth = depth
        self._ahead: deque[Any] = deque()
        self._started = self._ended = False
        self._lock = threading.Lock()  # two threads may share an iterator

    def next(self) -> Any:
        with self._lock:
            for _ in range(2 if self._started else 1):  # one to hand out, one to grow by
                if len(self._ahead) <= self._depth:
                    self._pull()
            self._started = True
            if not self._ahead:
                raise StopIteration
            element = self._ahead.popleft()
        if type(element) is _Failed:
            try:
                raise element.error
            finally:
                del element
        return element

    def _pull(self) -> None:
        if self._ended:
            return
        try:
            element = self._run.next()
            if type(element) is Noted:
                element.value = self._place(element.value)
            else:
                element = self._place(element)
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._ended = True
            self._ahead.append(_Failed(error))
        else:
            self._ahead.append(element)

    def close(self) -> None:
        self._ended = True
        self._run.close()
        self._ahead.clear()

    def describe(self) -> tuple[str, str]:
        return self._run.describe()
