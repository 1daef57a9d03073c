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
from loaderx.reading.batch_readers import Lanes
from loaderx.reading.context import ReadContext
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Record, Rows
from loaderx.reading.stacking import NO_PADDING, Value
from loaderx.reading.unit_plan import Finish
from loaderx.reading.unit_stage import UnitStage

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
    divides_batches = True

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
        return Bucket(self.stage, self.options, build.host, traces=build.traces)

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

    def check_hosts(self, hosts: int) -> None:
        for size in self.options.batch_sizes:
            if size % hosts:
                raise ChainError(
                    f"{hosts} hosts cannot share batches of {size} records ({self.stage}): the "
                    "number of hosts must divide every batch size."
                )


class Bucket(UnitStage):
    """Makes batches of the records of each window of a unit: each is one record of its output.

    The lengths of all records decide which batches there are, so every host reads all of them, and
    makes its own rows of each batch.
    """

    wants = False

    def __init__(
        self, stage: str, options: Bucketing, host: tuple[int, int], *, traces: bool
    ) -> None:
        super().__init__(stage)
        self.options, self.host, self.traces = options, host, traces

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        from loaderx.stages.bucket_rows import bucket  # most chains have no buckets

        made: list[Record] = []
        firsts: list[int] = []
        members: list[list[int]] = []  # the records of each batch
        for _, start, stop in rows.windows(self.options.window):
            window = rows.cut(start, stop)
            try:
                batches = bucket(
                    window.records(), self.options, self.host, window.name, context.lend
                )
            except StackError as error:
                raise self.failure(error) from error
            for batch in batches:
                firsts.append(batch.rows[0] + start)
                own = batch.rows[batch.first : batch.first + batch.size]
                members.append([row + start for row in own])
                # Padding has the key of the last record.
                keyed = [*batch.rows, *batch.rows[-1:] * batch.size][batch.first :][: batch.size]
                keys = None if rows.keys is None else rows.keys[np.array(keyed) + start]
                made.append(Rows.of_columns(batch.tree, batch.real, keys))
        first = np.array(firsts, np.int64)
        assert rows.places is not None
        derived = rows.derived(
            made,
            first,
            keys=None if rows.keys is None else rows.keys[first],
            places=np.sort(rows.places[first]),
        )
        return rows.name_after(derived, members) if self.traces else derived


class CutBuckets(Lanes):
    """A stream of finished batches."""

    def next(self) -> Rows | None:
        found = self.rows_of_lanes()
        if not found or not found[0]:
            return None
        batch = found[0][0].records()[0]
        assert isinstance(batch, Rows)
        return batch
