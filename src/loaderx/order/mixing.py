"""Mixing by tickets: an exact interleaving of components in given proportions.

Weights become whole tickets t_c with D = sum(t_c).  One period of D positions hands component c
exactly t_c of them.  Job j of component c must fall into the window
[floor(j D / t_c), ceil((j + 1) D / t_c)); serving the earliest deadline first fills every window
(the schedule of a fully used single machine), so that in *every* prefix of n positions
component c has had n t_c / D records, give or take less than one.

Where weights change, the same holds with the demand A_c(n), the sum of the shares of c over the
first n positions, in place of n t_c / D: job j falls between the places where A_c reaches j and
j + 1.  A phase of flat weights therefore begins with what each component is behind (or ahead), an
exact fraction.  From any such beginning the schedule becomes periodic: two schedules of the same
windows that serve the earliest deadline first can differ for a while only.  A phase is hence a
short head, a period, and nothing else, however long it is.

Deadlines are those of the weights in force, so no position depends on weights that come later, and
later weights can be changed while a run is under way.  Foresight is needed for one thing: no
schedule without it keeps every component less than one behind if four or more of them change (of
four equal components two have come after two positions; give the other two all the weight, and
after one more position both should have come).  So a component is never one ahead, it is never one
behind within a phase that began with whole demands nor among up to three components, and after a
change among more it can be a little more than one behind for a few positions.

A component that has given all the records that it may ends its phase where its next one is due.
If the others go on, they begin with whole demands.
"""

from __future__ import annotations

import heapq
import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from loaderx.frozen import Frozen

MAX_TICKETS = 65_536
RAMP_STEPS = 256
_RAMP_SLOTS = 1 << 19  # of the tables of a ramp, about: a second's work
_NEVER = 1 << 200  # a deadline that does not come
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio

Positions = npt.NDArray[np.int64]


