"""Units: the records of a fixed run of input positions, taken through the stages of a stream.

A `Chunk` is the records on their way through the stages.  Each record has a *key* (for draws), a
*place* (its position within the unit, by which windows are counted; places never decrease), and an
*origin* (its row in what was read, for messages).  Filtering drops all three with the record, a
shuffle moves records but not places, and packing gives a window's rows the window's first place.

`UnitPlan` makes the output of a unit from its number; it is shipped to workers.  What it gives is a
dict of arrays, or `Loose` records where they cannot be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError, RecordError, StackError
from loaderx.memory import Layout
from loaderx.order.epochs import child
from loaderx.order.permutation import permute
from loaderx.plan.job import Job
from loaderx.plan.records import (
    ReadSource,
    RecordOperator,
    Run,
    Stacked,
    as_records,
    as_stacked,
    rows_problem,
    say,
)
from loaderx.rng import BRANCH, CHILD, ORDER, PIECE, ROOT, Keys, fold, fold_int, stage_keys
from loaderx.sources import ArraySource
from loaderx.stages.bucketing import Bucketing, bucket
from loaderx.stages.functions import Function
from loaderx.stages.packing import Packing, pack
from loaderx.stages.stacking import Padding, stack
from loaderx.stages.transforms import Transform
from loaderx.tree import Array, flatten

Positions = npt.NDArray[np.int64]
Identify = Callable[[int], tuple[int | None, str]]
"""The source index of a row that was read, and its name."""


class Chunk:
    """Records between two stages of a unit."""

    __slots__ = ("epoch", "first", "identify", "keys", "meters", "origins", "places", "run")

    def __init__(
        self,
        run: Run,
        keys: Keys | None,
        places: Positions,
        origins: Positions,
        *,
        epoch: Keys,
        first: int,
        identify: Identify,
        meters: dict[int, tuple[int, int]],
    ) -> None:
        self.run, self.keys, self.places, self.origins = run, keys, places, origins
        self.epoch, self.first = epoch, first  # the unit: its epoch, its first position
        self.identify = identify
        self.meters = meters  # per stage that counts: records in, records out

    def __len__(self) -> int:
        return len(self.places)

    def with_run(self, run: Run) -> Chunk:
        return self._with(run, self.keys, self.places, self.origins)

    def _with(self, run: Run, keys: Keys | None, places: Positions, origins: Positions) -> Chunk:
        return Chunk(
            run,
            keys,
            places,
            origins,
            epoch=self.epoch,
            first=self.first,
            identify=self.identify,
            meters=self.meters,
        )

    def pick(self, index: Positions, job: Job, *, keep_places: bool = False) -> Chunk:
        """The records at these rows; with ``keep_places`` they take each other's places."""
        keys = None if self.keys is None else self.keys[index]
        places = self.places if keep_places else self.places[index]
        return self._with(_picked(self.run, index, job), keys, places, self.origins[index])

    def windows(self, window: int) -> Iterator[tuple[int, int, int]]:
        """Window number, and the records in it, for each window that has any."""
        if not len(self):
            return
        numbers = (self.places + self.first) // window
        borders = np.flatnonzero(np.diff(numbers)) + 1
        starts = [0, *borders.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            yield int(numbers[start]), start, stop

    def name(self, number: int) -> str:
        return self.identify(int(self.origins[number]))[1]

    def fail(self, stage: str) -> Callable[[int | None, Exception], LoaderxError]:
        def failed(number: int | None, error: Exception) -> LoaderxError:
            index: int | None = None
            name = f"a run of {len(self)} records"
            if number is not None:
                index, name = self.identify(int(self.origins[number]))
            return RecordError(f"{stage} failed on {name}: {say(error)}", index=index, stage=stage)

        return failed


def _picked(run: Run, index: Positions, job: Job) -> Run:
    if isinstance(run, list):
        return [run[i] for i in index.tolist()]
    leaves, structure = flatten(run.tree)
    count = len(index)
    targets = job.lend(Layout.of(*[((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]))
    for leaf, target in zip(leaves, targets, strict=True):
        leaf.take(index, 0, target, "clip")
    return Stacked(structure.build(targets), count)


class UnitStage:
    """One stage of a stream, on the records of a unit."""

    needs_keys = False
    wants: bool | None = None  # stacked records, single ones, or whatever comes
    is_one_to_one = False  # does every record stay, in its place?
    window: int | None = None
    meter: int | None = None

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        raise NotImplementedError


class Apply(UnitStage):
    """map, random_map, random_keys"""

    is_one_to_one = True

    def __init__(
        self, stage: str, transform: Transform, *, stacked: bool | None, seed: int, ordinal: int
    ) -> None:
        super().__init__(stage)
        self.transform, self.wants = transform, stacked
        self.seed, self.ordinal = seed, ordinal
        self.needs_keys = transform.needs == "keys"

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        extra = None
        if self.needs_keys:
            assert chunk.keys is not None
            extra = stage_keys(chunk.keys, self.seed, self.ordinal)
        fail = chunk.fail(self.stage)
        stacked = isinstance(chunk.run, Stacked) if self.wants is None else self.wants
        if not stacked:
            return chunk.with_run(self.transform.on_records(as_records(chunk.run), extra, fail))
        if not len(chunk):
            return chunk
        tree = self.transform.on_batch(as_stacked(chunk.run, job, chunk.name), extra, fail)
        problem = rows_problem(tree, len(chunk))
        if problem is not None:
            raise fail(None, problem)
        return chunk.with_run(Stacked(tree, len(chunk)))


class Branch(UnitStage):
    """Records of one component of a mix: their draws are theirs alone."""

    is_one_to_one = True

    def __init__(self, component: int) -> None:
        super().__init__("mix")
        self.component = np.array([component], np.uint64)

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        if chunk.keys is not None and len(chunk):
            keys = fold(chunk.keys, self.component, BRANCH)
            return chunk._with(chunk.run, keys, chunk.places, chunk.origins)
        return chunk


class Filter(UnitStage):
    """filter: ``f(record)`` is a bool, or with ``batched`` ``f(run)`` a mask."""

    def __init__(self, stage: str, function: Function, *, stacked: bool, meter: int) -> None:
        super().__init__(stage)
        self.function, self.wants, self.meter = function, stacked, meter
        self.borrows = False  # is it given views of the source, which must not go further?

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        count = len(chunk)
        if not count:
            return chunk
        fail = chunk.fail(self.stage)
        if self.wants:
            tree = as_stacked(chunk.run, job, chunk.name)
            chunk = chunk.with_run(Stacked(tree, count))
            mask = self._mask(tree, count, fail)
        else:
            records = as_records(chunk.run)
            chunk = chunk.with_run(records)
            mask = self._each(records, fail)
        kept = np.flatnonzero(mask)
        assert self.meter is not None
        before = chunk.meters.get(self.meter, (0, 0))
        chunk.meters[self.meter] = (before[0] + count, before[1] + len(kept))
        return chunk if len(kept) == count and not self.borrows else chunk.pick(kept, job)

    def _mask(self, tree: Any, count: int, fail: Any) -> Array:
        try:
            mask = np.asarray(self.function.call(tree))
        except Exception as error:
            raise fail(None, error) from error
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise fail(
                None,
                StackError(
                    f"it must return a bool for each of the {count} records it was given; got "
                    f"{mask.dtype} of shape {mask.shape}."
                ),
            )
        return mask

    def _each(self, records: list[Any], fail: Any) -> Array:
        call = self.function.call
        answers: list[Any] = []
        try:
            for record in records:
                answers.append(call(record))  # noqa: PERF401 (its length says who failed)
        except Exception as error:
            raise fail(len(answers), error) from error
        if not set(map(type, answers)) <= {bool, np.bool_}:
            for number, answer in enumerate(answers):
                if not _is_bool(answer):
                    problem = f"it must return True or False, got {answer!r:.60}"
                    kind = type(answer).__name__
                    raise fail(number, StackError(f"{problem} ({kind})."))
        return np.array([bool(answer) for answer in answers], np.bool_)


def _is_bool(answer: Any) -> bool:
    if isinstance(answer, (bool, np.bool_)):
        return True
    dtype, shape = getattr(answer, "dtype", None), getattr(answer, "shape", None)
    return shape == () and dtype == np.bool_


class FlatMap(UnitStage):
    """flat_map: any number of records for each."""

    wants = False

    def __init__(self, stage: str, function: Function) -> None:
        super().__init__(stage)
        self.function = function

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        call, fail = self.function.call, chunk.fail(self.stage)
        out: list[Any] = []
        counts: list[int] = []
        for number, record in enumerate(as_records(chunk.run)):
            try:
                made = self._listed(call(record))
            except Exception as error:
                raise fail(number, error) from error
            out += made
            counts.append(len(made))
        source = np.repeat(np.arange(len(chunk)), counts)
        keys = chunk.keys
        if keys is not None and len(source):
            numbers = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
            keys = fold(keys[source], numbers, CHILD)
        elif keys is not None:
            keys = keys[:0]
        return chunk._with(out, keys, chunk.places[source], chunk.origins[source])

    @staticmethod
    def _listed(made: Any) -> list[Any]:
        if made is None or isinstance(made, (str, bytes, dict, np.ndarray)):
            raise StackError(
                f"it must return a list (or another iterable) of records; got a "
                f"{type(made).__name__}."
            )
        records = list(made)
        if any(record is None for record in records):
            raise StackError("one of the records that it returned is None.")
        return records


class Shuffle(UnitStage):
    """shuffle(window=...): another order within each window."""

    def __init__(self, stage: str, window: int, seed: int, ordinal: int) -> None:
        super().__init__(stage)
        self.window = window
        self.key = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        assert self.window is not None
        parts = []
        for number, start, stop in chunk.windows(self.window):
            key = fold(fold(chunk.epoch, self.key, ORDER), np.array([number]), ORDER)
            parts.append(start + permute(np.arange(stop - start), stop - start, key))
        if not parts:
            return chunk
        return chunk.pick(np.concatenate(parts), job, keep_places=True)


class Pack(UnitStage):
    """pack: the records of each window laid into rows."""

    wants = False

    def __init__(self, stage: str, options: Packing, *, meter: int) -> None:
        super().__init__(stage)
        self.options, self.window, self.meter = options, options.window, meter

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        assert self.window is not None
        assert self.meter is not None
        records = as_records(chunk.run)
        parts = []
        for _, start, stop in chunk.windows(self.window):
            try:
                found = pack(
                    records[start:stop],
                    self.options,
                    lambda number, start=start: chunk.name(start + number),  # type: ignore[misc]
                    job.lend,
                )
            except StackError as error:
                raise RecordError(f"{self.stage}: {error}", stage=self.stage) from error
            if found is not None:
                parts.append((start, found))
        return self._joined(chunk, parts)

    def _joined(self, chunk: Chunk, parts: list[Any]) -> Chunk:
        if not parts:
            nothing = np.empty(0, np.int64)
            keys = None if chunk.keys is None else chunk.keys[:0]
            return chunk._with([], keys, nothing, nothing)
        assert self.meter is not None
        chunk.meters[self.meter] = (
            sum(found.capacity for _, found in parts),
            sum(found.tokens for _, found in parts),
        )
        first = np.concatenate([start + found.first for start, found in parts])
        places = np.repeat(
            [chunk.places[start] for start, _ in parts], [found.count for _, found in parts]
        )
        keys = None
        if chunk.keys is not None:
            begins = np.concatenate([found.start for _, found in parts])
            keys = fold(chunk.keys[first], begins, PIECE)
        trees = [Stacked(found.tree, found.count) for _, found in parts]
        run = trees[0] if len(trees) == 1 else joined(trees)
        return chunk._with(run, keys, places, chunk.origins[first])


def joined(runs: Sequence[Stacked]) -> Stacked:
    """Stacked runs of one structure as one run."""
    first, structure = flatten(runs[0].tree)
    columns = [flatten(run.tree)[0] for run in runs]
    leaves = [np.concatenate([column[i] for column in columns]) for i in range(len(first))]
    return Stacked(structure.build(leaves), sum(run.count for run in runs))


class Bucket(UnitStage):
    """bucket: the records of each window as finished batches."""

    wants = False

    def __init__(self, stage: str, options: Bucketing) -> None:
        super().__init__(stage)
        self.options, self.window = options, options.window

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        assert self.window is not None
        records = as_records(chunk.run)
        out: list[Any] = []
        firsts: list[int] = []
        for _, start, stop in chunk.windows(self.window):
            try:
                batches = bucket(
                    records[start:stop],
                    self.options,
                    lambda number, start=start: chunk.name(start + number),  # type: ignore[misc]
                    job.lend,
                )
            except StackError as error:
                raise RecordError(f"{self.stage}: {error}", stage=self.stage) from error
            for batch in batches:
                rows = np.array(batch.rows) + start
                firsts.append(int(rows[0]))
                keys = None if chunk.keys is None else chunk.keys[rows]
                out.append((batch.tree, keys, len(rows)))
        first = np.array(firsts, np.int64)
        keys = None if chunk.keys is None else chunk.keys[first]
        places = np.sort(chunk.places[first])
        return chunk._with(out, keys, places, chunk.origins[first])


class Guard(UnitStage):
    """on_error: of the stages before it, a record that fails is left out."""

    is_one_to_one = True

    def __init__(self, stage: str, policy: Any) -> None:
        super().__init__(stage)
        self.policy = policy

    def read(self, chunk: Chunk, job: Job) -> Chunk:
        return chunk

    def drops(self, error: RecordError) -> bool:
        if error.index is None:
            return False
        answer = self.policy if isinstance(self.policy, str) else self.policy(error)
        if answer not in ("raise", "replace"):
            raise RecordError(
                f"the function given to on_error must return 'raise' or 'replace', got {answer!r}.",
                stage=self.stage,
            ) from error
        return bool(answer == "replace")


def run_stages(stages: Sequence[UnitStage], chunk: Chunk, job: Job) -> Chunk:
    """Takes a chunk through the stages."""
    guards = [number for number, stage in enumerate(stages) if isinstance(stage, Guard)]
    for number, stage in enumerate(stages):
        guard = next((g for g in guards if g > number), None)
        try:
            chunk = job.read(stage, chunk)
        except RecordError as error:
            if guard is None or stage.window is not None:
                raise
            policy = stages[guard]
            assert isinstance(policy, Guard)
            if not policy.drops(error):
                raise
            chunk = _without_failures(stage, chunk, job, policy)
    return chunk


def _without_failures(stage: UnitStage, chunk: Chunk, job: Job, guard: Guard) -> Chunk:
    """What the stage makes of each record alone; those that fail twice are dropped."""
    parts: list[Chunk] = []
    for number in range(len(chunk)):
        one = chunk.pick(np.array([number]), job)
        try:
            parts.append(job.read(stage, one))
        except RecordError as error:
            if not guard.drops(error):
                raise
            job.replaced += 1
    if not parts:
        return chunk.pick(np.empty(0, np.int64), job)
    records: list[Any] = []
    for part in parts:
        records += as_records(part.run) if len(part) else []
    keys = None if chunk.keys is None else np.concatenate([_keys(part) for part in parts])
    places = np.concatenate([part.places for part in parts])
    return chunk._with(records, keys, places, np.concatenate([part.origins for part in parts]))


def _keys(chunk: Chunk) -> Keys:
    assert chunk.keys is not None
    return chunk.keys


# Outputs --------------------------------------------------------------------------------------


NO_METERS = np.empty((0, 3), np.int64)


class Loose:
    """Records that were not stacked, with a name each where they should have been."""

    __slots__ = ("keys", "meters", "names", "records")

    def __init__(self, records: list[Any], keys: Any, meters: Any, names: Any = None) -> None:
        self.records, self.keys, self.meters, self.names = records, keys, meters, names


class Finish:
    """The last step of a unit: records stacked as batches will want them, where that can be."""

    def __init__(self, *, stacked: bool, padding: Padding) -> None:
        self.stacked, self.padding = stacked, padding

    def output(self, chunk: Chunk, job: Job) -> Any:
        """A dict of arrays, or `Loose`."""
        meters = np.array(
            [[meter, *counts] for meter, counts in sorted(chunk.meters.items())], np.int64
        ).reshape(-1, 3)
        keys = chunk.keys
        if not self.stacked or not len(chunk):
            return Loose(as_records(chunk.run) if len(chunk) else [], keys, meters)
        tree = chunk.run.tree if isinstance(chunk.run, Stacked) else None
        if tree is None or self.padding.lengths:
            records = as_records(chunk.run)
            try:
                tree = stack(records, job.lend, chunk.name, self.padding)
            except StackError:  # the batch may fit together even if the unit does not
                names = [chunk.name(number) for number in range(len(records))]
                return Loose(records, keys, meters, names)
        leaves, _ = flatten(tree)
        if not all(isinstance(leaf, np.ndarray) and leaf.ndim for leaf in leaves):
            return Loose(as_records(chunk.run), keys, meters)
        return {"rows": tree, "keys": keys, "meters": meters}


class UnitPlan:
    """What to do for a unit of a dataset that is read by index."""

    def __init__(
        self,
        operator: RecordOperator,
        stages: Sequence[UnitStage],
        finish: Finish,
        *,
        rows: int,
        length: int | None,
        longest: int,
        passes: Sequence[tuple[int, int]],
        keyed: bool,
    ) -> None:
        self.operator, self.stages, self.finish = operator, list(stages), finish
        self.rows, self.length = rows, length
        self.longest = longest  # of the datasets below, for one that is endless
        self.passes = list(passes)  # (how many, ordinal) of the repeats above, outermost first
        self.keyed = keyed
        self.window = self._borrowed()

    def _borrowed(self) -> Callable[[int, int], Any] | None:
        """Reads a unit as views of the source: where a mask picks rows from it, that is enough."""
        first = self.stages[0] if self.stages else None
        operator = self.operator
        if not isinstance(first, Filter) or not first.wants or operator.moves:
            return None
        if not isinstance(operator, ReadSource) or not isinstance(operator.source, ArraySource):
            return None
        first.borrows = True
        return operator.source.window

    @property
    def units(self) -> int | None:
        return None if self.length is None else -(-self.length // self.rows)

    def in_pass(self, rounds: int, lanes: int) -> tuple[int, int]:
        """The pass of a round over all lanes, and the round within it."""
        return divmod(rounds, rounds_of(self.units, lanes))

    def rounds_until(self, stop: int, lanes: int) -> int:
        """Rounds before pass ``stop`` of the outermost repeat."""
        for count, _ in self.passes[1:]:
            stop *= count
        return stop * rounds_of(self.units, lanes)

    def pass_number(self, path: Sequence[int]) -> int:
        """One number for the passes of all repeats above."""
        number = 0
        for (count, _), inside in zip(self.passes, path, strict=True):
            if inside >= count:
                raise LoaderxError(
                    f"a dataset inside a repeated mix started again more than {count} times in "
                    "one pass. Write .repeat() on each dataset, and mix those."
                )
            number = number * count + inside
        return number

    def epoch(self, number: int) -> Keys:
        """The epoch key of a pass."""
        path = []
        for count, _ in reversed(self.passes):
            number, inside = divmod(number, count)
            path.append(inside)
        key = ROOT
        for (_, ordinal), inside in zip(self.passes, reversed(path), strict=True):
            key = child(key, np.array([inside]), ordinal)
        return key

    def make(self, pass_number: int, unit: int, job: Job) -> Any:
        """The output of a unit."""
        first = unit * self.rows
        stop = first + self.rows if self.length is None else min(first + self.rows, self.length)
        epoch = self.epoch(pass_number)
        found = self.operator.resolve(epoch, np.arange(first, stop))
        read = self._read(found, job)
        chunk = Chunk(
            read[0],
            self.operator.keys(found)[read[1]] if self.keyed else None,
            read[1],
            read[1],
            epoch=epoch,
            first=first,
            identify=lambda number: self.operator.index(found, number),
            meters={},
        )
        return self.finish.output(run_stages(self.stages, chunk, job), job)

    def _read(self, rows: Any, job: Job) -> tuple[Run, Positions]:
        everything = np.arange(len(rows))
        if self.window is not None:
            first = int(rows.index[0])
            views = self.window(first, first + len(rows))
            if views is not None:
                return Stacked(views, len(rows)), everything
        try:
            return job.read(self.operator, rows), everything
        except RecordError as error:
            guard = next((stage for stage in self.stages if isinstance(stage, Guard)), None)
            if guard is None or not guard.drops(error):
                raise
        found: list[Any] = []
        kept: list[int] = []
        for number in range(len(rows)):
            try:
                found += as_records(job.read(self.operator, rows.cut(number, number + 1)))
                kept.append(number)
            except RecordError as error:
                if not guard.drops(error):
                    raise
                job.replaced += 1
        return found, np.array(kept, np.int64)


ENDLESS_ROUNDS = 1 << 34


def rounds_of(units: int | None, lanes: int) -> int:
    """Rounds over all lanes in one pass; the last may lack units for the last lanes."""
    return ENDLESS_ROUNDS if units is None else -(-units // lanes)
