"""The work of a loader whose chain is a stream: makes its units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loaderx.chain.node import Node
from loaderx.engines.base import (
    Measured,
    Pending,
    Run,
    Session,
    Task,
    Timing,
    Work,
    cancel_all,
    check_closed,
    closed_error,
)
from loaderx.loader.stats import Listening
from loaderx.loader.tasks.plan_work import are_fetched, are_thread_safe, parts_of, sources_of
from loaderx.loader.waiting import IN_ORDER
from loaderx.memory import Lend
from loaderx.plans.stream_plan import StreamPlan
from loaderx.reading.context import TimedContext
from loaderx.reading.lookahead import Lookahead, PendingUnit
from loaderx.reading.unit_plan import UnitOutput


class UnitWork(Work):
    """Makes units.  Picklable: it holds plans, and no position."""

    noun = "unit of the stream"
    makes_units = True

    def __init__(self, node: Node, plan: StreamPlan, shard: tuple[int, int]) -> None:
        self._node: Node | None = node
        self.host, self.hosts = shard
        self.units = plan.units
        self._sources = sources_of(node)
        self.thread_safe, self.unsure = are_thread_safe(self._sources)
        self.is_in_order = not plan.units  # every input is an iterable

    def __call__(self, task: Task, lend: Lend) -> Measured:
        number, epoch_key, unit = task
        context = TimedContext(lend)
        output = self.units[number].make(epoch_key, unit, context)
        return Measured(output, (), Timing(context.times, 1))  # the output has its failures

    def ahead(self, run: Run, lookaheads: Sequence[Lookahead]) -> Run:
        """The run that reads these units, fetched ahead if their sources support it."""
        if not are_fetched(self._sources):
            return run
        from loaderx.loader.fetch_ahead.tracks import (
            units_ahead,  # late: most sources fetch nothing
        )

        return units_ahead(run, lookaheads)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_node": None, "_sources": []}

    def describe(self, task: Task) -> str:
        """Which records a unit is made of."""
        plan, epoch, unit = task
        first, stop = self.units[plan].records_of(np.array([epoch], np.uint64), unit)
        return f"records {first} to {stop - 1} of the input"

    def parts(self) -> Iterator[tuple[str, object]]:
        """The user's functions and sources with a name each."""
        if self._node is not None:
            yield from parts_of(self._node)


class UnitSession:
    """An engine's session as the readers of one iterator use it."""

    def __init__(
        self,
        session: Session,
        *,
        has_units: bool,
        work: UnitWork | None = None,
        listening: Listening | None = None,
    ) -> None:
        self._session = session
        self._work, self._listening = work, listening
        self._has_units = has_units
        self.waiting: Pending | None = None  # what `next` waits for
        self.is_closing = False
        self.measured: list[Measured] = []  # statistics of the units since the last batch

    @property
    def window(self) -> int:
        return self._session.window

    def submit(self, task: Task) -> SubmittedUnit:
        return SubmittedUnit(self._session.submit(task), self, task)

    def cancel(self, pending: Sequence[PendingUnit]) -> None:
        """Cancels units that were submitted here."""
        units = [one.submitted for one in pending if isinstance(one, SubmittedUnit)]
        cancel_all(units)

    def notice(self, measured: Measured, pending: Pending, task: Task) -> None:
        """Receives the measurements of a unit that was delivered."""
        trace = None if self._listening is None else self._listening.trace
        if trace is not None and self._work is not None:
            trace.made(self._session.made(pending), task, self._work, measured.times)
        self._session.notice(measured)
        self.measured.append(measured)

    def interrupt(self) -> bool:
        """Wakes the thread that waits for a unit; False if that thread makes the unit itself."""
        self.is_closing = True
        waiting = self.waiting
        if waiting is not None:
            waiting.cancel()
        return self._session.window > 0

    def describe(self) -> tuple[str, str]:
        if not self._has_units:
            return "inline", IN_ORDER
        return self._session.describe()


class SubmittedUnit:
    """A submitted unit; the readers get its output."""

    __slots__ = ("_session", "_task", "submitted")

    def __init__(self, submitted: Pending, session: UnitSession, task: Task) -> None:
        self.submitted, self._session, self._task = submitted, session, task

    def result(self) -> UnitOutput:
        pending, session = self.submitted, self._session
        session.waiting = pending
        if session.is_closing and not pending.done():  # a result that is done does not wait
            raise closed_error()
        try:
            element = pending.result()
        except Exception as error:
            check_closed(error, session)
            raise
        finally:
            session.waiting = None
        output: UnitOutput = element
        if type(element) is Measured:
            output, element.value = element.value, None  # do not keep the arrays alive
            session.notice(element, pending, self._task)
        return output

    def cancel(self) -> object:
        return self.submitted.cancel()
