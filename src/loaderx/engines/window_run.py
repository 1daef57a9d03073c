"""Steps from worker processes that make whole windows of them.

Some sources decode large chunks, and the rows of a window come from the same chunks.  Workers that
each made a step of it would all decode the same; so a task is a window, a range of rows, and one
worker makes all its steps.  A step that lies in two windows comes in parts, and is put together
here.  How many windows are under way is limited by the bytes that they take.

A step that fails ends its window.  It is made again alone, where it raises its error, or not; so it
is with all steps of a window that is lost as a whole.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from loaderx.engines.base import (
    Element,
    Measured,
    Pending,
    Session,
    Task,
    TryAgainError,
    Work,
    cancel_all,
    closed_error,
    wait_for,
)
from loaderx.memory import Layout, Lend, Pool
from loaderx.sources.kept_chunks import chunk_budget
from loaderx.tree import Tree, flatten


class MadeWindow(TypedDict):
    """What a task of four numbers makes: the rows from a place in a step to one in another."""

    first: Element | None  # rows of the first step, if the window has not all of them
    elements: list[Element]  # whole steps
    last: Element | None  # rows of the last step, if the window has not all of them
    failed: npt.NDArray[np.int64]  # the step that could not be made, and nothing after it; or -1
    nbytes: npt.NDArray[np.int64]  # that were in use to make it


@runtime_checkable
class WindowsWork(Work, Protocol):
    """A work whose steps are made in windows."""

    def windows(self, steps: range) -> Iterator[Task]:
        """Tasks that make all rows of these steps, in order."""

    def nbytes(self, task: Task) -> int:
        """The bytes that a window takes, more or less; 0: not known before one is made."""

    def join(self, step: int, parts: Sequence[Element], lend: Lend) -> Element | None:
        """The element of a step, of its rows; None if it must be made alone."""


class WindowRun:
    """The elements of consecutive steps, in order; windows of them are under way."""

    def __init__(self, session: Session, work: WindowsWork, steps: range, workers: int) -> None:
        self._session, self._work, self._stop = session, work, steps.stop
        self._tasks = work.windows(steps)
        self._pending: deque[tuple[Task, Pending]] = deque()
        self._depth = 0  # windows to keep under way; 0: not known yet
        self._workers = workers
        self.submitted = steps.start  # the step after those that workers have been given
        self._parts: list[Element] = []  # of the step that goes on in the next window
        # What is ready, the next one last; and is it part of the memory of a window?
        self._left: list[tuple[Element, bool]] = []
        self._lend = Pool().lend
        self.is_closing = False
        self.describe = session.describe

    def start(self) -> None:
        while not self.is_closing and len(self._pending) < max(1, self._depth):
            task = next(self._tasks, None)
            if task is None:
                return
            if not self._depth and len(task) > 1:
                self._set_depth(self._work.nbytes(task), self._workers)
            self._pending.append((task, self._session.submit(task)))
            self.submitted = task[0] + 1 if len(task) == 1 else task[2]

    def _set_depth(self, nbytes: int, most: int) -> None:
        """As many windows of this size as the budget has room for."""
        self._depth = max(1, min(most, chunk_budget() // max(1, nbytes)))

    def next(self) -> Element:
        while not self._left:
            if self.is_closing:
                raise closed_error()
            self.start()
            if not self._pending:
                raise StopIteration
            if self.is_closing:  # `interrupt` has not seen the first of them
                raise closed_error()
            self._take_first()
        element, is_part = self._left.pop()
        return owned_element(element, self._lend) if is_part else element

    def _take_first(self) -> None:
        task, pending = self._pending[0]
        try:
            made = wait_for(pending, self)
        except TryAgainError:
            raise
        except Exception:
            if len(task) == 1:
                raise
            self._make_singly(task[0], task[2] + (task[3] > 0))
            return
        self._pending.popleft()
        if len(task) == 1:
            self._left = [(made, False)]
        else:
            self._collect(task, made)

    def _collect(self, task: Task, made: MadeWindow) -> None:
        first_step, _, last_step, _ = task
        self._set_depth(int(made["nbytes"][0]), self._session.window)
        ready: list[tuple[Element, bool]] = []
        failed = int(made["failed"][0])
        if made["first"] is not None:
            self._parts.append(made["first"])
            if last_step == first_step:
                self._parts[-1] = copied(made["first"], self._lend)  # the slot is used again
            else:
                parts, self._parts = self._parts, []
                whole = self._work.join(first_step, parts, self._lend)
                if whole is None:
                    self._make_singly(first_step, first_step + 1)
                    return
                ready.append((whole, False))
        ready += [(element, True) for element in made["elements"]]
        if made["last"] is not None:
            self._parts = [copied(made["last"], self._lend)]
        if failed >= 0:
            self._make_singly(failed, failed + 1)
        self._left = ready[::-1]

    def _make_singly(self, first: int, stop: int) -> None:
        """From here on some steps are made alone, and then windows again."""
        cancel_all(self._cleared())
        self._parts = []
        alone = ((step,) for step in range(first, stop))
        self._tasks = itertools.chain(alone, self._work.windows(range(stop, self._stop)))

    def _cleared(self) -> list[Pending]:
        pending = [one for _, one in self._pending]
        self._pending.clear()
        return pending

    def ready(self) -> bool:
        if self._left:
            return True
        if not self._pending and not self.is_closing:
            try:
                self.start()
            except Exception:
                return True  # `next` says what is wrong
        return not self._pending or self._pending[0][1].done()

    def close(self) -> None:
        self.is_closing = True
        self._left.clear()
        self._parts.clear()
        cancel_all(self._cleared())

    def interrupt(self) -> bool:
        self.is_closing = True
        for _, pending in list(self._pending)[:1]:
            pending.cancel()
        return self._session.window > 0

    def __del__(self) -> None:
        for _, pending in self.__dict__.get("_pending", ()):  # Ctrl-C may end `__init__` early
            pending.cancel()


def owned_element(element: Element, lend: Lend) -> Element:
    """An element that does not keep the memory of its whole window alive."""
    if type(element) is Measured:
        element.value = copied(element.value, lend)
        return element
    return copied(element, lend)


def copied(tree: Tree, lend: Lend) -> Tree:
    """The tree with a copy of each array that is part of another one."""
    leaves, structure = flatten(tree)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, np.ndarray) and leaf.base is not None and not leaf.dtype.hasobject
    ]
    targets = lend(Layout.of(*[(leaves[place].shape, leaves[place].dtype) for place in places]))
    for place, target in zip(places, targets, strict=True):
        target[...] = leaves[place]
        leaves[place] = target
    return structure.build(leaves)
