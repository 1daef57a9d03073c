"""The work of a loader whose chain shuffles blocks of a source that decodes chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TypedDict, cast

import numpy as np

from loaderx.engines.base import Measured, Task
from loaderx.engines.block_run import Block
from loaderx.engines.window_run import MadeWindow
from loaderx.loader.narrowing import NarrowedWork
from loaderx.loader.work import PlanWork, parts_of
from loaderx.memory import Lend
from loaderx.plans.chunk_windows import ChunkWindows
from loaderx.reading.context import Failed, ReadContext
from loaderx.reading.rows import Record, Rows, as_batch, fit_together
from loaderx.reading.stacking import NO_PADDING
from loaderx.reading.units import Opaque
from loaderx.sources.kept_chunks import KeepsChunks
from loaderx.stages.narrowing import Narrow
from loaderx.stages.node import Node
from loaderx.tree import Tree, flatten

_ALL = 1 << 62  # rows: more than a step has


class PartOfStep(TypedDict):
    """Some rows of a step, on their way to the process that makes the step of them."""

    columns: Tree  # None: they are single records
    records: Opaque[list[Record]] | None
    is_padded: Opaque[bool]
    failures: Opaque[list[Failed]]


class WindowWork(PlanWork):
    """Reads the elements of a plan, and ranges of rows for workers that share no chunks."""

    makes_windows = True

    def __init__(self, node: Node, shard: tuple[int, int], windows: ChunkWindows) -> None:
        super().__init__(node, shard)
        self._windows: ChunkWindows | None = windows
        parts = [part for _, part in parts_of(node)]
        self._chunked = [part for part in parts if isinstance(part, KeepsChunks)]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_windows": None}  # workers do not need them

    def windows(self, steps: range) -> Iterator[Task]:
        """Tasks that make all rows of these steps, in order."""
        assert self._windows is not None
        return self._windows.ranges(steps)

    def nbytes(self, task: Task) -> int:
        """The bytes that a window takes, more or less; 0: not known before one is made."""
        assert self._windows is not None
        first, _, last, _ = task
        rows = (last - first + 1) * self._windows.cut.size  # other hosts' rows lie between these
        return rows * sum(source.record_nbytes for source in self._chunked)

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured | Block | MadeWindow:
        if len(task) < 4:
            return super().__call__(task, lend)
        kept = [source.kept_chunks for source in self._chunked]
        with ExitStack() as stack:
            for chunks in kept:
                if chunks is not None:
                    stack.enter_context(chunks.window())
            made = self._window(task, lend)
            nbytes = sum(chunks.most_nbytes for chunks in kept if chunks is not None)
            made["nbytes"] += nbytes
        return made

    def _window(self, task: Task, lend: Lend) -> MadeWindow:
        first, place, last, end = task
        made: MadeWindow = {
            "first": None,
            "elements": [],
            "last": None,
            "failed": np.array([-1]),
            "nbytes": np.array([0]),
        }
        step = first
        try:
            if place or first == last:
                made["first"] = self._part(first, place, end if first == last else _ALL, lend)
                step += 1
            for step in range(step, last):  # noqa: B020 (the step that fails is the last value)
                made["elements"].append(super().__call__((step,), lend))
            if end and last > first:
                step = last
                made["last"] = self._part(last, 0, end, lend)
        except Exception:
            made["failed"][0] = step  # it is made again alone, and raises there
        return made

    def _part(self, step: int, first: int, stop: int, lend: Lend) -> PartOfStep:
        context = ReadContext(lend)
        rows = self.plan.read_rows(step, first, stop, context)
        return {
            "columns": rows.tree if rows.is_stacked else None,
            "records": None if rows.is_stacked else Opaque(rows.records()),
            "is_padded": Opaque(bool(rows.padding.lengths)),
            "failures": Opaque(context.failures),
        }

    def join(self, step: int, parts: Sequence[PartOfStep], lend: Lend) -> Tree | Measured | None:
        """The element of a step, of its rows; None if they do not fit together."""
        if len({part["is_padded"].value for part in parts}) > 1:
            return None
        rows = [self._rows(part) for part in parts]
        context = ReadContext(lend)
        context.failures = [failure for part in parts for failure in part["failures"].value]
        if fit_together(rows):
            count = sum(part.count for part in rows)
            context.rows = Rows.of_columns(as_batch(rows, lend), count, padding=rows[0].padding)
        else:
            context.rows = Rows.of_records([one for part in rows for one in part.records()])
        element = self.plan.read(step, context)
        return Measured(element, context.failures, None) if context.failures else element

    def _rows(self, part: PartOfStep) -> Rows:
        if part["records"] is not None:
            return Rows.of_records(part["records"].value)
        assert self._windows is not None
        padding = self._windows.cut.padding if part["is_padded"].value else NO_PADDING
        count = len(flatten(part["columns"])[0][0])
        return Rows.of_columns(part["columns"], count, padding=padding)

    def describe(self, task: Task) -> str:
        if len(task) < 4:
            return super().describe(task)
        return f"the steps {task[0]} to {task[2]}, which are read together"


class NarrowedWindows(NarrowedWork):
    """The same with 32-bit numbers, for devices."""

    makes_windows = True

    def __init__(self, work: WindowWork, narrow: Narrow) -> None:
        super().__init__(work, narrow)
        self.windows, self.nbytes = work.windows, work.nbytes
        self._made_of_parts = work.join

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured:
        if len(task) < 4:
            return super().__call__(task, lend)
        made = cast(MadeWindow, self._work(task, lend))
        made["elements"] = [self.narrowed(element, lend) for element in made["elements"]]
        return made

    def join(self, step: int, parts: Sequence[PartOfStep], lend: Lend) -> Tree | Measured | None:
        made = self._made_of_parts(step, parts, lend)
        return None if made is None else self.narrowed(made, lend)
