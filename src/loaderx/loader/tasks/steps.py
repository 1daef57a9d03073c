"""A task for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loaderx.engines.base import Element, Pending, Session, Task

Submitted: TypeAlias = tuple[Task, Pending]
"""A task under way."""

NO_LIMIT = 1 << 62  # more tasks than are ever under way

Again: TypeAlias = tuple[Task, Pending | None]
"""A task to do before all others, and its result if already available."""


class StepTasks:
    """Turns consecutive steps into tasks, one each.  Subclasses cut them in other ways."""

    def __init__(self, session: Session, steps: range) -> None:
        self.session = session
        self.position, self.stop = steps.start, steps.stop  # the next step without a task
        self.given = steps.start  # the step after those that workers have been given
        self.extra = 0  # tasks to keep under way beyond the session's window
        self.most = NO_LIMIT  # tasks that may be under way at once
        self.error: BaseException | None = None  # of the step after the elements collected last
        self.again: list[Again] = []  # to be done before all others

    def next(self, under_way: Sequence[Submitted]) -> Task | None:
        """The next task after those under way; None after the last."""
        position = self.position
        if position >= self.stop:
            return None
        self.position = position + 1
        return (position,)

    def take(self, count: int) -> range:
        """The next steps, for a caller that makes them itself.  No task is under way."""
        return self.advance(count)

    def advance(self, count: int) -> range:
        """Moves on by ``count`` steps, and returns them."""
        first = self.position
        self.position = min(self.stop, first + count)
        return range(first, self.position)

    def collect(self, task: Task, made: Element) -> list[Element]:
        """The elements in the result of a task, the next one last."""
        return [made]

    def after_loss(self, task: Task, error: Exception) -> list[Again]:
        """Tasks to do instead of one that failed as a whole; raises its error if there are none."""
        raise error

    def detached(self, element: Element) -> Element:
        """An element that does not keep the memory of the others alive."""
        return element
