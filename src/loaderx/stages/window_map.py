"""A stage that a user wrote (`WindowStage`): its node, and how it is carried out."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.functions import Function
from loaderx.chain.node import Node
from loaderx.chain.stream_stage import StreamStage
from loaderx.errors import ArgumentTypeError, ChainError, RecordError, StackError
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import USER_ERRORS, failed, raise_if_signalled
from loaderx.reading.rows import Positions, Record, Rows, joined
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import CHILD, Keys, fold, record_generators, stage_keys
from loaderx.stages.seed import seed_of
from loaderx.stages.window_stage import WindowStage, is_random

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


def is_window_stage(transform: object) -> TypeGuard[WindowStage]:
    """Whether it is a stage that a user wrote, or the class of one, which `map_windows` refuses."""
    return issubclass(transform if isinstance(transform, type) else type(transform), WindowStage)


def map_windows(input: Node, stage: WindowStage) -> WindowMapped:
    """The node of a stage that a user wrote."""
    if isinstance(stage, type):
        raise ArgumentTypeError(
            f"`apply` was given the class {stage.__name__}; pass an instance: {stage.__name__}(...)"
        )
    call = stage.random_map_window if is_random(type(stage)) else stage.map_window
    return WindowMapped(input, stage, Function(call, type(stage).__name__))


class WindowMapped(StreamStage):
    """The records of each window, changed by a user's stage."""

    custom: WindowStage
    function: Function

    fill_depends_on_order = True  # it may: the user's code is not known

    def __post_init__(self) -> None:
        if self.input.batched:
            raise ChainError(
                f"{self.function.name} after batch: it works on records. Apply it before "
                ".batch(...)."
            )
        super().__post_init__()

    @property
    def stage(self) -> str:
        return f"apply({self.custom!r})"

    def fingerprint(self, seed: int) -> str:
        named = {"seed": seed_of(self.custom.seed, seed)} if self.is_random else {}
        return stage_text(self.function.name, named, self.custom, without=("seed",))

    @property
    def window(self) -> int | None:
        return self.custom.window

    @property
    def is_random(self) -> bool:
        return is_random(type(self.custom))

    @property
    def needs_keys(self) -> bool:
        return self.is_random

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.function),)

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        seed = seed_of(self.custom.seed, build.seed) if self.is_random else None
        return MapWindows(self.stage, self.function, seed=seed, ordinal=self.random_stages)


class MapWindows(UnitStage):
    """Calls the user's method on each window of a unit."""

    wants = False

    def __init__(self, stage: str, function: Function, *, seed: int | None, ordinal: int) -> None:
        super().__init__(stage)
        self.function = function
        self.seed, self.ordinal = seed, ordinal  # seed is None if it draws nothing

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        return self._read(rows, context, None)

    def read_without_failures(self, rows: Rows, context: ReadContext, guard: UnitStage) -> Rows:
        return self._read(rows, context, guard)

    def _read(self, rows: Rows, context: ReadContext, guard: UnitStage | None) -> Rows:
        assert self.window is not None
        parts: list[Rows] = []
        for _, start, stop in rows.windows(self.window):
            window = rows.cut(start, stop)
            try:
                parts.append(self._made(window))
            except USER_ERRORS as error:
                raise_if_signalled(error)
                left = self._without_failures(window, error, context, guard)
                parts.append(self._made_or_raise(left))
        return joined(parts) if parts else rows.derived([], np.empty(0, np.int64))

    def _made(self, window: Rows) -> Rows:
        if not len(window):
            return window.derived([], np.empty(0, np.int64))
        numbers, records = _pairs(self._call(window), len(window))
        sources = np.array(numbers, np.int64)
        assert window.places is not None
        return window.derived(
            records,
            sources,
            keys=None if window.keys is None else _keys(window.keys, sources),
            places=np.sort(window.places[sources]),
        )

    def _call(self, window: Rows) -> object:
        records = list(window.records())  # a list of its own, which it may sort
        if self.seed is None:
            return self.function.call(records)
        assert window.keys is not None
        keys = stage_keys(window.keys[:1], self.seed, self.ordinal)
        return self.function.call(records, next(record_generators(keys)))

    # Failures ---------------------------------------------------------------------------------

    def _without_failures(
        self, window: Rows, error: BaseException, context: ReadContext, guard: UnitStage | None
    ) -> Rows:
        """The window without the records at fault; raises if nothing guards it, or no record is."""
        kept: list[int] = []
        for number in range(len(window)):
            failure = self._failure(window, number)
            if failure is None:
                kept.append(number)
            elif guard is None or not guard.drops(failure):
                raise failure
            else:
                context.add_failure(failure)
        if len(kept) == len(window):
            raise self._failed_together(window, error) from error
        return window.pick(np.array(kept, np.int64), context.lend)

    def _failure(self, window: Rows, number: int) -> RecordError | None:
        """The error of the stage on a record alone; None if it does not fail."""
        try:
            self._made(window.pick(np.array([number])))
        except USER_ERRORS as error:
            index, name = window.identity(number)
            failure = failed(self.stage, name, index, error)
            failure.__cause__ = error
            return failure
        return None

    def _made_or_raise(self, window: Rows) -> Rows:
        try:
            return self._made(window)
        except USER_ERRORS as error:
            raise self._failed_together(window, error) from error

    def _failed_together(self, window: Rows, error: BaseException) -> RecordError:
        last = len(window) - 1
        which = f"{last + 1} records together ({window.name(0)} to {window.name(last)})"
        return failed(self.stage, which, None, error)


def _keys(keys: Keys, sources: Positions) -> Keys:
    """The first row made of a record keeps the record's key; further ones get keys of their own."""
    out = keys[sources]
    order = np.argsort(sources, kind="stable")
    ordered = sources[order]
    earlier = np.empty(len(sources), np.int64)
    earlier[order] = np.arange(len(sources)) - np.searchsorted(ordered, ordered)
    more = np.flatnonzero(earlier)
    if more.size:
        out[more] = fold(out[more], earlier[more], CHILD)
    return out


def _pairs(made: object, count: int) -> tuple[Sequence[int], list[Record]]:
    """The numbers and the records that a stage returned for a window of ``count`` records."""
    if not isinstance(made, Iterable) or isinstance(made, (str, bytes, dict, np.ndarray)):
        raise StackError(f"it must return {_WANTED}; got a {type(made).__name__}.")
    numbers: list[int] = []
    records: list[Record] = []
    for pair in made:
        if not isinstance(pair, tuple) or len(pair) != 2 or not _is_number(pair[0]):
            raise StackError(f"it must return {_WANTED}; one of them is {pair!r:.60}.")
        number, record = operator.index(pair[0]), pair[1]
        if not 0 <= number < count:
            raise StackError(f"it returned a record of number {number}, of {count} in the window.")
        if record is None:
            raise StackError("one of the records that it returned is None.")
        numbers.append(number)
        records.append(record)
    return numbers, records


_WANTED = "pairs (number in `records`, record)"


def _is_number(value: object) -> bool:
    if isinstance(value, (bool, np.ndarray)):
        return False
    return isinstance(value, int) or hasattr(value, "__index__")
