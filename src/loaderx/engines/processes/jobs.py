"""A task that was submitted to worker processes, and how messages name it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from loaderx.engines.base import Made, Task, Work
from loaderx.engines.processes.protocol import pack_words
from loaderx.engines.processes.slots import ElementLayout, Slot


class Job:
    """A task, the slot in which it is made, and its result."""

    __slots__ = (
        "deaths", "error", "fate", "is_cancelled", "is_closed", "is_done", "layout", "made",
        "measured", "number", "others", "sent_at", "slot", "task", "wake", "warned_s", "words",
    )  # fmt: skip

    def __init__(self, task: Task) -> None:
        self.number = 0  # 0 until it is submitted to a pool
        self.task = task
        self.words = pack_words(task)  # its numbers as they are sent
        self.slot: Slot | None = None  # from when it is sent until it is closed
        self.sent_at = 0.0
        self.is_done = False  # it has an element or an error, or killed too many workers
        self.is_cancelled = False
        self.is_closed = False  # its result was taken, or never will be
        self.wake = threading.Lock()  # acquired by a thread that waits for this job without polling
        self.deaths = 0  # of workers while making it
        self.fate = ""  # how the first of them died
        self.warned_s = 0.0
        self.layout: ElementLayout | None = None
        self.others: list[Any] = []  # leaves that came pickled
        self.measured: tuple[Any, ...] | None = None
        self.made: Made | None = None
        self.error: BaseException | None = None

    def wake_up(self) -> None:
        """Wakes the thread that waits for it.  Safe to call from anywhere."""
        if self.wake.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self.wake.release()


def step_of(task: Task) -> int | None:
    """The step that a task makes; None for a part of a stream."""
    return task[0] if len(task) == 1 else None


class TaskNames:
    """Names of tasks in messages."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def noun(self, task: Task) -> str:
        """What is made: a step, several of them, or part of a stream."""
        return self.work.noun_of(task)

    def name(self, task: Task) -> str:
        """Such as ``step 3``, or ``a unit of the stream (records 0 to 1023 of the input)``."""
        return f"step {task[0]}" if self.noun(task) == "step" else self.full_name(task)

    def full_name(self, task: Task) -> str:
        """The same, with the records that it is made of."""
        noun = self.noun(task)
        return f"{f'step {task[0]}' if noun == 'step' else f'a {noun}'} ({self.records(task)})"

    def records(self, task: Task) -> str:
        return self.work.describe(task)
