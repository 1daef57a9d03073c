"""A task that was submitted to worker processes, and how messages name it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from loaderx.engines.base import Task, Work
from loaderx.engines.processes.protocol import JOIN, RowsPlace
from loaderx.engines.processes.shared_slots import ElementLayout, Slot


class Job:
    """A task, the slot in which it is made, and what came of it."""

    __slots__ = (
        "deaths", "error", "fate", "has_failed_part", "is_cancelled", "is_closed", "is_done",
        "kind", "layout", "made_at", "measured", "number", "others", "parts", "sent_at",
        "slot", "step", "task", "took_s", "wake", "warned_s", "words",
    )  # fmt: skip

    def __init__(self, number: int, task: Task, kind: int, words: bytes) -> None:
        self.number = number
        self.task = task
        self.kind = kind
        self.words = words  # its numbers as they are sent
        self.parts: list[Job] = []  # ranges of its rows, which are made first
        self.step: Job | None = None  # of which this is a range of rows
        self.made_at = (0, 0)  # where the rows lie in the slot of a range, and how many bytes
        self.has_failed_part = False
        self.took_s = 0.0
        self.slot: Slot | None = None  # from when it is sent until it is closed
        self.sent_at = 0.0
        self.is_done = False
        self.is_cancelled = False
        self.is_closed = False  # its result was taken, or will never be
        self.wake = threading.Lock()  # whoever waits for this job, and does not poll, waits for it
        self.deaths = 0  # of workers that made it
        self.fate = ""  # how the first of them died
        self.warned_s = 0.0
        self.layout: ElementLayout | None = None
        self.others: list[Any] = []  # leaves that came pickled
        self.measured: tuple[Any, ...] | None = None
        self.error: BaseException | None = None

    @property
    def is_waiting(self) -> bool:
        """Are there ranges of its rows still to be made?"""
        return not all(part.is_done for part in self.parts)

    @property
    def is_urgent(self) -> bool:
        """Have ranges of its rows been made, so that it has had its turn already?"""
        return self.kind == JOIN or self.has_failed_part

    @property
    def place(self) -> RowsPlace:
        """Where the rows of a range lie."""
        assert self.slot is not None
        return RowsPlace(self.slot.number, *self.made_at)

    def finish(self) -> None:
        """The job is done: it has an element or an error, or has killed too many workers."""
        self.is_done = True
        self.wake_up()

    def wake_up(self) -> None:
        """Wakes who waits for it.  Any code may call this."""
        if self.wake.locked():
            with contextlib.suppress(RuntimeError):  # somebody else was faster
                self.wake.release()


def step_of(task: Task) -> int | None:
    """The step that a task makes; None for a part of a stream."""
    return task[0] if len(task) == 1 else None


class TaskNames:
    """What messages call a task."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def noun(self, task: Task) -> str:
        """What is made: a step, a block of them, or part of a stream."""
        if self._steps(task):
            return "step" if self._steps(task) == 1 else "block of steps"
        return str(getattr(self._work, "noun", "batch"))

    def _steps(self, task: Task) -> int:
        """How many steps it makes; 0 for part of a stream."""
        if len(task) == 1:
            return 1
        return task[1] if getattr(self._work, "makes_blocks", False) else 0

    def name(self, task: Task) -> str:
        """Such as ``step 3``, or ``a unit of the stream (records 0 to 1023 of the input)``."""
        return f"step {task[0]}" if self._steps(task) == 1 else self.full_name(task)

    def full_name(self, task: Task) -> str:
        """The same, and which records it is made of."""
        what = f"step {task[0]}" if self._steps(task) == 1 else f"a {self.noun(task)}"
        return f"{what} ({self.records(task)})"

    def records(self, task: Task) -> str:
        return self._work.describe(task)
