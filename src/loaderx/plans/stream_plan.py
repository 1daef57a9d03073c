"""A compiled stream: unit plans for the workers, and readings for the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loaderx.chain.node import Node
from loaderx.chain.stream_build import Above, MakeReader, Repeats, StreamBuild
from loaderx.chain.stream_stage import StreamCut, stream_cut
from loaderx.chain.unit_size import stream_input_of
from loaderx.errors import RecordError, StateError
from loaderx.memory import Pool
from loaderx.reading.batch_readers import BatchReader, CutRecords, LaneEnds, Lanes, rows_of_lane
from loaderx.reading.context import ReadContext
from loaderx.reading.lookahead import Lookahead, MakeHere, Path, PendingUnit, UnitMaker
from loaderx.reading.monitor import Monitor
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Rows
from loaderx.reading.saved_position import Changed, LanePosition
from loaderx.reading.stacking import NO_PADDING
from loaderx.reading.unit_plan import CountRows, Finish, NameRows
from loaderx.stages.repeat import RepeatAfterBatch
from loaderx.tree import Tree

FIRST_BATCHES = 32  # units are submitted for these at once, in the order of their use


class StreamPlan:
    """A compiled stream.  Workers need ``units`` only; `read` starts a reading.

    With ``only_counts`` its lanes give rows without values, to be counted; with ``traces`` the
    names of rows, and batches are lists of (row, name).
    """

    def __init__(
        self,
        node: Node,
        *,
        shard: tuple[int, int] = (0, 1),
        only_counts: bool = False,
        traces: bool = False,
    ) -> None:
        self.node = node
        self.cut = stream_cut(node)
        self.lanes = 1 if self.cut is None else self.cut.lanes
        host, hosts = shard
        self.hosts = hosts
        self.own = range(self.lanes * host // hosts, self.lanes * (host + 1) // hosts)
        if self.cut is not None and self.cut.divides_batches:
            self.own = range(self.lanes)
        self.input = stream_input_of(node)
        full_batch = None if self.cut is None else self.cut.rows_per_batch(len(self.own))
        self.build = StreamBuild(node, self.lanes, full_batch, shard, traces=traces)
        self._only_counts = only_counts
        self.rows_of_lane = 1 if self.cut is None else self.cut.rows_of_lane  # in a batch
        self.warned: set[int] = set()  # meters that have warned
        self.make_lane = self._build_lanes()
        self.units = self.build.units

    def _build_lanes(self) -> MakeReader:
        """Readers of the lanes, with the stages below the cut and the repeats above it."""
        build, node = self.build, self.node
        repeats = (Repeats(None, node.repeats + 1),)  # the epochs of the loader
        finish = Finish(stacked=False, padding=NO_PADDING)
        if self._only_counts:
            finish = CountRows()
        elif build.traces:
            finish = NameRows()
        elif self.cut is not None:
            finish = self.cut.finish()
        if self.cut is None:
            return build.reader(node, Above(self.input, (), repeats, finish))
        above = Above(self.input, self.cut.cut_in_units(build), repeats, finish)
        while node is not self.cut:
            above = node.above_cut(build, above)
            node = node.inputs[0]
        return build.reader(self.cut.input, above)

    def unit_count(self, first: int, stop: int | None) -> int | None:
        """The units of epochs ``first`` to ``stop`` on this host; None if that is not known."""
        total = 0
        for plan in self.units:
            if stop is None or plan.units is None:
                return None
            count = (stop - first) * -(-plan.units * len(self.own) // self.lanes)
            for epochs in plan.epoch_counts[1:]:
                if epochs is None:
                    return None
                count *= epochs
            total += count
        return total

    def read(
        self,
        maker: UnitMaker,
        first: int = 0,
        stop: int | None = 1,
        ends: Callable[[Path], LaneEnds | None] | None = None,
    ) -> Reading:
        """A reading of epochs ``first`` to ``stop``, at its beginning."""
        return Reading(self, maker, first, stop, ends)


class SingleLanes:
    """Reads one lane after the other, each by itself."""

    def __init__(self, plan: StreamPlan, maker: UnitMaker, monitor: Monitor) -> None:
        self.monitor = monitor
        self._plan, self._maker = plan, maker

    def look_ahead(self, number: int, lane: Callable[[Path], range]) -> Lookahead:
        """Submits the units of a lane ahead of its reader; none of the epoch after."""
        units = self._plan.units
        self.lookaheads.append(
            Lookahead(self._maker, number, units[number], lane, share=len(units), last_epoch=0)
        )
        return self.lookaheads[-1]

    def lane(self, path: Path, lane: int) -> tuple[Reader, list[Lookahead]]:
        """The reader of a lane at the beginning of an epoch, and the units that it reads."""
        self.lookaheads: list[Lookahead] = []
        reader = self._plan.make_lane(self, lane)
        reader.start(path)
        return reader, self.lookaheads

    def first_row(self, path: Path, lane: int) -> Rows:
        """One row of a lane that has some."""
        with self.monitor.muted():  # another host reports its unit
            return rows_of_lane(self.lane(path, lane)[0], 1)[0]


class TracedLanes(Lanes):
    """Batches as lists of (row, name): see `NameRows`."""

    def __init__(self, lanes: Sequence[Reader], rows: int, cut: StreamCut | None) -> None:
        super().__init__(lanes, rows)
        self.drops = cut is not None and cut.drop_remainder
        self.pads = cut is not None and cut.pad_remainder

    def next(self) -> Rows | None:
        found = self.rows_of_lanes()
        if found is None:
            return None
        names = [[name for part in lane for name in part.records()] for lane in found]
        count, full = sum(map(len, names)), self.rows * len(names)
        if self.ends is None and (not count or (self.drops and count < full)):
            return None
        pairs: list[tuple[int, object]] = []
        for number, lane in enumerate(names):
            pairs += enumerate(lane, number * self.rows if self.pads else len(pairs))
        return Rows.of_columns(pairs, count)


class Reading:
    """One reading of a stream: the lanes, the batches, and the stages above them."""

    def __init__(
        self,
        plan: StreamPlan,
        maker: UnitMaker,
        first: int,
        stop: int | None,
        ends: Callable[[Path], LaneEnds | None] | None,
    ) -> None:
        self.plan, self._maker = plan, maker
        self._stop = stop
        self.lookaheads: list[Lookahead] = []
        self.times: dict[str, float] = {}
        self._pool = Pool(6)
        self.monitor = Monitor(plan.build.meters, plan.warned, self._pool, lanes=len(plan.own))
        self._lanes = [plan.make_lane(self, lane) for lane in plan.own]
        self._is_begun = False
        if plan.build.traces:
            self._cut: Lanes = TracedLanes(self._lanes, plan.rows_of_lane, plan.cut)
        elif plan.cut is None:
            self._cut = CutRecords(self._lanes)
        else:
            self._cut = plan.cut.cut_reader(self._lanes, self._pool, is_alone=plan.hosts == 1)
        self._cut.first_lane = plan.own.start
        self._cut.ends_of = ends
        self._cut.first_row = SingleLanes(plan, maker, self.monitor).first_row
        empty_epochs = plan.build.empty_epochs
        batches = self._above(plan.node)
        self._top = RepeatAfterBatch(batches, ".repeat()", empty_epochs, first, stop)
        self._top.start(())

    def _above(self, node: Node) -> BatchReader:
        """The batches after the stages above the cut."""
        if node is self.plan.cut or not node.batched:
            return self._cut
        return node.after_batch(self._above(node.inputs[0]), self.plan.build)

    def next(self) -> Rows | None:
        """The next batch; None at the end."""
        if not self._is_begun:
            self.begin()
        batch = self._top.next()
        for context in self.monitor.contexts:
            self.add(context.times)
        self.monitor.contexts.clear()
        self._top.add_times(self.times)
        return batch

    def add(self, times: dict[str, float]) -> None:
        """Adds the times of work that was done for this reading."""
        for stage, seconds in times.items():
            self.times[stage] = self.times.get(stage, 0.0) + seconds

    def look_ahead(self, number: int, lane: Callable[[Path], range]) -> Lookahead:
        """Submits the units of a lane ahead of its reader."""
        plan = self.plan
        made = Lookahead(
            self._maker,
            number,
            plan.units[number],
            lane,
            share=len(plan.units) * len(plan.own),
            last_epoch=self._stop,
        )
        self.lookaheads.append(made)
        return made

    def begin(self) -> None:
        """Submits the first units that batches will need, before a batch is asked for.

        The first units of all lanes come before the second of any: each lane has rows in the first
        batch.
        """
        self._is_begun = True
        if not self._maker.window:
            return
        rows = self.plan.rows_of_lane
        for batches in (1, FIRST_BATCHES):
            needed = [each for lane in self._lanes for each in lane.needs(rows * batches)]
            for lookahead in needed:
                lookahead.begin()
        for lookahead in needed:
            lookahead.fill()

    def clear(self) -> list[PendingUnit]:
        """Returns the units submitted ahead, to be cancelled, and keeps none."""
        return [pending for lookahead in self.lookaheads for pending in lookahead.clear()]

    @property
    def epoch(self) -> int:
        return self._top.count

    def state(self) -> tuple[list[int], list[LanePosition]]:
        """The counters above the batch (the epoch first), and the position of each own lane."""
        return self._top.counters(), self._cut.positions()

    def restore(
        self,
        counters: Sequence[int],
        positions: Sequence[LanePosition],
        *,
        changed: Changed,
        step: int,
    ) -> None:
        """Goes to a position; ``step`` is the number of batches of its epoch before it."""
        left = iter(counters)
        self._cut.step = step
        self._top.restore((), left, positions, changed=changed)
        if more := len(list(left)):
            needed = len(counters) - more - 1
            raise StateError(
                f"the state has {needed + more} counters in `above`, and this dataset needs "
                f"{needed}."
            )

    def skip(self, rows: Sequence[int]) -> None:
        """Passes over so many rows of each lane."""
        self.begin()
        with self.monitor.muted():
            for lane, count in zip(self._cut.lanes, rows, strict=True):
                rows_of_lane(lane, count)


def iterate(node: Node) -> Iterator[Tree]:
    """The elements of a stream, made in the caller's thread."""
    from loaderx.stages.skip_steps import all_steps  # late: most streams are read by a loader

    node, skipped = all_steps(node)
    plan = StreamPlan(node)
    lend = Pool().lend
    reading = plan.read(MakeHere(plan.units, lambda: ReadContext(lend)))
    step = 0
    while True:
        try:
            batch = reading.next()
        except RecordError as error:
            error.step = step
            raise
        if batch is None:
            return
        if skipped.first_from(step) == step:
            yield batch.tree
        step += 1
