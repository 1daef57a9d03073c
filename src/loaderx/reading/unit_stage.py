"""Stages of a stream, on the records of one unit.

A unit is a fixed run of input positions.  Its output depends on its number alone, so any worker can
make it, and make it again if it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderx.errors import RecordError, StackError
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Rows, joined


class UnitStage:
    """The base: turns the rows of a unit into other rows."""

    wants: bool | None = None  # True: columns; False: single records; None: either
    is_one_to_one = False  # every record stays, in its place
    is_guard = False  # it is an `on_error`
    window: int | None = None  # how many records it works on together: set by its node
    takes_views = False  # it can work on views of the source, as a mask can
    dataset: int | None = None  # the number of the dataset in a mix that the rows belong to

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        raise NotImplementedError

    def read_without_failures(self, rows: Rows, context: ReadContext, guard: UnitStage) -> Rows:
        """The output for each record alone; records that fail again are left out."""
        parts: list[Rows] = []
        for number in range(len(rows)):
            one = rows.pick(np.array([number]), context.lend)
            try:
                parts.append(context.read(self, one))
            except RecordError as error:
                if not guard.drops(error):
                    raise
                context.add_failure(error)
        if not parts:
            return rows.pick(np.empty(0, np.int64), context.lend)
        return joined(parts)

    def use_views(self, *, is_last: bool) -> None:
        """Announces that rows are views of the source; the last stage may return views too."""

    def failure(self, error: StackError) -> RecordError:
        """The error for a window in which no single record is at fault."""
        return RecordError(f"{self.stage}: {error}", stage=self.stage)

    def drops(self, error: RecordError) -> bool:
        """Whether this `on_error` leaves the record out."""
        raise NotImplementedError


def first_guard(stages: Sequence[UnitStage]) -> UnitStage | None:
    """The first `on_error` of these stages, which also guards what is below them, or None."""
    return next((stage for stage in stages if stage.is_guard), None)


def run_stages(stages: Sequence[UnitStage], rows: Rows, context: ReadContext) -> Rows:
    """Takes rows through the stages."""
    for number, stage in enumerate(stages):
        try:
            rows = context.read(stage, rows)
            continue
        except RecordError as error:
            guard = first_guard(stages[number + 1 :])
            if guard is None or error.index is None:
                raise
        rows = stage.read_without_failures(rows, context, guard)
    return rows
