"""Mixing by tickets: an exact, periodic interleaving of components in given proportions.

Weights become whole tickets t_c with D = sum(t_c).  One period of D positions hands component c
exactly t_c of them.  Job j of component c must fall into the window
[floor(j D / t_c), ceil((j + 1) D / t_c)); serving the earliest deadline first fills every window
(the schedule of a fully used single machine), so that in *every* prefix of n positions
component c has had n t_c / D records, give or take less than one.

Where a mix goes on without the components that have ended, it has *phases*: each is such a periodic
interleaving of those that are left, and ends at the position where a component would be due that
has no record any more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from loaderx.frozen import Frozen

MAX_TICKETS = 65_536
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
    """One period of a mix: slot r takes the ``rank[r]``-th record of ``component[r]``."""

    tickets: tuple[int, ...]
    component: npt.NDArray[np.intp]
    rank: Positions
    slots: tuple[Positions, ...]
    """The slots of each component, ascending."""

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """The component at each position, and the record's place in that component's stream."""
        periods, slot = np.divmod(positions, len(self.component))
        which = self.component[slot]
        return which, periods * np.array(self.tickets, np.int64)[which] + self.rank[slot]

    def count(self, component: int, positions: int) -> int:
        """The records of a component among the first ``positions``."""
        periods, rest = divmod(positions, len(self.component))
        inside = int(np.searchsorted(self.slots[component], rest))
        return periods * self.tickets[component] + inside

    def position(self, component: int, index: int) -> int:
        """Where the component's record ``index`` comes in the mix."""
        periods, rank = divmod(index, self.tickets[component])
        return periods * len(self.component) + int(self.slots[component][rank])


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


class Phase(Frozen):
    """A stretch of a mix between the ends of two components."""

    start: int  # its first position in the mix
    components: tuple[int, ...]  # those that are left
    begun: tuple[int, ...]  # the records that each of them has given before
    schedule: Schedule

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """As `Schedule.locate`, for positions of this phase."""
        which, inside = self.schedule.locate(positions - self.start)
        return (
            np.array(self.components, np.intp)[which],
            np.array(self.begun, np.int64)[which] + inside,
        )


def phases(counts: Sequence[int], lengths: Sequence[int]) -> tuple[Phase, ...]:
    """The phases of a mix that gives every record once: at most one per component."""
    found: list[Phase] = []
    start, given = 0, [0] * len(counts)
    while left := [c for c in range(len(counts)) if given[c] < lengths[c]]:
        shared = math.gcd(*(counts[c] for c in left))
        chances = tuple(counts[c] // shared for c in left)
        remaining = tuple(lengths[c] - given[c] for c in left)
        # Most phases end within their first period, and only that much of it is computed.
        ends_early = any(n < chance for n, chance in zip(remaining, chances, strict=True))
        table = schedule_begun(chances, remaining) if ends_early else schedule(chances)
        found.append(Phase(start, tuple(left), tuple(given[c] for c in left), table))
        # The phase ends where a component without records is due.
        end = len(table.component)
        if not ends_early:
            end = min(table.position(i, count) for i, count in enumerate(remaining))
        for i, c in enumerate(left):
            given[c] += len(table.slots[i]) if ends_early else table.count(i, end)
        start += end
    return tuple(found)


@lru_cache(maxsize=64)
def schedule(counts: tuple[int, ...]) -> Schedule:
    """The period for these tickets."""
    return schedule_begun(counts, counts)


def schedule_begun(counts: tuple[int, ...], most: tuple[int, ...]) -> Schedule:
    """The period for these tickets, up to where a component is due beyond its ``most`` records."""
    period = sum(counts)
    component = np.empty(period, np.intp)
    rank = np.empty(period, np.int64)
    waiting = [(0, c, 0) for c in range(len(counts))]  # (release, component, job)
    ready: list[tuple[int, int, int]] = []  # (deadline, component, job)
    for slot in range(period):
        while waiting and waiting[0][0] <= slot:
            _, c, job = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(job + 1) * period // counts[c]), c, job))
        _, c, job = heapq.heappop(ready)
        if job == most[c]:
            component, rank = component[:slot].copy(), rank[:slot].copy()
            break
        component[slot], rank[slot] = c, job
        if job + 1 < counts[c]:
            heapq.heappush(waiting, ((job + 1) * period // counts[c], c, job + 1))
    by_component = np.argsort(component, kind="stable").astype(np.int64)
    given = np.bincount(component, minlength=len(counts))
    slots = tuple(np.split(by_component, np.cumsum(given)[:-1]))
    return Schedule(counts, component, rank, slots)
