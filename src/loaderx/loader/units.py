"""What engines are given to do for a stream: units, each under one number.

The number of a unit says its leaf (the dataset that is read), and its place in the fixed order of
the units of that leaf for the lanes of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from loaderx.chain.base import Node
from loaderx.engines.base import Noted, Run, Timing, Workshop, closed_error, interrupt
from loaderx.errors import LoaderxError
from loaderx.loader.work import are_thread_safe, parts_of
from loaderx.memory import Lend
from loaderx.plan.feeds import Supply
from loaderx.plan.job import TimedJob
from loaderx.plan.streams import StreamPlan, make_unit
from loaderx.plan.units import UnitPlan

_BITS = 62


class UnitWork:
    """Makes units.  Picklable: it holds plans, and no position."""

    noun = "unit of the stream"

    def __init__(self, node: Node, plan: StreamPlan, shard: tuple[int, int]) -> None:
        self._node: Node | None = node
        self.host, self.hosts = shard
        self.leaves, self.lanes, self.own = plan.leaves, plan.lanes, plan.own
        # A leaf's numbers: first those of all lanes together, then those of each lane.
        self.block = 1 << (_BITS - max(1, len(plan.leaves)).bit_length())
        self.span = self.block // (len(plan.own) + 1)
        self.thread_safe, self.unsure = are_thread_safe(node)
        self.is_in_order = not plan.leaves  # all of it is read from an iterator
        self.only_gathers = False  # its stages are Python, the user's or ours

    def steps(self, leaf: int, lane: int | None, number: int, passes: int | None) -> range:
        """The steps that stand for units from one on, up to the end of so many passes."""
        plan, start = self.leaves[leaf], leaf * self.block
        end = self.span
        if passes is not None:
            rounds = plan.rounds_until(passes, self.lanes)
            end = min(end, rounds * (len(self.own) if lane is None else 1))
        if number >= self.span:
            raise LoaderxError(
                "this stream has come further than units can be numbered: repeats inside repeats, "
                "over and over. Write .repeat() once, before .batch(...)."
            )
        start += 0 if lane is None else self.span * (lane + 1)
        return range(start + number, start + max(number + 1, end))

    def _unit(self, step: int) -> tuple[UnitPlan, int | None, int]:
        leaf, inside = divmod(step, self.block)
        part, number = divmod(inside, self.span)
        return self.leaves[leaf], part - 1 if part else None, number

    def __call__(self, step: int, lend: Lend) -> Noted:
        leaf, lane, number = self._unit(step)
        job = TimedJob(lend)
        output = make_unit(leaf, lane, number, self.lanes, self.own, job)
        return Noted(output, (), Timing(job.times, 1))  # the output has its failures

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        """The units of consecutive steps."""
        for step in steps:
            yield self(step, lend)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_node": None}

    def describe(self, step: int) -> str:
        """Which records a unit is made of."""
        plan, lane, number = self._unit(step)
        if lane is None:
            number, lane = divmod(number, len(self.own))
        unit = plan.in_pass(number, self.lanes)[1] * self.lanes + self.own.start + lane
        first = unit * plan.rows
        return f"records {first} to {first + plan.rows - 1} of the input"

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The user's functions and sources with a name each."""
        if self._node is not None:
            yield from parts_of(self._node)


class EngineSupply(Supply):
    """Units from runs of an engine: one for all lanes of a leaf, or one for each."""

    def __init__(self, work: UnitWork, workshop: Workshop, passes: int | None) -> None:
        self._work, self._workshop, self._passes = work, workshop, passes
        self._runs: dict[tuple[int, int | None], Run] = {}
        self._is_closing = False
        self.noted: list[Noted] = []  # what units had to tell since the last batch

    def open(self, leaf: int, lane: int | None, number: int) -> Callable[[], Any]:
        self._shut(leaf, lane)
        run = self._workshop.open(self._work.steps(leaf, lane, number, self._passes))
        self._runs[leaf, lane] = run
        if self._is_closing:  # a run that gave up must not be followed by another
            raise closed_error()
        take, noted = run.next, self.noted

        def following() -> Any:
            return _value(take(), noted)

        return following

    def shut(self, leaf: int) -> None:
        self._shut(leaf, None)

    def most_rounds(self) -> int:
        return self._work.span // len(self._work.own)

    def _shut(self, leaf: int, lane: int | None) -> None:
        run = self._runs.pop((leaf, lane), None)
        if run is not None:
            run.close()

    def interrupt(self) -> bool:
        self._is_closing = True
        woken = [interrupt(run) for run in list(self._runs.values())]
        return any(woken)

    def close(self) -> None:
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.close()

    def describe(self) -> tuple[str, str]:
        for run in list(self._runs.values()):  # another thread may open one
            return run.describe()
        return "inline", "records are read in order, in the caller's thread"


def _value(element: Any, noted: list[Noted]) -> Any:
    if type(element) is not Noted:
        return element
    value, element.value = element.value, None
    noted.append(element)
    return value
