"""Operators on records.

`resolve` turns addresses into `Rows`, vectorised and ahead of time; `read` turns rows into a run of
records: a plain list, or `Stacked` arrays where nobody has to look at single records.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError, RecordError, StackError
from loaderx.memory import Layout
from loaderx.reading.addresses import MergedRows, SourceRows, TaggedRows, ZippedRows
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import say
from loaderx.reading.moves import Move
from loaderx.reading.routing import Router
from loaderx.rng import BRANCH, ROW, Keys, fold, stage_keys
from loaderx.sources.base import Source
from loaderx.stages.columns import records_of, wrong_rows
from loaderx.stages.stacking import RESIZE, stack
from loaderx.stages.transforms import Fail, Transform
from loaderx.tree import Array, Structure, Tree, flatten

Positions = npt.NDArray[np.int64]


class Stacked:
    """A run of records as one tree of arrays."""

    __slots__ = ("count", "tree")

    def __init__(self, tree: Tree, count: int) -> None:
        self.tree = tree
        self.count = count


class Chosen(Stacked):
    """Some rows of arrays that belong to the source: where they lie, not yet copied."""

    __slots__ = ("rows",)

    def __init__(self, tree: Tree, rows: Positions) -> None:
        super().__init__(tree, len(rows))
        self.rows = rows


Run = Stacked | list[Any]


class RecordOperator:
    """The base: moves rows first, then finds them."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.moves: list[Move] = []  # outermost first

    def resolve(self, epochs: Keys, positions: Positions) -> Any:
        for move in self.moves:
            epochs, positions = move.steps(epochs, positions)
        return self.locate(epochs, positions)

    def locate(self, epochs: Keys, positions: Positions) -> Any:
        raise NotImplementedError

    def read(self, rows: Any, context: ReadContext) -> Run:
        raise NotImplementedError

    def keys(self, rows: Any) -> Keys:
        """A key per row, the same wherever the row stands."""
        raise NotImplementedError

    def index(self, rows: Any, number: int) -> tuple[int, str]:
        """A row's index in its source, and the record's name for messages."""
        raise NotImplementedError

    def relocate(self, rows: Any, attempt: int) -> Any:
        """The rows that stand in for these when they cannot be read."""
        raise NotImplementedError

    def namer(self, rows: Any) -> Callable[[int], str]:
        return lambda number: self.index(rows, number)[1]

    def failer(self, rows: Any, stage: str) -> Callable[[int | None, Exception], LoaderxError]:
        """Errors of a stage above this operator, as `RecordError`."""

        def fail(number: int | None, error: Exception) -> LoaderxError:
            if number is None:
                index, name = None, f"a run of {len(rows)} records"
            else:
                index, name = self.index(rows, number)
            return failed(stage, name, index, error)

        return fail


def failed(stage: str, record: str, index: int | None, error: BaseException) -> RecordError:
    """What is raised when a stage fails."""
    reason = say(error, stage, is_batch=index is None)
    detail = f"{stage} failed on {record}: {reason}"
    return RecordError(detail, index=index, stage=stage, record=record, reason=reason)


def within(dataset: int, error: RecordError) -> RecordError:
    """The same error, seen from a join of several datasets."""
    error.detail = f"dataset {dataset}: {error.detail}"
    if error.record:
        error.record += f" of dataset {dataset}"
    return error


class ReadSource(RecordOperator):
    """Records of a source, gathered in one call where it can do that."""

    def __init__(self, source: Source, *, stacked: bool) -> None:
        super().__init__("source")
        self.source = source
        self.stacked = stacked and source.gathers
        self.lock = contextlib.nullcontext() if source.thread_safe else threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        lock = contextlib.nullcontext() if state["source"].thread_safe else threading.Lock()
        self.__dict__.update(state, lock=lock)

    def locate(self, epochs: Keys, positions: Positions) -> SourceRows:
        return SourceRows(epochs, positions)

    def read(self, rows: SourceRows, context: ReadContext) -> Run:
        index = rows.index
        try:
            with self.lock:
                if self.stacked:
                    return Stacked(self.source.gather(index, context.lend), len(index))
                return self.source.records(index)
        except LoaderxError as error:  # the source itself is at fault, not a record
            raise self.failer(rows, "reading the source")(None, error) from error
        except Exception:
            pass  # what follows is no consequence of it: a traceback must not show both
        return self._one_by_one(rows)

    def _one_by_one(self, rows: SourceRows) -> Run:
        """Reads again, each record alone: to learn which one fails, or because it failed once."""
        fail = self.failer(rows, "reading the source")
        found: list[Any] = []
        for number in range(len(rows)):
            try:
                with self.lock:
                    found += self.source.records(rows.index[number : number + 1])
            except Exception as error:
                raise fail(number, error) from error
        return found

    def keys(self, rows: SourceRows) -> Keys:
        return fold(rows.epochs, rows.index, ROW)

    def index(self, rows: SourceRows, number: int) -> tuple[int, str]:
        index = int(rows.index[number])
        return index, f"record {index}"


