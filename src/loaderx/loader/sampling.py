"""Chooses the batches that are timed stage by stage, and extrapolates to the others.

Timing a batch costs some microseconds, so not all batches are timed.  Calls are divided into
consecutive groups, and one call of each group is timed; it stands for its whole group.  Groups
start with one call and double in length, up to 64.  After a slow batch, for which timing costs
next to nothing, they are short again, so slow batches are all timed.  The length of a group depends
only on earlier groups, never on what is measured in it, so the sum over all groups is right on
average.  A hash chooses the timed call of a group, so a cost that recurs every n batches is neither
always measured nor always missed.

The very first call is timed and counts only for itself: it opens files, fills caches and imports
modules, and is not representative.

Calls are counted, not steps: so a short epoch far from the beginning is timed too, and so is each
worker process, which has its own copy of the sampler.
"""

from __future__ import annotations

from loaderx.engines.base import Timing

MOST = 64  # calls that one timed call may stand for
COST_S = 50e-6  # upper bound for timing a batch and sending the times between processes
SHARE = 0.01  # share of the time that timing may take
_WORD = (1 << 64) - 1


class Sampler:
    """Counts calls, and says which of them to time.

    Threads share one without a lock: a call that is counted twice or not at all does no harm.
    """

    __slots__ = ("_calls", "_due", "_group", "_limit", "_start", "weight")

    def __init__(self) -> None:
        self._calls = 0
        self._due = 0
        self._start = 1  # first call of the group after the one with `_due`
        self._group = 0  # calls in the group with `_due`; 0: the very first call
        self._limit = MOST  # calls in a group, from the time of the last timed batch
        self.weight = 0

    def __reduce__(self) -> tuple[type[Sampler], tuple[()]]:
        """A copy in another process starts from the first call."""
        return Sampler, ()

    def is_due(self) -> bool:
        """Counts a call.  True if it should be timed; it then stands for `weight` calls."""
        call = self._calls
        self._calls = call + 1
        if call < self._due:
            return False
        self._next_group(call)
        return True

    def _next_group(self, call: int) -> None:
        self.weight = self._group
        start = max(self._start, call + 1)
        self._group = calls = max(1, min(2 * self._group, self._limit))
        self._due = start + _hash(start) * calls // (1 << 64)
        self._start = start + calls

    def took(self, seconds: float) -> None:
        """Takes the duration of the timed batch."""
        self._limit = max(1, min(MOST, int(COST_S / SHARE / max(seconds, 1e-9))))

    def untimed(self) -> int:
        """How many of the next calls are not timed."""
        return max(0, self._due - self._calls)

    def skip(self, calls: int) -> None:
        """Counts calls made elsewhere; a negative number corrects an earlier count."""
        self._calls += calls


def _hash(number: int) -> int:
    """64 pseudo-random bits."""
    number = number * 0x9E3779B97F4A7C15 & _WORD
    number = (number ^ number >> 32) * 0xD6E8FEB86659FD93 & _WORD
    return number ^ number >> 32


class Estimate:
    """A total over all batches, estimated from some of them."""

    def __init__(self) -> None:
        self.first = 0  # batches that count only for themselves
        self.timed = 0  # others that were timed
        self.weight = 0  # and how many they stand for
        self._first_s: dict[str, float] = {}
        self._weighted_s: dict[str, float] = {}

    def add(self, timing: Timing) -> None:
        """Adds a batch that was timed."""
        if timing.weight:
            self.timed += 1
            self.weight += timing.weight
        else:
            self.first += 1
        sums = self._weighted_s if timing.weight else self._first_s
        for stage, seconds in timing.stages.items():
            sums[stage] = sums.get(stage, 0.0) + seconds * (timing.weight or 1)

    def seconds(self, batches: int, most_s: float) -> dict[str, float]:
        """The time of each stage over ``batches``; at most ``most_s`` together.

        Without a batch that stands for others, it is the time of the first ones only.
        """
        scale = max(0, batches - self.first) / self.weight if self.weight else 0.0
        found = dict(self._first_s)
        for stage, seconds in self._weighted_s.items():
            found[stage] = found.get(stage, 0.0) + seconds * scale
        total = sum(found.values())
        if total > most_s:
            found = {stage: seconds * most_s / total for stage, seconds in found.items()}
        return found
