"""Makes a range of rows in a worker."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from loaderx.engines.base import Task
from loaderx.engines.raised_ahead import RaisedAhead
from loaderx.loader.tasks.parts import Part, read_part
from loaderx.loader.tasks.plan_work import PlanWork
from loaderx.loader.tasks.ranges import MadeRange
from loaderx.memory import Lend

ALL_ROWS = 1 << 62  # more than a step has
LONGEST_S = 2e-3  # after this time a worker hands over the single records that it has


def make_range(work: PlanWork, task: Task, lend: Lend) -> MadeRange:
    """The rows of a range, up to the first that fails."""
    first, row, last, end = task
    made: MadeRange = {
        "first": None,
        "elements": [],
        "last": None,
        "error": None,
        "seconds": np.zeros(1),
        "nbytes": np.zeros(1, np.int64),
    }
    begun, step = perf_counter(), first
    if row or first == last:
        made["first"] = _part(work, first, row, end if first == last else ALL_ROWS, lend)
        step += 1
    if step == first or made["first"] is not None:
        _make_steps(work, range(step, last), made, begun, lend)
        if end and last > first and step + len(made["elements"]) == last:
            made["last"] = _part(work, last, 0, end, lend)
    made["seconds"][0] = perf_counter() - begun
    return made


def _part(work: PlanWork, step: int, first: int, stop: int, lend: Lend) -> Part | None:
    try:
        return read_part(work.plan, step, first, stop, lend)
    except Exception:  # the step is then made alone, which reports the error
        return None


def _make_steps(work: PlanWork, steps: range, made: MadeRange, begun: float, lend: Lend) -> None:
    is_single = not work.plan.batched
    try:
        for element in work.stream(steps, lend):
            made["elements"].append(element)
            if is_single and perf_counter() - begun > LONGEST_S:
                return
    except Exception as error:
        made["error"] = RaisedAhead(error)
