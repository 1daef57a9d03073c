"""mix: elements of several datasets in turn, by their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from loaderx.chain.encoding import encode, stage_text
from loaderx.chain.node import Node
from loaderx.chain.numbers import checked_length
from loaderx.errors import ChainError, RecordError, StateError
from loaderx.order.epochs import LIMIT
from loaderx.order.mixing import (
    Phase,
    Schedule,
    Timetable,
    lane_positions,
    schedule,
    timetable,
)
from loaderx.reading.addresses import groups
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import within
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.operators import Move
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Rows, interleaved
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import BRANCH, Keys, fold
from loaderx.stages.join import Merged, Router
from loaderx.stages.mix_weights import Change, flat_phases
from loaderx.stages.repeat import Repeat, RepeatReader

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, Reading, StreamBuild

_SHOWN_NAMES = 8


class Mixed(Merged):
    """Elements of the components by tickets, as many as each has in a period."""

    tickets: tuple[int, ...]
    stop: Literal["first_exhausted", "repeat", "all_exhausted"] = "first_exhausted"
    changes: tuple[Change, ...] = ()  # of the tickets, by position
    epochs: tuple[int | None, ...] = ()  # the most of each component; empty: none has a limit
    at_cap: Literal["error", "redistribute", "stop"] = "error"
    names: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()  # what weights count, in a record of each component
    rows_given: tuple[int | None, ...] = ()  # in an epoch of a component that is a stream

    kind = "mix"
    window = None
    is_ordered = True
    order_varies = True  # elements may have other neighbours in another epoch

    def __post_init__(self) -> None:
        self._check_components()
        self._check_specs()
        if self.stop == "all_exhausted":
            self._refuse_streams(
                "stop='all_exhausted' needs datasets of known length: mix them before the stage "
                "that makes a stream (filter, flat_map, pack, ...), or use stop='repeat'."
            )
            for number, node in enumerate(self.components):
                if node.length is None:
                    raise ChainError(
                        f"mix: dataset {number} is endless, so they cannot all be exhausted. "
                        "Leave its .repeat() out, or use stop='repeat'."
                    )
        for number in self.capped:
            if self.epoch_rows(number) is None:
                raise ChainError(_no_epochs(self.part_names[number], self.components[number]))
        if self.capped and self.at_cap == "error":
            self._check_caps()

    def _check_caps(self) -> None:
        for number, position in self.timetable.used_up.items():
            if number in self.capped and (self.length is None or position <= self.length):
                raise ChainError(
                    f"mix: {self.part_names[number]!r} has given its {self.epochs[number]} epochs "
                    f"before position {position} of the mix, where its next element is due. Give "
                    "it less weight, or 0 from there on, or choose what happens then: "
                    "at_cap='redistribute' goes on with the others, at_cap='stop' ends the mix."
                )

    @property
    def part_names(self) -> Sequence[str]:
        return self.names or super().part_names

    # What is planned --------------------------------------------------------------------------

    @cached_property
    def capped(self) -> list[int]:
        """The components with a limit of epochs."""
        return [number for number, epochs in enumerate(self.epochs) if epochs is not None]

    def epoch_rows(self, number: int) -> int | None:
        """The rows in an epoch of a component; None if they are not known, or it is endless."""
        node = self.components[number]
        if node.is_stream and node.ends and self.rows_given:
            return self.rows_given[number]
        return node.length

    @cached_property
    def timetable(self) -> Timetable:
        """Which component is due at which position."""
        is_flat = not self.changes and all(self.tickets) and not self.capped
        if is_flat and self.stop != "all_exhausted":
            return Timetable((Phase(0, np.zeros(len(self.tickets), np.int64), self.schedule),))
        phases = flat_phases(self.tickets, self.changes)
        return timetable(phases, *zip(*map(self._most, range(len(self.components))), strict=True))

    @property
    def schedule(self) -> Schedule:
        """That of the tickets at the beginning, if all components have some."""
        return schedule(self.tickets)

    def _most(self, number: int) -> tuple[int | None, bool]:
        """The most elements of a component, and whether the others go on after them."""
        length = self.epoch_rows(number)
        if number in self.capped and length is not None:
            return (self.epochs[number] or 0) * length, self.at_cap == "redistribute"
        if self.stop == "repeat" or self.is_stream:
            return None, False
        return length, self.stop == "all_exhausted"

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """For stop="repeat": the components that the mix goes on for, until all have ended.

        One that has no weight at last would never end, and one with a cap has its own end.
        """
        if self.stop != "repeat":
            return ()
        last = self.changes[-1][1] if self.changes else self.tickets
        return tuple(c for c, count in enumerate(last) if count and c not in self.capped)

    @property
    def starts_again(self) -> frozenset[int]:
        """The components that can have several epochs."""
        return frozenset(range(len(self.components)) if self.stop == "repeat" else self.capped)

    # What is known ----------------------------------------------------------------------------

    @cached_property
    def ends(self) -> bool:
        if not self.is_stream:
            return self.length is not None
        if self.timetable.end is not None:
            return True
        if self.stop == "repeat":
            return bool(self.lasting) and all(self.components[c].ends for c in self.lasting)
        last = self.changes[-1][1] if self.changes else self.tickets
        return any(
            node.ends and count > 0 and c not in self.capped
            for c, (node, count) in enumerate(zip(self.components, last, strict=True))
        )

    @cached_property
    def length(self) -> int | None:
        if self.is_stream:
            return None
        found = [self.timetable.end, self._end_of(self.lasting, max)]
        if self.stop == "first_exhausted":
            found.append(self._end_of(range(len(self.components)), min))
        ends = [end for end in found if end is not None]
        return checked_length(min(ends), self._numbered) if ends else None

    def _end_of(self, numbers: Sequence[int], choose: Callable[[list[int]], int]) -> int | None:
        """Where the first or last of some components ends; None if that does not happen."""
        ends = []
        for number in numbers:
            length = self.components[number].length
            if length is not None and number not in self.capped:
                ends.append(self.timetable.position(number, length))
            elif choose is max:
                return None
        known = [end for end in ends if end is not None]
        return choose(known) if known and (choose is min or len(known) == len(ends)) else None

    @cached_property
    def _numbered(self) -> int:
        """The number of elements until an endless component runs out of row numbers."""
        ends = [
            self.timetable.position(c, node.limit)
            for c, node in enumerate(self.components)
            if node.length is None
        ]
        return min([LIMIT, *(end for end in ends if end is not None)])

    @cached_property
    def limit(self) -> int:
        return LIMIT if self.is_stream else self._numbered if self.length is None else self.length

    @property
    def repeats_here(self) -> int:
        return int(bool(self.starts_again))

    @property
    def stage(self) -> str:
        tickets = ":".join(map(str, self.tickets))
        later = f", {len(self.changes)} changes" if self.changes else ""
        stop = "" if self.stop == "first_exhausted" else f", stop={self.stop!r}"
        named = 0 < len(self.names) <= _SHOWN_NAMES
        datasets = ", ".join(self.names) if named else f"{len(self.components)} datasets"
        return f"Dataset.mix({datasets}, {tickets}{later}{stop})"

    def fingerprint(self, seed: int) -> str:
        text = stage_text("mix", self.parts(seed), self, without=("names", "sizes", "changes"))
        # In full: a state is good for other changes, if these begin after its position.
        return f"{text[:-1]}, changes={encode(self.changes)})" if self.changes else text

    @property
    def begins_epochs(self) -> bool:
        return bool(self.starts_again)

    @cached_property
    def once_through(self) -> int:
        if self.length is not None:
            return self.length
        if not self.changes and all(self.tickets):
            period, own = sum(self.tickets), zip(self.components, self.tickets, strict=True)
            return max(-(-node.once_through * period // tickets) for node, tickets in own)
        ends = (
            self.timetable.position(c, node.once_through) for c, node in enumerate(self.components)
        )
        return max((end for end in ends if end is not None), default=LIMIT)

    def router(self) -> Router:
        again: list[list[Move]] = [[] for _ in self.components]
        given = None if self.length is None else self.timetable.counts(self.length).tolist()
        for number, part in enumerate(self.components) if self.starts_again else ():
            if part.length is not None:
                epochs = None if given is None else -(-given[number] // max(1, part.length))
                again[number].append(Repeat(part.length, None, self.repeats, epochs))
        return ByTickets(self.timetable, again, self.limit)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        from loaderx.chain.stream_build import guards_of

        pushed, rest = above.split()
        pushed += guards_of(rest)
        inner = above._replace(finish=build.loose if rest else above.finish)
        again = {
            number: inner.again(None, self.repeats) if number in self.starts_again else inner
            for number in range(len(self.components))
        }
        parts = [
            build.component(self.component_seed(number, build.seed)).reader(
                part,
                again[number]._replace(
                    input=inside,
                    stages=(OneOfMix(number), *pushed),
                    path=(*above.path, number),
                ),
            )
            for number, (part, inside) in enumerate(
                zip(self.components, above.input.inputs, strict=True)
            )
        ]
        plan, stage, starts_again = self.timetable, self.stage, self.starts_again
        empty_epochs, lanes, lasting = build.empty_epochs, build.lanes, self.lasting

        def mixed(reading: Reading, lane: int) -> Reader:
            below = [make(reading, lane) for make in parts]
            again: dict[int, RepeatReader] = {}
            for number in starts_again:
                name = f"dataset {number} of {stage}"
                again[number] = RepeatReader(below[number], None, name, empty_epochs)
                below[number] = again[number]
            return MixReader(below, plan, (lane, lanes), again, lasting)

        return build.windowed(mixed, above, rest) if rest else mixed

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("the batches of streams are not mixed")


# Read by index ----------------------------------------------------------------------------------


class ByTickets(Router):
    """Routes a mix; components that end start ``again`` as new epochs."""

    def __init__(self, plan: Timetable, again: Sequence[Sequence[Move]], limit: int) -> None:
        self.plan, self.again, self.limit = plan, again, limit

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        which, inside = self.plan.locate(positions)
        if not any(self.again):
            return which, epochs, inside
        epochs = np.broadcast_to(epochs, inside.shape).copy()
        for component, mine in groups(which):
            for move in self.again[component]:
                epochs[mine], inside[mine] = move.steps(epochs[mine], inside[mine])
        return which, epochs, inside

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        return self.plan.locate(positions)

    def moves(self, component: int) -> Sequence[Move]:
        return self.again[component]

    def counts(self, component: int, limits: Positions) -> Positions:
        ends, which = np.unique(np.minimum(limits, self.limit), return_inverse=True)
        return np.array([self.plan.counts(end)[component] for end in ends.tolist()])[which]

    def places(self, component: int, numbers: Positions) -> Positions:
        return self.plan.positions(component, numbers)


# In a stream ------------------------------------------------------------------------------------


class OneOfMix(UnitStage):
    """Gives the records of one component of a mix keys of their own."""

    is_one_to_one = True

    def __init__(self, dataset: int) -> None:
        super().__init__("mix")
        self.dataset = dataset

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        if rows.keys is None or not len(rows):
            return rows
        return rows.with_keys(fold(rows.keys, np.array([self.dataset], np.uint64), BRANCH))


class MixReader(Reader):
    """Rows of several readers by tickets.  State: rows given, and each component's position.

    Components that start ``again`` go on with their next epoch.  The mix ends with the first
    component that does not, or with the last of the ``lasting`` ones, or where its plan ends.
    """

    def __init__(
        self,
        parts: Sequence[Reader],
        plan: Timetable,
        lane: tuple[int, int],
        again: Mapping[int, RepeatReader],
        lasting: Sequence[int],
    ) -> None:
        self.parts, self.plan, self.again, self.lasting = parts, plan, again, lasting
        self.lane = lane  # its number, and that of all lanes
        self.given = 0

    def start(self, path: Path) -> None:
        self.given = 0
        for part in self.parts:
            part.start(path)

    def _upcoming(self, n: int) -> npt.NDArray[np.intp]:
        """The components of the next rows; fewer where the plan ends."""
        positions = lane_positions(self.given, n, *self.lane)
        if self.plan.end is not None:
            positions = positions[: np.searchsorted(positions, self.plan.end)]
        return self.plan.locate(positions)[0]

    def ready(self, n: int) -> int:
        n = min(n, 4096)
        while True:
            which = self._upcoming(n)
            ready, short = len(which), -1
            for number, part in enumerate(self.parts):
                places = np.flatnonzero(which[:ready] == number)
                if not places.size:
                    continue
                try:
                    again = self.again.get(number)
                    found = (again.ready_here if again else part.ready)(len(places))
                except RecordError as error:
                    raise within(number, error) from error.__cause__
                if found < len(places):
                    ready, short = int(places[found]), number
            if ready or short < 0 or not self._goes_on(short):
                return ready

    def _goes_on(self, ended: int) -> bool:
        """Whether the mix continues although a component has ended."""
        part = self.again.get(ended)
        if part is None:
            return False
        others = [self.again[number].number for number in self.lasting if number != ended]
        if ended in self.lasting and part.number == 0 and all(others):
            return False
        part.advance()
        return True

    def take(self, n: int) -> Rows:
        which = self._upcoming(n)
        parts = []
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(which == number)
            if places.size:
                parts.append((number, places, part.take(len(places))))
        self.given += n
        only = parts[0][2]
        if len(parts) == 1 and only.identify is None:  # else names must include the dataset
            return only
        return interleaved(parts, n)

    def state(self) -> LanePosition:
        return [self.given, *[part.state() for part in self.parts]]

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        names = (f"dataset {number}" for number in range(len(self.parts)))
        given, *parts = entries(state, ("rows given", *names))
        given = whole(given, "the rows that a mix has given", LIMIT // self.lane[1])
        if changed.weights is not None:
            changed.weights.check(path, (given + changed.read_ahead) * self.lane[1])
        self.given = 0 if changed.schedule else given
        for number, (part, inner) in enumerate(zip(self.parts, parts, strict=True)):
            part.restore(path, inner, changed=changed.of(number))
        if self.lasting and all(self.again[number].number for number in self.lasting):
            raise StateError(
                "the state has every dataset of a mix in its second epoch or later, but the mix "
                "ends once each of them has finished its first: the state is damaged."
            )

    def needs(self, n: int) -> Iterator[Lookahead]:
        for number in np.unique(self._upcoming(min(n, 4096))):
            yield from self.parts[number].needs(n)

    def epochs_read(self) -> int:
        return min((self.parts[c].epochs_read() for c in self.plan.steady), default=0)


def _no_epochs(name: str, node: Node) -> str:
    if node.is_stream and node.ends:
        return (
            f"mix: `epochs` for {name!r}, a stream, whose epochs have an unknown number of rows. "
            "Count them once and give their number: rows={...: DataLoader(dataset).counts().rows}."
        )
    return f"mix: `epochs` for {name!r}, which is endless. Leave its .repeat() out."
