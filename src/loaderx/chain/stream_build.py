"""From the description of a stream to unit plans for the workers and readers for the caller.

Going down from the batch, stages are collected until a dataset can be read by index: those stages
and that dataset make a `UnitPlan`, whose units any worker can make.  Stages above a repeat belong
to every epoch of it, and go into the units with the others.  Stages above a mix, an iterable or a
take of records run in the caller's thread, on the ordered rows; those that keep every record in its
place (map and the like) go into the units even there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from loaderx.chain.node import Node
from loaderx.chain.unit_size import StreamInput
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.monitor import Meter, Monitor
from loaderx.reading.operators import Request
from loaderx.reading.readers import Reader, UnitReader
from loaderx.reading.stacking import NO_PADDING
from loaderx.reading.unit_plan import Finish, UnitPlan
from loaderx.reading.unit_stage import UnitStage, first_guard
from loaderx.reading.window_reader import WindowReader

MANY_ROWS = 1 << 14  # in a batch


class Reading(Protocol):
    """One reading of a stream, as its readers see it."""

    @property
    def monitor(self) -> Monitor: ...

    def look_ahead(self, number: int, lane: Callable[[Path], range]) -> Lookahead:
        """Submits the units of a lane ahead of its reader."""


MakeReader = Callable[[Reading, int], Reader]
"""Makes the reader of one lane for one reading."""


class Repeats(NamedTuple):
    """A repeat that stands above."""

    epochs: int | None  # None: endless
    ordinal: int


class Above(NamedTuple):
    """The stages and repeats above the node whose reader is built."""

    input: StreamInput  # the records of the stages
    stages: tuple[UnitStage, ...]
    repeats: tuple[Repeats, ...]  # outermost first
    finish: Finish
    path: tuple[int, ...] = ()  # the components of the mixes above, outermost first

    def over(self, stage: UnitStage) -> Above:
        """A copy with one more stage below the others."""
        return self._replace(stages=(stage, *self.stages))

    def again(self, epochs: int | None, ordinal: int) -> Above:
        """A copy with one more repeat below the others."""
        return self._replace(repeats=(*self.repeats, Repeats(epochs, ordinal)))

    @property
    def ordinals(self) -> list[int]:
        return [ordinal for _, ordinal in self.repeats]

    def split(self) -> tuple[tuple[UnitStage, ...], tuple[UnitStage, ...]]:
        """The leading stages that keep every record in its place, and the stages after these."""
        for number, stage in enumerate(self.stages):
            if not stage.is_one_to_one:
                return self.stages[:number], self.stages[number:]
        return self.stages, ()


class StreamBuild:
    """Facts about a stream while its readers are built, and the unit plans so far."""

    def __init__(
        self,
        node: Node,
        lanes: int,
        full_batch: int | None,
        host: tuple[int, int] = (0, 1),
        *,
        traces: bool = False,
    ) -> None:
        self.lanes, self.seed = lanes, node.default_seed()
        self.host = host  # its number, and that of all hosts
        self.full_batch = full_batch  # rows of a batch on this host; None where that varies
        self.keyed = any(below.needs_keys for below in node.below() if below.is_stream)
        is_guarded = any(below.error_policy is not None for below in node.below())
        self.traces = traces  # rows are named after all that they are made of
        self.loose = Finish(stacked=False, padding=NO_PADDING, named=is_guarded or traces)
        self.largest = max(MANY_ROWS, *[below.largest_request for below in node.below()])
        self.empty_epochs = EmptyEpochs(lanes, varies=varies(node))
        self.units: list[UnitPlan] = []
        self.meters: list[Meter] = []

    def component(self, seed: int) -> StreamBuild:
        """A copy for a component of a mix, which has its own default seed."""
        made = copy.copy(self)
        made.seed = seed
        return made

    def new_meter(self, kind: str, stage: str, row: int = 1) -> int:
        """The number of a meter: it counts the records into and out of a stage."""
        self.meters.append(Meter(kind, stage, row))
        return len(self.meters) - 1

    def reader(self, node: Node, above: Above) -> MakeReader:
        """Readers of a stream of records, or of the dataset that it is made of."""
        if node.is_stream:
            return node.reader(self, above)
        assert node is above.input.node
        return self._units(above)

    def _units(self, above: Above) -> MakeReader:
        node, rows, stages = above.input.node, above.input.rows, above.stages
        assert rows is not None
        if above.finish.only_counts and first_guard(stages) is None:
            while stages and stages[-1].is_one_to_one:
                stages = stages[:-1]
        wishes = (stage.wants for stage in stages if stage.wants is not None)
        stacked = next(wishes, above.finish.stacked)
        number = len(self.units)
        plan = UnitPlan(
            node.record_operator(Request(self.seed, stacked=stacked)),
            stages,
            above.finish,
            rows=rows,
            units=above.input.units,
            length=node.length,
            longest=node.once_through,
            limit=node.limit,
            repeats=above.repeats,
            keyed=self.keyed,
            are_equal=self.lanes > 1,
            bounds=above.input.bounds(self.seed),
            traced=number if self.traces else None,
            path=above.path,
        )
        self.units.append(plan)
        lanes, empty_epochs = self.lanes, self.empty_epochs

        def make(reading: Reading, lane: int) -> Reader:
            own = partial(plan.units_of, lane, lanes)
            lookahead = reading.look_ahead(number, own)
            return UnitReader(plan, lookahead, own, lanes, reading.monitor, empty_epochs)

        return make

    def windowed(self, below: MakeReader, above: Above, stages: Sequence[UnitStage]) -> MakeReader:
        """The stages over ordered rows, in the caller's thread."""
        window, ordinals, finish = above.input.rows, above.ordinals, above.finish
        empty_epochs, largest = self.empty_epochs, self.largest

        def make(reading: Reading, lane: int) -> Reader:
            return WindowReader(
                below(reading, lane), stages, finish, window, ordinals, empty_epochs, largest,
                reading.monitor,
            )  # fmt: skip

        return make


def guards_of(stages: Sequence[UnitStage]) -> tuple[UnitStage, ...]:
    """The first `on_error` of these stages, which also guards what is below them."""
    guard = first_guard(stages)
    return () if guard is None else (guard,)


def varies(node: Node) -> bool:
    """Whether an epoch of a stream can have records after an epoch that had none.

    It can where random numbers decide which records are dropped, or the order which fill a batch.
    """
    for below in node.below():
        beneath = [stage for each in below.inputs for stage in each.below()]
        draws = any(stage.is_random and not stage.moves for stage in (below, *beneath))
        if below.can_drop and draws:
            return True
        if below.fill_depends_on_order:
            return any(stage.order_varies for stage in beneath)
    return False
