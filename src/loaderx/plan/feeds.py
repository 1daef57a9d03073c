"""Feeds: unit outputs, asked for by the lanes of a host, made by one run of an engine.

The units of all lanes stand in one fixed order, round by round: unit 0 of each lane, then unit 1 of
each, and so on.  A run of the engine makes them in that order, ahead of the lanes.  Lanes use up
their units at different speeds, so what comes for a lane that is behind is kept for it.  If it is
far behind, it is not kept: a unit depends on its number alone, and is made again when its turn
comes.  So a feed holds a bounded number of units, whatever the data are like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

KEPT = 16  # units kept per lane
FAR = 64  # rounds ahead of the run at which a lane is served on its own


class Supply:
    """Where outputs come from: ``open(number)`` starts a run there, ``make`` one output alone."""

    def open(self, leaf: int, number: int) -> Callable[[], Any]:
        raise NotImplementedError

    def make(self, leaf: int, number: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Stops the runs that were opened."""


class Failure:
    """A failure that waits for its turn."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Feed:
    """The outputs of one leaf for ``lanes`` lanes; unit ``number`` is for lane number % lanes."""

    def __init__(self, supply: Supply, leaf: int, lanes: int) -> None:
        self._supply, self._leaf, self._lanes = supply, leaf, lanes
        self._kept: list[deque[tuple[int, Any]]] = [deque() for _ in range(lanes)]
        self._wanted = [0] * lanes
        self._next: Callable[[], Any] | None = None
        self._cursor = 0

    def expect(self, lane: int, number: int) -> None:
        """Says where a lane will begin to ask."""
        self._wanted[lane] = number

    def get(self, lane: int, number: int) -> Any:
        """The output of a unit.  A lane asks for rising numbers, or says `expect` first."""
        output = self._find(lane, number)
        self._wanted[lane] = number + self._lanes
        if isinstance(output, Failure):
            raise output.error
        return output

    def _find(self, lane: int, number: int) -> Any:
        kept = self._kept[lane]
        while kept and kept[0][0] < number:
            kept.popleft()
        if kept and kept[0][0] == number:
            return kept.popleft()[1]
        self._wanted[lane] = number
        far = FAR * self._lanes
        if self._next is None or min(self._wanted) > self._cursor + far:
            self._open(min(self._wanted))
        if not self._cursor <= number <= self._cursor + far:
            return self._supply.make(self._leaf, number)
        while True:
            found, output = self._pull()
            if found == number:
                return output
            other = found % self._lanes
            if found >= self._wanted[other] and len(self._kept[other]) < KEPT:
                self._kept[other].append((found, output))

    def _open(self, number: int) -> None:
        self._next = self._supply.open(self._leaf, number)
        self._cursor = number

    def _pull(self) -> tuple[int, Any]:
        if self._next is None:
            self._open(self._cursor)
        assert self._next is not None
        number = self._cursor
        try:
            output = self._next()
        except StopIteration:
            self._next = None
            raise
        except Exception as error:
            self._next = None  # a run ends with its failure; the next one begins after it
            output = Failure(error)
        self._cursor += 1
        return number, output
