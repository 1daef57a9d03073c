"""The work of a loader whose chain is read by index: makes the elements of steps, times some."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from loaderx.chain.node import Node
from loaderx.engines.base import Measured, Run, Session, Task, Timing, Work
from loaderx.loader.sampling import Sampler
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Lend
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.context import ReadContext, TimedContext
from loaderx.sources import ObjectSource, Source
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.loader.run import TaskRun
    from loaderx.loader.tasks.parts import Part
    from loaderx.loader.tasks.ranges import MadeRange
    from loaderx.loader.tasks.shared_steps import StepTimes


class PlanWork(Work):
    """Reads the elements of a plan."""

    def __init__(self, node: Node, shard: tuple[int, int]) -> None:
        self.plan = IndexPlan(node, shard=shard)
        self._node: Node | None = node
        self.host, self.hosts = shard
        self._plain = self.plan.is_plain
        self._streams = self._plain or self.plan.reads_each
        rows = self.plan.shared_rows()
        self._shared_rows = rows if node.rows is None else min(rows, node.rows)
        self._calls_above = calls_batch_functions(node)
        self._step_times: StepTimes | None = None
        self._sampler = Sampler()
        self._sources = sources_of(node)
        self.thread_safe, self.unsure = are_thread_safe(self._sources)
        self.only_gathers = all(_only_gathers(part) for _, part in parts_of(node))

    def tasks(self, session: Session, steps: range) -> StepTasks:
        """How these steps become tasks for an engine with workers."""
        # Late: without workers, none of these is needed.
        if not self.plan.batched:
            from loaderx.loader.tasks.records import RecordTasks

            return RecordTasks(session, self, steps)
        # The consumer joins a shared step, and would have to call functions of whole batches.
        if not self._shared_rows or (self._calls_above and not session.shares_sources):
            return StepTasks(session, steps)
        from loaderx.loader.tasks.shared_steps import SharedStepTasks, StepTimes

        self._step_times = self._step_times or StepTimes()
        return SharedStepTasks(session, self, steps, self._shared_rows, self._step_times)

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

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured | MadeRange:
        if len(task) > 1:
            return self.make_range(task, lend)
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

    def make_range(self, task: Task, lend: Lend) -> MadeRange:
        """The rows of a range; fewer if a step fails, or if single records take long."""
        from loaderx.loader.tasks.make_range import make_range  # late: only workers get here

        return make_range(self, task, lend)

    def join(self, step: int, parts: Sequence[Part], lend: Lend) -> Tree | Measured | None:
        """Joins the parts of a step into its element; None if they do not fit together."""
        from loaderx.loader.tasks.parts import join_parts

        return join_parts(self.plan, step, parts, lend)

    def noun_of(self, task: Task) -> str:
        is_step = len(task) == 1 or task[2:] in ((task[0], task[3]), (task[0] + 1, 0))
        return "step" if is_step else "block of steps"

    def elements(self, task: Task) -> int:
        return 1 if len(task) == 1 else max(1, task[2] - task[0])

    def ahead(self, run: TaskRun, steps: range) -> Run:
        """The run of these steps, with records fetched ahead if their sources support it."""
        if not are_fetched(self._sources):
            return run
        from loaderx.loader.fetch_ahead.tracks import (
            steps_ahead,  # late: most sources fetch nothing
        )

        return steps_ahead(run, self.plan.copy(), steps)

    def __getstate__(self) -> dict[str, object]:
        # Not needed by workers.
        return {**self.__dict__, "_node": None, "_sources": [], "_step_times": None}

    def describe(self, task: Task) -> str:
        """The records of a step, by their place in the stream."""
        assert self._node is not None
        first = self._node.rows_before(task[0])
        after = self._node.rows_before(max(task[0] + 1, task[2] if len(task) > 1 else 0))
        if after - first <= 1:
            return f"record {first} of the stream"
        return f"records {first} to {after - 1} of the stream"

    def parts(self) -> Iterator[tuple[str, object]]:
        """Sources and transforms with the names that the dataset's ``repr`` gives them."""
        if self._node is not None:
            yield from parts_of(self._node)


def work_of(node: Node, shard: tuple[int, int]) -> PlanWork:
    """The work of a chain that is read by index."""
    if node.random_access or not node.batched:
        return PlanWork(node, shard)
    # Late: few chains read chunks.
    from loaderx.loader.tasks.windows import WindowWork
    from loaderx.plans.chunk_windows import chunk_windows

    windows = chunk_windows(node, shard)
    return PlanWork(node, shard) if windows is None else WindowWork(node, shard, windows)


def _only_gathers(part: object) -> bool:
    # Not inherited: a subclass may contain user code.
    return bool(vars(type(part)).get("only_gathers"))


def are_thread_safe(sources: Sequence[Source]) -> tuple[bool, str]:
    """Whether threads may read all sources at once, and the name of one that does not say."""
    unsure = (source.unsure for source in sources if isinstance(source, ObjectSource))
    return all(source.thread_safe for source in sources), next(filter(None, unsure), "")


def are_fetched(sources: Sequence[Source]) -> bool:
    """True if a source fetches its records to this machine before they are read."""
    return True in [source.fetches for source in sources]


def sources_of(node: Node) -> list[Source]:
    """The sources of a chain that are read by index."""
    return [part for _, part in parts_of(node) if isinstance(part, Source)]


def calls_batch_functions(node: Node) -> bool:
    """True if user functions are called with whole batches."""
    return any(below.user_objects for below in node.below() if below.batched)


def parts_of(node: Node) -> Iterator[tuple[str, object]]:
    """The user's sources and functions in a chain, each with the name of its stage."""
    for below in node.below():
        yield from below.user_objects
