"""bucket: records of similar length together, in batches of a few fixed shapes.

How the records of a window are sorted into batches is in `bucket_rows`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.node import Node
from loaderx.chain.numbers import check_window
from loaderx.chain.row_counts import RowCount
from loaderx.chain.stream_stage import OptionsStage, StreamCut, WindowOptions
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    StackError,
    check_int,
    check_name,
)
from loaderx.memory import Pool
from loaderx.reading.batch_readers import Lanes, rows_of_lane
from loaderx.reading.context import ReadContext
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Record, Rows
from loaderx.reading.stacking import NO_PADDING, Value
from loaderx.reading.unit_plan import Finish
from loaderx.reading.unit_stage import UnitStage
from loaderx.tree import flatten

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


class Bucketing(WindowOptions):
    """The arguments of `Dataset.bucket`."""

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    leaves: tuple[str, ...] | None = None
    window: int = 2000
    drop_remainder: bool = False
    pad_value: Value = 0
    mask_key: str = "mask"


def check_bucketing(
    boundaries: Sequence[int],
    batch_sizes: int | Sequence[int],
    leaves: str | Sequence[str] | None,
    window: int,
    drop_remainder: bool,
    pad_value: Value,
    mask_key: str,
) -> Bucketing:
    if not isinstance(boundaries, Iterable) or not list(boundaries):
        raise ArgumentTypeError(f"`boundaries` must be a list of lengths, got {boundaries!r}.")
    ends = [check_int(f"boundaries[{i}]", n, least=1) for i, n in enumerate(boundaries)]
    if any(b <= a for a, b in itertools.pairwise(ends)):
        raise ArgumentError(f"`boundaries` must be strictly increasing, got {ends}.")
    if isinstance(batch_sizes, Iterable):
        listed = list(batch_sizes)
    else:
        listed = [check_int("batch_sizes", batch_sizes, least=1)] * len(ends)
    sizes = [check_int(f"batch_sizes[{i}]", n, least=1) for i, n in enumerate(listed)]
    if len(sizes) != len(ends):
        raise ArgumentError(
            f"`batch_sizes` has {len(sizes)} numbers for {len(ends)} boundaries. Give one for "
            "each, or one for all."
        )
    if isinstance(leaves, str):
        leaves = [leaves]
    if leaves is not None and not isinstance(leaves, Iterable):
        raise ArgumentTypeError(f"`leaves` must be a name or a list of names, got {leaves!r}.")
    named = None if leaves is None else tuple(check_name("leaves", leaf) for leaf in leaves)
    if named == ():
        raise ArgumentError("`leaves` is empty: name the leaves that have the length.")
    span = check_window(window)
    return Bucketing(
        tuple(ends),
        tuple(sizes),
        named,
        span,
        bool(drop_remainder),
        pad_value,
        check_name("mask_key", mask_key),
    )


class Bucketed(StreamCut, OptionsStage):
    """The records of each window, as finished batches."""

    options: Bucketing

    batched = True
    batch_size = None
    cuts_stream = True

    @property
    def stage(self) -> str:
        options = self.options
        shapes = zip(options.batch_sizes, options.boundaries, strict=True)
        return f"bucket({', '.join(f'{size}x{boundary}' for size, boundary in shapes)})"

    @property
    def fill_depends_on_order(self) -> bool:
        return self.options.drop_remainder

    def batch_stages(self) -> Iterator[Node]:
        yield self

    def row_counts(self, uniform: bool) -> list[RowCount]:
        return [RowCount(size, self.stage, is_rest=False) for size in self.options.batch_sizes]

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        return Bucket(self.stage, self.options)

    # As the stage that cuts a stream ----------------------------------------------------------

    @property
    def unit_records(self) -> Node:
        return self

    def cut_in_units(self, build: StreamBuild) -> tuple[UnitStage, ...]:
        return (self.make_unit_stage(build),)

    def finish(self) -> Finish:
        return Finish(stacked=False, padding=NO_PADDING)

    def cut_reader(self, lanes: Sequence[Reader], pool: Pool, *, is_alone: bool) -> Lanes:
        return CutBuckets(lanes)

    def check_shareable(self) -> None:
        raise ChainError(
            "several hosts cannot share the batches of .bucket(...): the next one may have another "
            "shape on each of them. Use .pack(...).batch(n, lanes=...), or .batch(n, pad_to=..., "
            "lanes=...), with lanes that the number of hosts divides."
        )


class Bucket(UnitStage):
    """Makes batches of the records of each window of a unit: each is one record of its output."""

    wants = False

    def __init__(self, stage: str, options: Bucketing) -> None:
        super().__init__(stage)
        self.options = options

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        from loaderx.stages.bucket_rows import bucket  # most chains have no buckets

        made: list[Record] = []
        firsts: list[int] = []
        for _, start, stop in rows.windows(self.options.window):
            window = rows.cut(start, stop)
            try:
                batches = bucket(window.records(), self.options, window.name, context.lend)
            except StackError as error:
                raise self.failure(error) from error
            for batch in batches:
                numbers = np.array(batch.rows) + start
                firsts.append(int(numbers[0]))
                keys = None if rows.keys is None else rows.keys[numbers]
                made.append(Rows.of_columns(batch.tree, len(numbers), keys))
        first = np.array(firsts, np.int64)
        assert rows.places is not None
        return rows.derived(
            made,
            first,
            keys=None if rows.keys is None else rows.keys[first],
            places=np.sort(rows.places[first]),
        )


class CutBuckets(Lanes):
    """A stream of finished batches."""

    def next(self) -> Rows | None:
        parts = rows_of_lane(self.lanes[0], 1)
        if not parts:
            return None
        batch = parts[0].records()[0]
        assert isinstance(batch, Rows)
        if batch.keys is None:
            return batch
        size = len(flatten(batch.tree)[0][0])  # with padding rows
        keys = batch.keys[np.minimum(np.arange(size), batch.count - 1)]
        return Rows.of_columns(batch.tree, batch.count, keys)
