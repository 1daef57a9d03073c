"""When several workers make the rows of one step, and into which ranges the step is cut.

Steps are whole as a rule: while there are enough of them, workers that make one step each have as
much to do as workers that share one, and nothing has to be put together.  That is not so where a
run begins, since the consumer waits for the first step and for nothing else; where it ends, since
fewer steps are left than there are workers; and for a while after a step that took so long that all
others of the window were done before it.  There `OrderedRun` asks for shared steps.

A step is shared only if functions of the user's run for single records (a gather is never cut), and
if steps take long: that is measured.  Ranges are small enough for a slow record to hold up its own
range alone, and large enough for handing them over to cost little beside them.

The ranges are made apart, as records.  Whoever has all of them goes on where reading one step whole
would have gone on, with the same records: collating, stacking, padding and batch functions are the
same code, and see the same.  If a range fails, the step is made again as a whole, so that what is
raised, or replaced by `on_error`, does not depend on the ranges either.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from loaderx.engines.base import SHARED_S, Element, Task, Work
from loaderx.memory import Lend
from loaderx.reading.context import Failed
from loaderx.reading.rows import Record

RANGE_S = 4e-3  # what the rows of a range take at least
RANGES = 16  # of a step, at most; twice the workers if those are many

Range = tuple[int, int]
"""The first row, and the row after the last."""


class MadeRows(NamedTuple):
    """Some rows of a step."""

    records: list[Record]
    is_stacked: bool  # they were gathered: no function has been called for single records
    failures: Sequence[Failed]  # records that `on_error` replaced
    times: Mapping[str, float]


@runtime_checkable
class RowsWork(Work, Protocol):
    """A work whose steps may be made by several workers."""

    def shared_rows(self, task: Task) -> int:
        """The rows of a step, or more than that; 0 if it is to be made as a whole."""

    def make_rows(self, task: Task, first: int, stop: int, lend: Lend) -> MadeRows:
        """Makes some rows of a step; none where it has none."""

    def join_rows(self, task: Task, parts: Sequence[MadeRows], lend: Lend) -> Element:
        """Makes the element of a step of all its rows, as the work itself does of a task."""


class StepSharing:
    """Cuts the steps of a session."""

    def __init__(self, work: Work, workers: int) -> None:
        self._work = work if workers > 1 and isinstance(work, RowsWork) else None
        self._workers = workers
        self._step_s: float | None = None  # that making a step takes, in all

    @property
    def sharers(self) -> int:
        """Workers that may share a step; 0 if none is ever shared."""
        return 0 if self._work is None else self._workers

    def took(self, seconds: float) -> None:
        """Takes note of what a step took, all its ranges together."""
        known = self._step_s
        self._step_s = seconds if known is None else 0.75 * known + 0.25 * seconds

    def ranges(self, task: Task) -> list[Range]:
        """How to cut a step; one range, or none, if it is to be made as a whole."""
        if self._work is None:
            return []
        count = 2 * self._workers  # nothing is known yet: this costs little, if it was in vain
        if self._step_s is not None:
            if self._step_s < SHARED_S:
                return []
            most = max(RANGES, 2 * self._workers)
            count = min(most, max(self._workers, int(self._step_s / RANGE_S)))
        return cut(self._work.shared_rows(task), count)

    def give_up(self) -> None:
        """A range has failed: from here on steps are made as a whole.

        What cannot be put together (records that cannot be pickled) would be made twice each time.
        """
        self._work = None


def cut(rows: int, count: int) -> list[Range]:
    """So many ranges of rows, as equal as can be; never an empty one.

    >>> cut(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    count = min(rows, count)
    borders = [rows * number // count for number in range(count + 1)] if count else []
    return list(itertools.pairwise(borders))
