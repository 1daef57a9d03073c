"""Some rows of a step, sent to the consumer, which joins them into the step."""

from __future__ import annotations

from collections.abc import Sequence

from loaderx.engines.base import Measured, Timing
from loaderx.memory import Lend
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.context import Failed, TimedContext
from loaderx.reading.rows import Rows, as_batch, fit_together
from loaderx.reading.stacking import NO_PADDING
from loaderx.reading.unit_plan import Opaque, PackedRows, rows_from
from loaderx.tree import Tree


class Part(PackedRows):
    """Rows, and how they were made."""

    is_padded: Opaque[bool]
    failures: Opaque[list[Failed]]  # records that `on_error` replaced
    times: Opaque[dict[str, float]]  # per stage


def read_part(plan: IndexPlan, step: int, first: int, stop: int, lend: Lend) -> Part:
    """Reads those of the rows ``first`` to ``stop`` that the step has."""
    context = TimedContext(lend)
    rows = plan.read_rows(step, first, stop, context)
    return {
        "columns": rows.tree if rows.is_stacked else None,
        "records": None if rows.is_stacked else Opaque((rows.records(), None, None)),
        "chosen": None,
        "keys": None,
        "is_padded": Opaque(bool(rows.padding.lengths)),
        "failures": Opaque(context.failures),
        "times": Opaque(context.times),
    }


def join_parts(
    plan: IndexPlan, step: int, parts: Sequence[Part], lend: Lend
) -> Tree | Measured | None:
    """Joins all rows of a step into its element; None if they do not fit together.

    The stages above the rows (collating, stacking, batch functions) run the same code, on the same
    records, as when the step is read whole.
    """
    if len({part["is_padded"].value for part in parts}) > 1:
        return None
    padding = plan.padding
    rows = [rows_from(part, padding if part["is_padded"].value else NO_PADDING) for part in parts]
    context = TimedContext(lend)
    context.failures = [failure for part in parts for failure in part["failures"].value]
    if fit_together(rows):
        count = sum(part.count for part in rows)
        context.rows = Rows.of_columns(as_batch(rows, lend), count, padding=rows[0].padding)
    else:
        context.rows = Rows.of_records([one for part in rows for one in part.records()])
    element = plan.read(step, context)
    times = context.times
    for part in parts:
        for stage, seconds in part["times"].value.items():
            times[stage] = times.get(stage, 0.0) + seconds
    return Measured(element, context.failures, Timing(times, 1, is_at_once=False))
