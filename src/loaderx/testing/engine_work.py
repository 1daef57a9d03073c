"""Work for the tests of engines: arrays of numbers, tasks that fail, tasks that wait for a file."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

import numpy as np

from loaderx.engines.base import Measured, Task, Timing, Work
from loaderx.memory import Array, Layout, Lend
from loaderx.testing.comparing import check

R = TypeVar("R")

PATIENCE_S = 60.0  # after which something counts as hanging
_SIZE = 500  # numbers of an element
_LAYOUT = Layout.of(((_SIZE,), np.dtype(np.uint64)))


class Numbers(Work):
    """Makes an array from the numbers of a task.  Worker processes may have it: it is picklable.

    Args:
        gate: knows the tasks that have begun, and opens for those that wait.
        waits: tasks that wait until the gate is open.
        fails: tasks that raise a `ValueError`.
    """

    def __init__(
        self,
        gate: Gate | None = None,
        *,
        waits: Collection[Task] = (),
        fails: Collection[Task] = (),
    ) -> None:
        self._gate, self._waits, self._fails = gate, waits, fails

    def __call__(self, task: Task, lend: Lend) -> object:
        if self._gate is not None:
            self._gate.has_begun(task)
            if task in self._waits:
                self._gate.wait()
        if task in self._fails:
            raise ValueError(f"task {task} is one that fails")
        (values,) = lend(_LAYOUT)
        values[...] = numbers_of(task)
        return {"values": values}

    def describe(self, task: Task) -> str:
        return f"the numbers {task}"


class MeasuredNumbers(Numbers):
    """The same, with statistics."""

    def __call__(self, task: Task, lend: Lend) -> Measured:
        return Measured(super().__call__(task, lend), ["a failure"], Timing({"map": 0.5}, 3), 7)


def numbers_of(task: Task) -> Array:
    """The element that `Numbers` makes of a task."""
    values = np.resize(np.array(task, np.uint64), _SIZE) ^ np.arange(_SIZE, dtype=np.uint64)
    values[-1] = len(task)
    return values


class Gate:
    """A folder for signals between a test and its tasks, in this process or another.

    The gate opens at the end of a ``with``, so that no worker waits forever.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="loaderx-")

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()
        shutil.rmtree(self._folder)

    def open(self) -> None:
        """Lets all tasks go on that wait."""
        self._touch("open")

    def wait(self) -> None:
        """Waits until the gate is open; for tasks."""
        wait_until(lambda: self._has("open") or not self._has(""), "a gate to open")

    def has_begun(self, task: Task) -> None:
        """Tells the test that a task has begun."""
        self._touch(_name(task))

    def wait_until_begun(self, task: Task) -> None:
        """Waits until a worker is at a task; for tests."""
        wait_until(lambda: self._has(_name(task)), f"task {task} to begin")

    def has_begun_any(self) -> bool:
        """Whether any task has begun."""
        return any(name.startswith("begun") for name in os.listdir(self._folder))

    def _touch(self, name: str) -> None:
        try:
            open(os.path.join(self._folder, name), "w").close()
        except FileNotFoundError:
            check(not self._has(""), f"{name} cannot be written")  # the test is over

    def _has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._folder, name))


def _name(task: Task) -> str:
    return "-".join(["begun", *map(str, task)])


class InThread(Generic[R]):
    """A call in its own thread, so that a test can do something meanwhile, or see it hang."""

    value: R
    """The result of the call, unless there is an `error`."""

    def __init__(self, call: Callable[[], R]) -> None:
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], R]) -> None:
        try:
            self.value = call()
        except Exception as error:
            self.error = error

    def join(self, what: str) -> InThread[R]:
        """Waits for the end of the call; ``what`` names it in the message."""
        self._thread.join(PATIENCE_S)
        check(not self._thread.is_alive(), f"{what} has not returned after {PATIENCE_S:.0f} s.")
        return self


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Waits until something is true, but not forever."""
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        check(time.monotonic() < until, f"waited {PATIENCE_S:.0f} s for {what}.")
        time.sleep(0.001)
