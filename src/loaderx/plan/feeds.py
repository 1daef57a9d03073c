"""Feeds: unit outputs, asked for by the lanes of a host, made by runs of an engine.

Lanes begin *together*: their units stand in one fixed order, round by round (unit 0 of each lane,
then unit 1 of each, and so on), and one run of the engine makes them in that order, ahead of the
lanes.  Lanes use up their units at different speeds, so what comes for a lane that is behind is
kept for it, up to `KEPT` units.  If lanes have drifted further apart than that, they go on *apart*:
each has a run of its own from then on.  So a feed holds a bounded number of units, whatever the
data are like.  A unit depends on its number alone; how it was asked for is never visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from loaderx.chain.base import LIMIT

KEPT = 8  # units kept per lane


class Supply:
    """Where outputs come from."""

    def open(self, leaf: int, lane: int | None, number: int) -> Callable[[], Any]:
        """Starts at a unit: of all lanes together (None), or of one of them."""
        raise NotImplementedError

    def shut(self, leaf: int) -> None:
        """Stops the run of all lanes together."""

    def most_rounds(self) -> int:
        """The rounds over all lanes whose units can be numbered."""
        return LIMIT


class Failure:
    """A failure that waits for its turn."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Feed:
    """The outputs of one leaf for some lanes."""

    def __init__(self, supply: Supply, leaf: int, lanes: int) -> None:
        self._supply, self._leaf, self._lanes = supply, leaf, lanes
        self.most = supply.most_rounds()
        self._kept: list[deque[tuple[int, Any]]] = [deque() for _ in range(lanes)]
        self._wanted = [0] * lanes
        self._together = _Run()
        self._apart: list[_Run] | None = None

    def expect(self, lane: int, round_number: int) -> None:
        """Says where a lane will begin to ask."""
        self._wanted[lane] = round_number

    def get(self, lane: int, round_number: int) -> Any:
        """The output of a lane's unit.  Lanes ask in rising order, or say `expect` first."""
        output = self._find(lane, round_number)
        self._wanted[lane] = round_number + 1
        if isinstance(output, Failure):
            raise output.error
        return output

    def _find(self, lane: int, wanted: int) -> Any:
        kept = self._kept[lane]
        while kept and kept[0][0] < wanted:
            kept.popleft()
        if kept and kept[0][0] == wanted:
            return kept.popleft()[1]
        self._wanted[lane] = wanted
        if self._apart is None and self._lanes > 1:
            found = self._from_all(lane, wanted)
            if found is not None:
                return found[0]
            self._supply.shut(self._leaf)
            self._apart = [_Run() for _ in range(self._lanes)]
        return self._from_one(lane, wanted)

    def _from_one(self, lane: int, wanted: int) -> Any:
        """The output from the lane's own run."""
        alone = self._lanes == 1
        run = self._together if alone or self._apart is None else self._apart[lane]
        if run.next is None or run.cursor != wanted:
            run.next = self._supply.open(self._leaf, None if alone else lane, wanted)
            run.cursor = wanted
        return run.pull()

    def _from_all(self, lane: int, wanted: int) -> tuple[Any] | None:
        """The output from the run of all lanes; None if they are too far apart for one."""
        lanes, run = self._lanes, self._together
        if run.next is None:
            first = min(self._wanted) * lanes if run.cursor < 0 else run.cursor
            if max(self._wanted) * lanes > first + KEPT * lanes:
                return None
            run.next, run.cursor = self._supply.open(self._leaf, None, first), first
        number = wanted * lanes + lane
        if not run.cursor <= number <= run.cursor + 2 * KEPT * lanes:
            return None
        while True:
            at = run.cursor
            round_number, other = divmod(at, lanes)
            if at != number and self._is_too_much(other, round_number):
                return None
            output = run.pull()
            if at == number:
                return (output,)
            if round_number >= self._wanted[other]:
                self._kept[other].append((round_number, output))
            if run.is_over:  # it ended with a failure: the next one begins after it
                run.next = self._supply.open(self._leaf, None, run.cursor)

    def _is_too_much(self, lane: int, round_number: int) -> bool:
        return round_number >= self._wanted[lane] and len(self._kept[lane]) >= KEPT


class _Run:
    """A run of the engine, and the unit that it gives next."""

    __slots__ = ("cursor", "next")

    def __init__(self) -> None:
        self.next: Callable[[], Any] | None = None
        self.cursor = -1

    @property
    def is_over(self) -> bool:
        return self.next is None

    def pull(self) -> Any:
        assert self.next is not None
        try:
            output = self.next()
        except StopIteration:
            self.next = None
            raise
        except Exception as error:
            self.next = None
            output = Failure(error)
        self.cursor += 1
        return output
