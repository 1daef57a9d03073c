"""How far ahead of the consumer records are fetched, and how many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from loaderx.reading.operators import SourceRecords
from loaderx.sources.base import Indices, Source

GROUP_BYTES = 1 << 25  # that are fetched in one call, as far as their size is known
GROUP_ROWS = 1 << 10
UNKNOWN_ROWS = 1 << 8  # the same where nothing had to be fetched so far
MOST_ROWS = 1 << 16  # ahead, even if nothing had to be fetched for them
NEVER = 1 << 63


class Taken(NamedTuple):
    """Elements that were walked over: their numbers, and what they read."""

    start: int
    stop: int
    records: list[SourceRecords]


class Track(Protocol):
    """Elements in the order in which they are read: steps, or the units of one lane."""

    rows_each: int  # records of an element, about
    due: int  # set by who walks: the element at which there may be room again

    def moved(self) -> bool:
        """Called by the consumer after each element: may there be room now?"""

    # What follows is called by one thread at a time.

    def read(self) -> int:
        """The first element that was not read yet."""

    def given(self) -> int:
        """The first element that no worker was given yet, where that is known; else any below."""

    def take(self, count: int) -> Taken | None:
        """Walks over the next elements, or fewer of them; None at the end."""


class Group:
    """Elements whose records are fetched together."""

    __slots__ = ("count", "fetched", "has_failed", "left", "nbytes", "stop", "walk")

    def __init__(self, walk: Walk, taken: Taken, jobs: int) -> None:
        self.walk, self.stop, self.left = walk, taken.stop, jobs
        self.count = taken.stop - taken.start
        self.nbytes = self.count * walk.bytes_each if jobs else 0.0  # about, until it is known
        self.fetched, self.has_failed = 0, False

    def finish(self, nbytes: int | None) -> None:
        """One job is done, and brought so many bytes; None: it failed."""
        self.left -= 1
        self.fetched += nbytes or 0
        self.has_failed = self.has_failed or nbytes is None
        if not self.left:
            self.nbytes = self.fetched
            self.walk.learn(self)


class Walk:
    """How far ahead of its reader a track was walked."""

    def __init__(self, track: Track, budget: int, most_rows: int) -> None:
        self.track = track
        self._budget, self._most_rows = budget, most_rows
        self._groups: deque[Group] = deque()  # that were not read yet
        self._count = 1  # elements of the next group
        self._is_alone = True  # is the first group under way, or still to come?
        self._has_ended = False
        self._taken = 0  # elements so far
        self.bytes_each = 0.0  # of an element, on average
        self._most_each = 0.0  # in the group that had the most

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
        # One that is being read, and at least one ahead of it; and what workers read by now.
        if len(groups) < 2 or self._taken <= self.track.given():
            return True
        rows = sum(group.count for group in groups) * self.track.rows_each
        return self.nbytes < self._budget and rows < self._most_rows

    def next_group(self) -> list[Job]:
        """Walks on; the jobs of what comes next, if there is something to be fetched."""
        self._count = min(self._count, self._most_at_once())
        try:
            taken = self.track.take(self._count)
        except Exception:  # who reads meets it, and says so
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
        """Elements of a group: large enough for large requests, and far below the budget."""
        if not self._most_each:
            return max(1, UNKNOWN_ROWS // self.track.rows_each)
        # Neighbours come along, so that most groups find something here, and some find nothing.
        at_once = min(GROUP_BYTES / max(1.0, self.bytes_each), self._budget / 4 / self._most_each)
        return max(1, min(GROUP_ROWS // self.track.rows_each, int(at_once)))

    def learn(self, group: Group) -> None:
        """A group is done."""
        self._is_alone = False
        each = group.fetched / group.count
        known = self.bytes_each if self._most_each else each
        self.bytes_each = known + (each - known) / 4
        self._most_each = max(self._most_each, each)


def joined(records: Sequence[SourceRecords]) -> list[SourceRecords]:
    """The records of each source together."""
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
        """Fetches them: the bytes that came; None if it failed."""
        try:
            return int(self._source.fetch(self._indices))
        except BaseException:  # also SystemExit: who reads meets it, and says so
            return None
