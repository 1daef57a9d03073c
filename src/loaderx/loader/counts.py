"""The rows of a finite stream, counted once: so that every host knows where all lanes end.

The rows of a unit depend on its number alone, so any worker can count them.  Counts are kept in the
cache folder, under a digest of what is sent to workers: the chain with its functions, and the
identity of the files.  Marks, positions of each lane at some of its rows, make `seek` quick.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from loaderx.chain.node import Node
from loaderx.engines import Engine
from loaderx.errors import ArgumentError, LoaderxError
from loaderx.frozen import Frozen
from loaderx.loader.devices import Devices
from loaderx.loader.tasks.units import UnitSession, UnitWork
from loaderx.memory import Pool
from loaderx.plans.stream_plan import SingleLanes, StreamPlan
from loaderx.reading.lookahead import Path
from loaderx.reading.monitor import Monitor
from loaderx.reading.readers import Reader
from loaderx.reading.saved_position import LanePosition
from loaderx.sources.cache.folder import cache_folder, key_of
from loaderx.sources.progress import Progress, progress
from loaderx.stages.inputs import FromSource

VERSION = 1  # of entries in the cache folder
MOST_MARKS = 4096  # of all lanes
_MANY_ROWS = 1 << 20


Mark: TypeAlias = tuple[int, LanePosition]
"""A number of rows of a lane, and its position after these."""

LaneCount: TypeAlias = tuple[int, Sequence[Mark]]
"""The rows of a lane, and its marks, from its first row on; a list in the cache folder."""


class Counts(Frozen):
    """How many rows a finite stream has in an epoch, and how many steps they make.

    Made by ``loader.counts()``; other processes may get it as ``DataLoader(counts=...)``.
    """

    epoch: int
    lanes: tuple[int, ...]
    """The rows of each lane."""
    steps: int
    padding: int
    """Rows that `pad_remainder` adds."""
    marks: Mapping[int, Sequence[Mark]]
    """Positions of each lane that was counted here, for `seek`."""
    chain: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The rows of all lanes."""
        return sum(self.lanes)

    def __repr__(self) -> str:
        return (
            f"Counts(epoch={self.epoch}, rows={self.rows:,}, steps={self.steps:,}, "
            f"padding={self.padding:,}, lanes={self.lanes})"
        )


class EpochEnds:
    """Where the lanes end, for their readers."""

    def __init__(self, counts: Counts, stream: StreamCounts) -> None:
        self.steps, self._lanes, self._stream = counts.steps, counts.lanes, stream
        self.some_lane = int(np.argmax(counts.lanes))

    def rows(self, lane: int) -> int:
        return self._lanes[lane]

    def differs(self, lane: int, found: int) -> LoaderxError:
        self._stream.forget()
        counted = self.rows(lane)
        more = " or more" if found > counted else ""
        return LoaderxError(
            f"lane {lane} of the stream has {found:,} rows{more}, and {counted:,} were counted: a "
            "function of the dataset has changed since, or its result depends on more than the "
            "record. The stored counts are removed; start again, and rows are counted again."
        )


