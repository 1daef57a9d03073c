"""flat_map: turns each record into any number of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.functions import Function
from loaderx.chain.node import UnitCost
from loaderx.chain.stream_stage import StreamStage
from loaderx.errors import StackError
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import USER_ERRORS
from loaderx.reading.rows import Record, Rows
from loaderx.reading.unit_stage import UnitStage

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


class FlatMapped(StreamStage):
    """``f(record)`` is a list of records."""

    function: Function
    span: int | None = None

    @property
    def stage(self) -> str:
        window = "" if self.span is None else f", window={self.span}"
        return f"flat_map({self.function.name}{window})"

    @property
    def window(self) -> int | None:
        return self.span

    @property
    def unit_cost(self) -> UnitCost:
        return "many"

    def fingerprint(self, seed: int) -> str:
        named = {"function": self.function.name}
        return stage_text(
            "flat_map", named, self, without=("function",), renamed={"span": "window"}
        )

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.function),)

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        return FlatMap(self.stage, self.function)


class FlatMap(UnitStage):
    """Calls the function on each record of a unit."""

    wants = False

    def __init__(self, stage: str, function: Function) -> None:
        super().__init__(stage)
        self.function = function

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        call, fail = self.function.call, rows.fail(self.stage)
        out: list[Record] = []
        counts: list[int] = []
        for number, record in enumerate(rows.records()):
            try:
                made = _listed(call(record))
            except USER_ERRORS as error:
                raise fail(number, error) from error
            out += made
            counts.append(len(made))
        return rows.derived(out, np.repeat(np.arange(len(rows)), counts))


def _listed(made: object) -> list[Record]:
    if made is None or isinstance(made, (str, bytes, dict, np.ndarray)):
        raise StackError(
            f"it must return a list (or another iterable) of records; got a {type(made).__name__}."
        )
    records: list[Record] = list(made)  # type: ignore[call-overload]
    if any(record is None for record in records):
        raise StackError("one of the records that it returned is None.")
    return records
