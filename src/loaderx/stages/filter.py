"""filter: records for which a function is true."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.functions import Function
from loaderx.chain.node import UnitCost
from loaderx.chain.stream_stage import StreamStage
from loaderx.errors import StackError
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import USER_ERRORS
from loaderx.reading.rows import Fail, Record, Rows
from loaderx.reading.unit_stage import UnitStage
from loaderx.tree import Array, Tree, flatten

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


class Filtered(StreamStage):
    """``f(record)`` is a bool; with ``stacked``, ``f(columns)`` is a mask."""

    function: Function
    stacked: bool = False

    window = None

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec

    @property
    def stage(self) -> str:
        return f"filter({self.function.name}{', batched=True' if self.stacked else ''})"

    def fingerprint(self, seed: int) -> str:
        named = {"function": self.function.name}
        return stage_text(
            "filter", named, self, without=("function",), renamed={"stacked": "batched"}
        )

    @property
    def unit_cost(self) -> UnitCost:
        return "mask" if self.stacked else "records"

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.function),)

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        meter = build.new_meter("filter", self.stage)
        return Filter(self.stage, self.function, stacked=self.stacked, meter=meter)


class Filter(UnitStage):
    """Leaves records out of a unit."""

    wants: bool

    def __init__(self, stage: str, function: Function, *, stacked: bool, meter: int) -> None:
        super().__init__(stage)
        self.function, self.wants, self.meter = function, stacked, meter
        self.takes_views = stacked
        self.copies = False  # rows are views of the source and must be copied
        self.passes_views = False  # views may be returned, with the numbers of the kept rows

    def use_views(self, *, is_last: bool) -> None:
        self.copies, self.passes_views = True, is_last

    def __getstate__(self) -> dict[str, object]:
        """A worker process must copy rows: it cannot send views."""
        return {**self.__dict__, "passes_views": False}

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        count = len(rows)
        if not count:
            return rows
        fail = rows.fail(self.stage)
        if self.wants:
            tree = rows.columns(context.lend, self.stage)
            rows = rows.with_columns(tree)
            mask = self._mask(tree, count, fail)
        else:
            records = rows.records()
            rows = rows.with_records(records)
            mask = self._each(records, fail)
        kept = np.flatnonzero(mask)
        context.count(self.meter, count, len(kept))
        if self.passes_views and len(kept):
            return rows.pick_later(kept)
        return rows if len(kept) == count and not self.copies else rows.pick(kept, context.lend)

    def _mask(self, tree: Tree, count: int, fail: Fail) -> Array:
        try:
            leaves, structure = flatten(tree)  # a copy: the function may change its dict
            mask = np.asarray(self.function.call(structure.build(leaves)))
        except USER_ERRORS as error:
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

    def _each(self, records: list[Record], fail: Fail) -> Array:
        call = self.function.call
        answers: list[object] = []
        try:
            for record in records:
                answers.append(call(record))  # noqa: PERF401 (its length is the failed record's number)
        except USER_ERRORS as error:
            raise fail(len(answers), error) from error
        if not set(map(type, answers)) <= {bool, np.bool_}:
            for number, answer in enumerate(answers):
                if not _is_bool(answer):
                    problem = f"it must return True or False, got {answer!r:.60}"
                    kind = type(answer).__name__
                    raise fail(number, StackError(f"{problem} ({kind})."))
        return np.array([bool(answer) for answer in answers], np.bool_)


def _is_bool(answer: object) -> bool:
    if isinstance(answer, (bool, np.bool_)):
        return True
    dtype, shape = getattr(answer, "dtype", None), getattr(answer, "shape", None)
    return shape == () and dtype == np.bool_
