"""batch: records become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import ChangesPlaces
from loaderx.chain.node import Node
from loaderx.chain.row_counts import RowCount, ShortBatches
from loaderx.chain.stream_stage import StreamCut
from loaderx.chain.transforms import whole
from loaderx.chain.unit_size import check_lanes, lane_records
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    RecordError,
    check_int,
    check_name,
)
from loaderx.memory import Pool
from loaderx.order.epochs import LIMIT
from loaderx.reading.addresses import Addresses, BatchAddresses, BatchSteps
from loaderx.reading.batch_readers import BatchReader, Lanes
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import error_line
from loaderx.reading.operators import (
    BatchOperator,
    BatchOperatorOf,
    Gather,
    Move,
    RecordOperator,
    Request,
    Sharing,
    SourceRecords,
)
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Rows, as_batch, joined_keys
from loaderx.reading.stacking import NO_PADDING, Padding, Value, pad_rows, stack
from loaderx.reading.trails import Found, Sought, Traced, Trail
from loaderx.reading.unit_plan import Finish
from loaderx.rng import Keys
from loaderx.tree import ArraySpec, Tree, map_leaves

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, StreamBuild

Collate: TypeAlias = Callable[[list[Any]], Tree]
"""Makes a batch of a list of records."""


def check_padding(pad_to: Mapping[str, int] | None, value: Value) -> Padding:
    if pad_to is not None and not isinstance(pad_to, Mapping):
        raise ArgumentTypeError(
            f"`pad_to` must be a dict such as {{'tokens': 512}}, got {pad_to!r}."
        )
    lengths = {
        check_name("pad_to", path): check_int(f"pad_to[{path!r}]", n, least=1)
        for path, n in (pad_to or {}).items()
    }
    return Padding(lengths, value) if lengths or value else NO_PADDING


class Batched(StreamCut, ChangesPlaces):
    """``size`` records as one batch."""

    size: int
    drop_remainder: bool = False
    pad_remainder: bool = False
    mask_key: str = "mask"
    padding: Padding = NO_PADDING
    collate: Collate | None = None
    lanes: int = 1

    window = None
    unit_cost = "records"
    can_drop = False
    keeps_order = True
    is_ordered = False
    batched = True
    only_last_is_short = True
    rows_are_known = True

    def __post_init__(self) -> None:
        if self.size % self.lanes:
            raise ArgumentError(
                f"batch({self.size}, lanes={self.lanes}): the lanes must divide the batch size, "
                f"since each lane gives the same number of rows. Write {self._with(self.lanes)}, "
                f"or lanes that divide {self.size}."
            )
        if self.lanes > 1 and not self.input.is_stream:
            raise ChainError(
                f"lanes={self.lanes} is for streams (after filter, flat_map, pack, ...). This "
                "dataset can be cut for any number of hosts as it is: leave `lanes` out."
            )
        if self.input.batched:
            advice = "Write .unbatch() before .batch(...) to cut them again."
            if self.input.is_stream:
                advice = "Leave one of the two out."
            raise ChainError(f"batch after batch: the elements are batches already. {advice}")
        if self.size > self.input.limit and self.length is None:
            raise ArgumentError(
                f"batch({self.size}): the rows of a batch must have numbers below 2**62."
            )
        if self.length == 0:
            raise ArgumentError(
                f"batch({self.size}, drop_remainder=True) over {self.input.length} records leaves "
                "an empty stream. Use a smaller batch, pad_remainder=True, or .repeat() before it."
            )

    @cached_property
    def length(self) -> int | None:
        records = self.input.length
        if records is None:
            return None
        return records // self.size if self.drop_remainder else -(-records // self.size)

    @cached_property
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        return self.input.limit // self.size if self.length is None else self.length

    @cached_property
    def batch_size(self) -> int:
        return self.size

    @cached_property
    def uniform(self) -> bool:
        records = self.input.length
        if records is None:
            return self.drop_remainder or not self.input.ends
        return self.drop_remainder or records % self.size == 0

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        records, last = self.input.length, self.length
        if self.uniform or records is None or last is None:
            return () if self.uniform else None
        return (ShortBatches(last - 1, None, records % self.size, self.pad_remainder),)

    @property
    def can_be_short(self) -> bool:
        return not (self.uniform or self.pad_remainder)

    @cached_property
    def rows(self) -> int | None:
        records = self.input.length
        if records is None or not self.drop_remainder:
            return records
        return records // self.size * self.size

    @cached_property
    def spec(self) -> Tree | None:
        if self.input.spec is None or self.collate or self.padding.lengths:
            return None
        rows = None if self.can_be_short else self.size
        spec = map_leaves(lambda leaf: ArraySpec((rows, *leaf.shape), leaf.dtype), self.input.spec)
        if self.pad_remainder and isinstance(spec, dict):
            spec = {**spec, self.mask_key: ArraySpec((rows,), np.dtype(np.bool_))}
        return spec

    @property
    def stage(self) -> str:
        more = [
            f"{name}={value!r}"
            for name, value in (
                ("drop_remainder", self.drop_remainder),
                ("pad_remainder", self.pad_remainder),
                ("pad_to", dict(self.padding.lengths)),
                ("collate_fn", getattr(self.collate, "__name__", self.collate)),
                ("lanes", self.lanes if self.lanes > 1 else None),
            )
            if value
        ]
        return f"batch({', '.join([str(self.size), *more])})"

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            "batch",
            {},
            self,
            self.padding,
            without=("padding", "collate"),
            renamed={"lengths": "pad_to", "value": "pad_value"},
        )

    @property
    def largest_request(self) -> int:
        return self.size

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return () if self.collate is None else ((f"collate_fn of {self.stage}", self.collate),)

    def batch_rows_before(self, step: int) -> int:
        rows = step * self.size
        return rows if self.rows is None else min(rows, self.rows)

    def epoch_of(self, step: int) -> int:
        return self.input.epoch_of(step * self.size)

    def batch_stages(self) -> Iterator[Node]:
        yield self

    def row_counts(self, uniform: bool) -> list[RowCount]:
        counts = [RowCount(self.size, self.stage, is_rest=False)]
        if self.can_be_short and not uniform:
            records = self.input.length
            rest = None if records is None else records % self.size
            counts.append(RowCount(rest, self.stage, is_rest=True))
        return counts

    def make_record_operator(self, request: Request) -> RecordOperator:
        raise AssertionError("its elements are batches")

    def batch_operator(self, request: Request) -> BatchOperator:
        stacked = self.collate is None and not self.padding.lengths
        records = self.input.record_operator(
            Request(
                request.seed,
                request.host,
                request.hosts,
                stacked=stacked,
                guarded=request.policy is not None,
                full=request.rows_of_host(self.size, self.input.length),
            )
        )
        if self.padding.lengths and self.collate is None:
            records.pad(self.padding)
        if request.policy is not None:
            from loaderx.stages.on_error import ReplaceFailures  # late: most chains have none

            records = ReplaceFailures("on_error", records, request.policy)
        return Cut(self, records, request)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        raise AssertionError("a stream is cut once, by `cut_reader`")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("a stream is cut once, by `cut_reader`")

    # As the stage that cuts a stream ----------------------------------------------------------

    @property
    def cuts_stream(self) -> bool:
        return self.is_stream

    @property
    def unit_records(self) -> Node:
        return self.input

    def finish(self) -> Finish:
        return Finish(stacked=self.collate is None, padding=self.padding)

    def cut_reader(self, lanes: Sequence[Reader], pool: Pool, *, is_alone: bool) -> Lanes:
        return CutLanes(lanes, self, pool, is_alone=is_alone)

    @property
    def rows_of_lane(self) -> int:
        return self.size // self.lanes

    def rows_per_batch(self, lanes: int) -> int | None:
        return self.size // self.lanes * lanes

    def check_hosts(self, hosts: int) -> None:
        if self.lanes % hosts:
            usable = [str(n) for n in range(1, self.lanes + 1) if self.lanes % n == 0]
            raise ChainError(
                f"{hosts} hosts cannot share {self.lanes} lane{'s' if self.lanes > 1 else ''} of a "
                "stream: the number of hosts must divide the lanes. A run that was begun keeps its "
                f"lanes, and can go on with these numbers of hosts: {', '.join(usable)}. "
                f"{self._for_new_run(hosts)}"
            )

    def _for_new_run(self, hosts: int) -> str:
        try:
            check_lanes(self.input, hosts)
        except ChainError as refused:
            return f"A new run needs lanes={hosts}, and this dataset cannot have them: {refused}"
        return (
            f"For a new run write {self._with(hosts)}, or a multiple of {hosts} lanes if there may "
            f"be more hosts later; each lane holds {lane_records(self.input, hosts)} in memory."
        )

    def _with(self, lanes: int) -> str:
        """This stage with these lanes, and the next batch size that they divide."""
        return f"batch({-(-self.size // lanes) * lanes}, lanes={lanes})"


class Cut(BatchOperatorOf[BatchSteps, BatchAddresses]):
    """Cuts records into batches, read by index.  Each of several hosts reads its own rows."""

    def __init__(self, node: Batched, child: RecordOperator, request: Request) -> None:
        super().__init__(node.stage, node.size)
        self.child = child
        self.node = node
        self.first = node.size * request.host // request.hosts
        self.width = node.size * (request.host + 1) // request.hosts - self.first
        self.records = None if node.uniform else node.input.length

    def locate(self, epochs: Keys, numbers: Positions) -> BatchSteps:
        assert self.size is not None
        starts = numbers * self.size + self.first
        last = int(starts.max()) + self.width
        if self.width == self.size and (np.diff(numbers) == 1).all():
            positions = np.arange(starts[0], last)  # one run of whole batches, the usual case
        else:
            positions = np.add.outer(starts, np.arange(self.width)).reshape(-1)
        if epochs.size > 1:
            epochs = np.repeat(epochs, self.width)
        counts = None
        if self.records is not None and last > self.records:
            counts = np.clip(self.records - starts, 0, self.width).tolist()
            np.minimum(positions, self.records - 1, out=positions)
        addresses = self.child.resolve(epochs, positions)
        return BatchSteps(addresses, self.width, counts, self.node.pad_remainder)

    def locate_rows(self, epochs: Keys, positions: Positions) -> BatchAddresses:
        count = len(positions)
        return BatchAddresses(self.child.resolve(epochs, positions), count, count)

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        width, count = self.width, len(trail.positions)
        rows = np.tile(np.arange(width), count)
        numbers = np.repeat(np.arange(count), width)
        each = trail.pick(numbers)
        assert self.size is not None
        each = each._replace(positions=each.positions * self.size + self.first + rows, rows=rows)
        if self.records is not None:
            each = each.pick(np.flatnonzero(each.positions < self.records))
        if len(each.rows):
            yield self.child, each

    def find_below(self, sought: Sought) -> Found:
        assert self.size is not None
        limits = np.minimum(sought.limits, self.node.limit)
        found = self.child.find(sought.within(limits * self.size))
        steps, rows = np.divmod(found.positions, self.size)
        found = found._replace(rows=rows - self.first).at(steps, limits)
        return found.pick(np.flatnonzero((found.rows >= 0) & (found.rows < self.width)))

    def rows_below_moves(self) -> tuple[list[Move], RecordOperator]:
        return [], self.child

    def read(self, addresses: BatchAddresses, context: ReadContext) -> Tree:
        node, inner = self.node, addresses.inner
        rows = context.read(self.child, inner) if context.rows is None else context.rows
        if node.collate is not None:
            fail = self.child.failer(inner, f"{self.stage}'s collate_fn")
            batch = whole(fail, node.collate, rows.records())
        elif rows.is_stacked and (not node.padding.lengths or rows.padding is node.padding):
            batch = rows.tree
        else:
            batch = stack(rows.records(), context.lend, self.child.namer(inner), node.padding)
        if not node.pad_remainder:
            return batch
        return pad_rows(
            batch, addresses.count, addresses.size, node.mask_key, node.padding, context.lend
        )

    def source_records(self, addresses: BatchAddresses) -> Iterator[SourceRecords]:
        return self.child.source_records(addresses.inner)

    def keys(self, steps: BatchSteps) -> Keys:
        return self.child.keys(steps.addresses)

    def row_keys(self, addresses: BatchAddresses) -> Keys:
        return self.child.keys(addresses.inner)

    def index(self, addresses: BatchAddresses, number: int) -> tuple[int, str]:
        return self.child.index(addresses.inner, number)

    @property
    def padding(self) -> Padding:
        return self.node.padding

    def shared_rows(self) -> int:
        return self.width if self.child.sharing is Sharing.USEFUL else 0

    def rows_below(self, addresses: BatchAddresses) -> tuple[RecordOperator, Addresses]:
        return self.child, addresses.inner

    def plain_gather(self) -> Gather | None:
        if self.node.pad_remainder or self.node.padding.lengths or self.node.collate is not None:
            return None
        return self.child.gather_of(self.width)


class CutLanes(Lanes):
    """Cuts the rows of a stream into batches, with equally many rows from every lane, in order.

    If the remainder is padded, each lane that has ended is: so a row has the same place in the
    batch on any number of hosts.
    """

    def __init__(
        self, lanes: Sequence[Reader], node: Batched, pool: Pool, *, is_alone: bool
    ) -> None:
        super().__init__(lanes, node.rows_of_lane)
        self.node, self.pool, self.stage = node, pool, node.stage
        self.is_alone = is_alone  # this host is the only one

    def next(self) -> Rows | None:
        found = self.rows_of_lanes()
        if found is None:
            return None
        parts = [part for lane in found for part in lane]
        count, full = sum(part.count for part in parts), self.rows * len(self.lanes)
        if count < full and self.ends is None:
            if not self.is_alone:
                raise ChainError(
                    "the stream ended on this host before the .take(...) above .batch(...) did, "
                    "and the other hosts may go on. Take fewer steps, or put .repeat() before "
                    ".batch(...), or leave .take(...) out: then rows are counted beforehand."
                )
            if not count or self.node.drop_remainder:
                return None
        if self.node.pad_remainder:
            return self.timed(self._padded, found, count, full)
        return self.timed(self._batch, parts, count)

    def _batch(self, parts: list[Rows], count: int) -> Rows:
        return Rows.of_columns(self._joined(parts), count, joined_keys(parts))

    def _padded(self, lanes: list[list[Rows]], count: int, full: int) -> Rows:
        parts = [part for lane in lanes for part in lane]
        if not parts and self.ends is not None and self.first_row is not None:
            parts = [self.first_row(self.path, self.ends.some_lane)]  # its values are not used
        batch = self._batch(parts, count)
        keys, places = batch.keys, None
        if count < full:
            taken = [sum(part.count for part in lane) for lane in lanes]
            places = np.flatnonzero(np.concatenate([np.arange(self.rows) < n for n in taken]))
            if keys is not None:
                padded = np.zeros(full, np.uint64)
                padded[places] = keys[:count]
                for start, rows in zip(range(0, full, self.rows), taken, strict=True):
                    if rows:  # padding has the key of the last row of its lane
                        padded[start + rows : start + self.rows] = padded[start + rows - 1]
                keys = padded
        node, lend = self.node, self.pool.lend
        tree = pad_rows(batch.tree, count, full, node.mask_key, node.padding, lend, places)
        return Rows.of_columns(tree, count, keys)

    def _joined(self, parts: list[Rows]) -> Tree:
        node = self.node
        if node.collate is None:
            return as_batch(parts, self.pool.lend, node.padding)
        records = [record for part in parts for record in part.records()]
        stage = f"{node.stage}'s collate_fn"

        def fail(_: int | None, error: BaseException) -> RecordError:
            reason = error_line(error, stage, is_batch=True)
            text = f"{stage} failed on a run of {len(records)} records: {reason}"
            return RecordError(text, stage=stage)

        return whole(fail, node.collate, records)
