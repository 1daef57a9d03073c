"""The context of reading one element: its buffers, its failures, its counts."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from loaderx.errors import RecordError
from loaderx.memory import Lend
from loaderx.rng import ROOT, Keys

if TYPE_CHECKING:
    from loaderx.reading.rows import Rows

MOST_TEXT = 500

Given_contra = TypeVar("Given_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)
Given = TypeVar("Given")
Result = TypeVar("Result")

Failed = tuple[int | None, str, str, str]
"""A record that `on_error` replaced or left out: its index, its name, the stage, the error."""


class Step(Protocol[Given_contra, Result_co]):
    """An operator, or a stage of a stream."""

    stage: str

    def read(self, given: Given_contra, context: Any, /) -> Result_co: ...


class ReadContext:
    """Passed down through the operators while they read."""

    __slots__ = ("epoch", "failures", "lend", "meters", "rows")

    def __init__(self, lend: Lend) -> None:
        self.lend = lend
        self.failures: list[Failed] = []
        self.epoch: Keys = ROOT  # of the unit, for stages that draw an order
        self.meters: dict[int, tuple[int, int]] = {}  # per stage that counts: in, out
        self.rows: Rows | None = None  # made by other workers: `Cut.read` reads none if it is set

    def count(self, meter: int, before: int, after: int) -> None:
        """Counts the records into and out of a stage."""
        known = self.meters.get(meter, (0, 0))
        self.meters[meter] = (known[0] + before, known[1] + after)

    def add_failure(self, error: RecordError) -> None:
        """Adds a record that `on_error` replaces or leaves out."""
        reason = error.reason or error.detail
        if len(reason) > MOST_TEXT:
            reason = reason[:MOST_TEXT] + " ..."
        self.failures.append((error.index, error.record, error.stage, reason))

    def name_failures(self, first: int, suffix: str) -> None:
        """Adds the dataset to the names of the failures from ``first`` on."""
        for number in range(first, len(self.failures)):
            index, record, stage, reason = self.failures[number]
            self.failures[number] = (index, record + suffix, stage, reason)

    def read(self, operator: Step[Given, Result], given: Given) -> Result:
        return operator.read(given, self)


class TimedContext(ReadContext):
    """A context that also measures the time of each stage, without the stages below it."""

    __slots__ = ("_inside", "times")

    def __init__(self, lend: Lend) -> None:
        super().__init__(lend)
        self.times: dict[str, float] = {}
        self._inside = 0.0

    def read(self, operator: Step[Given, Result], given: Given) -> Result:
        outside, self._inside = self._inside, 0.0
        start = perf_counter()
        try:
            return operator.read(given, self)
        finally:
            took = perf_counter() - start
            own = took - self._inside
            self.times[operator.stage] = self.times.get(operator.stage, 0.0) + own
            self._inside = outside + took
