"""From the description of a stream to unit plans for the workers and readers for the caller.

Going down from the batch, stages are collected until something can be read by index: those stages
and that dataset make a *leaf*, whose units any worker can make.  Stages above a repeat belong to
every pass of it, and go into the units with the others.  What stands above a mix, an iterable, or a
take of records runs in the caller's thread, on the ordered rows; stages that keep every record in
its place (map and its kin) go through to the leaves even there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loaderx import chain
from loaderx.chain import streams
from loaderx.chain.base import Node
from loaderx.chain.fingerprint import default_seed
from loaderx.chain.units import StreamInput, stream_input_of
from loaderx.errors import RecordError, StateError
from loaderx.memory import Pool
from loaderx.reading import batch_readers, chunks, readers, units, window_readers
from loaderx.reading.compile import Compiler
from loaderx.reading.context import ReadContext
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.lookahead import Lookahead, MakeHere, PendingUnit, UnitMaker
from loaderx.reading.monitor import Monitor
from loaderx.stages.stacking import NO_PADDING
from loaderx.stages.transforms import RandomKeys, with_full

MANY_ROWS = 1 << 14  # in a batch

Passes = list[tuple[int | None, int]]
"""For each repeat above, outermost first: how many epochs it has (None: endless), its ordinal."""

Make = Callable[["Reading", int], readers.Reader]
"""A reader for one lane of one reading."""


class StreamPlan:
    """A compiled stream.  ``leaves`` is what workers need; `read` starts a reading."""

    def __init__(self, node: Node, *, shard: tuple[int, int] = (0, 1)) -> None:
        self.node = node
        self.batch = streams.stream_batch(node)
        self.bucket = streams.stream_bucket(node)
        self.lanes = 1 if self.batch is None else self.batch.lanes
        host, hosts = shard
        self.hosts = hosts
        self.own = range(self.lanes * host // hosts, self.lanes * (host + 1) // hosts)
        self.input = stream_input_of(node)
        self.leaves: list[units.UnitPlan] = []
        self.meters: list[tuple[str, str]] = []
        self.warned: set[int] = set()  # meters of which a warning was given
        self.keyed = any(
            isinstance(below, chain.Transformed) and below.transform.needs == "keys"
            for below in node.below()
            if below.is_stream
        )
        stacked = self.batch is not None and self.batch.collate is None
        padding = NO_PADDING if self.batch is None else self.batch.padding
        self.finish = units.Finish(stacked=stacked, padding=padding)
        guarded = any(isinstance(below, (chain.Guarded, chain.Skipping)) for below in node.below())
        self.loose = units.Finish(stacked=False, padding=NO_PADDING, named=guarded)
        self.seed = default_seed(node, 0)
        self.empty_epochs = EmptyEpochs(self.lanes, varies=streams.varies(node))
        self.largest = _largest_request(node)
        self.make_lane = self._build()

    def _build(self) -> Make:
        """Readers of the lanes: of what stands below the batch, with the passes above it."""
        node, cut = self.node, self.batch or self.bucket
        records = node if cut is None else cut.input
        above: list[chunks.UnitStage] = []
        if self.bucket is not None:
            above = [chunks.Bucket(self.bucket.stage, self.bucket.options)]
        passes: Passes = [(None, node.repeats + 1)]  # the passes of the whole
        while cut is not None and node is not cut:
            if isinstance(node, chain.Repeated):
                passes.append((node.epochs, node.repeats))
            elif isinstance(node, chain.Guarded):
                above = [*above, chunks.Guard(node.stage, node.policy)]
            node = node.inputs[0]
        return Builder(self, Compiler(self.seed)).records(
            records, self.input, above, passes, self.finish
        )

    def unit_count(self, first: int, stop: int | None) -> int | None:
        """The units of passes ``first`` to ``stop`` on this host; None if that is not known."""
        total = 0
        for leaf in self.leaves:
            if stop is None or leaf.units is None:
                return None
            count = (stop - first) * -(-leaf.units * len(self.own) // self.lanes)
            for epochs in leaf.epoch_counts[1:]:
                if epochs is None:
                    return None
                count *= epochs
            total += count
        return total

    def read(self, maker: UnitMaker, first: int = 0, stop: int | None = 1) -> Reading:
        """A reading of passes ``first`` to ``stop``, at its beginning."""
        return Reading(self, maker, first, stop)


class Builder:
    """Builds readers and leaves; ``compiler`` knows the default seed."""

    def __init__(self, plan: StreamPlan, compiler: Compiler) -> None:
        self.plan, self.compiler = plan, compiler

    def records(
        self,
        node: Node,
        found_in: StreamInput,
        above: Sequence[chunks.UnitStage],
        passes: Passes,
        finish: units.Finish,
    ) -> Make:
        """Readers of a stream of records; ``found_in`` is where its stages find theirs."""
        if not node.is_stream:
            assert node is found_in.node
            return self._leaf(found_in, above, passes, finish)
        match node:
            case chain.Seeded():
                return self.records(node.input, found_in, above, passes, finish)
            case chain.Repeated():
                inner = [*passes, (node.epochs, node.repeats)]
                below = self.records(node.input, found_in, above, inner, finish)
                epochs, stage = node.epochs, f".{node.stage}"
                empty_epochs = self.plan.empty_epochs

                def repeated(reading: Reading, lane: int) -> readers.Reader:
                    return readers.RepeatReader(below(reading, lane), epochs, stage, empty_epochs)

                return repeated
            case chain.Sliced():
                pushed, rest = _split(above)
                if guards := _first_guard(above):
                    pushed, rest = [], [*above]  # what fails above has been counted
                last = finish if not rest else self.plan.loose
                (inside,) = found_in.inputs
                below = self.records(node.input, inside, [*pushed, *guards], passes, last)
                begin, count = node.start, node.count

                def sliced(reading: Reading, lane: int) -> readers.Reader:
                    return readers.SliceReader(below(reading, lane), begin, count)

                return self._chunked(sliced, found_in, rest, passes, finish) if rest else sliced
            case chain.Mixed():
                return self._mixed(node, found_in, above, passes, finish)
            case chain.FromIterable():
                return self._iterable(node, found_in, above, passes, finish)
        below_it, stages = node.inputs[0], [self._stage(node), *above]
        return self.records(below_it, found_in, stages, passes, finish)

    def _stage(self, node: Node) -> chunks.UnitStage:
        seed = self.compiler.seed
        match node:
            case chain.Transformed():
                stacked = None if isinstance(node.transform, RandomKeys) else node.stacked
                return chunks.Apply(
                    node.stage,
                    node.transform,
                    stacked=stacked,
                    seed=node.seed(seed),
                    ordinal=node.random_stages,
                )
            case chain.Guarded() | chain.Skipping():
                return chunks.Guard(node.stage, node.policy)
            case chain.WindowShuffled():
                return chunks.Shuffle(node.stage, node.window, node.seed(seed), node.random_stages)
            case chain.Filtered():
                return chunks.Filter(
                    node.stage,
                    node.function,
                    stacked=node.stacked,
                    meter=self._meter(node, "filter"),
                )
            case chain.FlatMapped():
                return chunks.FlatMap(node.stage, node.function)
            case chain.PackedRecords():
                return chunks.Pack(node.stage, node.options, meter=self._meter(node, "pack"))
        raise AssertionError(f"no stage for {type(node).__name__}")

    def _meter(self, node: Node, kind: str) -> int:
        self.plan.meters.append((kind, node.stage))
        return len(self.plan.meters) - 1

    def _leaf(
        self,
        found_in: StreamInput,
        above: Sequence[chunks.UnitStage],
        passes: Passes,
        finish: units.Finish,
    ) -> Make:
        plan, node = self.plan, found_in.node
        assert found_in.rows is not None
        wish = next((stage.wants for stage in above if stage.wants is not None), finish.stacked)
        leaf = units.UnitPlan(
            self.compiler.of_records(node, stacked=wish),
            above,
            finish,
            rows=found_in.rows,
            length=node.length,
            longest=streams.once_through(node),
            limit=node.limit,
            passes=passes,
            keyed=plan.keyed,
        )
        number = len(plan.leaves)
        plan.leaves.append(leaf)

        def make(reading: Reading, lane: int) -> readers.Reader:
            own = leaf.units_of(lane, plan.lanes)
            lookahead, note = reading.look_ahead(number, own), reading.monitor.note
            return readers.UnitReader(leaf, lookahead, own, plan.lanes, note, plan.empty_epochs)

        return make

    def _mixed(
        self,
        node: chain.Mixed,
        found_in: StreamInput,
        above: Sequence[chunks.UnitStage],
        passes: Passes,
        finish: units.Finish,
    ) -> Make:
        pushed, rest = _split(above)
        pushed += _first_guard(rest)
        last = finish if not rest else self.plan.loose
        inner = [*passes, (None, node.repeats)] if node.stop == "repeat" else passes
        parts = [
            Builder(self.plan, self.compiler.component(part)).records(
                part, inside, [chunks.Branch(number), *pushed], inner, last
            )
            for number, (part, inside) in enumerate(
                zip(node.components, found_in.inputs, strict=True)
            )
        ]
        schedule, stage, again = node.schedule, node.stage, node.stop == "repeat"
        empty_epochs = self.plan.empty_epochs

        def mixed(reading: Reading, lane: int) -> readers.Reader:
            below = [make(reading, lane) for make in parts]
            if not again:
                return readers.MixReader(below, schedule)
            repeated = [
                readers.RepeatReader(reader, None, f"dataset {number} of {stage}", empty_epochs)
                for number, reader in enumerate(below)
            ]
            return readers.AgainMixReader(repeated, schedule)

        return self._chunked(mixed, found_in, rest, passes, finish) if rest else mixed

    def _iterable(
        self,
        node: chain.FromIterable,
        found_in: StreamInput,
        above: Sequence[chunks.UnitStage],
        passes: Passes,
        finish: units.Finish,
    ) -> Make:
        source, stage, plan = node.source, node.stage, self.plan
        ordinals = [ordinal for _, ordinal in passes]

        def iterable(reading: Reading, lane: int) -> readers.Reader:
            return window_readers.IterableReader(
                source, stage, lane, plan.lanes, ordinals, plan.keyed
            )

        return self._chunked(iterable, found_in, above, passes, finish)

    def _chunked(
        self,
        below: Make,
        found_in: StreamInput,
        above: Sequence[chunks.UnitStage],
        passes: Passes,
        finish: units.Finish,
    ) -> Make:
        ordinals = [ordinal for _, ordinal in passes]
        plan = self.plan

        def chunked(reading: Reading, lane: int) -> readers.Reader:
            return window_readers.ChunkReader(
                below(reading, lane), above, finish, found_in.rows, ordinals, plan.empty_epochs,
                plan.largest, reading.monitor,
            )  # fmt: skip

        return chunked


def _largest_request(node: Node) -> int:
    """The most rows that one reader asks of another at once, here or where a state was saved."""
    sizes = [MANY_ROWS]
    for below in node.below():
        match below:
            case chain.Batched():
                sizes.append(below.size)
            case chain.Sliced():
                sizes.append(below.start)
        sizes.append(streams.window_of(below) or 0)
    return max(sizes)


def _split(
    above: Sequence[chunks.UnitStage],
) -> tuple[list[chunks.UnitStage], list[chunks.UnitStage]]:
    """The stages that keep every record in its place, and the rest from the first other one on."""
    for number, stage in enumerate(above):
        if not stage.is_one_to_one:
            return list(above[:number]), list(above[number:])
    return list(above), []


def _first_guard(above: Sequence[chunks.UnitStage]) -> Sequence[chunks.UnitStage]:
    """The on_error that also guards what stands below these stages, if there is one."""
    return [stage for stage in above if isinstance(stage, chunks.Guard)][:1]


class Reading:
    """One reading of a stream: the lanes, the batches, and what is above them."""

    def __init__(self, plan: StreamPlan, maker: UnitMaker, first: int, stop: int | None) -> None:
        self.plan, self._maker = plan, maker
        self._stop = stop
        self._lookaheads: list[Lookahead] = []
        self.times: dict[str, float] = {}
        self._pool = Pool(6)
        self.monitor = Monitor(plan.node, plan.meters, plan.warned, self._pool)
        readers = [plan.make_lane(self, lane) for lane in plan.own]
        if plan.bucket is not None:
            self._cut: batch_readers.Lanes = batch_readers.CutBuckets(readers)
        elif plan.batch is None:
            self._cut = batch_readers.CutRecords(readers)
        else:
            self._cut = batch_readers.Cut(readers, plan.batch, self._pool, alone=plan.hosts == 1)
        self._cut.first_lane = plan.own.start
        top = self._above(plan.node, self._cut)
        self._top = batch_readers.RepeatAfterBatch(top, ".repeat()", plan.empty_epochs, first, stop)
        self._top.start(())

    def _above(self, node: Node, cut: batch_readers.Lanes) -> batch_readers.BatchReader:
        if node is self.plan.batch or node is self.plan.bucket or not node.batched:
            return cut
        below = self._above(node.inputs[0], cut)
        match node:
            case chain.Transformed() if node.transform.needs == "positions":
                return batch_readers.IndexAfterBatch(below, node.stage, node.transform)
            case chain.Transformed():
                seed = node.seed(self.plan.seed)
                full = cut.rows * len(cut.lanes) if isinstance(cut, batch_readers.Cut) else None
                transform = with_full(node.transform, full)
                return batch_readers.ApplyAfterBatch(
                    below, node.stage, transform, seed, node.random_stages
                )
            case chain.Sliced():
                return batch_readers.SliceAfterBatch(below, node.start, node.count)
            case chain.Repeated():
                return batch_readers.RepeatAfterBatch(
                    below, f".{node.stage}", self.plan.empty_epochs, 0, node.epochs
                )
        return below  # a seed, an on_error

    def next(self) -> batch_readers.MadeBatch | None:
        """The next batch; None at the end."""
        made = self._top.next()
        for context in self.monitor.contexts:
            self.add(context.times)
        self.monitor.contexts.clear()
        return made

    def add(self, times: dict[str, float]) -> None:
        """Takes note of work that was done for this reading."""
        for stage, seconds in times.items():
            self.times[stage] = self.times.get(stage, 0.0) + seconds

    def look_ahead(self, number: int, lane: range) -> Lookahead:
        """Whoever asks for the units of a lane ahead of its reader."""
        plan = self.plan
        made = Lookahead(
            self._maker,
            number,
            plan.leaves[number],
            lane,
            share=len(plan.leaves) * len(plan.own),
            last_epoch=self._stop,
        )
        self._lookaheads.append(made)
        return made

    def clear(self) -> list[PendingUnit]:
        """Forgets what was asked for ahead, and gives it back to be cancelled."""
        return [pending for lookahead in self._lookaheads for pending in lookahead.clear()]

    @property
    def epoch(self) -> int:
        return self._top.count

    def state(self) -> tuple[list[int], list[Any]]:
        """The counters above the batch (the pass first), and the position of each own lane."""
        return self._top.counters(), self._cut.positions()

    def restore(self, counters: Sequence[int], positions: Sequence[Any], *, fresh: bool) -> None:
        left = iter(counters)
        self._top.restore((), left, positions, fresh=fresh)
        if more := len(list(left)):
            needed = len(counters) - more - 1
            raise StateError(
                f"the state has {needed + more} counters in `above`, and this dataset needs "
                f"{needed}."
            )


def iterate(node: Node) -> Iterator[Any]:
    """The elements of a stream, made in the caller's thread."""
    plan = StreamPlan(node)
    lend = Pool().lend
    reading = plan.read(MakeHere(plan.leaves, lambda: ReadContext(lend)))
    step = 0
    while True:
        try:
            made = reading.next()
        except RecordError as error:
            error.step = step
            raise
        if made is None:
            return
        step += 1
        yield made.tree
