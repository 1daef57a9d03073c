"""The work of saving a dataset that is read by index: a task turns some records into columns."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from loaderx.chain.node import Node
from loaderx.engines.base import Measured, Run, Task, Work
from loaderx.frozen import Frozen
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.plan_work import are_fetched, are_thread_safe, parts_of, sources_of
from loaderx.memory import Lend
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Request, SourceRecords
from loaderx.reading.rows import Positions
from loaderx.reading.stored_rows import encoded_rows
from loaderx.rng import ROOT
from loaderx.sources.columns.data import arrays_of, collect
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.table import TableSource
from loaderx.sources.columns.table_columns import table_columns
from loaderx.sources.native.layout import type_json, type_of
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

    def part_of(self, step: int) -> int:
        return step // self.per_part

    def of_part(self, part: int) -> range:
        """The steps of a part."""
        first = part * self.part_records
        count = min(self.part_records, self.records - first)
        begin = part * self.per_part
        return range(begin, begin + -(-count // self.step_records))

    def bounds(self, step: int) -> tuple[int, int]:
        """The first record of a step, and the one after its last."""
        part, inside = divmod(step, self.per_part)
        end = min(self.records, (part + 1) * self.part_records)
        first = part * self.part_records + inside * self.step_records
        return first, min(first + self.step_records, end)


class SaveWork(Work):
    """Reads the records of a step and turns them into columns."""

    noun = "step"

    def __init__(self, node: Node, steps: Steps) -> None:
        self._node: Node | None = node
        self.steps, self.rows_per_step = steps, steps.step_records
        self._operator = node.record_operator(Request(node.default_seed(), stacked=True))
        self._sources = sources_of(node)
        self.thread_safe, self.unsure = are_thread_safe(self._sources)

    def __call__(self, task: Task, lend: Lend) -> Tree | Measured:
        first, stop = self.steps.bounds(task[0])
        context = ReadContext(lend)
        made = [packed(piece) for piece in self.read(np.arange(first, stop), context)]
        return Measured(made, context.failures, None) if context.failures else made

    def read(self, positions: Positions, context: ReadContext) -> list[Encoded]:
        """The records at these positions as columns, in one or several pieces."""
        operator = self._operator
        addresses = operator.resolve(ROOT, positions)
        if isinstance(operator, ReadSource) and isinstance(operator.source, TableSource):
            found = table_columns(operator.source, addresses.index)
            if found is not None:
                return found
        return [encoded_rows(context.read(operator, addresses), positions)]

    def ahead(self, run: TaskRun, steps: range) -> Run:
        """The run of these steps, with records fetched ahead if their sources support it."""
        if not are_fetched(self._sources):
            return run
        from loaderx.loader.fetch_ahead.tracks import (
            steps_ahead,  # late: most sources fetch nothing
        )

        return steps_ahead(run, self, steps)

    def source_records(self, step: int, stop: int) -> tuple[int, list[SourceRecords]]:
        """``stop``, and the records that the steps before it read from sources that fetch."""
        first, end = self.steps.bounds(step)[0], self.steps.bounds(stop - 1)[1]
        addresses = self._operator.resolve(ROOT, np.arange(first, end))
        return stop, list(self._operator.source_records(addresses))

    def describe(self, task: Task) -> str:
        first, stop = self.steps.bounds(task[0])
        return f"records {first} to {stop - 1}"

    def parts(self) -> Iterator[tuple[str, object]]:
        if self._node is not None:
            yield from parts_of(self._node)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_node": None, "_sources": []}  # not needed by workers


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
