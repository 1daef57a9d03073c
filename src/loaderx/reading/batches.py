"""Operators on batches.

`steps` resolves a block of steps to the rows that each must read, `rows` resolves single records of
batches (for `unbatch`), and `read` makes one batch, or with rows one run of records as a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx import chain
from loaderx.errors import LoaderxError, RecordError
from loaderx.reading.addresses import (
    BatchRows,
    BatchSteps,
    MergedSteps,
    Steps,
    TaggedRows,
    TaggedSteps,
    ZippedSteps,
)
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import say
from loaderx.reading.moves import Move
from loaderx.reading.records import (
    RecordOperator,
    Stacked,
    as_records,
    rows_problem,
)
from loaderx.reading.routing import Router
from loaderx.rng import BRANCH, Keys, fold, stage_keys
from loaderx.stages.stacking import pad_rows, stack
from loaderx.stages.transforms import Transform, whole
from loaderx.tree import Structure, Tree

Positions = npt.NDArray[np.int64]


class BatchOperator:
    """The base: moves batches first, then finds their rows."""

    def __init__(self, stage: str, size: int | None) -> None:
        self.stage = stage
        self.size = size  # rows per global batch, None where components differ
        self.moves: list[Move] = []  # outermost first

    def steps(self, epochs: Keys, numbers: Positions) -> Steps:
        for move in self.moves:
            epochs, numbers = move.steps(epochs, numbers)
        found: Steps = self.locate(epochs, numbers)
        return found

    def rows(self, epochs: Keys, positions: Positions) -> Any:
        for move in self.moves:
            assert self.size is not None
            epochs, positions = move.rows(epochs, positions, self.size)
        return self.locate_rows(epochs, positions)

    def locate(self, epochs: Keys, numbers: Positions) -> Any:
        raise NotImplementedError

    def locate_rows(self, epochs: Keys, positions: Positions) -> Any:
        raise NotImplementedError

    def read(self, rows: Any, context: ReadContext) -> Tree:
        raise NotImplementedError

    def keys(self, steps: Any) -> Keys:
        """A key per row of a block of steps."""
        raise NotImplementedError

    def row_keys(self, rows: Any) -> Keys:
        raise NotImplementedError

    def index(self, rows: Any, number: int) -> tuple[int, str]:
        raise NotImplementedError


class Cut(BatchOperator):
    """batch: records become batches.  One host of several reads its rows of each."""

    def __init__(self, node: chain.Batched, child: RecordOperator, shard: tuple[int, int]) -> None:
        super().__init__(node.stage, node.size)
        self.child = child
        self.node = node
        host, hosts = shard
        self.first = node.size * host // hosts
        self.width = node.size * (host + 1) // hosts - self.first
        self.records = None if node.uniform else node.input.length

    def locate(self, epochs: Keys, numbers: Positions) -> BatchSteps:
        assert self.size is not None
        starts = numbers * self.size + self.first
        last = int(starts.max()) + self.width
        if self.width == self.size and (np.diff(numbers) == 1).all():
            positions = np.arange(starts[0], last)  # one run of whole batches, the usual case
        else:
            positions = np.add.outer(starts, np.arange(self.width)).reshape(-1)
        if epochs.size > 1:
            epochs = np.repeat(epochs, self.width)
        counts = None
        if self.records is not None and last > self.records:
            counts = np.clip(self.records - starts, 0, self.width).tolist()
            np.minimum(positions, self.records - 1, out=positions)
        rows = self.child.resolve(epochs, positions)
        return BatchSteps(rows, self.width, counts, self.node.pad_remainder)

    def locate_rows(self, epochs: Keys, positions: Positions) -> BatchRows:
        count = len(positions)
        return BatchRows(self.child.resolve(epochs, positions), count, count)

    def read(self, rows: BatchRows, context: ReadContext) -> Tree:
        node, inner = self.node, rows.inner
        run = context.read(self.child, inner)
        if node.collate is not None:
            batch = self._collate(as_records(run), inner)
        elif isinstance(run, Stacked) and not node.padding.lengths:
            batch = run.tree
        else:
            batch = stack(as_records(run), context.lend, self.child.namer(inner), node.padding)
        if not node.pad_remainder:
            return batch
        return pad_rows(batch, rows.count, rows.size, node.mask_key, node.padding, context.lend)

    def _collate(self, records: list[Any], rows: Any) -> Tree:
        fail = self.child.failer(rows, f"{self.stage}'s collate_fn")
        return whole(fail, self.node.collate, records)

    def keys(self, steps: BatchSteps) -> Keys:
        return self.child.keys(steps.rows)

    def row_keys(self, rows: BatchRows) -> Keys:
        return self.child.keys(rows.inner)

    def index(self, rows: BatchRows, number: int) -> tuple[int, str]:
        return self.child.index(rows.inner, number)


class ApplyBatch(BatchOperator):
    """A transform of whole batches that needs nothing else."""

    def __init__(self, stage: str, child: BatchOperator, transform: Transform) -> None:
        super().__init__(stage, child.size)
        self.child = child
        self.transform = transform

    def locate(self, epochs: Keys, numbers: Positions) -> Any:
        return self.child.steps(epochs, numbers)

    def locate_rows(self, epochs: Keys, positions: Positions) -> Any:
        return self.child.rows(epochs, positions)

    def read(self, rows: Any, context: ReadContext) -> Tree:
        return self.transform.on_batch(context.read(self.child, rows), None, self._fail)

    def _fail(self, number: int | None, error: Exception) -> LoaderxError:
        reason = say(error, self.stage, is_batch=True)
        return RecordError(f"{self.stage} failed on a batch: {reason}", stage=self.stage)

    def keys(self, steps: Any) -> Keys:
        return self.child.keys(steps)

    def row_keys(self, rows: Any) -> Keys:
        return self.child.row_keys(rows)

    def index(self, rows: Any, number: int) -> tuple[int, str]:
        return self.child.index(rows, number)


class ApplyBatchTagged(ApplyBatch):
    """A transform of batches that needs random keys of its rows, or the batch's position."""

    def __init__(
        self, stage: str, child: BatchOperator, transform: Transform, *, seed: int, ordinal: int
    ) -> None:
        super().__init__(stage, child, transform)
        self.seed, self.ordinal = seed, ordinal

    def locate(self, epochs: Keys, numbers: Positions) -> TaggedSteps:
        steps = self.child.steps(epochs, numbers)
        if self.transform.needs == "positions":
            return TaggedSteps(steps, numbers.tolist(), per_row=False)
        keys = stage_keys(self.child.keys(steps), self.seed, self.ordinal)
        return TaggedSteps(steps, keys, per_row=True)

    def locate_rows(self, epochs: Keys, positions: Positions) -> TaggedRows:
        rows = self.child.rows(epochs, positions)
        keys = stage_keys(self.child.row_keys(rows), self.seed, self.ordinal)
        return TaggedRows(rows, keys)

    def read(self, rows: TaggedRows, context: ReadContext) -> Tree:
        batch = context.read(self.child, rows.inner)
        return self.transform.on_batch(batch, rows.values, self._fail)

    def keys(self, steps: TaggedSteps) -> Keys:
        return self.child.keys(steps.inner)

    def row_keys(self, rows: TaggedRows) -> Keys:
        return self.child.row_keys(rows.inner)

    def index(self, rows: TaggedRows, number: int) -> tuple[int, str]:
        return self.child.index(rows.inner, number)


