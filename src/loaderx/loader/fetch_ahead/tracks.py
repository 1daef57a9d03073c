"""The tracks to fetch ahead: steps of a chain that is read by index, units of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from loaderx.engines.base import Run
from loaderx.loader.fetch_ahead.budget import Taken, Track
from loaderx.loader.fetch_ahead.threads import AheadRun, ahead_budget
from loaderx.loader.run import TaskRun
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.operators import SourceRecords


class StepRecords(Protocol):
    """Knows which records steps read.  Used by one thread at a time."""

    rows_per_step: int

    def source_records(self, step: int, stop: int) -> tuple[int, list[SourceRecords]]:
        """The step reached, at most ``stop``, and the records that the steps before it read."""


def steps_ahead(run: TaskRun, known: StepRecords, steps: range, runs: int = 1) -> Run:
    """The run of these steps, fetched ahead; ``runs`` of them share what may be fetched."""
    return _ahead(run, [StepTrack(run, known, steps)], runs)


def units_ahead(run: Run, lookaheads: Sequence[Lookahead]) -> Run:
    """The run of a stream with these units, fetched ahead."""
    return _ahead(run, [UnitTrack(lookahead) for lookahead in lookaheads])


def _ahead(run: Run, tracks: Sequence[Track], runs: int = 1) -> Run:
    budget = ahead_budget() // runs
    return AheadRun(run, tracks, budget) if budget and tracks else run


class StepTrack:
    """Consecutive steps; elements have the numbers of their steps."""

    def __init__(self, run: TaskRun, known: StepRecords, steps: range) -> None:
        self._run, self._known = run, known
        self._next, self._stop = steps.start, steps.stop
        self._handed_out, self._given = steps.start, 0
        self.rows_each, self.due = known.rows_per_step, 0

    def moved(self) -> bool:
        self._handed_out += 1
        return self._handed_out >= self.due or self._given != self._submitted

    def read(self) -> int:
        return self._handed_out

    @property
    def _submitted(self) -> int:
        return self._run.submitted  # workers that make whole windows run far ahead

    def given(self) -> int:
        self._given = self._submitted
        return self._given

    def take(self, count: int) -> Taken | None:
        start = max(self._next, self._handed_out)
        if start >= self._stop:
            return None
        self._next, records = self._known.source_records(start, min(start + count, self._stop))
        return Taken(start, self._next, records)


class UnitTrack:
    """The units of one lane in reading order, numbered from 0."""

    def __init__(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead
        self._next = lookahead.first
        self._walked: deque[tuple[Path, int]] = deque()  # not read yet
        self._taken = 0
        self._seen: tuple[Path, int] | None = None  # where the reader was
        self.rows_each, self.due = lookahead.rows, 0

    def moved(self) -> bool:
        return self._lookahead.reached is not self._seen

    def read(self) -> int:
        reached = self._lookahead.reached
        if reached is not None and reached is not self._seen:
            self._seen = reached
            self._catch_up(reached)
        return self._taken - len(self._walked)

    def _catch_up(self, reached: tuple[Path, int]) -> None:
        walked = self._walked
        if reached not in walked:  # the walk is behind, or the stream was moved
            walked.clear()
            self._next = reached
        while walked and walked[0] != reached:
            walked.popleft()

    def given(self) -> int:
        return self.read() + self._lookahead.under_way

    def take(self, count: int) -> Taken | None:
        start, records = self._taken, list[SourceRecords]()
        while self._next is not None and self._taken < start + count:
            records += self._lookahead.source_records(*self._next)
            self._walked.append(self._next)
            self._next = self._lookahead.after(*self._next)
            self._taken += 1
        return None if self._taken == start else Taken(start, self._taken, records)
