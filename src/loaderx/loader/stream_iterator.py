"""The iterator of a stream: batches cut from units, with a position for every lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from loaderx.chain.fingerprint import fingerprints
from loaderx.chain.node import Node
from loaderx.chain.stream_stage import stream_cut
from loaderx.chain.unit_size import unit_fingerprint
from loaderx.engines.base import Engine, Measured, Run, Session, Timing
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    RecordError,
    StateError,
    check_int,
)
from loaderx.loader.data_digest import DataDigest
from loaderx.loader.devices import Devices
from loaderx.loader.iterator import LoaderIterator, Mark, Place
from loaderx.loader.passes import how_long, most_of
from loaderx.loader.state import (
    State,
    StreamPosition,
    make_stream_state,
    read_stream_state,
    without_advice,
)
from loaderx.loader.stats import Counters, EpochCounters
from loaderx.loader.tasks.units import UnitSession, UnitWork
from loaderx.order.epochs import LIMIT, NO_STEPS, SkippedSteps
from loaderx.plans.stream_plan import Reading, StreamPlan
from loaderx.reading.lookahead import Lookahead, UnitMaker
from loaderx.reading.saved_position import UNCHANGED, LanePosition, first_entry
from loaderx.stages.repeat import MANY_EPOCHS
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.loader.counts import Counts, StreamCounts
    from loaderx.plans.stream_records import StreamProvenance

T = TypeVar("T")

MARK_EVERY, MOST_MARKS = 1000, 4096  # steps
REMEMBERED = 256  # positions kept: at most this many batches may be taken ahead

Position = tuple[list[int], list[LanePosition]]
"""The counters above the batch, and the position of each lane of this host."""


class StreamSetup:
    """What the iterators of one loader share."""

    def __init__(
        self,
        node: Node,
        shard: tuple[int, int],
        engine: Engine,
        devices: Devices | None = None,
        counts: Counts | None = None,
        skipped: SkippedSteps = NO_STEPS,
    ) -> None:
        self.node = node
        self.base, self.epochs, self.steps = how_long(node)
        self.plan = StreamPlan(devices.narrowed(self.base) if devices else self.base, shard=shard)
        self.work = UnitWork(node, self.plan, shard)
        self.chain = [*fingerprints(node, node.default_seed()), unit_fingerprint(self.plan.input)]
        self.data = DataDigest(node)
        self.repeats_records = _repeats_records(self.base)
        self.has_epochs = self.base.ends or node.ends  # a take may end an endless base
        self.shard, self._given = shard, (engine, devices, counts)
        self.marks: dict[int, dict[int, Position]] = {}  # by the first epoch of a pass, and step
        self._traced: StreamPlan | None = None
        self.skipped = skipped
        self._counts: StreamCounts | None = None
        ends, other = ends_by_itself(node), _uncounted_stage(self.base)
        self._is_counted = ends and other is None
        hosts = max([shard[1], *(devices.counts if devices else ())])  # the same in each process
        self._needs_counts = hosts > 1 and ends and _has_lanes(node) and not _is_bounded(node)
        if self._needs_counts and other is not None:
            raise ChainError(
                f"the stream ends, and .{other.stage} after .batch(...) changes the number of its "
                "steps: they cannot be counted, as several hosts need. Put it before .batch(...)."
            )
        if self._needs_counts and self.epochs is None and not self.counts().are_alike:
            raise ChainError(
                "every epoch of this stream has other rows, and several hosts would have to count "
                "each beforehand. Put .repeat() before .batch(...), or give a number of epochs."
            )
        if counts is not None:
            self.counts()

    def __reduce__(self) -> tuple[object, ...]:
        """Only the description: a new plan is made from it."""
        return StreamSetup, (self.node, self.shard, *self._given, self.skipped)

    def counts(self) -> StreamCounts:
        """The counts of epochs."""
        if not self._is_counted:
            raise ChainError(
                "rows are counted of streams that end, if nothing changes the number of batches "
                "(take, skip, ...) between .batch(...) and .repeat(...)."
            )
        if self._counts is None:
            from loaderx.loader.counts import StreamCounts  # late: most streams are not counted

            self._counts = StreamCounts(self.base, self.plan, self.chain, *self._given)
        return self._counts

    def count_epochs(self, first: int, stop: int | None) -> None:
        """Counts the rows of these epochs, if several hosts need to know them."""
        if self._needs_counts:
            for epoch in range(first, first + 1 if stop is None else stop):
                self.counts().of(epoch)

    def steps_between(self, first: int, stop: int) -> int | None:
        """The steps of these epochs; None if they were not counted."""
        known = [
            None if self._counts is None else self._counts.known(e) for e in range(first, stop)
        ]
        return None if None in known else sum(counts.steps for counts in known if counts)

    def read(
        self,
        units: UnitMaker,
        epochs: tuple[int, int | None],
        epoch: int,
        plan: StreamPlan | None = None,
    ) -> tuple[Reading, int]:
        """A reading of epochs, and the steps before one of them, if these were counted."""
        steps = self.steps_between(epochs[0], epoch)
        ends = None if self._counts is None or steps is None else self._counts.ends
        return (plan or self.plan).read(units, *epochs, ends), steps or 0

    def read_from(
        self,
        units: UnitMaker,
        epochs: tuple[int, int | None],
        step: int,
        plan: StreamPlan | None = None,
    ) -> Reading:
        """A reading that begins with a step."""
        epoch, inside = self.check_step(epochs, step)
        positions, skipped = self.counts().before(epoch, inside)
        reading, _ = self.read(units, epochs, epoch, plan)
        counters = [epoch, *(inside for _ in reading.state()[0][1:])]
        reading.restore(counters, positions, changed=UNCHANGED, step=inside)
        reading.skip(skipped)
        return reading

    def provenance(self) -> StreamProvenance:
        """The records of steps.  The plan for them is made once."""
        from loaderx.plans.stream_records import StreamProvenance  # late: few programs ask for it

        if self._traced is None:
            self._traced = StreamPlan(self.base, shard=self.shard, traces=True)
        plan = self._traced

        def begin(step: int | None, near: Any) -> tuple[int, Reading]:
            try:
                return self._begin_traced(plan, step, near)
            except StateError as error:
                raise StateError(without_advice(error)) from None

        return StreamProvenance(self.node, begin, self.steps)

    def _begin_traced(self, plan: StreamPlan, step: int | None, near: Any) -> tuple[int, Reading]:
        """A reading of the pass in which ``near`` was taken, as `StreamProvenance` needs it.

        It begins with the step itself if the rows are counted.
        """
        from loaderx.plans.stream_records import make_here

        first, known, changed = 0, {}, {}
        if near is not None:
            read = plan.input.node
            found = read_stream_state(near, self.chain, plan.own, self.data, read, strict=True)
            known[found.step] = (found.counters, found.positions)
            changed[found.step] = found.changed
            epoch = found.counters[0]
            first = found.first if self.epochs is None else epoch - epoch % self.epochs
            step = found.step if step is None else step
        epochs = (first, None if self.epochs is None else first + self.epochs)
        step, units = step or 0, make_here(plan)
        if self.steps_between(first, first + 1) is not None:
            return step, self.read_from(units, epochs, step, plan)
        known = {**self.marks.get(first, {}), **known}
        at = max((mark for mark in known if mark <= step), default=0)
        reading, before = self.read(units, epochs, known[at][0][0] if at else first, plan)
        if at:
            since = changed.get(at, UNCHANGED)
            reading.restore(*known[at], changed=since, step=max(0, at - before))
        return at, reading

    def check_step(self, epochs: tuple[int, int | None], step: int) -> tuple[int, int]:
        """The epoch of a step, and the steps before it in that epoch."""
        (epoch, stop), left = epochs, step
        while True:
            steps = self.steps_between(epoch, epoch + 1)
            if steps is None:
                counted = f" Call loader.counts({epoch}) first, or" if self._is_counted else ""
                raise ArgumentError(
                    f"a stream cannot seek to step {step}: which records make it is known only by "
                    f"reading up to it.{counted or ' So'} save get_state() where you want to go "
                    "on, and use set_state()."
                )
            if left < steps or (stop is not None and epoch + 1 == stop and left == steps):
                break
            if stop is not None and epoch + 1 == stop:
                raise ArgumentError(
                    f"step {step} is beyond this stream, which has {step - left + steps}."
                )
            epoch, left = epoch + 1, left - steps
        if step > self.steps:
            raise ArgumentError(f"step {step} is beyond this stream, which has {self.steps}.")
        return epoch, left

    def length(self, first: int, stop: int | None) -> int:
        """The steps of a pass over these epochs."""
        steps = None if stop is None else self.steps_between(first, stop)
        if steps is None:
            advice = (
                " Call loader.counts() first: it reads the records once."
                if self._is_counted
                else ""
            )
            raise ArgumentTypeError(
                f"a stream has no length: the number of its elements is known when it ends.{advice}"
            )
        return self.skipped.kept_before(min(steps, self.steps))

    def iterator(
        self,
        session: Session,
        counters: Counters,
        place: Place | None,
    ) -> StreamIterator[Tree]:
        """An iterator over all epochs of a pass, until it is moved to others."""
        return StreamIterator(self, session, counters, place, (0, self.epochs), self.steps)

    def epoch(
        self, session: Session, counters: Counters, place: Place | None, number: int
    ) -> StreamIterator[Tree]:
        if not self.has_epochs:
            raise ChainError(
                "epoch(e) needs a dataset whose epochs end: put .repeat() after .batch(...)."
            )
        if self.skipped.ranges and self.epochs != 1:
            raise ChainError(
                "epoch(e) of a stream with skip_steps: its steps are numbered through all epochs, "
                "and epoch(e) counts from 0. Use iter(loader), and set_state()."
            )
        if number >= MANY_EPOCHS:
            raise ArgumentError(
                f"epoch({number}) is too large: {MANY_EPOCHS} epochs of a stream can be numbered."
            )
        steps = self.steps if self.epochs == 1 else LIMIT
        return StreamIterator(self, session, counters, place, (number, number + 1), steps)


def _repeats_records(node: Node) -> bool:
    """True if the position of a lane begins with the epoch of a repeat."""
    while node.is_stage and node.is_stream:
        if not node.batched and (node.is_repeat or node.is_ordered):
            return node.is_repeat
        node = node.inputs[0]
    return False


def check_stream_shard(node: Node, hosts: int) -> None:
    """Refuses a stream that several hosts cannot read together."""
    if hosts == 1:
        return
    cut = stream_cut(node)
    if cut is None:
        raise ChainError("`shard` splits batches: the dataset needs a .batch(...).")
    cut.check_hosts(hosts)
    if cut.can_be_short and ends_by_itself(cut) and not _is_bounded(node):
        raise ChainError(
            f"the stream ends, and the last batches of {cut.stage} are short: some hosts would get "
            "no rows of them. Write drop_remainder=True or pad_remainder=True."
        )


def ends_by_itself(node: Node) -> bool:
    """Whether the records of a stream end, without a take above."""
    cut = stream_cut(node)
    return node.ends if cut is None else cut.input.ends


def _uncounted_stage(node: Node) -> Node | None:
    """A stage above the batch that changes the number of batches in an epoch."""
    cut = stream_cut(node)
    while cut is not None and node is not cut:
        if not node.keeps_places:
            return node
        node = node.inputs[0]
    return None


def _has_lanes(node: Node) -> bool:
    cut = stream_cut(node)
    return cut is not None and cut.lanes > 1


def _is_bounded(node: Node) -> bool:
    """True if there is a take between the batch and the first repeat above it."""
    bounded = False
    while node.is_stage and node.inputs[0].batched:
        if node.is_repeat:
            bounded = False
        elif most_of(node) < LIMIT:
            bounded = True
        node = node.inputs[0]
    return bounded


class Positions:
    """The position of a stream before each of the last steps.

    It outlives the run, and always has the position of the next batch to hand out, even if the run
    is further ahead.  Signal handlers and other threads may ask at any time.
    """

    def __init__(self, step: int, position: Position, skipped: SkippedSteps) -> None:
        self._number = skipped.kept_before  # of a step among those that are handed out
        self._last = deque([(self._number(step), position, 0)], maxlen=REMEMBERED)

    def add(self, step: int, position: Position, rows: int) -> None:
        """Remembers the position before a step, and the rows since the run began."""
        self._last.append((self._number(step), position, rows))

    def _find(self, step: int) -> tuple[int, Position, int]:
        step = self._number(step)
        while True:
            found = self._last[max(0, step - self._last[0][0])]
            if found[0] >= step:  # else another thread added one, which removed the first
                return found

    def at(self, step: int) -> Position:
        return self._find(step)[1]

    def rows_before(self, step: int) -> int:
        return self._find(step)[2]


class StreamRun:
    """Batches in order, with the position after each of the last ones."""

    def __init__(
        self,
        reading: Reading,
        units: UnitSession,
        step: int,
        stop: int,
        marks: dict[int, Position],
        skipped: SkippedSteps,
    ) -> None:
        self._reading, self._units, self._marks = reading, units, marks
        self._step, self._stop, self._skipped = step, stop, skipped
        self.positions = Positions(step, reading.state(), skipped)
        self.rows = 0
        self.rest: Measured | None = None  # measured after the last batch

    @property
    def lookaheads(self) -> Sequence[Lookahead]:
        """The units that will be read."""
        return self._reading.lookaheads

    def next(self) -> Measured:
        first = self._skipped.first_from(self._step)
        if first >= self._stop:
            raise StopIteration
        while True:
            try:
                batch = self._reading.next()
            except RecordError as error:
                error.step = self._step
                raise
            if batch is None:
                self.rest = self._measured(None)
                raise StopIteration
            self._step += 1
            if self._step > first:
                break
        self.rows += batch.count
        position = self._reading.state()
        self.positions.add(self._step, position, self.rows)
        if self._step % MARK_EVERY == 0:
            self._mark(position)
        return self._measured(batch.tree)

    def _mark(self, position: Position) -> None:
        """Keeps the position of a step, for `StreamProvenance`."""
        if len(self._marks) >= MOST_MARKS:
            for step in [*self._marks][::2]:
                del self._marks[step]
        self._marks[self._step] = position

    def start(self) -> None:
        self._reading.begin()

    def ready(self) -> bool:
        return True  # the batch is made here, from units that were requested ahead

    def _measured(self, batch: Tree) -> Measured:
        reading, measured = self._reading, self._units.measured
        for each in measured:
            reading.add(each.times.stages if each.times else {})
        measured.clear()
        monitor, times = reading.monitor, reading.times
        failures, read = monitor.failures, monitor.read
        monitor.failures, monitor.read, reading.times = [], 0, {}
        return Measured(batch, failures, Timing(times, 1, is_at_once=False), read)

    def close(self) -> None:
        self._units.cancel(self._reading.clear())

    def interrupt(self) -> bool:
        return self._units.interrupt()

    def describe(self) -> tuple[str, str]:
        return self._units.describe()


class StreamIterator(LoaderIterator[T]):
    """Made by ``iter(loader)`` and ``loader.epoch(e)`` for a stream.

    Its state has the position of every lane that this host reads.  It can `seek`, and has a length,
    once the rows are counted (``loader.counts()``): which input makes batch number n is known only
    by reading up to it.
    """

    def __init__(
        self,
        setup: StreamSetup,
        session: Session,
        counters: Counters,
        place: Place | None,
        epochs: tuple[int, int | None],
        steps: int,
    ) -> None:
        super().__init__(
            setup.node,
            setup.base,
            setup.chain,
            setup.data,
            range(steps),
            setup.shard,
            session,
            counters,
            None,
            place,
            setup.skipped,
        )
        self._setup = setup
        self._batches: StreamRun | None = None  # the run, before its batches are placed
        self._epochs = epochs
        self._positions: Positions | None = None  # of the last run; None: it starts at `_saved`
        self._saved: Position | None = None  # at step `_saved_at`; None: the beginning
        self._saved_at = 0
        self._changed = UNCHANGED  # changes of the chain since `_saved` was taken
        self._reported = 0  # rows of this run that are counted in the statistics
        self._mark: Mark = (0.0, 0, 0.0)  # at the last batch whose epoch is known

    def __len__(self) -> int:
        return self._setup.length(*self._epochs) - self._skipped.kept_before(self._position)

    def _pass_over(self) -> int:
        """The next step that is not skipped; the run reads up to it."""
        self._pass_over_at = self._skipped.next_start(self.step)
        return self.step

    def _start(self) -> Run:
        self._setup.count_epochs(*self._epochs)
        session = self._open_session()
        session.begin(self._setup.plan.unit_count(*self._epochs))
        batches = self._begin()
        self._batches, self._positions = batches, batches.positions
        self._mark = (self._last, self._position, 0.0)
        ahead = self._setup.work.ahead
        run = ahead(batches, batches.lookaheads) if session.shares_disk else batches
        return run if self._place is None else self._place(run, self._counters.listening)

    def _begin(self) -> StreamRun:
        step, positions = self._position, self._positions
        if positions is None or step == self._saved_at:
            saved, changed = self._saved, self._changed
        else:
            saved, changed = positions.at(step), UNCHANGED
        setup = self._setup
        units = UnitSession(
            self._open_session(),
            has_units=bool(setup.plan.units),
            work=setup.work,
            listening=self._counters.listening,
        )
        if saved is not None:
            reading, before = setup.read(units, self._epochs, saved[0][0])
            reading.restore(*saved, changed=changed, step=max(0, step - before))
        elif step:
            reading = setup.read_from(units, self._epochs, step)
        else:
            reading, _ = setup.read(units, self._epochs, self._epochs[0])
        self._reported = 0
        marks = setup.marks.setdefault(self._epochs[0], {})
        return StreamRun(reading, units, step, self._steps.stop, marks, self._skipped)

    def _count_rest(self) -> None:
        if self._batches is not None and self._batches.rest is not None:
            self._count_failures(self._batches.rest)
            self._failed_step = self._position  # the next `next` reaches the same end: count once

    def _records_read(self) -> int:
        return self._counters.failures.read

    def _stop(self) -> None:
        try:
            super()._stop()
        finally:
            self._batches = None

    def __getstate__(self) -> dict[str, object]:
        saved = self._saved if self._session is None else self._here()[1]
        left = dict.fromkeys(("_batches", "_positions"))
        return {**super().__getstate__(), **left, "_saved": saved, "_saved_at": self._position}

    def _rows_between(self, start: int, stop: int) -> int:
        if self._batches is None or self._positions is None:  # just stopped, and counted
            return 0
        rows = self._positions.rows_before(stop)
        fresh, self._reported = rows - self._reported, rows
        return fresh

    def _turn_epoch(self) -> None:
        """Called for each batch: the end of an epoch is known only when the next one has a batch.

        Before its first batch, the position is already in the new epoch.
        """
        number = self.epoch
        if self._in_epoch is None or self._in_epoch.epoch != number:
            if self._in_epoch is not None:
                self._count(until=self._mark)
            self._in_epoch = EpochCounters(number)
        self._mark = (self._last, self._position, self._waited)
        first, stop = self._epochs
        is_one = stop == first + 1 and not self._setup.repeats_records
        self._epoch_end = float("inf") if is_one else self._position + 1

    def _here(self) -> tuple[int, Position]:
        """The step of the next batch to be handed out, and its position."""
        step = self._position
        if self._positions is not None:
            return step, self._positions.at(step)
        if self._saved is None:
            run = self._begin()
            self._saved = run.positions.at(step)
            run.close()
        return step, self._saved

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; for repeats below `batch`, that of the host's first lane."""
        counters, positions = self._here()[1]
        if self._setup.repeats_records and not counters[0]:
            return first_entry(positions[0])
        return counters[0]

    def _epoch_taken(self) -> int:
        return self._here()[1][0][0]

    def _begin_at(self, epoch: int) -> None:
        stop = self._setup.epochs
        self._epochs = (epoch, None if stop is None else epoch + stop)

    def seek(self, step: int) -> None:
        """Goes to a step; to another than 0 only if the rows are counted (``loader.counts()``)."""
        step = check_int("step", step, least=0)
        if step == self._position:
            return
        if step:
            self._setup.check_step(self._epochs, step)
        with self._moving():
            self._position, self._saved, self._saved_at, self._positions = step, None, step, None
            self._changed = UNCHANGED

    def get_state(self) -> State:
        """The position as a small dict for JSON; on several hosts, that of this host's lanes."""
        step, (counters, positions) = self._here()
        first, stop = self._epochs
        return make_stream_state(
            self._chain,
            step,
            counters,
            dict(zip(self._setup.plan.own, positions, strict=True)),
            self._data,
            first if stop is None else 0,
        )

    def set_state(self, state: State, *, strict: bool = True) -> None:
        """Continues where a state was taken.

        A state of another chain is an error that names the stage that differs; with
        ``strict=False`` it is a warning, and every lane continues at the same row.  So the weights
        of a mix may change, and the batch size.  Where rows mean other records than before, a unit
        that was begun is read again from its start, and the warning says so.
        """
        plan = self._setup.plan
        found = read_stream_state(
            state, self._chain, plan.own, self._data, plan.input.node, strict=strict
        )
        epochs = self._epochs_of(found)
        if found.step > self._steps.stop or found.step >= LIMIT:
            raise StateError(
                f"the state is at step {found.step}, and this stream has {self._steps.stop} steps."
            )
        with self._moving():
            before = {name: getattr(self, name) for name in _MOVED}
            self._epochs, self._position, self._positions = epochs, found.step, None
            self._saved, self._saved_at = (found.counters, found.positions), found.step
            self._changed = found.changed
            try:
                run = self._begin()  # refuses a state that does not fit
                # Not `found`: a mix with other weights starts its schedule again.
                self._saved = run.positions.at(self._position)
                run.close()
                self._is_counted = False
            except BaseException:
                self.__dict__.update(before)
                raise

    def _epochs_of(self, found: StreamPosition) -> tuple[int, int | None]:
        """The epochs of the pass that a state was taken in; those of ``epoch(e)`` stay."""
        epoch, (first, stop) = found.counters[0], self._epochs
        if epoch != first and (self._passes is None or not self._setup.has_epochs):
            advice = f" Continue with loader.epoch({epoch}), or with iter(loader)."
            raise StateError(
                f"the state is in epoch {epoch}; this iterator reads epoch {first}."
                f"{advice if self._setup.has_epochs else ''}"
            )
        if epoch >= MANY_EPOCHS or found.first > epoch:
            raise StateError(
                f"the state is in epoch {epoch} of a pass that began with epoch {found.first}; no "
                "stream has such an epoch: the state is damaged."
            )
        if self._passes is None:
            return first, stop
        if self._setup.epochs is None:
            return found.first, None
        first = self._passes.first_of(epoch)
        return first, first + self._setup.epochs


# Restored if a state does not fit.
_MOVED = ("_epochs", "_position", "_saved", "_saved_at", "_changed", "_positions")
