"""mix: elements of several datasets in turn, by their weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from loaderx.chain.encoding import stage_text
from loaderx.chain.numbers import checked_length
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    RecordError,
    StateError,
)
from loaderx.order.epochs import LIMIT, wrap
from loaderx.order.mixing import Phase, Schedule, lane_positions, phases, schedule, tickets
from loaderx.reading.addresses import groups
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import within
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Rows, interleaved
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import BRANCH, Keys, fold
from loaderx.stages.join import Merged, Router
from loaderx.stages.repeat import RepeatReader

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, Reading, StreamBuild


def mix_tickets(weights: Sequence[float] | None, count: int) -> tuple[int, ...]:
    """The weights of a mix, checked, as whole numbers; equal ones if none are given."""
    if weights is None:
        return tickets([1.0] * count)
    if isinstance(weights, (str, bytes, Mapping)) or not isinstance(weights, Iterable):
        raise ArgumentTypeError(
            f"`weights` must be a list of numbers, one for each dataset; got {weights!r}."
        )
    shares = [_weight(number, weight) for number, weight in enumerate(weights)]
    if len(shares) != count:
        raise ArgumentError(f"`weights` has {len(shares)} numbers for {count} datasets.")
    for number, share in enumerate(shares):
        if not (math.isfinite(share) and share > 0):
            raise ArgumentError(
                f"`weights` must be positive numbers; weight {number} is {share}. "
                "Leave a dataset out instead of giving it no weight."
            )
    return tickets(shares)


def _weight(number: int, weight: object) -> float:
    try:
        if isinstance(weight, (str, bytes)):
            raise TypeError
        return float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"`weights` must be positive numbers; weight {number} is {weight!r} "
            f"({type(weight).__name__})."
        ) from None


class Mixed(Merged):
    """Elements of the components by tickets, as many as each has in a period."""

    tickets: tuple[int, ...]
    stop: Literal["first_exhausted", "repeat", "all_exhausted"] = "first_exhausted"

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

    @cached_property
    def schedule(self) -> Schedule:
        return schedule(self.tickets)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """For stop="all_exhausted": the datasets that are mixed, and from which position on."""
        return phases(self.tickets, [node.length or 0 for node in self.components])

    @cached_property
    def ends(self) -> bool:
        several = any if self.stop == "first_exhausted" else all
        return several(node.ends for node in self.components)

    @cached_property
    def length(self) -> int | None:
        if self.is_stream:
            return None
        if self.stop == "all_exhausted":
            return checked_length(sum(node.length or 0 for node in self.components))
        ends = [
            None if node.length is None else self.schedule.position(c, node.length)
            for c, node in enumerate(self.components)
        ]
        finite = [end for end in ends if end is not None]
        if self.stop == "repeat":
            return None if len(finite) < len(ends) else checked_length(max(finite))
        return checked_length(min(finite), self._numbered) if finite else None

    @cached_property
    def _numbered(self) -> int:
        """The number of elements until an endless component runs out of row numbers."""
        ends = [
            self.schedule.position(c, node.limit)
            for c, node in enumerate(self.components)
            if node.length is None
        ]
        return min([LIMIT, *ends])

    @cached_property
    def limit(self) -> int:
        return LIMIT if self.is_stream else self._numbered if self.length is None else self.length

    @property
    def repeats_here(self) -> int:
        return int(self.stop == "repeat")

    @property
    def stage(self) -> str:
        tickets = ":".join(map(str, self.tickets))
        stop = "" if self.stop == "first_exhausted" else f", stop={self.stop!r}"
        return f"Dataset.mix({len(self.components)} datasets, {tickets}{stop})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("mix", self.parts(seed), self)

    @property
    def begins_epochs(self) -> bool:
        return self.stop == "repeat"

    @cached_property
    def once_through(self) -> int:
        if self.length is not None:
            return self.length
        period, own = sum(self.tickets), zip(self.components, self.tickets, strict=True)
        return max(-(-node.once_through * period // tickets) for node, tickets in own)

    def router(self) -> Router:
        if self.stop == "all_exhausted":
            return ByPhases(self.phases)
        ordinal = self.repeats if self.stop == "repeat" else None
        return ByTickets(self.schedule, [part.length for part in self.components], ordinal)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        from loaderx.chain.stream_build import guards_of

        pushed, rest = above.split()
        pushed += guards_of(rest)
        inner = above._replace(finish=build.loose if rest else above.finish)
        if self.stop == "repeat":
            inner = inner.again(None, self.repeats)
        parts = [
            build.component(self.component_seed(number, build.seed)).reader(
                part, inner._replace(input=inside, stages=(OneOfMix(number), *pushed))
            )
            for number, (part, inside) in enumerate(
                zip(self.components, above.input.inputs, strict=True)
            )
        ]
        mix_schedule, stage, starts_again = self.schedule, self.stage, self.stop == "repeat"
        empty_epochs, lanes = build.empty_epochs, build.lanes

        def mixed(reading: Reading, lane: int) -> Reader:
            below, own = [make(reading, lane) for make in parts], (lane, lanes)
            if not starts_again:
                return MixReader(below, mix_schedule, own)
            repeated = [
                RepeatReader(reader, None, f"dataset {number} of {stage}", empty_epochs)
                for number, reader in enumerate(below)
            ]
            return AgainMixReader(repeated, mix_schedule, own)

        return build.windowed(mixed, above, rest) if rest else mixed

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("the batches of streams are not mixed")


# Read by index ----------------------------------------------------------------------------------


class ByPhases(Router):
    """Routes a mix that ends last: each phase has a schedule of the components that are left."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = phases
        self.starts = np.array([phase.start for phase in phases], np.int64)

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        which, inside = np.empty(len(positions), np.intp), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            which[mine], inside[mine] = self.phases[number].locate(positions[mine])
        return which, epochs, inside


