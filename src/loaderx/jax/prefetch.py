"""Batches placed ahead of their use.

A placed run is between an engine's run and the iterator.  When a batch is requested, it also
requests the next ones, until ``depth`` of them are on their way to the devices, so that transfers
run during the user's step.  The number ahead grows by one batch per step: so the first batch comes
as soon as possible, and an engine that measures sees the usual period.  It does not wait for a
batch that is not made yet while there is one ahead.

All of this happens in the caller's thread.  A thread that places batches was tried, and made steps
slower: it wakes up when a batch is taken, just when the caller dispatches the next step, and both
need the interpreter.  It saved a tenth of a millisecond and cost one or two.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from loaderx.engines.base import Measured, Run, closed_error
from loaderx.tree import Tree


class Places(Protocol):
    """What puts a batch onto devices, such as a `Placement`."""

    def place(self, batch: object) -> Tree: ...


class _Failure:
    """The error that a step will raise instead of returning its element."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class PlacedRun:
    """The elements of a run, placed; up to ``depth`` ahead."""

    def __init__(self, run: Run, placement: Places, depth: int) -> None:
        self._run, self._placement, self._depth = run, placement, depth
        self._ahead: deque[object] = deque()
        self._started = self._ended = self._is_closed = False

    def start(self) -> None:
        self._run.start()  # placing waits for the first `next`: it takes the caller's time

    def next(self) -> object:
        for _ in range(2 if self._started else 1):  # one to hand out, one more to have ahead
            if self._has_room():
                self._pull()
        self._started = True
        try:
            element = self._ahead.popleft()
        except IndexError:
            if self._is_closed:
                raise closed_error() from None
            raise StopIteration from None
        if type(element) is _Failure:
            raise element.error
        return element

    def ready(self) -> bool:
        return bool(self._ahead) or self._run.ready()

    def _has_room(self) -> bool:
        """Whether there is room ahead, and a batch that can be taken without delaying the next."""
        if self._ended or len(self._ahead) > self._depth:
            return False
        return not self._ahead or self._run.ready()

    def _pull(self) -> None:
        """Takes and places one more; an error is kept for its step, and ends the run."""
        try:
            self._ahead.append(place(self._run.next(), self._placement))
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._ended = True
            self._ahead.append(_Failure(error))

    def interrupt(self) -> bool:
        return self._run.interrupt()

    def close(self) -> None:
        self._ended = self._is_closed = True
        self._run.close()
        self._ahead.clear()

    def describe(self) -> tuple[str, str]:
        return self._run.describe()


def place(element: object, placement: Places) -> object:
    """The element placed, with its statistics."""
    if type(element) is Measured:
        element.value = placement.place(element.value)
        return element
    return placement.place(element)