class Inner(RecordOperator):
    """An operator above one other."""

    def __init__(self, stage: str, child: RecordOperator) -> None:
        super().__init__(stage)
        self.child = child

    def locate(self, epochs: Keys, positions: Positions) -> Any:
        return self.child.resolve(epochs, positions)

    def keys(self, rows: Any) -> Keys:
        return self.child.keys(rows)

    def index(self, rows: Any, number: int) -> tuple[int, str]:
        return self.child.index(rows, number)

    def relocate(self, rows: Any, attempt: int) -> Any:
        return self.child.relocate(rows, attempt)


class Apply(Inner):
    """A transform that needs nothing but the records."""

    def __init__(
        self, stage: str, child: RecordOperator, transform: Transform, *, stacked: bool
    ) -> None:
        super().__init__(stage, child)
        self.transform = transform
        self.stacked = stacked

    def read(self, rows: Any, context: ReadContext) -> Run:
        return self.apply(rows, None, context)

    def apply(self, rows: Any, extra: Any, context: ReadContext) -> Run:
        run = context.read(self.child, rows)
        fail = self.child.failer(rows, self.stage)
        if not self.stacked:
            return self.transform.on_records(as_records(run), extra, fail)
        count = len(rows)
        tree = as_stacked(run, context, self.child.namer(rows), self.stage)
        tree = self.transform.on_batch(tree, extra, fail)
        return run_of(tree, count, fail)


class ApplyTagged(Apply):
    """A transform that needs random keys or positions of its rows."""

    def __init__(
        self,
        stage: str,
        child: RecordOperator,
        transform: Transform,
        *,
        stacked: bool,
        seed: int,
        ordinal: int,
    ) -> None:
        super().__init__(stage, child, transform, stacked=stacked)
        self.seed, self.ordinal = seed, ordinal

    def locate(self, epochs: Keys, positions: Positions) -> TaggedRows:
        rows = self.child.resolve(epochs, positions)
        return TaggedRows(rows, self._tags(rows, positions))

    def _tags(self, rows: Any, positions: Positions) -> Any:
        if self.transform.needs == "positions":
            return positions
        return stage_keys(self.child.keys(rows), self.seed, self.ordinal)

    def read(self, rows: TaggedRows, context: ReadContext) -> Run:
        return self.apply(rows.inner, rows.values, context)

    def keys(self, rows: TaggedRows) -> Keys:
        return self.child.keys(rows.inner)

    def index(self, rows: TaggedRows, number: int) -> tuple[int, str]:
        return self.child.index(rows.inner, number)

    def relocate(self, rows: TaggedRows, attempt: int) -> TaggedRows:
        inner = self.child.relocate(rows.inner, attempt)
        return TaggedRows(inner, self._tags(inner, rows.values))


