"""The work of a loader whose chain is read by index: the element of a step, sometimes timed."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from loaderx.engines.base import Measured, Run, Task, Timing
from loaderx.loader.sampling import Sampler
from loaderx.memory import Lend
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.context import ReadContext, TimedContext
from loaderx.reading.rows import Rows
from loaderx.sources import ObjectSource, Source
from loaderx.stages.node import Node
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.engines.block_run import Block
    from loaderx.engines.sharing import MadeRows


class PlanWork:
    """Reads the elements of a plan."""

    def __init__(self, node: Node, shard: tuple[int, int]) -> None:
        self.plan = IndexPlan(node, shard=shard)
        self._node = node
        self.host, self.hosts = shard
        self._plain = self.plan.is_plain
        self._streams = self._plain or self.plan.reads_each
        rows = self.plan.shared_rows()
        self._shared_rows = rows if node.rows is None else min(rows, node.rows)
        self.makes_blocks = not node.batched
        self._sampler = Sampler()
        self._sources = sources_of(node)
        self.thread_safe, self.unsure = are_thread_safe(self._sources)
        self.only_gathers = all(_only_gathers(part) for _, part in parts_of(node))

    def stream(self, steps: range, lend: Lend) -> Iterator[Tree | Measured]:
        """The elements of consecutive steps."""
        if not self._streams:
            for step in steps:
                yield self((step,), lend)
            return
        step, stop, sampler = steps.start, steps.stop, self._sampler
        while step < stop:
            yield self((step,), lend)  # a timed step, or one that the fast path cannot read
            step += 1
            until = min(stop, step + sampler.untimed())
            if step < until:
                sampler.skip(until - step)
                step = yield from self._untimed(step, until, lend)
                sampler.skip(step - until)  # negative: the fast path stopped before `until`

    def _untimed(self, step: int, until: int, lend: Lend) -> Generator[Tree, None, int]:
        if self._plain:
            return self.plan.stream_fast(step, until, lend)
        return self.plan.stream_records(step, until)

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured | Block:
        if len(task) == 2:
            return self._block(*task, lend)
        (step,) = task
        sampler = self._sampler
        if not sampler.is_due():
            if self._plain:
                element = self.plan.read_fast(step, lend)
                if element is not None:
                    return element
            context = ReadContext(lend)
            element = self.plan.read(step, context)
            return Measured(element, context.failures, None) if context.failures else element
        weight, timed = sampler.weight, TimedContext(lend)
        element = self.plan.read(step, timed)
        sampler.took(sum(timed.times.values()))
        return Measured(element, timed.failures, Timing(timed.times, weight))

    def _block(self, first: int, count: int, lend: Lend) -> Block:
        """The elements of some steps without a batch; fewer if one fails, or if they take long."""
        from loaderx.engines.block_run import LONGEST_S, RaisedAhead  # late: only workers get here

        elements: list[Tree | Measured] = []
        error: RaisedAhead | None = None
        begun = perf_counter()
        try:
            for element in self.stream(range(first, first + count), lend):
                elements.append(element)
                if perf_counter() - begun > LONGEST_S:
                    break
        except Exception as failure:
            error = RaisedAhead(failure)
        took = np.array([perf_counter() - begun])
        return {"elements": elements, "error": error, "seconds": took}

    # The rows of a step, made by several workers.

    def shared_rows(self, task: Task) -> int:
        """The most rows that a step may have: a short batch has fewer, wherever it stands."""
        return self._shared_rows

    def make_rows(self, task: Task, first: int, stop: int, lend: Lend) -> MadeRows:
        from loaderx.engines.sharing import MadeRows  # late: only workers get here

        context = TimedContext(lend)
        rows = self.plan.read_rows(task[0], first, stop, context)
        return MadeRows(rows.records(), rows.is_stacked, context.failures, context.times)

    def join_rows(self, task: Task, parts: Sequence[MadeRows], lend: Lend) -> Tree | Measured:
        if all(part.is_stacked for part in parts):
            return self(task, lend)  # all of it was gathered, which costs next to nothing
        sampler, context = self._sampler, TimedContext(lend)
        is_due, weight = sampler.is_due(), sampler.weight
        context.rows = Rows.of_records([record for part in parts for record in part.records])
        context.failures = [failure for part in parts for failure in part.failures]
        element = self.plan.read(task[0], context)
        if not is_due:
            return Measured(element, context.failures, None) if context.failures else element
        times = context.times
        for part in parts:
            for stage, seconds in part.times.items():
                times[stage] = times.get(stage, 0.0) + seconds
        sampler.took(sum(times.values()))
        return Measured(element, context.failures, Timing(times, weight))

    def ahead(self, run: Run, steps: range) -> Run:
        """The run of these steps, whose records are fetched ahead of it if their sources do so."""
        if not are_fetched(self._sources):
            return run
        from loaderx.loader.ahead_tracks import steps_ahead  # late: most sources fetch nothing

        return steps_ahead(run, self.plan.copy(), steps)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_node": None, "_sources": []}  # workers do not need them

    def describe(self, task: Task) -> str:
        """The records of a step, by their place in the stream."""
        steps = task[1] if len(task) == 2 else 1
        first = self._node.rows_before(task[0])
        after = self._node.rows_before(task[0] + steps)
        if after - first <= 1:
            return f"record {first} of the stream"
        return f"records {first} to {after - 1} of the stream"

    def parts(self) -> Iterator[tuple[str, object]]:
        """Sources and transforms with the names that the dataset's ``repr`` gives them."""
        yield from parts_of(self._node)


def work_of(node: Node, shard: tuple[int, int]) -> PlanWork:
    """The work of a chain that is read by index."""
    if node.random_access or not node.batched:
        return PlanWork(node, shard)
    # Late: few chains read chunks.
    from loaderx.loader.window_work import WindowWork
    from loaderx.plans.chunk_windows import chunk_windows

    windows = chunk_windows(node, shard)
    return PlanWork(node, shard) if windows is None else WindowWork(node, shard, windows)


def _only_gathers(part: object) -> bool:
    # Not of a class above it: a subclass may have code of the user's.
    return bool(vars(type(part)).get("only_gathers"))


def are_thread_safe(sources: Sequence[Source]) -> tuple[bool, str]:
    """May threads read all sources at once?  And the name of one that does not say."""
    unsure = (source.unsure for source in sources if isinstance(source, ObjectSource))
    return all(source.thread_safe for source in sources), next(filter(None, unsure), "")


def are_fetched(sources: Sequence[Source]) -> bool:
    """Does one of them bring its records to this machine before they are read?"""
    return True in [source.fetches for source in sources]


def sources_of(node: Node) -> list[Source]:
    """The sources of a chain that are read by index."""
    return [part for _, part in parts_of(node) if isinstance(part, Source)]


def parts_of(node: Node) -> Iterator[tuple[str, object]]:
    """The user's sources and functions in a chain, each with the name of its stage."""
    for below in node.below():
        yield from below.user_objects
