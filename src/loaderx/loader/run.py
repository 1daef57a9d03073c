"""Hands out elements in order, for any engine and any way to cut steps into tasks.

A `TaskRun` keeps tasks under way in a session, waits for the first of them, and hands out the
elements of its result.  A `StepTasks` (or one of its subclasses in `loaderx.loader.tasks`) defines
the tasks, and turns their results into elements.

A session may ask the caller to make some elements itself (`Session.here`): an engine without
workers always does, and `auto` does while it has nothing to measure.  Then no engine code runs
between two elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from loaderx.engines.base import (
    Element,
    Measured,
    Pending,
    Session,
    Task,
    TryAgainError,
    Work,
    cancel_all,
    check_closed,
    close_generator,
    closed_error,
)
from loaderx.loader.stats import Listening
from loaderx.loader.tasks.steps import Again, StepTasks
from loaderx.memory import Pool
from loaderx.reading.lookahead import FillAgainError


class TaskRun:
    """The elements of consecutive steps, in order."""

    def __init__(
        self, session: Session, work: Work, tasks: StepTasks, listening: Listening | None = None
    ) -> None:
        self._tasks = tasks
        listening = listening or Listening()
        self._under_way = UnderWay(session, tasks)
        if session.here >= tasks.stop:  # the caller makes all of them
            self._elements = work.stream(tasks.take(tasks.stop), Pool().lend)
        else:
            self._elements = _elements(self._under_way, session, work, tasks, listening)
        self.next: Callable[[], Element] = self._elements.__next__
        self.start = self._under_way.start
        self.ready = self._under_way.ready
        self.interrupt = self._under_way.interrupt
        self.describe = session.describe

    @property
    def submitted(self) -> int:
        """The step after those that workers have been given."""
        return self._tasks.given

    def close(self) -> None:
        self.next = _refuse  # a closed generator would look exhausted
        close_generator(self._elements)
        self._under_way.close()


def _refuse() -> Element:
    raise closed_error()


def _elements(
    under_way: UnderWay, session: Session, work: Work, tasks: StepTasks, listening: Listening
) -> Iterator[Element]:
    lend, pending = Pool().lend, under_way.pending
    while True:
        here = session.here  # read once: other threads may use the session
        if here and not pending and not under_way.is_closing:
            steps = tasks.take(here)
            if not steps:
                return
            yield from work.stream(steps, lend)
            session.made_here(len(steps))
            continue
        under_way.fill()
        if under_way.is_closing:  # `interrupt` may have missed the first task
            raise closed_error()
        if not pending:
            return
        task, first = pending[0]
        try:
            made = first.result()
        except FillAgainError:
            continue
        except TryAgainError:
            raise
        except Exception as failure:
            if under_way.ends_with(task, failure):
                return
            continue
        if listening.trace is not None:
            timing = made.times if type(made) is Measured else None
            listening.trace.made(session.made(first), task, work, timing)
        pending.popleft()
        left = under_way.left = tasks.collect(task, made)
        del made, first  # the consumer alone must hold the element
        if tasks.again:
            again, tasks.again = tasks.again, []
            under_way.put_first(again)
        if len(left) > 1 and session.shares_memory:
            while left:
                yield tasks.detached(left.pop())
        while left:
            yield left.pop()
        if tasks.error is not None:
            under_way.raise_error()
            return


class UnderWay:
    """Submitted tasks, in order."""

    def __init__(self, session: Session, tasks: StepTasks) -> None:
        self._session, self._tasks = session, tasks
        self.pending: deque[tuple[Task, Pending]] = deque()
        self.left: list[Element] = []  # elements that are ready, the next one last
        self.is_closing = False

    def start(self) -> None:
        """Submits the first tasks."""
        if self._session.window:
            self.fill()

    def fill(self) -> None:
        """Submits tasks until as many are under way as the session and the tasks call for."""
        pending, tasks, session = self.pending, self._tasks, self._session
        while not self.is_closing:
            if pending and len(pending) >= min(session.window + tasks.extra, tasks.most):
                return
            task = tasks.next(pending)
            if task is None:
                return
            pending.append((task, session.submit(task)))
            tasks.given = tasks.position

    def ends_with(self, task: Task, error: Exception) -> bool:
        """Handles the failure of the first task.  True if it means the end of the stream.

        False if other tasks replaced it; otherwise its error is raised.
        """
        check_closed(error, self)
        if self._session.is_end(error):
            return True
        again = self._tasks.after_loss(task, error)
        self.pending.popleft()
        self.put_first(again)
        return False

    def raise_error(self) -> None:
        """Raises the error of the step after those handed out, unless the stream ends there."""
        error, self._tasks.error = self._tasks.error, None
        if error is None or self._session.is_end(error):
            return
        try:
            raise error
        finally:
            del error  # else it would hold this frame, and the frame the error

    def put_first(self, again: list[Again]) -> None:
        """Submits tasks ahead of those under way."""
        for task, made in reversed(again):
            self.pending.appendleft((task, made or self._session.submit(task)))

    def ready(self) -> bool:
        if self.left or self._tasks.error is not None:
            return True
        if not self.pending and self._session.window and not self.is_closing:
            try:
                self.fill()  # with a window of 1, nothing is under way between two steps
            except Exception:
                return True  # `next` raises the error
        return not self.pending or self.pending[0][1].done()

    def close(self) -> None:
        self.is_closing = True
        pending = [one for _, one in self.pending]
        self.pending.clear()
        self.left = []
        cancel_all(pending)

    def interrupt(self) -> bool:
        self.is_closing = True
        for _, pending in list(self.pending)[:1]:
            pending.cancel()
        return self._session.window > 0

    # Here rather than in each pending: Python ignores a Ctrl-C inside a `__del__`, and pendings are
    # dropped with every batch.
    def __del__(self) -> None:
        for _, pending in self.__dict__.get("pending", ()):  # Ctrl-C may end `__init__` early
            pending.cancel()
