"""Ranges of rows: tasks of four numbers, their results, and the elements in these.

The task ``(first, row, last, end)`` stands for the rows from ``row`` of step ``first`` up to, not
including, ``end`` of step ``last``.  Three kinds of tasks are ranges: a few single records
(`records`), the windows of a source that decodes chunks (`windows`), and the rows of a step that
several workers make together (`shared_steps`).

A step that lies in several ranges arrives in parts, and the consumer joins them.  If a step fails,
its range ends there, and the error is raised at its own step.  If a part fails, or the parts do not
fit together, or a whole range is lost (its workers died, something in it cannot be sent), its steps
are made alone, so that errors and replaced records do not depend on ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from loaderx.engines.base import Element, Measured, Session, Task
from loaderx.engines.raised_ahead import RaisedAhead
from loaderx.errors import RecordError
from loaderx.loader.tasks.parts import Part
from loaderx.loader.tasks.steps import Again, StepTasks
from loaderx.memory import Layout, Lend, Pool
from loaderx.tree import Tree, flatten


class MadeRange(TypedDict):
    """The result of a range."""

    first: Part | None  # rows of the first step, if the range does not have all of them
    elements: list[Element]  # whole steps: fewer than asked for after a failure
    last: Part | None  # rows of the last step, if the range does not have all of them
    error: RaisedAhead | None  # of the step after the elements
    seconds: npt.NDArray[np.float64]  # time to make the range
    nbytes: npt.NDArray[np.int64]  # of decoded chunks that were in use


class JoinsParts(Protocol):
    """Joins parts into steps."""

    def join(self, step: int, parts: Sequence[Part], lend: Lend) -> Element | None:
        """The element of a step; None if its parts do not fit together."""


class Ready:
    """A result that is already available."""

    def __init__(self, value: Element) -> None:
        self._value = value

    def result(self) -> Element:
        return self._value

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        """There is nothing to stop."""


class RangeTasks(StepTasks):
    """Splits the results of ranges into elements.  Subclasses cut the ranges, in `next`."""

    def __init__(self, session: Session, work: JoinsParts, steps: range) -> None:
        super().__init__(session, steps)
        self._work = work
        self._reached = steps.start  # the next step to be handed out
        self._parts: list[Part] = []  # of that step
        self._joined: Element = None  # the last step that was joined: it has its own memory
        self._lend = Pool().lend

    def take(self, count: int) -> range:
        self.position, self._parts = (
            self._reached,
            [],
        )  # a step that is partly there starts over
        steps = self.advance(count)
        self._reached = steps.stop
        return steps

    def collect(self, task: Task, made: Element) -> list[Element]:
        if len(task) == 1:
            self._reached, self._parts = task[0] + 1, []
            return [made]
        return self._taken_apart(task, made)

    def _taken_apart(self, task: Task, made: MadeRange) -> list[Element]:
        first, row, last, end = task
        self.notice(made)
        ready: list[Element] = []
        step = first
        if row or first == last:  # begins inside a step, which may have been made alone
            if step >= self._reached and not self._add_part(task, made):
                return []
            if first == last:
                return []
            if self._parts:
                whole = self._work.join(step, self._parts, self._lend)
                self._parts = []
                if whole is None:
                    rest = made.copy()
                    rest["first"] = None
                    self.again = [((step,), None), ((step + 1, 0, last, end), Ready(rest))]
                    return []
                self._joined = whole
                ready.append(whole)
            step += 1
        ready += made["elements"]
        self._reached = step = step + len(made["elements"])
        if made["error"] is not None:
            self.error = made["error"].error
        elif step < last or (end and made["last"] is None):
            self._make_alone(step, last, end)
        elif made["last"] is not None:
            self._parts = [copied(made["last"], self._lend)]
        return ready[::-1]

    def _add_part(self, task: Task, made: MadeRange) -> bool:
        """Keeps rows of a step; False if they could not be made, so that the step is made alone."""
        first, _, last, end = task
        part = made["first"]
        if part is None:
            self._make_alone(first, last, end)
            return False
        # A copy, since the memory of the range may be needed before the step is whole.
        self._parts.append(copied(part, self._lend) if first == last else part)
        return True

    def notice(self, made: MadeRange) -> None:
        """Called with each result, for subclasses that measure."""

    def _make_alone(self, step: int, last: int, end: int) -> None:
        """Makes a step that failed in its range alone, and then the rest of the range."""
        self.again = [((step,), None)]
        if (step + 1, 0) < (last, end):
            self.again.append(((step + 1, 0, last, end), None))

    def after_loss(self, task: Task, error: Exception) -> list[Again]:
        if len(task) == 1:
            raise error
        first, row, last, end = task
        if not row and not end and last == first + 1:
            if isinstance(error, RecordError):
                error.step = first
            raise error
        return [((step,), None) for step in range(max(first, self._reached), last + (end > 0))]

    def detached(self, element: Element) -> Element:
        return element if element is self._joined else owned(element, self._lend)


def owned(element: Element, lend: Lend) -> Element:
    """An element that does not keep the memory of its whole range alive."""
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
