"""Runs of consecutive steps, without a loader."""

from __future__ import annotations

from loaderx.engines import Session, Work
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.steps import StepTasks


def run_of_steps(session: Session, work: Work, steps: range) -> TaskRun:
    """Hands out the elements of these steps, a task each."""
    return TaskRun(session, work, StepTasks(session, steps))
