"""Reports of readers: times, failures, and how many records stages let through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import NamedTuple

import numpy as np

from loaderx.errors import warn_user
from loaderx.memory import Pool
from loaderx.reading.context import Failed, ReadContext, TimedContext
from loaderx.reading.unit_plan import READ, UnitOutput
from loaderx.tree import flatten

FEW_RECORDS = 10_000  # before a filter is judged
FEW_ROWS = 64
FEW_RECORDS_WEIGHED = 64  # of those that could not be stacked
MUCH_BYTES = 10**9  # held by all lanes of a reading
LANES = -1  # stands for the lanes among the meters that have warned


class Meter(NamedTuple):
    """Counts the records into and out of a stage."""

    kind: str  # "filter" or "pack"
    stage: str
    row: int = 1  # entries in a row of `pack`


class Monitor:
    """The monitor of one reading.

    It holds no reference to the reading, so a dropped iterator is freed at once.
    """

    def __init__(
        self, meters: Sequence[Meter], warned: set[int], pool: Pool, *, lanes: int = 1
    ) -> None:
        self._meters, self._pool = meters, pool
        self._lanes = lanes
        self._held: dict[object, tuple[int, int]] = {}  # by input: records and bytes of a unit
        self.contexts: list[TimedContext] = []  # since the last batch
        self.failures: list[Failed] = []  # since the last batch
        self.read = 0  # records, since the last batch
        self._counts = [[0, 0] for _ in meters]
        self._warned = warned  # meters that have warned, in any reading
        self._is_muted = False

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Ignores reports while rows that were reported before a state was saved are read again."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    def context(self) -> ReadContext:
        """A context for a stage that runs here."""
        self.contexts.append(TimedContext(self._pool.lend))
        return self.contexts[-1]

    def note(self, output: UnitOutput) -> None:
        """Counts the output of a unit, or of a window."""
        if self._is_muted:
            return
        if output["failures"] is not None:
            self.failures += output["failures"].value
        for number, before, after in output["meters"].tolist():
            if number == READ:
                self.read += before
                continue
            counts = self._counts[number]
            counts[0] += before
            counts[1] += after
            if number not in self._warned:
                self._warn_if_wasteful(number, *counts)

    def weigh(self, of: object, records: int, output: UnitOutput) -> None:
        """Warns if the lanes hold much: each holds a unit, or a window, of every input.

        Sizes are those of the first output of each input: the description of a stream seldom knows
        them.
        """
        if self._lanes == 1 or of in self._held or LANES in self._warned:
            return
        if nbytes := _nbytes(output):
            self._held[of] = records, nbytes
        records, nbytes = (sum(each) for each in zip((0, 0), *self._held.values(), strict=True))
        if self._lanes * nbytes >= MUCH_BYTES:
            self._warn(
                LANES,
                f"the lanes of this stream hold {self._lanes * nbytes / 1e9:,.1f} GB or more: "
                f"{self._lanes} lanes x {records:,} records (a unit of {len(self._held)} "
                f"input{'s' if len(self._held) > 1 else ''}) x {nbytes / records:,.0f} bytes. With "
                "workers, which make the next units meanwhile, it is twice as much. Fewer lanes "
                "hold less, and so does a smaller `window`, if a stage has one; a run that was "
                "begun keeps both. Or save the records of the stream once, with .save(folder): "
                "what is read by index needs no lanes.",
            )

    def _warn_if_wasteful(self, number: int, before: int, after: int) -> None:
        meter = self._meters[number]
        if meter.kind == "filter" and before >= FEW_RECORDS and after * 100 < before:
            self._warn(
                number,
                f"{meter.stage} let {after:,} of {before:,} records through "
                f"({after / before:.2%}): almost all that is read is thrown away. Choose the "
                "records beforehand, with ds[indices], if you can.",
            )
        elif meter.kind == "pack" and after * 4 < before * 3 and before >= FEW_ROWS * meter.row:
            self._warn(
                number,
                f"{meter.stage}: the rows are only {after / before:.0%} full. Too few records are "
                "left in each window to fill rows with; give a larger `window`.",
            )

    def _warn(self, number: int, text: str) -> None:
        self._warned.add(number)
        warn_user(text)


def _nbytes(output: UnitOutput) -> int:
    """The memory of a unit, without views of its source."""
    if output["records"] is None:
        columns = flatten(output["columns"])[0] if output["chosen"] is None else []
        return sum(leaf.nbytes for leaf in columns)
    records = output["records"].value[0]
    some = records[:FEW_RECORDS_WEIGHED]
    leaves = [leaf for record in some for leaf in flatten(record)[0]]
    weighed = sum(
        leaf.nbytes if isinstance(leaf, np.ndarray) else getsizeof(leaf) for leaf in leaves
    )
    return weighed * len(records) // max(1, len(some))
