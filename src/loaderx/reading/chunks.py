"""The records of a unit on their way through the stages of a stream.

In a `Chunk` each record has a *key* (for draws), a *place* (its position within the unit, by which
windows are counted; places never decrease), and an *origin* (its row in what was read, for
messages).  Filtering drops all three with the record, a shuffle moves records but not places, and
packing gives a window's rows the window's first place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError, RecordError, StackError
from loaderx.memory import Layout
from loaderx.order.permutation import permute
from loaderx.reading.context import ReadContext
from loaderx.reading.guards import decide
from loaderx.reading.records import (
    Chosen,
    Run,
    Stacked,
    as_records,
    as_stacked,
    failed,
    run_of,
)
from loaderx.rng import BRANCH, CHILD, ORDER, PIECE, Keys, fold, fold_int, stage_keys
from loaderx.stages.bucketing import bucket
from loaderx.stages.functions import Function
from loaderx.stages.options import Bucketing, Packing
from loaderx.stages.packing import pack
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

    def pick(self, index: Positions, context: ReadContext, *, keep_places: bool = False) -> Chunk:
        """The records at these rows; with ``keep_places`` they take each other's places."""
        keys = None if self.keys is None else self.keys[index]
        places = self.places if keep_places else self.places[index]
        return self._with(_picked(self.run, index, context), keys, places, self.origins[index])

    def pick_later(self, index: Positions) -> Chunk:
        """The same records as `pick` gives, where they lie."""
        assert isinstance(self.run, Stacked)
        keys = None if self.keys is None else self.keys[index]
        run = Chosen(self.run.tree, index)
        return self._with(run, keys, self.places[index], self.origins[index])

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
        def fail(number: int | None, error: Exception) -> LoaderxError:
            index: int | None = None
            name = f"a run of {len(self)} records"
            if number is not None:
                index, name = self.identify(int(self.origins[number]))
            return failed(stage, name, index, error)

        return fail


def _picked(run: Run, index: Positions, context: ReadContext) -> Run:
    if isinstance(run, list):
        return [run[i] for i in index.tolist()]
    leaves, structure = flatten(run.tree)
    count = len(index)
    targets = context.lend(Layout.of(*[((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]))
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

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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
        given = as_stacked(chunk.run, context, chunk.name, self.stage)
        tree = self.transform.on_batch(given, extra, fail)
        return chunk.with_run(run_of(tree, len(chunk), fail))


class Branch(UnitStage):
    """Records of one component of a mix: their draws are theirs alone."""

    is_one_to_one = True

    def __init__(self, component: int) -> None:
        super().__init__("mix")
        self.component = np.array([component], np.uint64)

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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
        self.lends = False  # may it say which rows of them it keeps, and leave the copying?

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
        count = len(chunk)
        if not count:
            return chunk
        fail = chunk.fail(self.stage)
        if self.wants:
            tree = as_stacked(chunk.run, context, chunk.name, self.stage)
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
        if self.lends and len(kept):
            return chunk.pick_later(kept)
        return chunk if len(kept) == count and not self.borrows else chunk.pick(kept, context)

    def __getstate__(self) -> dict[str, Any]:
        """In another process, rows are worth copying, and nothing else."""
        return {**self.__dict__, "lends": False}

    def _mask(self, tree: Any, count: int, fail: Any) -> Array:
        try:
            leaves, structure = flatten(tree)  # what it adds or takes out concerns nobody else
            mask = np.asarray(self.function.call(structure.build(leaves)))
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

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
        assert self.window is not None
        parts = []
        for number, start, stop in chunk.windows(self.window):
            key = fold(fold(chunk.epoch, self.key, ORDER), np.array([number]), ORDER)
            parts.append(start + permute(np.arange(stop - start), stop - start, key))
        if not parts:
            return chunk
        return chunk.pick(np.concatenate(parts), context, keep_places=True)


class Pack(UnitStage):
    """pack: the records of each window laid into rows."""

    wants = False

    def __init__(self, stage: str, options: Packing, *, meter: int) -> None:
        super().__init__(stage)
        self.options, self.window, self.meter = options, options.window, meter

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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
                    context.lend,
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
        run = joined([Stacked(found.tree, found.count) for _, found in parts])
        return chunk._with(run, keys, places, chunk.origins[first])


def joined(runs: Sequence[Stacked]) -> Run:
    """Stacked runs as one run: of arrays where they look alike, else of records."""
    if len(runs) == 1:
        return runs[0]
    flat = [flatten(run.tree) for run in runs]
    looks = {(shape, *[(leaf.dtype, leaf.shape[1:]) for leaf in leaves]) for leaves, shape in flat}
    if len(looks) > 1:  # keys in another order, or another dtype: whoever stacks them will see
        return [record for run in runs for record in as_records(run)]
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    tree = flat[0][1].build([np.concatenate(column) for column in columns])
    return Stacked(tree, sum(run.count for run in runs))


class Bucket(UnitStage):
    """bucket: the records of each window as finished batches."""

    wants = False

    def __init__(self, stage: str, options: Bucketing) -> None:
        super().__init__(stage)
        self.options, self.window = options, options.window

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
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
                    context.lend,
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

    def read(self, chunk: Chunk, context: ReadContext) -> Chunk:
        return chunk

    def drops(self, error: RecordError) -> bool:
        if error.index is None:
            return False
        # "replace" and "skip" are the same in a stream.
        return decide(self.policy, error) != "raise"


def run_stages(stages: Sequence[UnitStage], chunk: Chunk, context: ReadContext) -> Chunk:
    """Takes a chunk through the stages."""
    guards = [number for number, stage in enumerate(stages) if isinstance(stage, Guard)]
    for number, stage in enumerate(stages):
        guard = next((g for g in guards if g > number), None)
        try:
            chunk = context.read(stage, chunk)
        except RecordError as error:
            if guard is None or stage.window is not None or error.index is None:
                raise
        else:
            continue
        policy = stages[guard]
        assert isinstance(policy, Guard)
        chunk = _without_failures(stage, chunk, context, policy)
    return chunk


def _without_failures(stage: UnitStage, chunk: Chunk, context: ReadContext, guard: Guard) -> Chunk:
    """What the stage makes of each record alone; those that fail twice are dropped."""
    parts: list[Chunk] = []
    for number in range(len(chunk)):
        one = chunk.pick(np.array([number]), context)
        try:
            parts.append(context.read(stage, one))
        except RecordError as error:
            if not guard.drops(error):
                raise
            context.add_failure(error)
    if not parts:
        return chunk.pick(np.empty(0, np.int64), context)
    records: list[Any] = []
    for part in parts:
        records += as_records(part.run) if len(part) else []
    keys = None if chunk.keys is None else np.concatenate([_keys(part) for part in parts])
    places = np.concatenate([part.places for part in parts])
    return chunk._with(records, keys, places, np.concatenate([part.origins for part in parts]))


def _keys(chunk: Chunk) -> Keys:
    assert chunk.keys is not None
    return chunk.keys
