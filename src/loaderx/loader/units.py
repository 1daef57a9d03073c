"""What engines are given to do for a stream: units, each under one number.

The number of a unit says its leaf (the dataset that is read), and its place in the fixed order of
the units of that leaf for the lanes of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from loaderx.chain.base import Node
from loaderx.chain.stages import FromSource
from loaderx.engines.base import Noted, Run, Workshop
from loaderx.errors import LoaderxError
from loaderx.loader.work import parts_of
from loaderx.memory import Lend, Pool
from loaderx.plan.feeds import Supply
from loaderx.plan.job import TimedJob
from loaderx.plan.streams import StreamPlan, make_unit

_BITS = 62


class UnitWork:
    """Makes units.  Picklable: it holds plans, and no position."""

    def __init__(self, node: Node, plan: StreamPlan) -> None:
        self._node: Node | None = node
        self.leaves, self.lanes, self.own = plan.leaves, plan.lanes, plan.own
        self.block = 1 << (_BITS - max(1, len(plan.leaves)).bit_length())
        self.thread_safe = all(
            below.source.thread_safe for below in node.below() if isinstance(below, FromSource)
        )

    def number(self, leaf: int, place: int) -> int:
        """The step that stands for a unit."""
        if place >= self.block:
            raise LoaderxError(
                "this stream has come further than units can be numbered: repeats inside repeats, "
                "over and over. Write .repeat() once, before .batch(...)."
            )
        return leaf * self.block + place

    def limit(self, leaf: int, passes: int | None) -> int:
        """The end of a leaf's units, if so many passes are made over the whole."""
        if passes is None:
            return self.block
        plan = self.leaves[leaf]
        return min(self.block, plan.rounds_until(passes, self.lanes) * len(self.own))

    def __call__(self, step: int, lend: Lend) -> Noted:
        leaf, place = divmod(step, self.block)
        job = TimedJob(lend)
        output = make_unit(self.leaves[leaf], place, self.lanes, self.own, job)
        return Noted(output, job.replaced, job.times)

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        for step in steps:
            yield self(step, lend)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_node": None}

    def describe(self, step: int) -> str:
        """Which records a unit is made of."""
        leaf, place = divmod(step, self.block)
        plan = self.leaves[leaf]
        rounds, inside = divmod(place, len(self.own))
        unit = plan.in_pass(rounds, self.lanes)[1] * self.lanes + self.own.start + inside
        first = unit * plan.rows
        return f"records {first} to {first + plan.rows - 1} of the input"

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The user's functions and sources with a name each."""
        if self._node is not None:
            yield from parts_of(self._node)


class EngineSupply(Supply):
    """Units from runs of an engine: one run per leaf, in the order of its feed."""

    def __init__(self, work: UnitWork, workshop: Workshop, passes: int | None) -> None:
        self._work, self._workshop = work, workshop
        self._limits = [work.limit(leaf, passes) for leaf in range(len(work.leaves))]
        self._runs: dict[int, Run] = {}
        self._lend = Pool().lend
        self.noted: list[Noted] = []  # what units had to tell since the last batch

    def open(self, leaf: int, number: int) -> Callable[[], Any]:
        old = self._runs.pop(leaf, None)
        if old is not None:
            old.close()
        first = self._work.number(leaf, number)
        run = self._workshop.open(range(first, leaf * self._work.block + self._limits[leaf]))
        self._runs[leaf] = run
        take, noted = run.next, self.noted

        def following() -> Any:
            return _value(take(), noted)

        return following

    def make(self, leaf: int, number: int) -> Any:
        return _value(self._work(self._work.number(leaf, number), self._lend), self.noted)

    def close(self) -> None:
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.close()

    def describe(self) -> tuple[str, str]:
        for run in self._runs.values():
            return run.describe()
        return "inline", "records are read in order, in the caller's thread"


def _value(element: Any, noted: list[Noted]) -> Any:
    if type(element) is not Noted:
        return element
    value, element.value = element.value, None
    noted.append(element)
    return value
