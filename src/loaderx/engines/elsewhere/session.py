"""What sessions have in common whose workers others run."""

from __future__ import annotations

import os
from collections import deque

from loaderx.engines.base import Session, Task, Work
from loaderx.engines.processes.jobs import step_of
from loaderx.errors import RecordError, warn_user


class ElsewhereSession(Session):
    """A session whose workers others run.

    Args:
        work: makes the element of a task.
        prefetch: tasks to keep under way beyond those that are made at once.
    """

    shares_memory = True

    def __init__(self, work: Work, prefetch: int | None) -> None:
        self._work, self._prefetch = work, prefetch
        self._owner = os.getpid()
        self._told: set[str] = set()

    @property
    def at_once(self) -> int:
        """Tasks that the workers make at once."""
        raise NotImplementedError

    @property
    def window(self) -> int:  # type: ignore[override]
        """Tasks to keep under way."""
        tasks = self.at_once
        return tasks + (max(2, tasks) if self._prefetch is None else self._prefetch)

    def tell(self, warnings: deque[str]) -> None:
        """Gives the warnings of workers, each once."""
        while warnings:
            text = warnings.popleft()
            if text not in self._told:
                self._told.add(text)
                warn_user(text)

    def died(self, task: Task, what: str) -> RecordError:
        """The error for a task on which workers die again and again."""
        return RecordError(
            f"{what} on this {self._work.noun_of(task)}. It is made of "
            f"{self._work.describe(task)}. With engine='inline' the same happens where a debugger "
            "can see it.",
            step=step_of(task),
        )