class StreamCounts:
    """The counts of the epochs of one loader: given, found in the cache folder, or made."""

    def __init__(
        self,
        base: Node,
        plan: StreamPlan,
        chain: Sequence[str],
        engine: Engine,
        devices: Devices | None,
        given: Counts | None = None,
    ) -> None:
        self._base, self._plan, self._chain = base, plan, tuple(chain)
        self._engine, self._devices = engine, devices
        self._known: dict[int, Counts] = {}
        if given is not None:
            self._known[self._checked(given).epoch] = given
        self._keys: list[str] = []  # entries of the cache folder that were used
        self.are_alike = _are_alike(base, plan)

    def _checked(self, counts: object) -> Counts:
        if not isinstance(counts, Counts) or counts.chain != self._chain:
            raise ArgumentError(
                f"`counts` must be what loader.counts() returned for the same dataset, got "
                f"{counts!r}."
            )
        return counts

    def known(self, epoch: int) -> Counts | None:
        """The counts of an epoch, if nothing must be read for them."""
        found = self._known.get(epoch)
        if found is None and self.are_alike and self._known:
            found = self._turned(next(iter(self._known.values())), epoch)
            self._known[epoch] = found
        return found

    def of(self, epoch: int) -> Counts:
        """The counts of an epoch.  If a sharding spans processes, all must call this."""
        found = self.known(epoch)
        if found is None:
            made = 0 if self.are_alike else epoch
            self._known[made] = self._join(made, self._found_or_made(made))
            found = self.known(epoch)
            assert found is not None
        return found

    def ends(self, path: Path) -> EpochEnds | None:
        counts = self.known(path[0])
        return None if counts is None else EpochEnds(counts, self)

    def forget(self) -> None:
        """Removes counts that have proved wrong."""
        self._known.clear()
        for key in self._keys:
            cache_folder(None).forget_note(key)

    # Where a step begins --------------------------------------------------------------------------

    def before(self, epoch: int, step: int) -> tuple[list[LanePosition], list[int]]:
        """A position of each own lane at or before a step of an epoch, and the rows between."""
        positions, skipped, rows = [], [], step * self._rows_of_step
        counts = self.of(epoch)
        for lane in self._plan.own:
            wanted = min(rows, counts.lanes[lane])
            # If hosts have exchanged their rows, marks of other lanes are not known.
            marks = counts.marks.get(lane) or [next(iter(counts.marks.values()))[0]]
            rows_before, position = marks[bisect_right(marks, wanted, key=itemgetter(0)) - 1]
            positions.append(position)
            skipped.append(wanted - rows_before)
        return positions, skipped

    @property
    def _rows_of_step(self) -> int:
        return 1 if self._plan.cut is None else self._plan.cut.rows_of_lane

    # Counting -------------------------------------------------------------------------------------

    @property
    def _exchanges(self) -> bool:
        """Whether each host counts its own lanes, and tells the others."""
        return self._devices is not None and self._devices.can_exchange

    def _found_or_made(self, epoch: int) -> dict[int, LaneCount]:
        """The counts of all lanes, or of this host's own."""
        # Not of this host: what one has counted, all others find if they share the cache folder.
        plan = StreamPlan(self._base, only_counts=True)
        work = UnitWork(self._base, plan, (0, 1))
        digest, folder = _digest_of(self._base, work), cache_folder(None)
        wanted = [range(plan.lanes), *([self._plan.own] if self._exchanges else [])]
        keys = [key_of("counts", VERSION, (), (), [digest, epoch, *one]) for one in wanted]
        for key in keys if digest else ():
            kept = folder.note(key)
            if kept is not None:
                self._keys.append(key)
                return dict(zip(wanted[keys.index(key)], kept["lanes"], strict=True))
        made = self._count(plan, work, epoch, wanted[-1])
        if digest:
            about = self._base.chain()[0].stage
            folder.keep_note(keys[-1], "counts", about, {"lanes": [*made.values()]})
            self._keys.append(keys[-1])
        return made

    def _count(
        self, plan: StreamPlan, work: UnitWork, epoch: int, lanes: range
    ) -> dict[int, LaneCount]:
        session = self._engine.session(work)
        units = UnitSession(session, has_units=bool(plan.units))
        reading = SingleLanes(plan, units, Monitor(plan.build.meters, self._plan.warned, Pool()))
        most = max(16, MOST_MARKS // len(lanes))
        try:
            session.begin(plan.unit_count(epoch, epoch + 1))
            with progress("counting the rows of the stream", None, " rows") as shown:
                opened = [reading.lane((epoch,), lane) for lane in lanes]
                made = {}
                for number, lane in enumerate(lanes):
                    # The units of the next lane are made while this one ends.
                    for _, lookaheads in opened[number : number + 2]:
                        for lookahead in lookaheads:
                            lookahead.begin()
                            lookahead.fill()
                    made[lane] = _count_lane(opened[number][0], most, shown)
                return made
        finally:
            session.close()

    def _join(self, epoch: int, own: Mapping[int, LaneCount]) -> Counts:
        rows = np.array([own[lane][0] if lane in own else -1 for lane in range(self._plan.lanes)])
        if self._exchanges:
            assert self._devices is not None
            rows = self._devices.exchange(rows)
        return self._counts(epoch, rows.tolist(), {lane: marks for lane, (_, marks) in own.items()})

    def _counts(
        self, epoch: int, rows: Sequence[int], marks: Mapping[int, Sequence[Mark]]
    ) -> Counts:
        cut, each = self._plan.cut, self._rows_of_step
        drops = cut is not None and cut.drop_remainder
        steps = min(rows) // each if drops else -(-max(rows) // each)
        pads = cut is not None and cut.pad_remainder
        padding = steps * each * len(rows) - sum(rows) if pads else 0
        return Counts(epoch, tuple(rows), steps, padding, marks, self._chain)

    def _turned(self, counts: Counts, epoch: int) -> Counts:
        """The counts of another epoch, in which lanes have the units of other lanes."""
        (plan,), lanes = self._plan.units, self._plan.lanes
        now, then = (plan.units_of(0, lanes, self._first(e)).start for e in (epoch, counts.epoch))
        turn = now - then
        rows = [counts.lanes[(lane + turn) % lanes] for lane in range(lanes)]
        marks = {(lane - turn) % lanes: found for lane, found in counts.marks.items()}
        return self._counts(epoch, rows, marks)

    def _first(self, epoch: int) -> Path:
        return (epoch, *(0 for _ in self._plan.units[0].repeats[1:]))


def _are_alike(base: Node, plan: StreamPlan) -> bool:
    """Whether the units of all epochs have the same rows."""
    varies = any(stage.is_random or stage.order_varies for stage in base.below())
    return len(plan.units) == 1 and not varies


def _count_lane(reader: Reader, most: int, shown: Progress) -> LaneCount:
    marks, rows, every, seen = [(0, reader.state())], 0, 1, 0
    while found := reader.ready(_MANY_ROWS):
        seen += 1
        if seen % every == 0:
            marks.append((rows, reader.state()))
        if len(marks) > most:
            marks, every = marks[::2], 2 * every
        reader.take(found)
        rows += found
        shown.add(found)
    return rows, marks


def _digest_of(base: Node, work: UnitWork) -> str | None:
    """Identifies what the counts depend on; None if data in memory, or unknown data, do."""
    for stage in base.below():
        if not stage.inputs and not (
            isinstance(stage, FromSource) and getattr(stage.source, "identifies_data", False)
        ):
            return None
    from loaderx.engines.processes.pickling import digest_of  # late: brings cloudpickle

    return digest_of(work)
