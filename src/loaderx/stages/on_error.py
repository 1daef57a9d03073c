"""on_error: replaces or leaves out records that fail.

In a dataset that is read by index they are replaced by others; in a stream they are left out.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import KeepsPlaces, MadeInUnits
from loaderx.chain.stream_stage import StreamStage
from loaderx.errors import ArgumentError, ChainError, RecordError, one_line
from loaderx.reading.addresses import Addresses
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import USER_ERRORS, raise_if_signalled
from loaderx.reading.operators import (
    BatchOperator,
    OverRecords,
    Policy,
    RecordOperator,
    Request,
)
from loaderx.reading.rows import Record, Rows
from loaderx.reading.unit_stage import UnitStage
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, StreamBuild


class HandlesFailures(MadeInUnits):
    """The base of both kinds of `on_error`."""

    policy: Policy  # "replace", in a stream also "skip", or a function of the error
    max_failures: int | None = None

    window = None
    can_drop = True

    @property
    def stage(self) -> str:
        limit = "" if self.max_failures is None else f", limit={self.max_failures}"
        return f"on_error({_policy_name(self.policy)!r}{limit})"

    def fingerprint(self, seed: int) -> str:
        values: dict[str, object] = {"policy": _policy_name(self.policy)}
        if self.policy != "skip":
            values["seed"] = seed  # it decides which record replaces another
        # `max_failures` is left out: it changes no record.
        return stage_text("on_error", values, self, without=("policy", "max_failures"))

    @property
    def error_policy(self) -> Policy | None:
        return self.policy

    @property
    def most_failures(self) -> int | None:
        return self.max_failures

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return () if isinstance(self.policy, str) else ((self.stage, self.policy),)

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        return DropFailures(self.stage, self.policy)


class Guarded(HandlesFailures, KeepsPlaces):
    """Replaces records that fail; in a stream, leaves them out."""

    unit_cost = "records"

    def __post_init__(self) -> None:
        if self.policy == "skip":
            return
        for node in self.input.below():
            joins_rows = (node.is_stage and not node.batched and node.inputs[0].batched) or (
                len(node.inputs) > 1 and node.is_aligned
            )
            if joins_rows and not node.ends:
                raise ChainError(
                    f"on_error after .{node.stage.removeprefix('Dataset.')} of an endless dataset: "
                    "a replacement is chosen among all records, so there must be an end. Put "
                    ".repeat() after it."
                )

    def make_record_operator(self, request: Request) -> RecordOperator:
        below = self.input.record_operator(request.replace(guarded=True))
        return ReplaceFailures(self.stage, below, self.policy)

    def batch_operator(self, request: Request) -> BatchOperator:
        return self.input.batch_operator(request.replace(policy=self.policy))

    def above_cut(self, build: StreamBuild, above: Above) -> Above:
        return above._replace(stages=(*above.stages, self.make_unit_stage(build)))

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return below  # the guard is in the units, below the batch


class Skipping(HandlesFailures, StreamStage):
    """on_error("skip") of a dataset that is read by index: the result is a stream."""

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec


class ReplaceFailures(OverRecords[Addresses]):
    """Rows that fail twice are replaced, one by one."""

    ATTEMPTS = 64

    def __init__(self, stage: str, child: RecordOperator, policy: Policy) -> None:
        super().__init__(stage, child)
        self.policy = policy

    def read(self, addresses: Addresses, context: ReadContext) -> Rows:
        try:
            return self._try(addresses, context)
        except RecordError as error:
            if error.index is None:  # failures of batch functions are never hidden
                raise
        count = len(addresses)
        return Rows.of_records([self._one(addresses.cut(i, i + 1), context) for i in range(count)])

    def _try(self, addresses: Addresses, context: ReadContext) -> Rows:
        before = len(context.failures)
        try:
            return context.read(self.child, addresses)
        except RecordError:
            del context.failures[before:]  # an `on_error` below reports them again
            raise

    def _one(self, address: Addresses, context: ReadContext) -> Record:
        try:
            return self._try(address, context).records()[0]
        except RecordError as error:
            first = error
        if decide(self.policy, first) == "raise":
            raise first
        second: RecordError | None = None
        before = len(context.failures)
        for attempt in range(1, self.ATTEMPTS + 1):
            try:
                other = self.child.relocate(address, attempt)
                record = self._try(other, context).records()[0]
            except RecordError as error:
                second = second or error
                continue
            except ArgumentError as nothing:
                raise nothing from first
            del context.failures[before:]  # each place counts as one failure
            context.add_failure(first)
            return record
        assert second is not None
        first.detail += (
            f". on_error tried {self.ATTEMPTS} other records in its place, and none could be "
            f"read. The first of them: {second.detail}"
        )
        raise first


class DropFailures(UnitStage):
    """Leaves out records that fail in the stages before it."""

    is_one_to_one = True
    is_guard = True

    def __init__(self, stage: str, policy: Policy) -> None:
        super().__init__(stage)
        self.policy = policy

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        return rows

    def drops(self, error: RecordError) -> bool:
        if error.index is None:
            return False
        # "replace" and "skip" are the same in a stream.
        return decide(self.policy, error) != "raise"


def decide(policy: Policy, error: RecordError) -> str:
    """The decision of an `on_error` policy: "raise", "replace" or "skip".

    A function that fails raises an error without an index, which is never hidden.
    """
    if isinstance(policy, str):
        return policy
    try:
        answer = policy(error)
    except USER_ERRORS as problem:
        raise_if_signalled(problem)
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


def _policy_name(policy: Policy) -> str:
    return policy if isinstance(policy, str) else "function"
