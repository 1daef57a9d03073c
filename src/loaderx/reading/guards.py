"""on_error for datasets that are read by index: rows that cannot be read are replaced."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderx.errors import ArgumentError, RecordError, one_line
from loaderx.reading.addresses import AnchoredRows
from loaderx.reading.context import ReadContext
from loaderx.reading.records import Inner, Positions, RecordOperator, Run, as_records
from loaderx.rng import REPLACE, Keys, fold, fold_int


class Anchor(Inner):
    """The place where a row that cannot be read is replaced by another row of the same dataset."""

    def __init__(self, child: RecordOperator, length: int, seed: int) -> None:
        super().__init__(child.stage, child)  # in the statistics it is no row of its own
        self.length, self.seed = length, seed

    def locate(self, epochs: Keys, positions: Positions) -> AnchoredRows:
        return AnchoredRows(epochs, positions, self.child.resolve(epochs, positions))

    def read(self, rows: AnchoredRows, context: ReadContext) -> Run:
        run: Run = context.read(self.child, rows.inner)
        return run

    def keys(self, rows: AnchoredRows) -> Keys:
        return self.child.keys(rows.inner)

    def index(self, rows: AnchoredRows, number: int) -> tuple[int, str]:
        return self.child.index(rows.inner, number)

    def relocate(self, rows: AnchoredRows, attempt: int) -> AnchoredRows:
        if self.length < 2:
            raise ArgumentError("on_error: there is no other record to take instead.")
        tries = np.array([fold_int(self.seed, attempt, REPLACE)], np.uint64)
        drawn = fold(fold(rows.epochs, rows.positions, REPLACE), tries, REPLACE)
        away = (drawn % np.uint64(self.length - 1)).astype(np.int64) + 1
        positions = (rows.positions + away) % self.length
        return AnchoredRows(rows.epochs, rows.positions, self.child.resolve(rows.epochs, positions))


class Guard(Inner):
    """on_error: rows that fail twice are replaced, one by one."""

    ATTEMPTS = 64

    def __init__(self, stage: str, child: RecordOperator, policy: Any) -> None:
        super().__init__(stage, child)
        self.policy = policy

    def read(self, rows: Any, context: ReadContext) -> Run:
        try:
            return self._try(rows, context)
        except RecordError as error:
            if error.index is None:  # a batch function: never hidden
                raise
        return [self._one(rows.cut(i, i + 1), context) for i in range(len(rows))]

    def _try(self, rows: Any, context: ReadContext) -> Run:
        before = len(context.failures)
        try:
            run: Run = context.read(self.child, rows)
        except RecordError:
            del context.failures[before:]  # another `on_error` below will see them again
            raise
        return run

    def _one(self, row: Any, context: ReadContext) -> Any:
        try:
            return as_records(self._try(row, context))[0]
        except RecordError as error:
            first = error
        if decide(self.policy, first) == "raise":
            raise first
        second: RecordError | None = None
        before = len(context.failures)
        for attempt in range(1, self.ATTEMPTS + 1):
            try:
                record = as_records(self._try(self.child.relocate(row, attempt), context))[0]
            except RecordError as error:
                second = second or error
                continue
            except ArgumentError as nothing:
                raise nothing from first
            del context.failures[before:]  # of this place, one failure counts
            context.add_failure(first)
            return record
        assert second is not None
        first.detail += (
            f". on_error tried {self.ATTEMPTS} other records in its place, and none could be "
            f"read. The first of them: {second.detail}"
        )
        raise first


def decide(policy: Any, error: RecordError) -> str:
    """What a policy of `on_error` says of a failure: "raise", "replace" or "skip".

    If it is a function and fails, that is an error without an index, which nobody hides.
    """
    if isinstance(policy, str):
        return policy
    try:
        answer = policy(error)
    except Exception as problem:
        if problem is error:
            return "raise"
        text = (
            f"the function given to on_error failed ({one_line(problem)}) on: {error.detail}. "
            "It must return 'raise' or 'replace'."
        )
        raise RecordError(text, stage="on_error", record=error.record) from problem
    if answer in ("raise", "replace"):
        return str(answer)
    text = f"the function given to on_error must return 'raise' or 'replace', got {answer!r}."
    if answer == "skip":
        text += ' To leave records out write on_error("skip").'
    raise RecordError(text, stage="on_error", record=error.record) from error
