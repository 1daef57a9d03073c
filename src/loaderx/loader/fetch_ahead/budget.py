"""How far ahead of the consumer records are fetched, and how many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from loaderx.reading.operators import SourceRecords
from loaderx.sources.base import Indices, Source

GROUP_BYTES = 1 << 25  # to fetch in one call, if sizes are known
GROUP_ROWS = 1 << 10
UNKNOWN_ROWS = 1 << 8  # records in one call while nothing had to be fetched yet
MOST_ROWS = 1 << 16  # records to walk ahead, even if none had to be fetched
NEVER = 1 << 63


class Taken(NamedTuple):
    """Elements that the walk has passed: their numbers, and the records that they read."""

    start: int
    stop: int
    records: list[SourceRecords]


class Track(Protocol):
    """Elements in the order in which they are read: steps, or the units of one lane."""

    rows_each: int  # approximate records of an element
    due: int  # set by the walk: the element at which there may be room again

    def moved(self) -> bool:
        """Called by the consumer after each element; True if there may be room now."""

    # The rest is called by one thread at a time.

    def read(self) -> int:
        """The first element that was not read yet."""

    def given(self) -> int:
        """The first element that no worker was given yet, or a lower bound."""

    def take(self, count: int) -> Taken | None:
        """Walks over the next ``count`` elements, or fewer; None at the end."""


class Group:
    """Elements whose records are fetched together."""

    __slots__ = ("count", "fetched", "has_failed", "left", "nbytes", "stop", "walk")

    def __init__(self, walk: Walk, taken: Taken, jobs: int) -> None:
        self.walk, self.stop, self.left = walk, taken.stop, jobs
        self.count = taken.stop - taken.start
        self.nbytes = self.count * walk.bytes_each if jobs else 0.0  # estimated until it is done
        self.fetched, self.has_failed = 0, False

    def finish(self, nbytes: int | None) -> None:
        """Notes that one job is done and fetched ``nbytes``; None: it failed."""
        self.left -= 1
        self.fetched += nbytes or 0
        self.has_failed = self.has_failed or nbytes is None
        if not self.left:
            self.nbytes = self.fetched
            self.walk.learn(self)


class Walk:
    """How far the walk along a track is ahead of its reader."""

    def __init__(self, track: Track, budget: int, most_rows: int) -> None:
        self.track = track
        self._budget, self._most_rows = budget, most_rows
        self._groups: deque[Group] = deque()  # not read yet
        self._count = 1  # elements of the next group
        self._is_alone = True  # the first group is not done yet
        self._has_ended = False
        self._taken = 0  # elements walked so far
        self.bytes_each = 0.0  # average of an element
        self._most_each = 0.0  # highest average of a group

    @property
    def nbytes(self) -> float:
        """Bytes ahead of the reader."""
        return sum(group.nbytes for group in self._groups)

    def has_room(self) -> bool:
        groups = self._groups
        read = self.track.read()
        while groups and groups[0].stop <= read:
            groups.popleft()
        self.track.due = groups[0].stop if groups else NEVER if self._has_ended else 0
        if self._has_ended or any(group.has_failed for group in groups):
            return False
        if not groups:
            return True
        if self._is_alone:
            return False
        # Always the group being read, one ahead of it, and all that workers were given.
        if len(groups) < 2 or self._taken <= self.track.given():
            return True
        rows = sum(group.count for group in groups) * self.track.rows_each
        return self.nbytes < self._budget and rows < self._most_rows

    def next_group(self) -> list[Job]:
        """Walks on to the next group; returns its jobs, if anything must be fetched."""
        self._count = min(self._count, self._most_at_once())
        try:
            taken = self.track.take(self._count)
        except Exception:  # the reader will hit the same error and report it
            taken = None
        if taken is None:
            self._has_ended = True
            self.track.due = NEVER
            return []
        self._count *= 2
        self._taken = taken.stop
        records = joined(taken.records)
        group = Group(self, taken, len(records))
        self._groups.append(group)
        self._is_alone = self._is_alone and bool(records)
        self.track.due = self._groups[0].stop
        return [Job(group, source, indices) for source, indices in records]

    def _most_at_once(self) -> int:
        """The size of a group: large enough for large requests, and far below the budget."""
        if not self._most_each:
            return max(1, UNKNOWN_ROWS // self.track.rows_each)
        # A fetch also brings neighbours, so groups differ in how much is left to fetch.
        at_once = min(GROUP_BYTES / max(1.0, self.bytes_each), self._budget / 4 / self._most_each)
        return max(1, min(GROUP_ROWS // self.track.rows_each, int(at_once)))

    def learn(self, group: Group) -> None:
        """Updates the averages with a finished group."""
        self._is_alone = False
        each = group.fetched / group.count
        known = self.bytes_each if self._most_each else each
        self.bytes_each = known + (each - known) / 4
        self._most_each = max(self._most_each, each)


def joined(records: Sequence[SourceRecords]) -> list[SourceRecords]:
    """The records grouped by source."""
    found: dict[int, tuple[Source, list[Indices]]] = {}
    for source, indices in records:
        found.setdefault(id(source), (source, []))[1].append(indices)
    return [(source, np.concatenate(parts)) for source, parts in found.values()]


class Job:
    """Records of one source, to be fetched."""

    __slots__ = ("_indices", "_source", "group")

    def __init__(self, group: Group, source: Source, indices: Indices) -> None:
        self.group, self._source, self._indices = group, source, indices

    def run(self) -> int | None:
        """Fetches them; returns the bytes fetched, None if that failed."""
        try:
            return int(self._source.fetch(self._indices))
        except BaseException:  # even SystemExit: the reader will hit the same error and report it
            return None