def tickets(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole tickets for positive finite weights: exact if a small common denominator exists."""
    from fractions import Fraction  # slow to import, and only mixes need it

    fractions = [Fraction(weight).limit_denominator(10**6) for weight in weights]
    if all(fraction > 0 for fraction in fractions):
        scale = math.lcm(*(fraction.denominator for fraction in fractions))
        whole = [int(fraction * scale) for fraction in fractions]
        shared = math.gcd(*whole)
        exact = tuple(count // shared for count in whole)
        if sum(exact) <= MAX_TICKETS:
            return exact
    return _largest_remainder(weights)


def _largest_remainder(weights: Sequence[float]) -> tuple[int, ...]:
    total = math.fsum(weights)
    spare = MAX_TICKETS - len(weights)  # every component has one ticket already
    shares = [max(0.0, weight / total * MAX_TICKETS - 1) for weight in weights]
    grown = math.fsum(shares)
    shares = [share * spare / grown for share in shares] if grown else shares
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(weights)), key=lambda c: (counts[c] - shares[c], c))
    for c in by_remainder[: spare - sum(counts)]:
        counts[c] += 1
    return tuple(count + 1 for count in counts)


class Schedule(Frozen):
    """A stretch of a mix: the component of each slot.  From slot ``head`` on it repeats."""

    tickets: tuple[int, ...]  # of a period
    component: npt.NDArray[np.int32]
    head: int = 0  # all slots, if it ends with them
    due: int = -1  # the component that would be due there, if it is one that is spent

    def __reduce__(self) -> tuple[object, ...]:
        """Without what is computed from the fields: workers get many of them."""
        return Schedule, (self.tickets, self.component, self.head, self.due)

    @cached_property
    def slots(self) -> tuple[Positions, ...]:
        """The slots of each component, ascending."""
        by_component = np.argsort(self.component, kind="stable").astype(np.int64)
        given = np.bincount(self.component, minlength=len(self.tickets))
        return tuple(np.split(by_component, np.cumsum(given)[:-1]))

    @cached_property
    def rank(self) -> Positions:
        """How often the component of each slot came before."""
        rank = np.empty(len(self.component), np.int64)
        for slots in self.slots:
            rank[slots] = np.arange(len(slots))
        return rank

    @cached_property
    def _tickets(self) -> Positions:
        return np.array(self.tickets, np.int64)

    @cached_property
    def period(self) -> int:
        return sum(self.tickets)

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """The component at each position, and the record's place in that component's stream."""
        if self.head:
            periods = np.maximum(positions - self.head, 0) // self.period
            slot = positions - periods * self.period
        else:
            periods, slot = np.divmod(positions, self.period)
        which = self.component[slot].astype(np.intp)
        return which, periods * self._tickets[which] + self.rank[slot]

    def counts(self, positions: int) -> Positions:
        """The records of every component among the first ``positions``."""
        periods = max(0, positions - self.head) // self.period
        inside = self.component[: positions - periods * self.period]
        return periods * self._tickets + np.bincount(inside, minlength=len(self.tickets))

    def position(self, component: int, index: int) -> int | None:
        """Where the component's record ``index`` comes; None if it does not."""
        slots, tickets = self.slots[component], self.tickets[component]
        if index < len(slots):
            return int(slots[index])
        if not tickets or self.head == len(self.component):
            return None
        periods = (index - len(slots)) // tickets + 1
        return int(slots[index - periods * tickets]) + periods * self.period

    def positions(self, component: int, indices: Positions) -> Positions:
        """`position` of many records; all of them come."""
        slots, tickets = self.slots[component], self.tickets[component]
        periods = np.maximum(indices - len(slots), -1) // max(1, tickets) + 1
        found: Positions = slots[indices - periods * tickets] + periods * self.period
        return found


class Phase(Frozen):
    """A stretch of a mix with the same weights."""

    start: int  # its first position in the mix
    begun: Positions  # the records that each component has given before
    schedule: Schedule

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """As `Schedule.locate`, for positions of this phase."""
        which, inside = self.schedule.locate(positions - self.start)
        return which, self.begun[which] + inside


class Timetable(Frozen):
    """The phases of a mix."""

    phases: tuple[Phase, ...]
    end: int | None = None  # where it ends because a component has given all that it may
    used_up: Mapping[int, int] = {}  # for such components: where their next record would be due

    @cached_property
    def starts(self) -> Positions:
        return np.array([phase.start for phase in self.phases], np.int64)

    @cached_property
    def steady(self) -> list[int]:
        """The components that come in every phase."""
        weights = zip(*(phase.schedule.tickets for phase in self.phases), strict=True)
        return [c for c, counts in enumerate(weights) if all(counts)]

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """The component at each position, and the record's place in that component's stream."""
        if len(self.phases) == 1 or not positions.size:
            return self.phases[0].schedule.locate(positions)
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        first = int(numbers.min())
        if first == numbers.max():
            return self.phases[first].locate(positions)
        which, inside = np.empty(len(positions), np.intp), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            which[mine], inside[mine] = self.phases[number].locate(positions[mine])
        return which, inside

    def counts(self, positions: int) -> Positions:
        """The records of every component among the first ``positions``."""
        phase = self.phases[max(0, bisect_right(self.starts, positions) - 1)]
        return phase.begun + phase.schedule.counts(positions - phase.start)

    def position(self, component: int, index: int) -> int | None:
        """Where the component's record ``index`` comes in the mix; None if it does not."""
        number = bisect_right(self.phases, index, key=lambda phase: int(phase.begun[component]))
        phase = self.phases[number - 1]
        found = phase.schedule.position(component, index - int(phase.begun[component]))
        return None if found is None else phase.start + found

    def positions(self, component: int, indices: Positions) -> Positions:
        """`position` of many records; all of them come."""
        begun = np.array([phase.begun[component] for phase in self.phases])
        numbers = np.searchsorted(begun, indices, side="right") - 1
        found = np.empty_like(indices)
        for number in np.unique(numbers).tolist():
            mine, phase = np.flatnonzero(numbers == number), self.phases[number]
            found[mine] = phase.start + phase.schedule.positions(
                component, indices[mine] - begun[number]
            )
        return found


def lane_positions(first: int, count: int, lane: int, lanes: int) -> Positions:
    """The positions in the mix of rows ``first`` to ``first + count`` of a lane.

    Row n of all lanes together are the positions n * lanes to (n + 1) * lanes - 1, so the mix is
    exact over all lanes.  Which lane has which of them changes from row to row, by multiples of the
    golden ratio: so no lane meets one component more often than another lane does, whatever the
    period of the schedule.
    """
    rows = np.arange(first, first + count)
    fraction = (rows.astype(np.uint64) * _GOLDEN) >> np.uint64(32)
    turn = ((fraction * np.uint64(lanes)) >> np.uint64(32)).astype(np.int64)
    return rows * lanes + (lane + turn) % lanes


@lru_cache(maxsize=64)
def schedule(counts: tuple[int, ...]) -> Schedule:
    """The period for these tickets."""
    whole = [0] * len(counts)
    return _stretch(counts, whole, 1, [None] * len(counts), None)


def ramp_phases(
    start: int, stop: int, before: Sequence[int], after: Sequence[int], *, is_cosine: bool
) -> list[tuple[int, tuple[int, ...]]]:
    """A ramp between two sets of tickets, as flat phases of equal length.

    Each has the share at its middle, rounded to tickets; what is rounded off goes into the next
    one, so that all of them together follow the ramp.
    """
    total = max(1024, 1 << (16 * len(before)).bit_length())
    steps = max(1, min(RAMP_STEPS, stop - start, _RAMP_SLOTS // total))
    shares = [(b / sum(before), a / sum(after)) for b, a in zip(before, after, strict=True)]
    rest, found = [0.0] * len(before), []
    for step in range(steps):
        along = (step + 0.5) / steps
        # Rounded, since the last digit of a cosine differs between machines.
        along = round((1 - math.cos(math.pi * along)) / 2, 9) if is_cosine else along
        wanted = [
            (one + (other - one) * along) * total + left
            for (one, other), left in zip(shares, rest, strict=True)
        ]
        counts = [max(0, round(want)) for want in wanted]
        while (missing := total - sum(counts)) != 0:  # by one or two, of the furthest from it
            sign = 1 if missing > 0 else -1
            able = [c for c, count in enumerate(counts) if count + sign >= 0]
            counts[max(able, key=lambda c: (wanted[c] - counts[c]) * sign)] += sign
        rest = [want - count for want, count in zip(wanted, counts, strict=True)]
        found.append((start + (stop - start) * step // steps, tuple(counts)))
    return found


@lru_cache(maxsize=16)
def timetable(
    weights: tuple[tuple[int, tuple[int, ...]], ...],
    most: tuple[int | None, ...],
    others_go_on: tuple[bool, ...],
) -> Timetable:
    """The phases of a mix whose tickets change at given positions, the first of which is 0.

    A component gives at most so many records; then the others go on, or the mix ends.
    """
    planner = _Planner(most, others_go_on)
    stops = [*(start for start, _ in weights[1:]), None]
    for (_, tickets), stop in zip(weights, stops, strict=True):
        if not planner.plan_until(stop, tickets):
            break
    return Timetable(tuple(planner.phases), planner.end, planner.used_up)


class _Planner:
    """Plans one phase after the other."""

    def __init__(self, most: Sequence[int | None], others_go_on: Sequence[bool]) -> None:
        self.most, self.others_go_on = most, others_go_on
        self.start, self.given = 0, np.zeros(len(most), np.int64)
        self.behind, self.shared = [0] * len(most), 1  # fractions with a shared denominator
        self.phases: list[Phase] = []
        self.end: int | None = None
        self.used_up: dict[int, int] = {}
        self.gone: set[int] = set()
        self._remove()

    def _left(self) -> list[int | None]:
        pairs = zip(self.most, self.given.tolist(), strict=True)
        return [None if most is None else most - given for most, given in pairs]

    def _remove(self) -> None:
        """Leaves out the components that have given all; the others begin with whole demands."""
        spent = [c for c, left in enumerate(self._left()) if left == 0 and self.others_go_on[c]]
        self.gone.update(spent)
        self.behind, self.shared = [0] * len(self.most), 1

    def plan_until(self, stop: int | None, tickets: Sequence[int]) -> bool:
        """Plans the positions before ``stop``; False if the mix ends before."""
        while stop is None or self.start < stop:
            chances = [0 if c in self.gone else count for c, count in enumerate(tickets)]
            if not any(chances):
                if not self.phases:  # a mix of nothing
                    self.phases.append(Phase(0, self.given, schedule(tuple(tickets))))
                self.end = self.start
                return False
            divisor = math.gcd(*chances)
            counts = tuple(count // divisor for count in chances)
            left, length = self._left(), None if stop is None else stop - self.start
            table = _stretch(counts, self.behind, self.shared, left, length)
            due = self._first_due(table, left, length)
            self.phases.append(Phase(self.start, self.given.copy(), table))
            length = length if due is None else due[0]
            if length is None:
                return True
            self._advance(table, length)
            if due is not None:
                self.used_up[due[1]] = self.start
                if not self.others_go_on[due[1]]:
                    self.end = self.start
                    return False
                self._remove()
        return True

    def _first_due(
        self, table: Schedule, left: Sequence[int | None], length: int | None
    ) -> tuple[int, int] | None:
        """Where a component is due that has no record left, and which."""
        size = len(table.component)
        if table.head == size and size != length:  # the table ends there
            return size, table.due
        found = [
            (at, c)
            for c, count in enumerate(left)
            if count is not None and (at := table.position(c, count)) is not None
        ]
        first = min(found, default=None)
        return None if first is None or (length is not None and first[0] >= length) else first

    def _advance(self, table: Schedule, length: int) -> None:
        given, period = table.counts(length), table.period
        shared = math.lcm(self.shared, period)
        behind = [
            old * (shared // self.shared) + count * length * (shared // period) - got * shared
            for old, count, got in zip(self.behind, table.tickets, given.tolist(), strict=True)
        ]
        divisor = math.gcd(shared, *behind)
        self.behind, self.shared = [each // divisor for each in behind], shared // divisor
        self.given, self.start = self.given + given, self.start + length


def _stretch(
    counts: tuple[int, ...],
    behind: Sequence[int],
    shared: int,
    left: Sequence[int | None],
    length: int | None,
) -> Schedule:
    """The slots of a phase up to its end, or to where they repeat, or a spent component is due.

    At its start the demand of each component is ``behind / shared`` ahead of what it has given.
    """
    period = sum(counts)
    low = [each * period // shared for each in behind]
    high = [-(-each * period // shared) for each in behind]
    waiting: list[tuple[int, int, int]] = []  # (release, component, job)
    ready: list[tuple[int, int, int]] = []  # (deadline, component, job)

    def wait(c: int, job: int) -> None:
        if counts[c]:
            heapq.heappush(waiting, ((job * period - high[c]) // counts[c], c, job))
        elif job * period < high[c]:  # the rest of a demand that does not grow
            heapq.heappush(ready, (_NEVER, c, job))

    for c in range(len(counts)):
        wait(c, 0)
    given, before = [0] * len(counts), [0] * len(counts)
    component: list[int] = []
    while len(component) != length:
        slot = len(component)
        if slot and slot % period == 0:
            if all(map(operator.eq, map(operator.sub, given, before), counts)):
                return Schedule(counts, np.array(component, np.int32), slot - period)
            before = given.copy()
        while waiting and waiting[0][0] <= slot:
            _, c, job = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-((job + 1) * period - low[c]) // counts[c]), c, job))
        _, c, job = heapq.heappop(ready)
        if job == left[c]:
            return Schedule(counts, np.array(component, np.int32), slot, c)
        component.append(c)
        given[c] += 1
        wait(c, job + 1)
    return Schedule(counts, np.array(component, np.int32), len(component))
