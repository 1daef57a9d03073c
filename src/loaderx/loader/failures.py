"""Records that `on_error` replaced or left out: which, how many, and whether too many.

Failures come with the element (or the unit of a stream) in which they happened, and are counted
when it is handed out.  So they are the same for every engine, and nothing is counted twice when a
step is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from loaderx.chain.node import Node
from loaderx.errors import RecordError, warn_user
from loaderx.frozen import Frozen
from loaderx.reading.context import Failed

if TYPE_CHECKING:
    from logging import Logger

KEPT = 1_000
LARGE_SHARE = 0.01
FEW_RECORDS = 1_000  # with fewer records, the share is not checked
LARGE_SHARE_AT_END = 0.1  # when the stream is over, which may be short
FEW_RECORDS_AT_END = 20


@cache
def _logger() -> Logger:
    import logging  # late: a tenth of the import time of loaderx, and most loaders log nothing

    logger = logging.getLogger("loaderx")
    logger.addHandler(logging.NullHandler())  # silent, unless the user adds a handler
    return logger


class Failure(Frozen):
    """A record that failed, and was replaced or left out.

    Attributes:
        index: the record's index in its source.
        record: its name in messages; of joined datasets it says which, ``record 7 of dataset 1``.
        stage: the stage that failed, as the dataset's ``repr`` shows it.
        error: the exception as text, ``ValueError: no number``; cut after 500 characters.
        step: the step of the iterator at which it was found.
    """

    index: int | None
    record: str
    stage: str
    error: str
    step: int

    def __str__(self) -> str:
        return f"step {self.step}: {self.stage} failed on {self.record}: {self.error}"


class FailureLog:
    """The failures of one loader."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[Failure] = []
        self.read = 0  # records read, counted for streams only
        self._different: set[str] = set()  # names of failed records, as many as the limit needs
        self._has_warned = False

    def clear(self) -> None:
        """Counts from 0 again.  The count for the limit stays, and the warning is not repeated."""
        self.count, self.kept, self.read = 0, [], 0

    def add(self, failures: Sequence[Failed], step: int, limit: int | None) -> None:
        """Counts and logs the failures of a step."""
        for index, record, stage, error in failures:
            failure = Failure(index, record, stage, error, step)
            self.count += 1
            if len(self.kept) < KEPT:
                self.kept.append(failure)
            if limit is not None and len(self._different) <= limit:
                self._different.add(record)
            _logger().warning("%s", failure)

    def check(self, last: Failed, step: int, limit: int | None) -> None:
        """Raises if more records have failed than the limit allows."""
        if limit is None or len(self._different) <= limit:
            return
        index, record, stage, error = last
        raise RecordError(
            f"more than {limit} different records have failed, the limit of on_error. The last: "
            f"{stage} failed on {record}: {error}. loader.stats().failures lists them.",
            index=index,
            stage=stage,
            step=step,
            record=record,
            reason=error,
        )

    def check_share(self, records: int) -> None:
        """Warns, once, if a large share of the records has failed."""
        if records >= FEW_RECORDS and self.count > LARGE_SHARE * records:
            self._warn(records)

    def check_share_at_end(self, records: int, *, is_empty: bool) -> None:
        """The same after the last element; short streams are checked only here."""
        is_large = self.count > LARGE_SHARE_AT_END * records
        if is_empty:
            self._warn(records, " No record is left: the loader gave no batch.")
        elif records >= FEW_RECORDS_AT_END and is_large:
            self._warn(records)
        else:
            self.check_share(records)

    def _warn(self, records: int, outcome: str = "") -> None:
        if self._has_warned:
            return
        self._has_warned = True
        first = self.kept[0]
        warn_user(
            f"{self.count:,} of {records:,} records have failed ({self.count / records:.1%}) and "
            f"were replaced or left out by on_error.{outcome} The first: {first.stage} failed on "
            f"{first.record}: {first.error}. loader.stats().failures lists them."
        )


def failure_limit(node: Node) -> int | None:
    """The smallest limit that an `on_error` of the chain sets."""
    limits = [below.most_failures for below in node.below()]
    return min((limit for limit in limits if limit is not None), default=None)
