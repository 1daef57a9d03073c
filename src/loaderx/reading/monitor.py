"""Reports of readers: times, failures, and how many records stages let through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loaderx.errors import warn_user
from loaderx.memory import Pool
from loaderx.reading.context import Failed, ReadContext, TimedContext
from loaderx.reading.unit_plan import READ, UnitOutput

FEW_RECORDS = 10_000  # before a filter is judged
FEW_ROWS = 64


class Meter(NamedTuple):
    """Counts the records into and out of a stage."""

    kind: str  # "filter" or "pack"
    stage: str
    row: int = 1  # entries in a row of `pack`


class Monitor:
    """The monitor of one reading.

    It holds no reference to the reading, so a dropped iterator is freed at once.
    """

    def __init__(self, meters: Sequence[Meter], warned: set[int], pool: Pool) -> None:
        self._meters, self._pool = meters, pool
        self.contexts: list[TimedContext] = []  # since the last batch
        self.failures: list[Failed] = []  # since the last batch
        self.read = 0  # records, since the last batch
        self._counts = [[0, 0] for _ in meters]
        self._warned = warned  # meters that have warned, in any reading
        self._is_muted = False

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Ignores reports while rows that were reported before a state was saved are read again."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    def context(self) -> ReadContext:
        """A context for a stage that runs here."""
        self.contexts.append(TimedContext(self._pool.lend))
        return self.contexts[-1]

    def note(self, output: UnitOutput) -> None:
        """Counts the output of a unit, or of a window."""
        if self._is_muted:
            return
        if output["failures"] is not None:
            self.failures += output["failures"].value
        for number, before, after in output["meters"].tolist():
            if number == READ:
                self.read += before
                continue
            counts = self._counts[number]
            counts[0] += before
            counts[1] += after
            if number not in self._warned:
                self._warn_if_wasteful(number, *counts)

    def _warn_if_wasteful(self, number: int, before: int, after: int) -> None:
        meter = self._meters[number]
        if meter.kind == "filter" and before >= FEW_RECORDS and after * 100 < before:
            self._warn(
                number,
                f"{meter.stage} let {after:,} of {before:,} records through "
                f"({after / before:.2%}): almost all that is read is thrown away. Choose the "
                "records beforehand, with ds[indices], if you can.",
            )
        elif meter.kind == "pack" and after * 4 < before * 3 and before >= FEW_ROWS * meter.row:
            self._warn(
                number,
                f"{meter.stage}: the rows are only {after / before:.0%} full. Too few records are "
                "left in each window to fill rows with; give a larger `window`.",
            )

    def _warn(self, number: int, text: str) -> None:
        self._warned.add(number)
        warn_user(text)
