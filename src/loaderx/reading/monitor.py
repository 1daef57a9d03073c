"""What readers have to tell while they read: times, failures, how much stages let through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from loaderx import chain
from loaderx.chain.base import Node
from loaderx.errors import warn_user
from loaderx.memory import Pool
from loaderx.reading import units
from loaderx.reading.context import Failed, ReadContext, TimedContext

FEW_RECORDS = 10_000  # before a filter is judged
FEW_ROWS = 64


class Monitor:
    """The monitor of one reading.

    It does not know the reading: so an iterator that is dropped is gone at once, and all it runs.
    """

    def __init__(
        self, node: Node, meters: Sequence[tuple[str, str]], warned: set[int], pool: Pool
    ) -> None:
        self._node, self._meters, self._pool = node, meters, pool
        self.contexts: list[TimedContext] = []  # since the last batch
        self.failures: list[Failed] = []  # the same
        self.read = 0  # records, since the last batch
        self._counts = [[0, 0] for _ in meters]
        self._warned = warned  # meters of which a warning was given, in any reading
        self._is_muted = False

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """While rows are read again that were read, and noted, before a state was taken."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    def context(self) -> ReadContext:
        """A context for a stage that runs here."""
        self.contexts.append(TimedContext(self._pool.lend))
        return self.contexts[-1]

    def note(self, output: Any) -> None:
        """Takes note of what came of a unit, or of a window."""
        if self._is_muted:
            return
        meters = output.meters if isinstance(output, units.Loose) else output["meters"]
        self.failures += units.failures_of(output)
        for meter, before, after in meters.tolist():
            if meter == units.READ:
                self.read += before
                continue
            counts = self._counts[meter]
            counts[0] += before
            counts[1] += after
            if meter not in self._warned:
                self._judge(meter, *counts)

    def _judge(self, meter: int, before: int, after: int) -> None:
        kind, stage = self._meters[meter]
        if kind == "filter" and before >= FEW_RECORDS and after * 100 < before:
            self._warn(
                meter,
                f"{stage} let {after:,} of {before:,} records through ({after / before:.2%}): "
                "almost all that is read is thrown away. Choose the records beforehand, with "
                "ds[indices], if you can.",
            )
        elif kind == "pack" and after * 4 < before * 3 and before >= FEW_ROWS * self._row(stage):
            self._warn(
                meter,
                f"{stage}: the rows are only {after / before:.0%} full. Too few records are left "
                "in each window to fill rows with; give a larger `window`.",
            )

    def _row(self, stage: str) -> int:
        for below in self._node.below():
            if isinstance(below, chain.PackedRecords) and below.stage == stage:
                return sum(below.options.lengths.values())
        return 1

    def _warn(self, meter: int, text: str) -> None:
        self._warned.add(meter)
        warn_user(text)
