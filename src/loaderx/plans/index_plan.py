"""A compiled dataset: reads the element of any step, from any thread."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from loaderx.chain.node import Node
from loaderx.errors import RecordError
from loaderx.locks import new_lock
from loaderx.memory import Lend
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import USER_ERRORS, raise_if_signalled
from loaderx.reading.operators import Gather, Request, SourceRecords
from loaderx.reading.rows import Rows
from loaderx.reading.single_records import owned
from loaderx.reading.stacking import NO_PADDING, Padding
from loaderx.reading.trails import Traced
from loaderx.rng import ROOT
from loaderx.tree import Tree

STRETCH_ROWS = 32_768
LONG_STRETCH_ROWS = 16_384  # where positions need 64 bits, the same memory
"""Rows resolved at once: 15 to 70 ns each, where a row alone would cost 100 µs or more."""

_KEPT_STRETCHES = 4  # workers may be on both sides of a stretch's end

Resolved: TypeAlias = Any
"""The steps of a stretch if elements are batches, else the addresses of its records."""

Stretch = tuple[int, int, Resolved]
"""First step, end, and what was resolved for them."""


class IndexPlan:
    """Reads the element of a step.  Holds no position: any thread may read any step."""

    def __init__(self, node: Node, *, shard: tuple[int, int] = (0, 1)) -> None:
        self.length = node.length
        self.batched = node.batched
        request = Request(node.default_seed(), *shard)
        self._batches = node.batch_operator(request) if self.batched else None
        self._records = None if self.batched else node.record_operator(request)
        self._gather = self._plain_gather()
        self.reads_each = self._records is not None and self._records.reads_each
        largest = max(below.batch_size or 1 for below in node.below())
        self.rows_per_step = rows = max(1, largest // shard[1]) if self.batched else 1
        longest = max((below.length or 0 for below in node.below()), default=0)
        most_rows = STRETCH_ROWS if longest < 1 << 24 else LONG_STRETCH_ROWS
        self._stretch_steps = max(1, most_rows // rows)
        self._epoch_steps = node.epoch_steps
        self._current: Stretch = (0, 0, None)
        self._stretches: list[Stretch] = []
        self._lock = new_lock()
        self.order_seconds = 0.0

    def __getstate__(self) -> dict[str, object]:
        fresh: dict[str, object] = {
            "_current": (0, 0, None),
            "_stretches": [],
            "_lock": None,
            "_gather": None,
        }
        return {**self.__dict__, **fresh}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=new_lock())
        self._gather = self._plain_gather()

    def _plain_gather(self) -> Gather | None:
        return None if self._batches is None else self._batches.plain_gather()

    def read(self, step: int, context: ReadContext) -> Tree:
        """The element of a step."""
        start, stop, stretch = self._current
        if not start <= step < stop:
            start, _, stretch = self._find(step)
        return self._read(stretch, step - start, step, context)

    def read_fast(self, step: int, lend: Lend) -> Tree | None:
        """The same where a batch is one gather and nothing else: no operators, no context.

        None where that fails, or is not enough: then `read` makes it, or raises with the reason.
        """
        start, stop, stretch = self._current
        if not start <= step < stop:
            start, _, stretch = self._find(step)
        assert self._gather is not None
        inside, width = step - start, stretch.width
        if stretch.counts is not None and stretch.counts[inside] < width:
            return None
        first = inside * width
        try:
            return self._gather(stretch.addresses.index[first : first + width], lend)
        except USER_ERRORS as error:
            raise_if_signalled(error)
        return None

    def stream_fast(self, step: int, stop: int, lend: Lend) -> Generator[Tree, None, int]:
        """`read_fast` for consecutive steps: yields elements, and returns the step after them.

        It ends early where the stretch does, and before a batch for which `read` is needed.
        """
        start, end, stretch = self._find(step)
        index, width, gather = stretch.addresses.index, stretch.width, self._gather
        assert gather is not None
        stop = min(stop, end)
        if stretch.counts is not None:
            full = [count == width for count in stretch.counts[step - start : stop - start]]
            stop = step + (full.index(False) if False in full else len(full))
        for first in range((step - start) * width, (stop - start) * width, width):
            try:
                batch = gather(index[first : first + width], lend)
            except USER_ERRORS as error:
                raise_if_signalled(error)
                return int(start + first // width)
            yield batch
            del batch  # else it would be held until the next one is made
        return stop

    def stream_records(self, step: int, stop: int) -> Generator[Tree, None, int]:
        """`read` for consecutive steps without a batch; returns the step after them.

        Each record is made when it is asked for.  It ends early where the stretch does.
        """
        start, end, stretch = self._find(step)
        stop = min(stop, end)
        assert self._records is not None
        try:
            for record in self._records.each(stretch.cut(step - start, stop - start)):
                yield owned(record)
                step += 1
        except RecordError as error:
            error.step = step
            raise
        return stop

    @property
    def is_plain(self) -> bool:
        """Whether `read_fast` may be used."""
        return self._gather is not None

    def read_alone(self, step: int, lend: Lend) -> Tree:
        """The element of a step, without resolving its neighbours."""
        return self._read(self._resolve(step, step + 1), 0, step, ReadContext(lend))

    def _read(self, stretch: Resolved, inside: int, step: int, context: ReadContext) -> Tree:
        try:
            if self._batches is not None:
                return context.read(self._batches, stretch.step(inside))
            assert self._records is not None
            rows = context.read(self._records, stretch.cut(inside, inside + 1))
            return owned(rows.records()[0])
        except RecordError as error:
            error.step = step
            raise

    def shared_rows(self) -> int:
        """The rows of a batch if several workers should share the work of making it; else 0."""
        return 0 if self._batches is None else self._batches.shared_rows()

    @property
    def padding(self) -> Padding:
        """The padding of the rows of a batch."""
        return NO_PADDING if self._batches is None else self._batches.padding

    def read_rows(self, step: int, first: int, stop: int, context: ReadContext) -> Rows:
        """Some rows of a batch, as they are before it is cut; fewer if it is short."""
        assert self._batches is not None
        start, _, stretch = self._find(step)
        operator, addresses = self._batches.rows_below(stretch.step(step - start))
        first, stop = min(first, len(addresses)), min(stop, len(addresses))
        if first == stop:
            return Rows.of_records([])
        return context.read(operator, addresses.cut(first, stop))

    def copy(self) -> IndexPlan:
        """A copy with its own stretches, for a thread that reads other steps than the workers."""
        import copy  # late: few plans are copied

        return copy.copy(self)

    def source_records(self, step: int, stop: int) -> tuple[int, list[SourceRecords]]:
        """The records of remote sources that steps until ``stop`` will read, and the step after.

        It ends early where the stretch does.
        """
        start, end, stretch = self._find(step)
        stop = min(stop, end)
        if self._batches is None:
            assert self._records is not None
            rows = stretch.cut(step - start, stop - start)
            return stop, list(self._records.source_records(rows))
        steps = (stretch.step(number) for number in range(step - start, stop - start))
        return stop, [found for one in steps for found in self._batches.source_records(one)]

    @property
    def operator(self) -> Traced:
        """The operator that makes the elements."""
        operator = self._records if self._batches is None else self._batches
        assert operator is not None
        return operator

    def _resolve(self, start: int, stop: int) -> Resolved:
        numbers = np.arange(start, stop, dtype=np.int64)
        if self._batches is not None:
            return self._batches.steps(ROOT, numbers)
        assert self._records is not None
        return self._records.resolve(ROOT, numbers)

    def _find(self, step: int) -> Stretch:
        with self._lock:
            for stretch in self._stretches:
                if stretch[0] <= step < stretch[1]:
                    break
            else:
                begun = perf_counter()
                start, stop = self._borders(step)
                stretch = (start, stop, self._resolve(start, stop))
                self._stretches = [*self._stretches[1 - _KEPT_STRETCHES :], stretch]
                self.order_seconds += perf_counter() - begun
            self._current = stretch
            return stretch

    def _borders(self, step: int) -> tuple[int, int]:
        """The stretch of a step.  No stretch spans two epochs: rows of one epoch resolve faster."""
        epoch_steps = self._epoch_steps
        base = 0 if epoch_steps is None else step // epoch_steps * epoch_steps
        start = base + (step - base) // self._stretch_steps * self._stretch_steps
        stop = start + self._stretch_steps
        if epoch_steps is not None:
            stop = min(stop, base + epoch_steps)
        return start, stop if self.length is None else min(stop, self.length)