class ByTickets(Router):
    """Routes a mix; with an ``ordinal``, components that end start again as new epochs."""

    def __init__(self, schedule: Schedule, lengths: Sequence[int | None], ordinal: int | None):
        self.schedule, self.lengths, self.ordinal = schedule, lengths, ordinal

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        which, inside = self.schedule.locate(positions)
        if self.ordinal is None:
            return which, epochs, inside
        epochs = np.broadcast_to(epochs, inside.shape).copy()
        for component, mine in groups(which):
            length = self.lengths[component]
            if length is not None:
                epochs[mine], inside[mine] = wrap(epochs[mine], inside[mine], length, self.ordinal)
        return which, epochs, inside


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
    """Rows of several readers by tickets.  State: rows given, and each component's position."""

    def __init__(self, parts: Sequence[Reader], schedule: Schedule, lane: tuple[int, int]) -> None:
        self.parts, self.schedule = parts, schedule
        self.lane = lane  # its number, and that of all lanes
        self.given = 0

    def start(self, path: Path) -> None:
        self.given = 0
        for part in self.parts:
            part.start(path)

    def _upcoming(self, n: int) -> npt.NDArray[np.intp]:
        """The components of the next rows."""
        period = self.schedule.component
        return period[lane_positions(self.given, n, *self.lane) % len(period)]

    def ready(self, n: int) -> int:
        n = min(n, 4096)
        while True:
            which = self._upcoming(n)
            ready, short = n, -1
            for number, part in enumerate(self.parts):
                places = np.flatnonzero(which[:ready] == number)
                if not places.size:
                    continue
                try:
                    found = self._ready_of(part, len(places))
                except RecordError as error:
                    raise within(number, error) from error.__cause__
                if found < len(places):
                    ready, short = int(places[found]), number
            if ready or not self._goes_on(short):
                return ready

    def _ready_of(self, part: Reader, n: int) -> int:
        return part.ready(n)

    def _goes_on(self, ended: int) -> bool:
        """Whether the mix continues although a component has ended."""
        return False

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
        self.given = 0 if changed.schedule else given
        for number, (part, inner) in enumerate(zip(self.parts, parts, strict=True)):
            part.restore(path, inner, changed=changed.of(number))

    def needs(self, n: int) -> Iterator[Lookahead]:
        for number in np.unique(self._upcoming(min(n, 4096))):
            yield from self.parts[number].needs(n)

    def epochs_read(self) -> int:
        return min(part.epochs_read() for part in self.parts)


class AgainMixReader(MixReader):
    """A mix whose components start again, until the last of them has ended."""

    parts: Sequence[RepeatReader]

    def _ready_of(self, part: Reader, n: int) -> int:
        assert isinstance(part, RepeatReader)
        return part.ready_here(n)

    def _goes_on(self, ended: int) -> bool:
        part = self.parts[ended]
        others = [other for number, other in enumerate(self.parts) if number != ended]
        if part.number == 0 and all(other.number > 0 for other in others):
            return False
        part.advance()
        return True

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        super().restore(path, state, changed=changed)
        if all(part.number > 0 for part in self.parts):
            raise StateError(
                "the state has every dataset of a mix in its second epoch or later, but the mix "
                "ends once each of them has finished its first: the state is damaged."
            )
