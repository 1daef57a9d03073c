"""The work of saving a dataset that is read by index.

A task of one number is a step: some records become columns, which the consumer appends to a part.
One of two numbers is a whole part, which the worker writes itself, under a name that nobody else
uses; the consumer gets its line for the journal.  The second number says how many parts are written
at once.  Several workers may write one part, if some are believed dead: the consumer gives the part
of one of them its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loaderx.chain.node import Node
from loaderx.engines import Inline
from loaderx.engines.base import Measured, Run, Session, Task, Work, closed_error
from loaderx.frozen import Frozen
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.plan_work import are_fetched, are_thread_safe, parts_of, sources_of
from loaderx.loader.tasks.steps import StepTasks, Submitted
from loaderx.memory import Lend
from loaderx.reading.context import Failed, ReadContext
from loaderx.reading.operators import Request, SourceRecords
from loaderx.reading.rows import Positions
from loaderx.reading.stored_rows import encoded_rows
from loaderx.rng import ROOT
from loaderx.sources.columns.data import ColumnType, arrays_of, collect
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.table import TableSource
from loaderx.sources.columns.table_columns import table_columns
from loaderx.sources.native.layout import type_json, type_of
from loaderx.sources.native.save_folder import SavedPart, saved_part
from loaderx.sources.native.save_parts import PartsWriter
from loaderx.stages.inputs import ReadSource
from loaderx.tree import Tree


class Steps(Frozen):
    """How the records of a dataset are divided into parts, and parts into steps."""

    records: int
    part_records: int
    step_records: int

    @property
    def parts(self) -> int:
        return -(-self.records // self.part_records)

    @property
    def per_part(self) -> int:
        return -(-self.part_records // self.step_records)

    def of_part(self, part: int) -> range:
        """The steps of a part."""
        begin = part * self.per_part
        return range(begin, begin + -(-self.records_of(part) // self.step_records))

    def records_of(self, part: int) -> int:
        """How many records a part has."""
        return min(self.part_records, self.records - part * self.part_records)

    def bounds(self, step: int) -> tuple[int, int]:
        """The first record of a step, and the one after its last."""
        part, inside = divmod(step, self.per_part)
        end = min(self.records, (part + 1) * self.part_records)
        first = part * self.part_records + inside * self.step_records
        return first, min(first + self.step_records, end)


class SaveWork(Work):
    """Turns the records of a step into columns, or writes a part.

    ``folder`` and ``kind`` are for parts: where to, and the type to begin with.
    """

    noun = "part"

    def __init__(
        self, node: Node, steps: Steps, folder: str = "", kind: ColumnType | None = None
    ) -> None:
        self._node: Node | None = node
        self._steps, self.rows_per_step = steps, steps.step_records
        self._folder, self._kind = folder, kind
        self._operator = node.record_operator(Request(node.default_seed(), stacked=True))
        sources = sources_of(node)
        self._is_fetched = are_fetched(sources)
        self.thread_safe, self.unsure = are_thread_safe(sources)
        self.is_over = False  # for threads that are in the middle of a part

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured:
        made, failures = self._part(*task) if len(task) > 1 else self._columns(task[0], lend)
        return Measured(made, failures, None) if failures else made

    def _columns(self, step: int, lend: Lend) -> tuple[Tree, list[Failed]]:
        """The records of a step as columns."""
        first, stop = self._steps.bounds(step)
        context = ReadContext(lend)
        pieces = self.read(np.arange(first, stop), context)
        return [packed(piece) for piece in pieces], context.failures

    def _part(self, part: int, at_once: int) -> tuple[Tree, list[Failed]]:
        """Writes a part; its line for the journal."""
        failures: list[Failed] = []
        here, steps = Inline().session(self), self._steps.of_part(part)
        run = self.ahead(TaskRun(here, self, StepTasks(here, steps)), steps, at_once)
        try:
            with PartsWriter(self._folder, self._kind, uses_lines=True) as parts:
                done = self.append_part(
                    part, run, parts, lambda found, step: failures.extend(found.failures)
                )
        finally:
            run.close()
        return {"line": np.frombuffer(json.dumps(done.line()).encode(), np.uint8)}, failures

    def append_part(
        self, part: int, run: Run, parts: PartsWriter, noted: Callable[[Measured, int], None]
    ) -> SavedPart:
        """Writes the steps of a part; ``noted`` gets those in which records have failed."""
        for step in self._steps.of_part(part):
            if self.is_over:
                raise closed_error()
            element = run.next()
            if isinstance(element, Measured):
                noted(element, step)
                element = element.value
            first = self._steps.bounds(step)[0]
            for piece in element:
                found = unpacked(piece)
                parts.append(part, found, first)
                first += found.data.length
            del element, found, piece  # so that their memory can be reused
        return parts.finish()

    def read(self, positions: Positions, context: ReadContext) -> list[Encoded]:
        """The records at these positions as columns, in one or several pieces."""
        operator = self._operator
        addresses = operator.resolve(ROOT, positions)
        if isinstance(operator, ReadSource) and isinstance(operator.source, TableSource):
            found = table_columns(operator.source, addresses.index)
            if found is not None:
                return found
        return [encoded_rows(context.read(operator, addresses), positions)]

    def steps_of(self, parts: range) -> range:
        """The steps of consecutive parts."""
        return range(self._steps.of_part(parts[0]).start, self._steps.of_part(parts[-1]).stop)

    def ahead(self, run: TaskRun, steps: range, runs: int = 1) -> Run:
        """The run of these steps, with records fetched ahead if their sources support it."""
        if not self._is_fetched:
            return run
        from loaderx.loader.fetch_ahead.tracks import (
            steps_ahead,  # late: most sources fetch nothing
        )

        return steps_ahead(run, self, steps, runs)

    def source_records(self, step: int, stop: int) -> tuple[int, list[SourceRecords]]:
        """``stop``, and the records that the steps before it read from sources that fetch."""
        first, end = self._steps.bounds(step)[0], self._steps.bounds(stop - 1)[1]
        addresses = self._operator.resolve(ROOT, np.arange(first, end))
        return stop, list(self._operator.source_records(addresses))

    def steps(self, task: Task) -> int:
        return len(self._steps.of_part(task[0])) if len(task) > 1 else 1

    def describe(self, task: Task) -> str:
        steps = self._steps.of_part(task[0]) if len(task) > 1 else range(task[0], task[0] + 1)
        first, stop = self._steps.bounds(steps[0])[0], self._steps.bounds(steps[-1])[1]
        return f"records {first} to {stop - 1}"

    def parts(self) -> Iterator[tuple[str, object]]:
        if self._node is not None:
            yield from parts_of(self._node)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_node": None}  # not needed by workers


class PartTasks(StepTasks):
    """Parts, one after the other, each as a task."""

    def __init__(self, session: Session, parts: Sequence[int]) -> None:
        super().__init__(session, range(len(parts)))
        self._parts = parts

    def next(self, under_way: Sequence[Submitted]) -> Task | None:
        task = super().next(under_way)
        return None if task is None else (self._parts[task[0]], self.session.window)


def written_part(element: Tree) -> SavedPart:
    """The part that a task has written."""
    return saved_part(json.loads(element["line"].tobytes()))


# Columns as an element of an engine -------------------------------------------------------------


def packed(found: Encoded) -> dict[str, Tree]:
    """Columns as a tree of arrays, which any engine can pass on."""
    told = json.dumps(type_json(found.kind)).encode()
    arrays = list(arrays_of(found.kind, found.data))
    return {"type": np.frombuffer(told, np.uint8), "arrays": arrays}


def unpacked(element: Tree) -> Encoded:
    """What was packed."""
    kind = type_of(json.loads(element["type"].tobytes()))
    arrays = iter(element["arrays"])
    return Encoded(kind, collect(kind, lambda *_: next(arrays)))