class Merge(RecordOperator):
    """Concatenate and mix: every row comes from one component."""

    def __init__(self, stage: str, children: Sequence[RecordOperator], router: Router) -> None:
        super().__init__(stage)
        self.children = children
        self.router = router

    def locate(self, epochs: Keys, positions: Positions) -> MergedRows:
        parts = []
        which, epochs, positions = self.router.route(epochs, positions)
        for component, child in enumerate(self.children):
            places = np.flatnonzero(which == component)
            if places.size:
                mine = epochs if epochs.size == 1 else epochs[places]
                parts.append((component, places, child.resolve(mine, positions[places])))
        return MergedRows(len(which), parts)

    def read(self, rows: MergedRows, context: ReadContext) -> Run:
        runs = [
            (places, self._read_part(component, part, context))
            for component, places, part in rows.parts
        ]
        if len(runs) == 1:
            only: Run = runs[0][1]
            return only
        if all(isinstance(run, Stacked) for _, run in runs):
            return self._interleave(rows, runs, context)
        out: list[Any] = [None] * len(rows)
        for places, run in runs:
            for place, record in zip(places.tolist(), as_records(run), strict=True):
                out[place] = record
        return out

    def _read_part(self, component: int, rows: Any, context: ReadContext) -> Any:
        before = len(context.failures)
        try:
            run = context.read(self.children[component], rows)
        except RecordError as error:
            raise within(component, error) from error.__cause__
        if len(context.failures) > before:
            context.name_failures(before, f" of dataset {component}")
        return run

    def _interleave(self, rows: MergedRows, runs: list[Any], context: ReadContext) -> Stacked:
        first, structure = flatten(runs[0][1].tree)
        targets = context.lend(
            Layout.of(*[((len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in first])
        )
        for (component, _, _), (places, run) in zip(rows.parts, runs, strict=True):
            leaves, other = flatten(run.tree)
            if other is not structure:
                raise StackError(
                    f"{self.stage}: dataset {component} has the leaves {other.paths()}, "
                    f"dataset {rows.parts[0][0]} has {structure.paths()}."
                )
            for path, target, leaf in zip(structure.paths(), targets, leaves, strict=True):
                if leaf.dtype != target.dtype or leaf.shape[1:] != target.shape[1:]:
                    raise StackError(
                        f'{self.stage}: leaf "{path}" is {leaf.dtype}{list(leaf.shape[1:])} in '
                        f"dataset {component} and {target.dtype}{list(target.shape[1:])} in "
                        f"dataset {rows.parts[0][0]}."
                    )
                target[places] = leaf
        return Stacked(structure.build(targets), len(rows))

    def keys(self, rows: MergedRows) -> Keys:
        out = np.empty(len(rows), np.uint64)
        for component, places, part in rows.parts:
            branch = np.array([component], np.uint64)
            out[places] = fold(self.children[component].keys(part), branch, BRANCH)
        return out

    def index(self, rows: MergedRows, number: int) -> tuple[int, str]:
        for component, places, part in rows.parts:
            found = np.flatnonzero(places == number)
            if found.size:
                index, name = self.children[component].index(part, int(found[0]))
                return index, f"{name} of dataset {component}"
        raise IndexError(number)

    def relocate(self, rows: MergedRows, attempt: int) -> MergedRows:
        parts = [
            (component, places, self.children[component].relocate(part, attempt))
            for component, places, part in rows.parts
        ]
        return MergedRows(len(rows), parts)


class Zip(RecordOperator):
    """Every row comes from all components."""

    def __init__(
        self, stage: str, children: Sequence[RecordOperator], structure: Structure
    ) -> None:
        super().__init__(stage)
        self.children = children
        self.structure = structure

    def locate(self, epochs: Keys, positions: Positions) -> ZippedRows:
        return ZippedRows([child.resolve(epochs, positions) for child in self.children])

    def read(self, rows: ZippedRows, context: ReadContext) -> Run:
        runs = [
            context.read(child, part) for child, part in zip(self.children, rows.parts, strict=True)
        ]
        build = self.structure.build
        if all(isinstance(run, Stacked) for run in runs):
            return Stacked(build([run.tree for run in runs]), len(rows))
        return [build(row) for row in zip(*map(as_records, runs), strict=True)]

    def keys(self, rows: ZippedRows) -> Keys:
        first, *others = (
            child.keys(part) for child, part in zip(self.children, rows.parts, strict=True)
        )
        for other in others:
            first = fold(first, other, BRANCH)
        return first

    def index(self, rows: ZippedRows, number: int) -> tuple[int, str]:
        return self.children[0].index(rows.parts[0], number)


def as_records(run: Run) -> list[Any]:
    """The run's records one by one; views of its arrays where it is stacked."""
    if isinstance(run, list):
        return run
    leaves, structure = flatten(run.tree)
    if not leaves:
        return [run.tree] * run.count
    return [structure.build(row) for row in zip(*leaves, strict=True)]


def as_stacked(run: Run, context: ReadContext, name: Callable[[int], str], stage: str) -> Tree:
    """The run as one tree of arrays that the caller owns, for a stage of stacked runs."""
    if isinstance(run, Stacked):
        return run.tree
    try:
        return stack(run, context.lend, name)
    except StackError as error:
        problem = str(error).replace(RESIZE, _NOT_STACKED)
        raise StackError(f"{stage} is given stacked runs of records: {problem}") from error


_NOT_STACKED = (  # there is no `batch` yet that could pad
    "batched=True needs records that can be stacked: drop or pad that leaf in a .map() before it, "
    "or leave batched=True out."
)


def run_of(tree: Tree, count: int, fail: Fail) -> Run:
    """What a function made of a stacked run; lists of rows, which may differ, become records."""
    problem = rows_problem(tree, count)
    if problem is None:
        return Stacked(tree, count)
    records = records_of(tree, count)
    if records is None:
        if miscounted := wrong_rows(tree, count):
            raise fail(None, StackError(f"{miscounted}: it must return one for each."))
        also = f"Lists of {count} rows, which may differ in length, will do, too."
        raise fail(None, StackError(f"{problem} {also}"))
    return records


def rows_problem(tree: Tree, count: int) -> StackError | None:
    """What is wrong with a batch that should have ``count`` rows; None if nothing is."""
    for leaf in flatten(tree)[0]:
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or len(leaf) != count:
            return StackError(
                f"it must return arrays of {count} rows, one for each record it was given; "
                f"got {_shape_of(leaf)}."
            )
    return None


def _shape_of(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray):
        array: Array = leaf
        return f"an array of shape {array.shape}"
    if isinstance(leaf, list):
        return f"a list of length {len(leaf)}"
    return f"a {type(leaf).__name__}"