class MergeBatches(BatchOperator):
    """Concatenate and mix of batched datasets: every batch comes from one component."""

    def __init__(
        self, stage: str, children: Sequence[BatchOperator], router: Router, size: int | None
    ) -> None:
        super().__init__(stage, size)
        self.children = children
        self.router = router

    def locate(self, epochs: Keys, numbers: Positions) -> MergedSteps:
        which, epochs, inside = self.router.route(epochs, numbers)
        ordinal = np.zeros(len(numbers), np.int64)
        blocks: list[Any] = []
        offsets: list[int] = []
        offset = 0
        for component, child in enumerate(self.children):
            places = np.flatnonzero(which == component)
            ordinal[places] = np.arange(len(places))
            offsets.append(offset)
            if not places.size:
                blocks.append(None)
                continue
            mine = epochs if epochs.size == 1 else epochs[places]
            blocks.append(child.steps(mine, inside[places]))
            offset += blocks[-1].row_count
        return MergedSteps(which.tolist(), ordinal.tolist(), blocks, offsets)

    def read(self, rows: tuple[int, Any], context: ReadContext) -> Tree:
        component, inner = rows
        return context.read(self.children[component], inner)

    def keys(self, steps: MergedSteps) -> Keys:
        parts = [
            fold(child.keys(block), np.array([component], np.uint64), BRANCH)
            for component, (child, block) in enumerate(
                zip(self.children, steps.blocks, strict=True)
            )
            if block is not None
        ]
        return np.concatenate(parts)


class ZipBatches(BatchOperator):
    """Every batch comes from all components."""

    def __init__(
        self, stage: str, children: Sequence[BatchOperator], structure: Structure, size: int | None
    ) -> None:
        super().__init__(stage, size)
        self.children = children
        self.structure = structure

    def locate(self, epochs: Keys, numbers: Positions) -> ZippedSteps:
        return ZippedSteps([child.steps(epochs, numbers) for child in self.children])

    def read(self, rows: list[Any], context: ReadContext) -> Tree:
        return self.structure.build(
            [context.read(child, part) for child, part in zip(self.children, rows, strict=True)]
        )

    def keys(self, steps: ZippedSteps) -> Keys:
        first, *others = (
            child.keys(block) for child, block in zip(self.children, steps.blocks, strict=True)
        )
        for other in others:
            first = fold(first, other, BRANCH)
        return first


class Unbatch(RecordOperator):
    """unbatch: the rows of batches are records again.

    Batch functions work row by row, so any run of rows may be computed as a batch of its own.
    """

    def __init__(self, child: BatchOperator) -> None:
        super().__init__("unbatch()")
        self.child = child

    def locate(self, epochs: Keys, positions: Positions) -> Any:
        return self.child.rows(epochs, positions)

    def read(self, rows: Any, context: ReadContext) -> Stacked:
        batch = context.read(self.child, rows)
        problem = rows_problem(batch, len(rows))
        if problem is not None:
            text = f"unbatch() needs functions that keep the rows of their batch: {problem}"
            raise RecordError(text, stage=self.stage)
        return Stacked(batch, len(rows))

    def keys(self, rows: Any) -> Keys:
        return self.child.row_keys(rows)

    def index(self, rows: Any, number: int) -> tuple[int, str]:
        return self.child.index(rows, number)
