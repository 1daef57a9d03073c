"""Windows of chunks, each made by one worker.

Some sources decode large chunks, and the rows of a window come from the same chunks.  If each
worker made one step, all would decode the same chunks; so a task is a whole window, as a range of
rows.  The bytes that windows take limit how many are under way.

Threads share decoded chunks: for them a task is a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from loaderx.chain.node import Node
from loaderx.engines.base import Session, Task
from loaderx.loader.tasks.plan_work import PlanWork, parts_of
from loaderx.loader.tasks.ranges import MadeRange, RangeTasks
from loaderx.loader.tasks.steps import NO_LIMIT, Submitted
from loaderx.memory import Lend
from loaderx.plans.chunk_windows import ChunkWindows
from loaderx.sources.adapt.kept_chunks import KeepsChunks, chunk_budget


class WindowWork(PlanWork):
    """Reads the elements of a plan, and windows of them for workers that share no chunks."""

    decodes_chunks = True

    def __init__(self, node: Node, shard: tuple[int, int], windows: ChunkWindows) -> None:
        super().__init__(node, shard)
        self._windows: ChunkWindows | None = windows
        parts = [part for _, part in parts_of(node)]
        self._chunked = [part for part in parts if isinstance(part, KeepsChunks)]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_windows": None}  # not needed by workers

    def tasks(self, session: Session, steps: range) -> WindowTasks:
        return WindowTasks(session, self, steps)

    def windows(self, steps: range) -> Iterator[Task]:
        """Ranges with all rows of these steps, in order."""
        assert self._windows is not None
        return self._windows.ranges(steps)

    def nbytes(self, task: Task) -> int:
        """The approximate bytes of a window; 0: not known before one is made."""
        assert self._windows is not None
        first, _, last, _ = task
        rows = (last - first + 1) * self._windows.cut.size  # other hosts' rows lie between these
        return rows * sum(source.record_nbytes for source in self._chunked)

    def make_range(self, task: Task, lend: Lend) -> MadeRange:
        kept = [source.kept_chunks for source in self._chunked]
        with ExitStack() as stack:
            for chunks in kept:
                if chunks is not None:
                    stack.enter_context(chunks.window())
            made = super().make_range(task, lend)
            made["nbytes"] += sum(chunks.most_nbytes for chunks in kept if chunks is not None)
        return made

    def describe(self, task: Task) -> str:
        if len(task) < 4:
            return super().describe(task)
        return f"the steps {task[0]} to {task[2]}, which are read together"


class WindowTasks(RangeTasks):
    """Cuts steps into windows."""

    def __init__(self, session: Session, work: WindowWork, steps: range) -> None:
        super().__init__(session, work, steps)
        self._windows_work = work
        self._windows: Iterator[Task] | None = None
        self._fitting = 0  # windows that the budget has room for; 0: not known yet

    def next(self, under_way: Sequence[Submitted]) -> Task | None:
        if self.session.shares_sources:
            self._windows, self.most = None, NO_LIMIT
            return super().next(under_way)
        if self._windows is None:  # at the start, or after the engine changed its workers
            self._windows = self._windows_work.windows(range(self.position, self.stop))
        task = next(self._windows, None)
        if task is not None:
            self.position = task[2]
            if not self._fitting:
                self._set_fitting(self._windows_work.nbytes(task))
            self.most = self._fitting
        return task

    def take(self, count: int) -> range:
        self._windows, self.most = None, NO_LIMIT
        return super().take(count)

    def notice(self, made: MadeRange) -> None:
        self._set_fitting(int(made["nbytes"][0]))
        if self._windows is not None:
            self.most = self._fitting

    def _set_fitting(self, nbytes: int) -> None:
        """Computes how many windows of this size fit into the budget."""
        self._fitting = max(1, chunk_budget() // max(1, nbytes))
